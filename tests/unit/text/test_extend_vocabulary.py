"""Extending a vocabulary: which pieces are added, what stays as it was, and how a model's rows follow."""

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertwright.errors import InputError
from bertwright.pretraining.init_from import extend_rows
from bertwright.text import extend_vocabulary as extension
from bertwright.text.extend_vocabulary import Extension, extend_tokenizer, new_pieces, split_piece
from bertwright.text.vocabulary import SPECIAL, Base, Rules
from bertwright.text.wordpiece import Tokenizer, train_wordpiece
from tests.support.texts import pieces_of

LETTERS = "abcdefgh골목길"
RULES = Rules(cased=False, strip_accents=False)
OLD = Tokenizer([*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), "ab", "##cd"], RULES)
TEXT = ["abcd efg efg efg efgh", "efgh 골목길 골목길 골목길에 abcd abcd gh"]
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")


def extended(add: int, text: list[str] = TEXT) -> Extension:
    return extend_tokenizer(OLD, text, add=add)


IDS = {piece: id for id, piece in enumerate(OLD.pieces)}


def size_of(text: list[str], pieces: list[str]) -> int:
    """Pieces of the text under a vocabulary: an independent longest-match-first in plain Python; [UNK] is one."""
    known, total = set(pieces), 0
    for word in itertools.chain.from_iterable(line.lower().split() for line in text):
        begin = count = 0
        while begin < len(word):
            ends = [end for end in range(begin + 1, len(word) + 1) if ("##" * (begin > 0) + word[begin:end]) in known]
            if not ends:
                count = 1
                break
            begin, count = ends[-1], count + 1
        total += count
    return total


def test_the_pieces_that_shorten_most_come_first_and_old_ids_stay() -> None:
    # efg begins 5 words and saves 2 in each, 골목길 saves 2 in each of two (골목길에 holds a letter that is not known),
    # abcd saves 1 in each of three.
    extended_tokenizer = extended(2).tokenizer
    assert extended_tokenizer.pieces[: OLD.vocab_size] == OLD.pieces
    assert extended_tokenizer.pieces[OLD.vocab_size :] == ["efg", "골목길"]
    assert pieces_of(extended_tokenizer, "efgh 골목길 abcd") == ["efg", "##h", "골목길", "ab", "##cd"]
    assert extended(3).tokenizer.pieces[OLD.vocab_size + 2 :] == ["abcd"]


def test_no_choice_of_as_many_pieces_shortens_the_text_more() -> None:
    words = sorted({word for line in TEXT for word in line.split()})
    spans = {word[a:b] for word in words for a in range(len(word)) for b in range(a + 2, len(word) + 1)}
    every = sorted((spans | {f"##{span}" for span in spans}) - set(OLD.pieces))
    best = min(size_of(TEXT, [*OLD.pieces, *pair]) for pair in itertools.combinations(every, 2))
    assert size_of(TEXT, extended(2).tokenizer.pieces) == best


def test_figures_are_pieces_per_word() -> None:
    extended_tokenizer = extended(3)
    assert extended_tokenizer.pieces_before == pytest.approx(size_of(TEXT, OLD.pieces) / 12)
    assert extended_tokenizer.pieces_after == pytest.approx(size_of(TEXT, extended_tokenizer.tokenizer.pieces) / 12)


def test_on_real_prose_it_does_better_than_whole_words_by_count(own_text: Path) -> None:
    lines = own_text.read_text("utf-8").splitlines()
    old = train_wordpiece(lines[: len(lines) // 2], vocab_size=450)
    extended = extend_tokenizer(old, lines, add=60)
    words = Counter(word for line in lines for word in line.lower().split() if word.isalpha())
    split = [word for word, _ in sorted(words.items(), key=lambda item: (-item[1], item[0]))]
    plain = [word for word in split if len(old.ids([word])[0]) > 1][:60]
    rival = Tokenizer([*old.pieces, *plain], old.rules)
    count = lambda tokenizer: sum(map(len, tokenizer.ids(lines)))  # noqa: E731
    assert count(extended.tokenizer) < count(rival) < count(old)
    assert extended.tokenizer.vocab_size == old.vocab_size + 60


@given(st.text(alphabet=LETTERS + "x .", max_size=40))
def test_a_text_without_new_pieces_keeps_its_ids_and_none_becomes_unknown(text: str) -> None:
    ids = FOUND.ids([text])[0]
    if all(id < OLD.vocab_size for id in ids):
        assert ids == OLD.ids([text])[0]
    assert ids.count(FOUND.unk_id) == OLD.ids([text])[0].count(OLD.unk_id)
    assert FOUND.decode(ids) == OLD.decode(OLD.ids([text])[0])


FOUND = extended(4).tokenizer


def test_a_piece_is_split_as_the_tokenizer_splits_a_word() -> None:
    for piece in ("abcd", "efgh", "골목길", "a", "abab"):
        assert split_piece(IDS, piece) == OLD.ids([piece])[0]
    # a piece inside a word is split as what follows a first letter is
    assert split_piece(IDS, "##cdef") == OLD.ids(["acdef"])[0][1:]
    assert split_piece(IDS, "##ab") == [OLD.id_of("##a"), OLD.id_of("##b")]
    assert split_piece(IDS, "axb") == []


def test_rows_of_new_pieces_are_means_of_old_ones() -> None:
    extended_tokenizer = extended(3).tokenizer
    added = new_pieces(extended_tokenizer, base_hash=OLD.hash)
    assert added == [OLD.ids([piece])[0] for piece in ("efg", "골목길", "abcd")]
    rows = torch.randn(OLD.vocab_size + 2, 4, generator=torch.Generator().manual_seed(1))  # two rows more than pieces
    grown = extend_rows(rows, OLD.vocab_size, added)
    assert grown.shape == (extended_tokenizer.vocab_size, 4)
    assert torch.equal(grown[: OLD.vocab_size], rows[: OLD.vocab_size])
    e, f, g = (OLD.id_of(piece) for piece in ("e", "##f", "##g"))
    for column in range(4):
        by_hand = (float(rows[e, column]) + float(rows[f, column]) + float(rows[g, column])) / 3
        assert float(grown[OLD.vocab_size, column]) == pytest.approx(by_hand, abs=1e-6)
    ab, cd = OLD.id_of("ab"), OLD.id_of("##cd")
    torch.testing.assert_close(grown[OLD.vocab_size + 2], (rows[ab] + rows[cd]) / 2)
    bias = extend_rows(rows[:, 0], OLD.vocab_size, added)
    torch.testing.assert_close(bias, grown[:, 0])


def test_the_base_is_remembered_and_checked(tmp_path: Path) -> None:
    extended_tokenizer = extended(2).tokenizer
    assert extended_tokenizer.base == Base(hash=OLD.hash, size=OLD.vocab_size)
    extended_tokenizer.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.hash, loaded.base) == (extended_tokenizer.hash, extended_tokenizer.base)
    assert new_pieces(loaded, base_hash=OLD.hash) == new_pieces(extended_tokenizer, base_hash=OLD.hash)
    assert new_pieces(loaded, base_hash=FOUND.hash) is None
    assert new_pieces(OLD, base_hash=OLD.hash) is None
    again = extend_tokenizer(extended_tokenizer, TEXT, add=1).tokenizer
    assert again.base == Base(hash=extended_tokenizer.hash, size=extended_tokenizer.vocab_size)
    config = tmp_path / "tokenizer_config.json"
    for said in ({}, {"extended_from": {"hash": OLD.hash}}, {"extended_from": {"hash": OLD.hash, "size": 0}}):
        config.write_text(json.dumps({**json.loads(config.read_text()), "bertwright": said}))
        with pytest.raises(InputError, match=r"expected hash and size in bertwright\.extended_from"):
            Tokenizer.load(tmp_path)
    swapped = [*extended_tokenizer.pieces]
    swapped[6], swapped[7] = swapped[7], swapped[6]
    with pytest.raises(InputError, match="its first pieces or its rules differ from"):
        new_pieces(Tokenizer(swapped, RULES, base=extended_tokenizer.base), base_hash=OLD.hash)


def test_transformers_reads_an_extended_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    FOUND.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    for line, ids in zip(TEXT, FOUND.ids(TEXT), strict=True):
        assert theirs(line)["input_ids"] == [FOUND.cls_id, *ids, FOUND.sep_id]


EXTEND = """
import sys
from pathlib import Path
from bertwright.text.extend_vocabulary import extend_tokenizer
from bertwright.text.wordpiece import train_wordpiece
text = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
extend_tokenizer(train_wordpiece(text[:9], vocab_size=400), text, add=50).tokenizer.save(Path(sys.argv[2]))
"""


def test_the_same_text_gives_the_same_bytes_on_any_number_of_threads(tmp_path: Path, own_text: Path) -> None:
    made = set()
    for threads, seed in (("1", "0"), ("2", "1"), ("5", "2")):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        out = tmp_path / threads
        command = [sys.executable, "-c", EXTEND, str(own_text), str(out)]
        subprocess.run(command, env=environment, check=True, timeout=120)
        made.add(b"".join((out / name).read_bytes() for name in FILES))
    assert len(made) == 1


def test_more_pieces_than_can_be_told_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "_MOST_SYMBOLS", 1)
    with pytest.raises(InputError, match=r"split into \d+ different pieces of the vocabulary; expected at most 1"):
        extend_tokenizer(OLD, TEXT, add=1)


@pytest.mark.parametrize(
    ("old", "text", "add", "words"),
    [
        (OLD, TEXT, 0, "0 pieces to add: expected 1 or more"),
        (OLD, TEXT, 500, "500 pieces to add: only 4 pieces of the text would shorten it"),
        (OLD, ["ab a cd"], 1, "1 pieces to add: only 0 pieces of the text would shorten it"),
        (OLD, ["", "x"], 1, "only 0 pieces of the text would shorten it"),
        (OLD, [""], 1, "the text holds no word"),
        (Tokenizer([*SPECIAL, "a", "ab"], RULES), TEXT, 1, "the piece 'ab' holds 'b', but the vocabulary has no '##b'"),
    ],
)
def test_what_cannot_be_extended_is_refused(old: Tokenizer, text: list[str], add: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        extend_tokenizer(old, text, add=add)
