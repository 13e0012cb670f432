"""Windows over passages of any length: against a plain walk, offsets on text of every script, the cache."""

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.errors import InputError
from bertwright.tasks.question_answering import windows as squad_cache
from bertwright.tasks.question_answering.data import Question, Questions, read_questions
from bertwright.tasks.question_answering.spec import SQUAD1, SQUAD2
from bertwright.tasks.question_answering.task import span_batch
from bertwright.tasks.question_answering.windows import (
    cached_windows,
    encode_windows,
    windows_cache_folder,
)
from bertwright.text.vocabulary import Rules
from bertwright.text.wordpiece import Tokenizer, import_vocabulary
from tests.support.letters import LettersWithOffsets

CLS, SEP = 1, 2


def questions_of(*questions: tuple[str, str, tuple[str, int] | None]) -> Questions:
    """Questions of (question, context, answer)."""
    items = (
        Question(f"q{row}", text, context, (answer,) if answer else ())
        for row, (text, context, answer) in enumerate(questions)
    )
    return Questions(tuple(items), "1.1", "made up")


def plain_windows(question: str, context: str, answer: tuple[str, int] | None, length: int, stride: int) -> list[Any]:
    """Return for each window: its ids, the target, and the positions of the passage for which it has most context."""
    question_ids = [ord(letter) for letter in question if letter != " "][: min(64, (length - 3) // 2)]
    places = [n for n, letter in enumerate(context) if letter != " "]
    room = length - 3 - len(question_ids)
    spans, begin = [], 0
    while True:
        end = min(begin + room, len(places))
        spans.append((begin, end))
        if end == len(places):
            break
        begin += min(stride, room)
    windows = []
    for begin, end in spans:
        ids = [CLS, *question_ids, SEP, *(ord(context[n]) for n in places[begin:end]), SEP]
        target = (0, 0)
        if answer:
            covered = [p for p, n in enumerate(places) if answer[1] <= n < answer[1] + len(answer[0])]
            if covered[0] >= begin and covered[-1] < end:
                target = (covered[0] - begin + len(question_ids) + 2, covered[-1] - begin + len(question_ids) + 2)
        windows.append((ids, target, []))
    for position in range(len(places)):
        scores = [
            min(position - begin, end - 1 - position) + 0.01 * (end - begin) if begin <= position < end else -1
            for begin, end in spans
        ]
        windows[scores.index(max(scores))][2].append(position)
    return windows


@settings(max_examples=300, deadline=None)
@given(
    length=st.integers(6, 60),
    stride=st.integers(1, 40),
    rows=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 300), st.integers(0, 299), st.integers(1, 20), st.booleans()),
        min_size=1,
        max_size=4,
    ),
)
def test_windows_are_those_of_a_plain_walk(length: int, stride: int, rows: list[Any]) -> None:
    questions = []
    for num_question, size, first, longest, answered in rows:
        context = "".join(" " if n % 7 == 5 else chr(97 + n % 26) for n in range(size))
        first = min(first, size - 1)
        answer = (context[first : first + longest], first)
        questions.append(("q" * num_question, context, answer if answered and answer[0].strip() else None))
    assert_windows_are_plain(questions, length, stride)


@pytest.mark.parametrize("more", [0, 1, 2, 3, 64, 127, 128, 129, 300])
def test_windows_are_those_of_a_plain_walk_at_the_papers_size(more: int) -> None:
    """So long that the hundredth of a window's length outweighs a piece or two of context."""
    questions = [("q" * num_question, "x" * (381 - num_question + more), ("xxx", 300)) for num_question in (1, 12, 64)]
    assert_windows_are_plain(questions, 384, 128)


def assert_windows_are_plain(questions: list[Any], length: int, stride: int) -> None:
    """Every field of the windows against the plain walk's."""
    task = SQUAD1.model_copy(update={"stride": stride})
    windows = encode_windows(LettersWithOffsets(), questions_of(*questions), task, max_length=length, targets=True)
    expected = [
        (row, *window) for row, question in enumerate(questions) for window in plain_windows(*question, length, stride)
    ]
    assert windows.question.tolist() == [row for row, *_ in expected]
    assert windows.lengths.tolist() == [len(ids) for _, ids, _, _ in expected]
    assert max(windows.lengths) <= length
    begins: dict[int, int] = {}
    for window, (row, ids, target, answered) in enumerate(expected):
        assert windows.row(window).tolist() == ids
        assert tuple(windows.target[window]) == target
        begin = begins.setdefault(row, int(windows.span[window, 0]))
        assert [int(position) - begin for position in range(*windows.core[window])] == answered
    every = np.concatenate([np.arange(*answered) for answered in windows.core])
    assert sorted(set(every)) == list(range(len(windows.pieces)))


def test_a_passage_is_kept_once_however_many_questions_it_has() -> None:
    windows = encode_windows(
        LettersWithOffsets(),
        questions_of(("a", "xyz", None), ("b", "xyz", None), ("c", "uv", None)),
        SQUAD1,
        max_length=20,
    )
    assert [chr(id) for id in windows.pieces] == list("xyzuv")
    assert windows.span.tolist() == [[0, 3], [0, 3], [3, 5]]
    assert (
        windows.pieces.dtype == windows.offsets.dtype == windows.question_ids.dtype == windows.target.dtype == np.int32
    )


def test_a_batch_is_padded_to_its_longest_row() -> None:
    windows = encode_windows(
        LettersWithOffsets(),
        questions_of(("ab", "xyz", None), ("c", "u", None), ("d", "v" * 30, None)),
        SQUAD1,
        max_length=40,
    )
    batch = span_batch(windows, np.array([1, 0]), pad_id=9)
    assert batch.ids.tolist() == [[CLS, 99, SEP, 117, SEP, 9, 9, 9], [CLS, 97, 98, SEP, 120, 121, 122, SEP]]
    assert batch.segments.tolist() == [[0, 0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1]]
    assert batch.mask.sum(dim=1).tolist() == [5, 8]


def test_long_questions_are_cut_and_counted() -> None:
    questions = questions_of(("q" * 80, "x" * 10, None), ("r" * 64, "x" * 10, None))
    windows = encode_windows(LettersWithOffsets(), questions, SQUAD1, max_length=384)
    assert np.diff(windows.question_at).tolist() == [64, 64]
    assert windows.cut.sum() == 1
    short = encode_windows(LettersWithOffsets(), questions, SQUAD1, max_length=23)  # half of the room is the passage's
    assert np.diff(short.question_at).tolist() == [10, 10]
    assert short.span.tolist() == [[0, 10], [0, 10]]
    with pytest.raises(InputError, match="--max-length 4: expected at least 5, to have room for question and passage"):
        encode_windows(LettersWithOffsets(), questions, SQUAD1, max_length=4)


def test_a_document_of_a_megabyte_has_its_windows() -> None:
    document = "The ferry leaves at dawn. " * 40_000
    begin = document.rindex("at dawn")
    questions = questions_of(("When does it leave?", document, ("at dawn", begin)))
    windows = encode_windows(LettersWithOffsets(), questions, SQUAD1, max_length=384, targets=True)
    assert len(windows) > 5000
    (holding,) = np.flatnonzero(windows.target[:, 0])
    first, last = windows.target[holding] - windows.first_piece[holding] + windows.span[holding, 0]
    assert document[windows.offsets[first, 0] : windows.offsets[last, 1]] == "at dawn"
    assert int((windows.core[:, 1] - windows.core[:, 0]).sum()) == len(windows.pieces)


# The last mark of an answer must not be lost where accents are stripped, nor a joined sign be cut in two.
SCRIPTS = {
    "composed": ("the café is open", "café"),
    "combining": ("the cafe\u0301 is open", "cafe\u0301"),
    "two marks": ("say o\u0302\u0323, then", "o\u0302\u0323"),
    "ideographs": ("他住在北京市的", "北京"),
    "hangul": ("그는 서울 에 산다", "서울"),
    "hangul in jamo": ("그는 \u1109\u1165\u110b\u116e\u11af 산다", "\u1109\u1165\u110b\u116e\u11af"),
    "emoji": ("so 😀 happy", "😀"),
    "a family": ("we are 👨\u200d👩\u200d👧 here", "👨\u200d👩\u200d👧"),
    "a heart": ("with ❤\ufe0f from", "❤\ufe0f"),
    "a skin": ("give 👍🏽 now", "👍🏽"),
    "a ligature": ("a ﬁne day", "ﬁne"),
    "devanagari": ("वह हिन्दी में है", "हिन्दी"),
    "arabic marks": ("قال مُحَمَّد هنا", "مُحَمَّد"),
    "punctuation": ("in 1990–1994, then", "1990–1994"),
}


SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def spelling(text: str, *, cased: bool) -> Tokenizer:
    """Return a tokenizer with a piece for every letter of a text, decomposed or not."""
    letters = sorted(set(unicodedata.normalize("NFD", text) + text) - {" "})
    pieces = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    return Tokenizer(pieces, Rules(cased=cased, strip_accents=not cased))


def answer_text(words: Tokenizer, context: str, text: str) -> str:
    """Return the text of the passage at the learned answer."""
    questions = questions_of(("Who?", context, (text, context.index(text))))
    windows = encode_windows(words, questions, SQUAD1, max_length=90, targets=True)
    assert np.all(windows.offsets[:, 0] < windows.offsets[:, 1])
    assert np.all(np.diff(windows.offsets, axis=0) >= 0)
    first, last = windows.target[0] - windows.first_piece[0]
    return context[windows.offsets[first, 0] : windows.offsets[last, 1]]


@pytest.mark.parametrize("cased", [True, False])
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_answer_is_the_text_that_it_was(name: str, cased: bool) -> None:
    context, text = SCRIPTS[name]
    assert answer_text(spelling(context, cased=cased), context, text) == text
    ignorant = spelling("the ofig, 1990–4", cased=cased)  # most words are [UNK], which covers a word
    assert answer_text(ignorant, context, text) == text


@pytest.mark.parametrize("cased", [True, False])
def test_an_answer_may_be_a_part_of_a_word(cased: bool) -> None:
    context = "그는 서울에서는 산다"
    assert answer_text(spelling(context, cased=cased), context, "서울") == "서울"
    assert answer_text(spelling("x", cased=cased), context, "서울") == "서울에서는"


def test_an_answer_inside_a_piece_takes_the_piece() -> None:
    words = Tokenizer([*SPECIAL, "in", "1990"], Rules(cased=True, strip_accents=False))
    windows = encode_windows(words, questions_of(("When?", "in 1990", ("99", 4))), SQUAD1, max_length=30, targets=True)
    assert (windows.target - windows.first_piece[:, None]).tolist() == [[1, 1]]


def test_an_answer_of_which_nothing_is_left_cannot_be_learned() -> None:
    words = Tokenizer(SPECIAL, Rules(cased=True, strip_accents=False))
    questions = questions_of(("Who?", "so \u200b\u200b it", ("\u200b", 4)))
    with pytest.raises(InputError, match="made up: question q0: the tokenizer drops the whole answer"):
        encode_windows(words, questions, SQUAD1, max_length=30, targets=True)
    assert len(encode_windows(words, questions, SQUAD1, max_length=30)) == 1


def test_a_passage_of_which_nothing_is_left_is_one_empty_window() -> None:
    words = Tokenizer(SPECIAL, Rules(cased=True, strip_accents=False))
    windows = encode_windows(words, questions_of(("a", "\u200b", None), ("b", "x y", None)), SQUAD1, max_length=30)
    assert windows.span.tolist() == [[0, 0], [0, 2]]
    assert windows.row(0).tolist() == [words.cls_id, words.unk_id, words.sep_id, words.sep_id]


def same_windows(one: Any, other: Any) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in vars(one))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BERTWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "squad"


def test_windows_are_made_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(named)
        return encode_windows(*arguments, **named)

    monkeypatch.setattr(squad_cache, "encode_windows", counted)
    questions = questions_of(("When?", "at dawn", ("dawn", 3)), ("Who?", "nobody", None))
    asks: list[tuple[Any, Any, Any]] = [
        (questions, SQUAD1, {"max_length": 30}),
        (questions, SQUAD1, {"max_length": 31}),
        (questions, SQUAD1, {"max_length": 30, "targets": True}),
        (questions, SQUAD1.model_copy(update={"stride": 7}), {"max_length": 30}),
        (questions_of(("When?", "at dawn", ("at", 0))), SQUAD1, {"max_length": 30, "targets": True}),
        (questions_of(("when?", "at dawn", ("at", 0))), SQUAD1, {"max_length": 30, "targets": True}),
    ]
    first = [cached_windows(LettersWithOffsets(), *ask[:2], **ask[2]) for ask in asks]
    assert len(calls) == len(asks) == len(list(cache.iterdir()))
    again = [cached_windows(LettersWithOffsets(), *ask[:2], **ask[2]) for ask in asks]
    assert len(calls) == len(asks)
    assert all(same_windows(one, other) for one, other in zip(first, again, strict=True))
    assert again[0].begin_id == CLS
    other = LettersWithOffsets()
    other.hash = "another"
    cached_windows(other, *asks[0][:2], **asks[0][2])
    assert len(calls) == len(asks) + 1
    for path in cache.iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert same_windows(cached_windows(LettersWithOffsets(), *asks[2][:2], **asks[2][2]), first[2])
    assert "broken cache file, computed again" in capsys.readouterr().err
    assert same_windows(cached_windows(LettersWithOffsets(), *asks[2][:2], **asks[2][2]), first[2])
    assert capsys.readouterr().err == ""


def test_a_cache_that_cannot_be_written_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("BERTWRIGHT_CACHE", str(tmp_path / "file"))
    questions = questions_of(("When?", "at dawn", None))
    windows = cached_windows(LettersWithOffsets(), questions, SQUAD1, max_length=30)
    assert same_windows(windows, encode_windows(LettersWithOffsets(), questions, SQUAD1, max_length=30))
    assert "cannot cache the windows" in capsys.readouterr().err


def test_the_cache_is_where_a_system_keeps_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BERTWRIGHT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert windows_cache_folder() == tmp_path / "bertwright" / "squad"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert windows_cache_folder() == tmp_path / "home" / ".cache" / "bertwright" / "squad"


def test_answers_of_the_real_files_come_back(shared_data: Path) -> None:
    """Cut by the pieces' characters, nearly every answer is the very text; the rest begin or end inside a piece."""
    folder = shared_data / "squad"
    vocabulary = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    questions = read_questions(folder / "train-v2.0-part.json")
    words = import_vocabulary(vocabulary, cased=False)
    windows = encode_windows(words, questions, SQUAD2, max_length=384, targets=True)
    cut: dict[int, str] = {}
    for window in np.flatnonzero(windows.target[:, 0]):
        row = int(windows.question[window])
        first, last = windows.target[window] - windows.first_piece[window] + windows.span[window, 0]
        cut[row] = questions.items[row].context[windows.offsets[first, 0] : windows.offsets[last, 1]]
    answered = {row: item.answers[0][0] for row, item in enumerate(questions.items) if item.answers}
    assert cut.keys() == answered.keys()
    assert all(answer in cut[row] for row, answer in answered.items())
    differ = [row for row, answer in answered.items() if cut[row] != answer]
    assert len(differ) < 0.01 * len(answered)


def texts_of(words: Tokenizer, method: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that takes up each text that the method of the tokenizer reads from now on."""
    read: list[str] = []
    plain = getattr(words, method)

    def kept(texts: list[str]) -> Any:
        read.extend(texts)
        return plain(texts)

    monkeypatch.setattr(words, method, kept)
    return read


@pytest.mark.slow
def test_each_text_of_a_dev_set_is_tokenised_once(
    shared_data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A passage is read once for all of its questions, and nothing is read where the windows are cached."""
    words = import_vocabulary(shared_data / "vocab" / "bert-base-uncased-vocab.txt", cased=False)
    questions = read_questions(shared_data / "squad" / "dev-v1.1.json")
    read, placed = (texts_of(words, method, monkeypatch) for method in ("ids", "offsets"))
    windows = cached_windows(words, questions, SQUAD1, max_length=384)
    assert len(windows) >= len(questions) == 10_570
    assert read == [item.text for item in questions.items]
    assert sorted(placed) == sorted({item.context for item in questions.items})
    read.clear()
    placed.clear()
    assert same_windows(cached_windows(words, questions, SQUAD1, max_length=384), windows)
    assert read == placed == []
