"""GPT-1's tokenizer: the pieces of a plain loop and of transformers, files both ways, and what is refused."""

import json
import pickle
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bertwright.errors import InputError
from bertwright.text.bpe import BPETokenizer, read_bpe
from bertwright.text.wordpiece import Tokenizer
from tests.support import bpe_oracle
from tests.support.texts import own_lines

transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")

FILES = {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"}
ODD = (
    "",
    " \t\n",
    "The harbour-master's LAMP, lit at 6:45!",
    "Crème brûlée, İstanbul, naïve",
    "stone\u00a0pier\u2028tide\u0000s \ufffd \u200d \x07",
    "漢字 and 한국어 and Ω",
    "<unk> </w> a</w> [MASK] <|endoftext|>",
    "🙂🙂 pier🙂",
    "x" * 300,
)


def english_words(text: str) -> list[str]:
    """Lower-cased words and single punctuation characters of plain English."""
    return re.findall(r"[a-z0-9]+|[^a-z0-9\s]", text.lower())


@cache
def oracle_bpe() -> BPETokenizer:
    return BPETokenizer(*bpe_oracle.learn(english_words(" ".join(own_lines())), 250))


def test_ids_are_those_of_the_plain_loop() -> None:
    tokenizer = oracle_bpe()
    texts = [line for line in own_lines() if line.isascii()]
    assert len(texts) > 20
    seen = set()
    for text, ids in zip(texts, tokenizer.ids(texts), strict=True):
        expected = [piece for word in english_words(text) for piece in bpe_oracle.cut(word, tokenizer.merges)]
        assert [tokenizer.pieces[id] for id in ids] == expected
        seen.update(expected)
    assert len(seen) > 150
    assert tokenizer.ids(["harbour", "", "Ω harbourω"]) == [
        tokenizer.ids(["harbour"])[0],
        [],
        [
            tokenizer.unk_id,
            *(tokenizer.id_of(piece) for piece in bpe_oracle.cut("harbourω", tokenizer.merges)[:-1]),
            tokenizer.unk_id,
        ],
    ]


def test_merges_apply_in_their_order_and_ends_of_words_are_other_letters() -> None:
    pieces = ["<unk>", "a", "b", "c", "a</w>", "b</w>", "c</w>", "ab", "bc", "bc</w>", "abc</w>"]
    first = BPETokenizer(pieces, [("b", "c</w>"), ("a", "b"), ("a", "bc</w>")])
    assert [first.pieces[id] for id in first.ids(["abc ab aba"])[0]] == ["abc</w>", "a", "b</w>", "ab", "a</w>"]
    second = BPETokenizer(pieces, [("a", "b"), ("b", "c</w>"), ("a", "bc</w>")])
    assert [second.pieces[id] for id in second.ids(["abc"])[0]] == ["ab", "c</w>"]
    assert first.hash != second.hash == pickle.loads(pickle.dumps(second)).hash


def test_offsets_point_into_the_text() -> None:
    tokenizer = oracle_bpe()
    texts = [*own_lines(), *ODD]
    for text, ids, (again, spans) in zip(texts, tokenizer.ids(texts), tokenizer.offsets(texts), strict=True):
        assert again == ids
        for id, (start, end) in zip(ids, spans, strict=True):
            piece = tokenizer.pieces[id].removesuffix("</w>")
            if id != tokenizer.unk_id and text.isascii():
                assert text[start:end].lower() == piece


def test_decode_gives_the_words_back() -> None:
    tokenizer = oracle_bpe()
    for text in own_lines():
        if text.isascii():
            assert tokenizer.decode(tokenizer.ids([text])[0]).split() == english_words(text)
    assert tokenizer.decode([tokenizer.unk_id]) == "<unk>"


def test_the_unknown_piece_in_a_text_is_ordinary_text() -> None:
    letters = BPETokenizer(["<unk>", "<</w>", "u", "n", "k</w>", "></w>"], [])
    assert letters.ids(["<unk>", "< unk>"]) == [[1, 2, 3, 4, 5]] * 2


def test_transformers_opens_what_is_saved_with_equal_ids(tmp_path: Path) -> None:
    tokenizer = oracle_bpe()
    tokenizer.save(tmp_path / "tok")
    assert {file.name for file in (tmp_path / "tok").iterdir()} == FILES
    texts = [
        *own_lines(),
        *(text for text in ODD if "<unk>" not in text),
    ]  # there "<unk>" in a text is read as the piece
    expected = tokenizer.ids(texts)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "tok")
    assert type(theirs).__name__.startswith("OpenAIGPTTokenizer")
    assert theirs(texts)["input_ids"] == expected
    assert (theirs.unk_token, theirs.vocab_size) == ("<unk>", tokenizer.vocab_size)
    split = transformers.AutoTokenizer.from_pretrained(tmp_path / "tok", split_special_tokens=True)
    assert split(ODD)["input_ids"] == tokenizer.ids(ODD)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "tok" / name).unlink()
    old = transformers.OpenAIGPTTokenizer.from_pretrained(tmp_path / "tok")
    assert old(texts)["input_ids"] == expected


def test_every_published_form_is_read(tmp_path: Path) -> None:
    tokenizer = oracle_bpe()
    tokenizer.save(tmp_path / "both")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "both").save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "merges.txt").exists()
    shutil.copytree(tmp_path / "both", tmp_path / "lists", ignore=shutil.ignore_patterns("tokenizer*"))
    shutil.copytree(tmp_path / "theirs", tmp_path / "old")
    edit_json(tmp_path / "old" / "tokenizer.json", lambda described: old_spelling(described))
    for form in ("both", "theirs", "lists", "old"):
        read = BPETokenizer.load(tmp_path / form)
        assert (read.hash, read.pieces, read.merges) == (tokenizer.hash, tokenizer.pieces, tokenizer.merges)
        read.save(tmp_path / f"{form} again")
        for name in FILES:
            assert (tmp_path / f"{form} again" / name).read_bytes() == (tmp_path / "both" / name).read_bytes()


def old_spelling(described: Any) -> None:
    """As the first versions of the package wrote it: merges as text, and no word of options that came later."""
    model = described["model"]
    model["merges"] = [" ".join(pair) for pair in model["merges"]]
    for name in ("type", "byte_fallback", "ignore_merges"):
        model.pop(name, None)


def edit_json(path: Path, edit: Callable[[Any], None]) -> None:
    value = json.loads(path.read_text("utf-8"))
    edit(value)
    path.write_text(json.dumps(value), "utf-8")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda d: d["normalizer"].update(lowercase=False), "normalizer.lowercase is False; a GPT-1 tokenizer"),
        (lambda d: d["normalizer"].update(strip_accents=False), "normalizer.strip_accents is False"),
        (lambda d: d["pre_tokenizer"].update(type="ByteLevel"), "pre_tokenizer is 'ByteLevel'"),
        (lambda d: d["model"].update(type="WordPiece"), "model is 'WordPiece'"),
        (lambda d: d["model"].update(end_of_word_suffix=None), "model.end_of_word_suffix is None"),
        (lambda d: d["model"].update(continuing_subword_prefix="##"), "continuing_subword_prefix is '##'"),
        (lambda d: d["model"].update(dropout=0.1), "model.dropout is 0.1"),
        (lambda d: d["model"].update(fuse_unk=True), "model.fuse_unk is True"),
        (lambda d: d["model"].pop("vocab"), "model.vocab is missing or no object"),
        (lambda d: d["model"]["merges"].append(["a", "b", "c"]), "not the description of a GPT-1 tokenizer"),
        (lambda d: d.update(normalizer=None), "not the description of a GPT-1 tokenizer"),
        (lambda d: d["model"]["vocab"].update(extra=9999), "the piece 'extra' has the id 9999; expected"),
        (lambda d: d["model"]["merges"].append(["a", "zq"]), "merge 251 joins 'a' and 'zq', but 'zq' is not in the"),
        (lambda d: d["added_tokens"].append({"id": 9, "content": "<pad>"}), "added token '<pad>' is not in the voc"),
        (lambda d: d["model"]["merges"].pop(), "holds other pieces or merges than vocab.json and merges.txt"),
    ],
)
def test_other_descriptions_are_refused(tmp_path: Path, edit: Callable[[Any], None], words: str) -> None:
    oracle_bpe().save(tmp_path / "tok")
    edit_json(tmp_path / "tok" / "tokenizer.json", edit)
    with pytest.raises(InputError, match=r"tokenizer\.json: .*" + words):
        BPETokenizer.load(tmp_path / "tok")


@pytest.mark.parametrize(
    ("vocabulary", "merges", "words"),
    [
        ('{"<unk>": 0, "a": 1', b"#version: 0.2\n", r"vocab\.json:1: not valid JSON"),
        ('["<unk>"]', b"#version: 0.2\n", r"vocab\.json: expected a JSON object, got a list"),
        ('{"<unk>": 0, "a": 2}', b"#version: 0.2\n", r"vocab\.json: the piece 'a' has the id 2; expected 1"),
        ('{"<unk>": 0, "a": 0}', b"#version: 0.2\n", r"vocab\.json: the piece 'a' has the id 0; expected 1"),
        (
            '{"<unk>": 0, "a": "1"}',
            b"#version: 0.2\n",
            r"vocab\.json: the piece 'a' has the id '1'; expected a whole number",
        ),
        ('{"<unk>": 0, "a": true}', b"#version: 0.2\n", r"the piece 'a' has the id True"),
        ('{"a": 0}', b"#version: 0.2\n", "the special token <unk> is missing"),
        ('{"<unk>": 0}', None, r"merges\.txt: cannot be read: No such file"),
        ('{"<unk>": 0}', b"a b\n", r"merges\.txt:1: expected a first line '#version: .*, got 'a b'"),
        ('{"<unk>": 0}', b"", r"merges\.txt:1: expected a first line '#version: 0.2', got ''"),
        ('{"<unk>": 0}', b"#version: 0.2\n\xff\n", r"merges\.txt:2: not UTF-8 text \(byte 15\)"),
        (
            '{"<unk>": 0}',
            b"#version: 0.2\nab\n",
            r"merges\.txt:2: expected two pieces with a space between them, got 'ab'",
        ),
        (
            '{"<unk>": 0}',
            b"#version: 0.2\na b c\n",
            r"merges\.txt:2: expected two pieces with a space between them, got 'a b c'",
        ),
        ('{"<unk>": 0}', b"#version: 0.2\n\n", r"merges\.txt:2: expected two pieces with a space between them, got ''"),
        (
            '{"<unk>": 0, "a": 1}',
            b"#version: 0.2\na b\n",
            "merges.txt: merge 1 joins 'a' and 'b', but 'b' is not in the",
        ),
        ('{"<unk>": 0, "a": 1}', b"#version: 0.2\na a\n", "joins 'a' and 'a', but 'aa' is not in the vocabulary"),
        (
            '{"<unk>": 0, "a": 1, "aa": 2}',
            b"#version: 0.2\na a\na a\n",
            "'a' and 'a' are joined by merges 1 and 2",
        ),
    ],
)
def test_broken_lists_are_refused(tmp_path: Path, vocabulary: str, merges: bytes | None, words: str) -> None:
    (tmp_path / "vocab.json").write_text(vocabulary)
    if merges is not None:
        (tmp_path / "merges.txt").write_bytes(merges)
    with pytest.raises(InputError, match=words):
        read_bpe(tmp_path / "vocab.json", tmp_path / "merges.txt")
    with pytest.raises(InputError, match=words):
        BPETokenizer.load(tmp_path)


def test_a_bert_tokenizer_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no GPT-1 tokenizer; expected tokenizer\.json, or vocab\.json and merges\.txt"
    ):
        BPETokenizer.load(tmp_path)
    oracle_bpe().save(tmp_path / "gpt")
    with pytest.raises(InputError, match=r"a BERT tokenizer"):
        Tokenizer.load(tmp_path / "gpt")
    with pytest.raises(InputError, match="the piece 'a' has two ids, 1 and 2"):
        BPETokenizer(["<unk>", "a", "a"], [])
