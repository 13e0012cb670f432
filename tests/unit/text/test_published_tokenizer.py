"""Published tokenizers taken as they are: ids, frames, offsets and special tokens beside transformers."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from bertwright.errors import InputError
from bertwright.tasks.classification.encoding import encode
from bertwright.text import published_tokenizer as module
from bertwright.text.open_tokenizer import open_tokenizer_folder
from bertwright.text.published_tokenizer import PublishedTokenizer
from tests.support.published_tokenizers import TEXTS, WRITERS

transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")


@pytest.mark.parametrize("kind", WRITERS)
def test_ids_rows_and_spans_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    WRITERS[kind](tmp_path)
    ours = open_tokenizer_folder(tmp_path)
    assert isinstance(ours, PublishedTokenizer)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    texts = [*TEXTS, "Ünknown 漢字 \n two  spaces", ""]
    assert ours.ids(texts) == theirs(texts, add_special_tokens=False)["input_ids"]
    pairs = encode(ours, texts, texts[::-1], max_length=512)
    assert [row.tolist() for row in pairs.ids] == theirs(texts, texts[::-1])["input_ids"]
    single = encode(ours, texts, max_length=512)
    assert [row.tolist() for row in single.ids] == theirs(texts)["input_ids"]
    assert [len(row) for row in single.ids] == single.first.tolist()
    tail = encode(ours, ["old bridge"], ["the harbour"], max_length=512)
    assert tail.ids[0][int(tail.first[0]) : -1].tolist() == ours.ids(["the harbour"])[0]
    assert [text[begin:end] for text in TEXTS[:1] for begin, end in ours.words([text])[0]][-3:] == [
        "wait",
        "there",
        ".",
    ]
    words = "near the old bridge".split()
    ids, spans = ours.offsets([" ".join(words)])[0]
    assert "".join(" ".join(words)[first:last] for first, last in spans) == "".join(words)
    assert [id for word in ours.word_ids(words[1:]) for id in word] == ids[len(ours.ids(["near"])[0]) :]
    assert ours.decode(ours.ids(["near the old bridge"])[0]).strip() == "near the old bridge"
    assert [ours.pieces[id] for id in (ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id)] == [
        *("<pad>", "<unk>", "<s>", "</s>", "<mask>")
    ]
    # names of special tokens are text, or the tokens where a caller says so; "[MASK]" is the mask of every model
    assert ours.mask_id not in ours.ids(["the <mask> bridge"])[0]
    masked = ours.ids(["the <mask> bridge", "the [MASK] bridge"], special=True)
    assert masked[0] == masked[1]
    assert masked[0].count(ours.mask_id) == 1
    again = pickle.loads(pickle.dumps(ours))
    assert again.hash == ours.hash
    assert again.ids(texts) == ours.ids(texts)
    ours.save(tmp_path / "again")
    assert open_tokenizer_folder(tmp_path / "again").ids(texts) == ours.ids(texts)
    begins = [piece for piece, inside in zip(ours.pieces, ours.continuation, strict=True) if not inside]
    assert {"\u0120the", "\u2581the"} & set(begins)
    assert np.count_nonzero(ours.continuation) > 20


def test_a_byte_inside_a_character_continues_its_word(tmp_path: Path) -> None:
    """The bytes of "é" are written as "Ã" and "©"; the second one is no letter."""
    WRITERS["byte pairs"](tmp_path)
    ours = open_tokenizer_folder(tmp_path)
    inside = dict(zip(ours.pieces, ours.continuation.tolist(), strict=True))
    assert [inside[piece] for piece in ("e", "\u00c3", "\u00a9", "!", "\u0120")] == [True, True, True, False, False]


LETTERS = "\u0e34\u0e49\u093f\ud558\ub298\u043c\u00e9\u03b1"
OTHERS = "\uff71\u3105\u4eca\u306f\u30ab\u3001\u3002\u2014\u201d\U0001f642"


def test_letters_of_alphabets_and_hangul_continue_a_word_whole_or_in_part() -> None:
    bytes_of = {module._letter_of(byte): byte for byte in range(256)}
    for text, continues in ((LETTERS, True), (OTHERS, False)):
        for letter in text:
            spelled = "".join(module._letter_of(byte) for byte in letter.encode())
            assert {module._continues(part, bytes_of) for part in (spelled, spelled[:1], f"{spelled}a")} == {continues}
            assert module._continues(spelled[1:], bytes_of)  # begins inside of the character
            assert module._continues(letter, None) == continues
    assert [module._continues(piece, bytes_of) for piece in ("\u0120a", "!", "7", "\u00c2\u00ab")] == [
        False,
        False,
        True,
        False,
    ]


def test_names_of_special_tokens_are_text_before_and_after_normalisation(tmp_path: Path) -> None:
    WRITERS["unigram"](tmp_path)
    ours = open_tokenizer_folder(tmp_path)
    for text in ("a \uff1cpad\uff1e b", "a \0<pad> b"):
        assert ours.pad_id not in ours.ids([text])[0]


@pytest.mark.parametrize(
    ("kind", "entry", "is_refused"),
    [
        ("RobertaTokenizerFast", False, False),
        ("RobertaTokenizer", None, False),
        ("GPT2Tokenizer", True, True),
        ("PreTrainedTokenizerFast", True, False),  # transformers follows tokenizer.json
    ],
)
def test_a_space_before_texts_that_two_files_tell_differently(
    tmp_path: Path, kind: str, entry: bool | None, is_refused: bool
) -> None:
    WRITERS["byte pairs"](tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = {**json.loads(path.read_text("utf-8")), "tokenizer_class": kind, "add_prefix_space": entry}
    path.write_text(json.dumps({name: value for name, value in settings.items() if value is not None}), "utf-8")
    ours = PublishedTokenizer.load(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    same = ours.ids(["near"])[0] == theirs("near", add_special_tokens=False)["input_ids"]
    assert same != is_refused
    if is_refused:
        with pytest.raises(InputError, match=r"add_prefix_space is True, but False in tokenizer\.json; they must"):
            ours.check_space(tmp_path)
    else:
        ours.check_space(tmp_path)


def test_descriptions_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    WRITERS["byte pairs"](tmp_path)
    described = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    described["model"]["merges"].append(["q", "zzz"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(described), "utf-8")
    with pytest.raises(InputError, match=r"tokenizer\.json: not the description of a tokenizer"):
        open_tokenizer_folder(tmp_path)
    del described["model"]["merges"][-1]
    described["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(described), "utf-8")
    bare = open_tokenizer_folder(tmp_path)
    with pytest.raises(InputError, match="frames a pair of texts with 0, 0 and 0 tokens"):
        _ = bare.begin_id
