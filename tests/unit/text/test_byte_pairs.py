"""Byte-level byte pairs: vocab.json and merges.txt beside transformers, and a vocabulary that is learned."""

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import pre_tokenizers

from bertwright.errors import InputError
from bertwright.tasks.classification.encoding import encode
from bertwright.text.byte_pairs import train_byte_pairs
from bertwright.text.open_tokenizer import open_tokenizer_folder
from bertwright.text.published_tokenizer import PublishedTokenizer
from tests.support.gpt2_files import END, write_gpt2_tokenizer
from tests.support.published_tokenizers import TEXTS, write_byte_pairs

transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")

MORE = [*TEXTS, "Ünknown 漢字 \n two  spaces", "", " 🙂 it's"]


def _as_two_files(folder: Path) -> None:
    """Replace tokenizer.json by vocab.json and merges.txt."""
    path = folder / "tokenizer.json"
    rust = tokenizers.Tokenizer.from_file(str(path))
    described = json.loads(path.read_text("utf-8"))
    (folder / "vocab.json").write_text(json.dumps(rust.get_vocab(with_added_tokens=True)), "utf-8")
    merges = "".join(f"{left} {right}\n" for left, right in described["model"]["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", "utf-8")
    path.unlink()


@pytest.mark.parametrize("kind", ["gpt2", "roberta"])
@pytest.mark.parametrize("says", ["tokenizer_config.json", "config.json"])
def test_two_files_are_read_as_transformers_reads_them(tmp_path: Path, kind: str, says: str) -> None:
    write_gpt2_tokenizer(tmp_path) if kind == "gpt2" else write_byte_pairs(tmp_path)
    _as_two_files(tmp_path)
    if says == "config.json":
        (tmp_path / "tokenizer_config.json").unlink()
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}), "utf-8")
    ours = open_tokenizer_folder(tmp_path)
    assert isinstance(ours, PublishedTokenizer)
    name = "GPT2Tokenizer" if kind == "gpt2" else "RobertaTokenizer"
    theirs: Any = getattr(transformers, name).from_pretrained(tmp_path)
    assert ours.ids(MORE) == theirs(MORE, add_special_tokens=False)["input_ids"]
    assert ours.pieces[ours.pad_id] == (END if kind == "gpt2" else "<pad>")
    if kind == "roberta":
        rows = encode(ours, MORE, MORE[::-1], max_length=512)
        assert [row.tolist() for row in rows.ids] == theirs(MORE, MORE[::-1])["input_ids"]
    ours.save(tmp_path / "again")
    assert open_tokenizer_folder(tmp_path / "again").ids(MORE) == ours.ids(MORE)


def test_two_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    write_gpt2_tokenizer(tmp_path)
    _as_two_files(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<new>": 400}))
    with pytest.raises(InputError, match=r"added_tokens\.json: expected no tokens beside those of vocab\.json"):
        open_tokenizer_folder(tmp_path)
    (tmp_path / "added_tokens.json").unlink()
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "add_bos_token": True}))
    with pytest.raises(InputError, match="add_bos_token is true; only false can be read"):
        open_tokenizer_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "<end>"}))
    with pytest.raises(InputError, match="expected the special tokens <end>, which are not in it"):
        open_tokenizer_folder(tmp_path)
    for token in ({"lstrip": True}, ["<end>"]):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": token}))
        with pytest.raises(
            InputError, match=r"tokenizer_config\.json: expected a text as eos_token, or an object with"
        ):
            open_tokenizer_folder(tmp_path)


def test_rows_of_tasks_are_framed_by_the_end_of_a_text(tmp_path: Path) -> None:
    size = write_gpt2_tokenizer(tmp_path)
    bare = open_tokenizer_folder(tmp_path)
    assert isinstance(bare, PublishedTokenizer)
    assert not bare.has_frame
    framed = bare.with_frame()
    assert framed.has_frame
    assert framed.with_frame() is framed
    assert framed.ids(MORE) == bare.ids(MORE)
    assert (framed.vocab_size, framed.pad_id, framed.pieces[:size]) == (size + 1, size, bare.pieces)
    framed.save(tmp_path / "framed")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "framed")
    pairs = encode(framed, MORE, MORE[::-1], max_length=512)
    assert [row.tolist() for row in pairs.ids] == theirs(MORE, MORE[::-1])["input_ids"]
    assert theirs.pad_token_id == size
    text = bare.ids(["a b"])[0]
    assert encode(framed, ["a b"], max_length=9).ids[0].tolist() == [size - 1, *text, size - 1]


def test_pairs_are_joined_by_frequency() -> None:
    """Each joined pair is the most frequent one of the words so far, as in a plain loop."""
    learned = train_byte_pairs(TEXTS * 3, vocab_size=300)
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = Counter(tuple(word) for text in TEXTS * 3 for word, _ in splitter.pre_tokenize_str(text))
    for merge in learned.described["model"]["merges"]:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        assert pairs[tuple(merge)] == max(pairs.values()), merge
        words = Counter({_joined(word, tuple(merge)): count for word, count in words.items()})
    assert learned.pieces[:5] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert learned.vocab_size == 300
    assert (learned.pad_id, learned.end_of_text_id, learned.mask_id) == (1, 2, 4)
    assert learned.decode(learned.ids(MORE)[3]) == MORE[3]
    with pytest.raises(InputError, match=r"a vocabulary of 260 pieces is too small: .* need at least 261"):
        train_byte_pairs(TEXTS, vocab_size=260)
    with pytest.raises(InputError, match="the text holds no word"):
        train_byte_pairs([""], vocab_size=300)


def _joined(word: tuple[str, ...], pair: tuple[str, ...]) -> tuple[str, ...]:
    parts, index = [], 0
    while index < len(word):
        step = 2 if word[index : index + 2] == pair else 1
        parts.append("".join(word[index : index + step]))
        index += step
    return tuple(parts)


def test_the_number_of_threads_changes_no_byte(own_text: Path) -> None:
    program = (
        "import sys; from bertwright.text.byte_pairs import train_byte_pairs; "
        "print(train_byte_pairs(open(sys.argv[1]).read().splitlines(), vocab_size=400).hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program, str(own_text)],
            env={**os.environ, "RAYON_NUM_THREADS": threads},
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    assert len(hashes) == 1


def added(content: str, id: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
    return {"id": id, "content": content, "normalized": False, **flags}


def test_pieces_are_read_as_text_and_parts_of_characters_as_bytes() -> None:
    texts = ["안녕 세상\n\tthe café ▁ <mask>"] * 3
    tokenizer = train_byte_pairs(texts, vocab_size=330)
    (ids,) = tokenizer.ids(texts[:1])
    assert "".join(tokenizer.readable_pieces[id] for id in ids) == r"안녕▁세상\n\tthe▁café▁▁▁<mask>"
    readable = dict(zip(tokenizer.pieces, tokenizer.readable_pieces, strict=True))
    assert readable["Ċ"] == r"\n"
    assert readable["ë"] == r"\xeb"  # the first of three bytes
    assert readable["<mask>"] == "<mask>"
    tokens = [*tokenizer.described["added_tokens"], added("M\u00fcller", tokenizer.vocab_size)]
    more = PublishedTokenizer({**tokenizer.described, "added_tokens": tokens}, tokenizer.settings)
    assert more.readable_pieces == [*tokenizer.readable_pieces, "M\u00fcller"]
    assert len(readable) == tokenizer.vocab_size
