"""Long texts → passages: nothing is lost, each has room in the model, and all are about equally long."""

from itertools import permutations
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.errors import InputError
from bertwright.model.folder import open_model
from bertwright.model.vector_settings import VectorSettings
from bertwright.search.index_files import IndexRow
from bertwright.search.new_rows import IndexedText
from bertwright.search.passages import PASSAGE_TOKENS, PassageCutter, in_passages
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.sentence_vectors import SentenceEncoder
from bertwright.tasks.static_vectors import StaticVectors
from bertwright.text.open_tokenizer import open_tokenizer_folder
from bertwright.text.wordpiece import Tokenizer
from tests.support.published_tokenizers import write_byte_pairs
from tests.support.vectors import write_vector_model

SENTENCES = ("A ship sails on the sea.", "Rain falls on the roof of the house.", "The teacher reads a book.")


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> SentenceEncoder:
    """An encoder that reads 32 tokens, with a prompt for documents."""
    folder = tmp_path_factory.mktemp("vectors") / "model"
    write_vector_model(folder, own_tokenizer, VectorSettings(prompts={"document": "a book: "}, max_length=32))
    saved = open_model(str(folder))
    return SentenceEncoder(saved, open_tokenizer(saved))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> StaticVectors:
    """A static table of byte pairs, in which an end of line is a piece, and a word after a blank is another piece."""
    folder = tmp_path_factory.mktemp("byte-pairs")
    write_byte_pairs(folder)
    tokenizer = open_tokenizer_folder(folder)
    return StaticVectors(torch.ones(tokenizer.vocab_size, 2), tokenizer)


def text_of(prompted: SentenceEncoder, most: int | None, text: str) -> list[str]:
    """Return the passages of a text, of which the encoder cuts none."""
    passages = PassageCutter(prompted, most).passages(text)
    rows, cut = prompted.rows(passages, "document")
    assert not any(cut)
    assert max(map(len, rows)) <= (most or 32)
    return passages


def test_a_passage_ends_with_a_sentence(prompted: SentenceEncoder) -> None:
    text = f"{' '.join(SENTENCES)}\n\n{SENTENCES[1]}\r\n{SENTENCES[0]}\n"
    passages = text_of(prompted, None, text)
    assert len(passages) > 1
    assert all(passage.endswith(".") for passage in passages)
    assert "\n".join(passages).split() == text.split()
    assert text_of(prompted, None, SENTENCES[0]) == [SENTENCES[0]]
    assert text_of(prompted, None, "A  ship.\n \nRain.\n") == ["A ship.\nRain."]


def test_lines_of_one_width_are_one_paragraph(prompted: SentenceEncoder) -> None:
    wrapped = "  A ship sails\non the sea. Rain\nfalls.\n# The title\n- an item\n\nsmall words"
    assert text_of(prompted, 32, wrapped) == [
        "A ship sails on the sea. Rain falls.",
        "# The title\n- an item\nsmall words",
    ]


def test_passages_are_about_equally_long(prompted: SentenceEncoder) -> None:
    tokens = len(prompted.tokenizer.ids([SENTENCES[2]])[0])
    room = len(prompted.rows(["" for _ in range(1)], "document")[0][0])
    fitting = (32 - room) // tokens
    passages = text_of(prompted, None, " ".join([SENTENCES[2]] * (fitting + 1)))
    lengths = [passage.count("teacher") for passage in passages]
    assert len(lengths) == 2
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("count", [40, 130, 1000])
def test_a_text_without_ends_of_sentences_has_equal_passages_too(prompted: SentenceEncoder, count: int) -> None:
    passages = text_of(prompted, None, " ".join(f"rain falls {number % 10}" for number in range(count)))
    lengths = [len(row) for row in prompted.rows(passages, "document")[0]]
    empty = len(prompted.rows([""], "document")[0][0])
    words = sum(length - empty for length in lengths)
    assert len(passages) <= 1.05 * words / (32 - empty) + 1
    assert min(lengths) >= 0.7 * max(lengths)


def test_long_words_are_no_giant_passages(prompted: SentenceEncoder) -> None:
    passages = text_of(prompted, None, f"A ship. {'x' * 50_000} Rain falls.")
    assert max(map(len, passages)) <= 16 * 32
    assert "".join(passages).count("x") == 50_000


def test_a_sentence_without_an_end_is_cut_between_words(prompted: SentenceEncoder) -> None:
    words = [f"rain{number}" for number in range(80)]
    passages = text_of(prompted, 16, " ".join(words))
    assert len(passages) > 5
    assert [word for passage in passages for word in passage.split()] == words
    letters = "한" * 300
    assert "".join(text_of(prompted, 16, letters)) == letters


@given(
    st.lists(st.sampled_from([*SENTENCES, "\n", "\n\n", "rain", "한국어입니다.", "x" * 90, "e\u0301.", "'a'"])),
    st.integers(16, 32),
)
@settings(max_examples=60)
def test_nothing_is_lost(prompted: SentenceEncoder, parts: list[str], most: int) -> None:
    text = " ".join([*parts, "end"])
    assert "".join(" ".join(text_of(prompted, most, text)).split()) == "".join(text.split())


@given(
    st.lists(st.sampled_from([*SENTENCES, "\n", "\n- ", "rain", "Die Brücke.", "x" * 90, "e\u0301.", "'a'"])),
    st.integers(16, 64),
)
@settings(max_examples=60)
def test_nothing_is_lost_with_pieces_of_bytes(byte_level: StaticVectors, parts: list[str], most: int) -> None:
    text = " ".join([*parts, "end"])
    passages = PassageCutter(byte_level, most).passages(text)
    assert not any(byte_level.rows(passages, max_length=most)[1])
    assert "".join(" ".join(passages).split()) == "".join(text.split())


def test_passages_of_bytes_end_with_a_sentence(byte_level: StaticVectors) -> None:
    text = " ".join(f"The {' '.join(words)}." for words in permutations(["old", "bridge", "ships", "harbour", "waits"]))
    for most in range(40, 72):
        assert all(passage.endswith(".") for passage in PassageCutter(byte_level, most).passages(text))


def test_many_short_lines_fill_passages_of_bytes(byte_level: StaticVectors) -> None:
    passages = PassageCutter(byte_level, 64).passages("The old bridge\n" * 300)
    lengths = [len(row) for row in byte_level.rows(passages)[0]]
    assert min(lengths) > 48
    assert all(line == "The old bridge" for passage in passages for line in passage.splitlines())


def test_a_static_table_has_passages_of_the_default_length(own_tokenizer: Path) -> None:
    tokenizer = Tokenizer.load(own_tokenizer)
    table = StaticVectors(torch.ones(tokenizer.vocab_size, 2), tokenizer)
    passages = PassageCutter(table).passages(" ".join(SENTENCES * 60))
    counts = [len(ids) for ids in tokenizer.ids(passages)]
    assert len(counts) <= 1.1 * sum(counts) / PASSAGE_TOKENS
    assert PASSAGE_TOKENS / 2 <= min(counts) <= max(counts) <= PASSAGE_TOKENS


@pytest.mark.parametrize(("most", "words"), [(33, "--passages 33: expected at most 32"), (15, "expected at least 16")])
def test_lengths_that_a_model_cannot_have_are_refused(prompted: SentenceEncoder, most: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        PassageCutter(prompted, most)


@pytest.mark.parametrize(("count", "words"), [(8, "expected 8 or more for their text, but"), (40, "leaves no room")])
def test_a_prompt_that_leaves_no_room_is_refused(tmp_path: Path, own_tokenizer: Path, count: int, words: str) -> None:
    prompts = {"document": "a " * count}
    write_vector_model(tmp_path / "model", own_tokenizer, VectorSettings(prompts=prompts))
    saved = open_model(str(tmp_path / "model"))
    encoder = SentenceEncoder(saved, open_tokenizer(saved))
    with pytest.raises(InputError, match=words):
        PassageCutter(encoder, 16)


def test_rows_that_are_no_passages_stay_whole(prompted: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertwright.search.passages._BLOCK", 2)
    text = " ".join(SENTENCES)
    rows = [
        IndexedText(IndexRow("a", text, {"year": 1}), "t:1", 1),
        IndexedText(IndexRow("", text, {}, passage=1), "t:2", 2, is_numbered=True),
    ]
    cut = list(in_passages([rows[:1], rows[1:]], PassageCutter(prompted, 16)))
    assert [len(block) for block in cut][:-1] == [2] * (len(cut) - 1)
    flat = [row for block in cut for row in block]
    assert flat[0] == rows[0]
    assert [(row.number, row.row.passage) for row in flat[1:]] == [(2, number) for number in range(1, len(flat))]
    assert len(flat) > 3
