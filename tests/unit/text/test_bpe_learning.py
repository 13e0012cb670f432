"""Learning byte pairs: a plain loop's merges, the same bytes on every run, the tokens of fine-tuning, refusals."""

import hashlib
import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.errors import InputError
from bertwright.text.bpe import BPETokenizer, train_bpe
from bertwright.text.open_tokenizer import mask_tokenizer, open_tokenizer_folder
from bertwright.text.wordpiece import Tokenizer, train_wordpiece
from tests.support import bpe_oracle
from tests.support.texts import OWN_TEXT, own_lines

FILES = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json")
SPECIAL = ["_start_", "_delimiter_", "_classify_"]


@cache
def learned_bpe() -> BPETokenizer:
    return train_bpe(own_lines(), merges=300)


def pairs_of(words: dict[str, int], merges: int, least: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Pieces and merges: the most frequent neighbours are joined, on ties those whose pieces came first."""
    letters = sorted({letter for word in words for letter in word})
    ids = {piece: id for id, piece in enumerate(["<unk>", *letters, *(f"{letter}</w>" for letter in letters)])}
    cut = {word: bpe_oracle.letters(word) for word in words}
    joined: list[tuple[str, str]] = []
    while len(joined) < merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in cut.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        best = max(pairs, key=lambda pair: (pairs[pair], -ids[pair[0]], -ids[pair[1]]), default=None)
        if best is None or pairs[best] < least:
            break
        ids["".join(best)] = len(ids)
        joined.append(best)
        cut = {word: bpe_oracle.join(parts, best) for word, parts in cut.items()}
    return [*ids, *SPECIAL], joined


@settings(max_examples=80, deadline=None)
@given(texts=st.lists(st.text("abAB ,", max_size=30), max_size=6), merges=st.integers(1, 14), least=st.integers(1, 3))
def test_the_merges_of_any_text(texts: list[str], merges: int, least: int) -> None:
    texts = [*texts, "a"]
    words = Counter(word for text in texts for word in re.findall(r"[ab]+|,", text.lower()))
    tokenizer = train_bpe(texts, merges=merges, min_count=least, coverage=1.0)
    assert (tokenizer.pieces, tokenizer.merges) == pairs_of(words, merges, least)


def test_the_merges_of_the_fixture() -> None:
    plain = [line for line in own_lines() if line.isascii()]
    words = Counter(word for line in plain for word in re.findall(r"[a-z0-9]+|[^a-z0-9\s]", line.lower()))
    tokenizer = train_bpe(plain, merges=200, coverage=1.0)
    assert (tokenizer.pieces, tokenizer.merges) == pairs_of(words, 200, 2)
    assert len(tokenizer.merges) == 200


LEARN = """
import sys
from pathlib import Path
from bertwright.text.bpe import train_bpe
text = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
train_bpe(text, merges=300).save(Path(sys.argv[2]))
"""


def test_learning_gives_the_same_bytes_on_any_number_of_threads(tmp_path: Path) -> None:
    hashes = set()
    for threads, seed in (("1", "0"), ("2", "1"), ("2", "2"), ("5", "3")):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        out = tmp_path / f"{threads}-{seed}"
        subprocess.run([sys.executable, "-c", LEARN, str(OWN_TEXT), str(out)], env=environment, check=True)
        hashes.add(hashlib.sha256(b"".join((out / name).read_bytes() for name in FILES)).hexdigest())
    assert len(hashes) == 1
    assert open_tokenizer_folder(out).hash == learned_bpe().hash == train_bpe(reversed(own_lines()), merges=300).hash


def test_every_letter_has_both_forms_and_others_are_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = train_bpe(["aaaa bbb dc"], merges=50, coverage=0.85)
    assert tokenizer.pieces[:7] == ["<unk>", "a", "b", "c", "a</w>", "b</w>", "c</w>"]
    assert tokenizer.pieces[-3:] == SPECIAL
    assert "1 rare characters (11.111 % of the text) are left out" in capsys.readouterr().err
    assert [tokenizer.pieces[id] for id in tokenizer.ids(["cb dc"])[0]] == ["c", "b</w>", "<unk>", "c</w>"]


def test_too_little_text_is_reported_and_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = train_bpe(["so so"], merges=9)
    assert (tokenizer.merges, tokenizer.vocab_size) == ([("s", "o</w>")], 9)
    assert "the text is too short: it gives 1 merges, fewer than the 9 requested" in capsys.readouterr().err
    with pytest.raises(InputError, match="the text holds no word"):
        train_bpe(["", " \n"], merges=9)
    with pytest.raises(InputError, match="0 merges: expected 1 or more"):
        train_bpe(["so so"], merges=0)


def test_the_three_tokens_frame_rows_and_are_no_text() -> None:
    tokenizer = learned_bpe()
    assert [tokenizer.pieces[id] for id in (tokenizer.begin_id, *tokenizer.between_ids, tokenizer.end_id)] == SPECIAL
    assert tokenizer.special_ids == (0, tokenizer.begin_id, *tokenizer.between_ids, tokenizer.end_id)
    assert tokenizer.pad_id == tokenizer.unk_id == 0
    ids = tokenizer.ids(["a _start_ _classify_"])[0]
    assert not {tokenizer.begin_id, tokenizer.end_id} & set(ids)
    row = [
        tokenizer.begin_id,
        *tokenizer.ids(["The harbour"])[0],
        *tokenizer.between_ids,
        *tokenizer.ids(["lamp"])[0],
        tokenizer.end_id,
    ]
    assert tokenizer.decode(row) == "_start_ the harbour _delimiter_ lamp _classify_"


def test_a_published_vocabulary_gets_them_at_its_end() -> None:
    pieces, merges = learned_bpe().pieces[:-3], learned_bpe().merges
    bare = BPETokenizer(pieces, merges)
    assert bare.special_ids == (0,)
    for name in ("begin_id", "between_ids", "end_id"):
        with pytest.raises(InputError, match=r"has no _start_, _delimiter_, _classify_, .*with_special\(\)"):
            getattr(bare, name)
    tokenizer = bare.with_special()
    assert tokenizer.pieces == learned_bpe().pieces
    assert tokenizer.hash == learned_bpe().hash != bare.hash
    assert tokenizer.with_special() is tokenizer
    assert BPETokenizer([*pieces, "_start_"], merges).with_special().hash == tokenizer.hash


def test_saved_and_loaded_are_the_same(tmp_path: Path) -> None:
    for tokenizer in (learned_bpe(), BPETokenizer(learned_bpe().pieces[:-3], learned_bpe().merges)):
        tokenizer.save(tmp_path / "run" / "model")
        loaded = open_tokenizer_folder(tmp_path / "run")
        assert isinstance(loaded, BPETokenizer)
        assert (loaded.hash, loaded.special_ids) == (tokenizer.hash, tokenizer.special_ids)
        assert pickle.loads(pickle.dumps(loaded)).offsets(own_lines()) == tokenizer.offsets(own_lines())
        before = {name: (tmp_path / "run" / "model" / name).read_bytes() for name in FILES}
        loaded.save(tmp_path / "again")
        assert {name: (tmp_path / "again" / name).read_bytes() for name in FILES} == before


def test_transformers_reads_what_was_learned(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")
    tokenizer = learned_bpe()
    tokenizer.save(tmp_path / "tok")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "tok")
    assert type(theirs).__name__.startswith("OpenAIGPTTokenizer")
    assert theirs(own_lines())["input_ids"] == tokenizer.ids(own_lines())
    assert (theirs.bos_token_id, theirs.sep_token_id, theirs.cls_token_id) == tokenizer.special_ids[1:]
    assert len(theirs) == tokenizer.vocab_size
    theirs.save_pretrained(tmp_path / "theirs")
    assert open_tokenizer_folder(tmp_path / "theirs").hash == tokenizer.hash
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "tok" / name).unlink()
    assert transformers.OpenAIGPTTokenizer.from_pretrained(tmp_path / "tok")(own_lines())["input_ids"] == tokenizer.ids(
        own_lines()
    )
    assert open_tokenizer_folder(tmp_path / "tok").hash == tokenizer.hash


def test_a_folder_gives_the_kind_that_it_holds(tmp_path: Path) -> None:
    bert = train_wordpiece(own_lines(), vocab_size=500)
    bert.save(tmp_path / "bert")
    opened = open_tokenizer_folder(tmp_path / "bert")
    assert isinstance(opened, Tokenizer)
    assert (opened.begin_id, opened.between_ids, opened.end_id) == (bert.cls_id, (bert.sep_id,), bert.sep_id)
    assert mask_tokenizer(opened, place="here", advice="no").hash == bert.hash
    with pytest.raises(
        InputError, match=r"here: expected a tokenizer with \[MASK\], got byte pairs as GPT-1's, without it; so"
    ):
        mask_tokenizer(learned_bpe(), place="here", advice="so")
    with pytest.raises(InputError, match=r"tokenizer\.json: there is no such file; name a tokenizer or model folder"):
        open_tokenizer_folder(tmp_path)
    learned_bpe().save(tmp_path / "gpt")
    (tmp_path / "gpt" / "tokenizer.json").write_text("[]")
    with pytest.raises(InputError, match="expected the description of a tokenizer, a JSON object, got a JSON list"):
        open_tokenizer_folder(tmp_path / "gpt")


def test_words_lie_where_berts_do() -> None:
    bert = train_wordpiece(own_lines(), vocab_size=500, strip_accents=True)
    texts = ["The harbour-master's LAMP, lit at 6:45!", "Cre\u0301me bru\u0302le\u0301e", *own_lines()]
    assert learned_bpe().words(texts) == bert.words(texts)
