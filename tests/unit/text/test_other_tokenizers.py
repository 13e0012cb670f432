"""A vocabulary or a folder of another tokenizer is refused with its name, and read all the same on request."""

import json
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.text.other_tokenizers import refuse_other_vocabulary
from bertwright.text.vocabulary import SPECIAL
from bertwright.text.wordpiece import Tokenizer, import_vocabulary

CONVENTIONS = {
    "SentencePiece": (["▁the", "▁cat", "s", "▁"], "2 of 9 pieces begin with '▁'"),
    "byte-level byte pairs": (["Ġthe", "Ġcat", "s", "Ġ"], "2 of 9 pieces begin with 'Ġ'"),
    "byte pairs as GPT-1's": (["the</w>", "cat</w>", "s"], "2 of 8 pieces end with '</w>'"),
    "byte pairs of subword-nmt": (["th@@", "ca@@", "e"], "2 of 8 pieces end with '@@'"),
}


def written(folder: Path, pieces: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_bytes("".join(f"{piece}\n" for piece in pieces).encode())
    return folder / "vocab.txt"


@pytest.mark.parametrize("kind", CONVENTIONS)
def test_a_vocabulary_of_another_convention_is_named(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces, counted = CONVENTIONS[kind]
    path = written(tmp_path / "v", [*SPECIAL, *pieces])
    with pytest.raises(InputError, match=f"vocab.txt: .*got one of {kind}: {counted}"):
        import_vocabulary(path, cased=True)
    command = ["tokenizer", "import", str(path), "--out", str(tmp_path / "tok"), "--cased"]
    assert main(command) == 2
    assert "--as-wordpiece" in capsys.readouterr().err
    assert not (tmp_path / "tok").exists()
    assert main([*command, "--as-wordpiece"]) == 0
    assert Tokenizer.load(tmp_path / "tok").pieces == [*SPECIAL, *pieces]


@pytest.mark.parametrize("kind", CONVENTIONS)
def test_a_folder_with_such_a_vocabulary_is_refused_as_a_tokenizer_of_a_corpus(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces, counted = CONVENTIONS[kind]
    path = written(tmp_path / "v", [*SPECIAL, *pieces])
    (tmp_path / "v/tokenizer_config.json").write_text('{"do_lower_case": false}')
    (tmp_path / "a.txt").write_text("the cat s the.\n")
    build = ["corpus", "build", str(tmp_path / "a.txt"), "--workers", "1", "--out", str(tmp_path / "corpus")]
    assert main([*build, "--tokenizer", str(tmp_path / "v")]) == 2
    message = capsys.readouterr().err
    assert f"the vocabulary of {tmp_path / 'v'}: expected a WordPiece vocabulary" in message
    assert f"got one of {kind}: {counted}" in message
    # The command has no such option: the message names the one that has, and its folder is read.
    advice = "make a folder of it: bertwright tokenizer import vocab.txt --out FOLDER --as-wordpiece"
    assert message.rstrip().endswith(advice)
    assert not (tmp_path / "corpus").exists()
    typed = advice.partition("bertwright ")[2].replace("vocab.txt", str(path)).replace("FOLDER", str(tmp_path / "tok"))
    assert main([*typed.split(), "--cased"]) == 0
    assert main([*build, "--tokenizer", str(tmp_path / "tok")]) == 0
    assert main(["corpus", "verify", str(tmp_path / "corpus")]) == 0
    config = json.loads((tmp_path / "corpus/tokenizer/tokenizer_config.json").read_text())
    assert config["bertwright"] == {"as_wordpiece": True}
    # Its tokenizer.json is refused too where the folder does not say that it was made on purpose.
    (tmp_path / "tok/tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(InputError, match=f"got one of {kind}"):
        Tokenizer.load(tmp_path / "tok")


@pytest.mark.parametrize(
    "pieces",
    [
        ["▁the", "▁cat", "##s"],  # WordPiece, with pieces that begin with a mark
        ["a", "b", "▁", "Ġ", "@@", "</w>"],  # the marks alone are characters of a text
        ["Ġunju", *(f"word{number}" for number in range(200))],  # a Maltese word among others
    ],
)
def test_wordpiece_with_such_characters_is_read(pieces: list[str], tmp_path: Path) -> None:
    refuse_other_vocabulary(pieces, "v")
    assert import_vocabulary(written(tmp_path, [*SPECIAL, *pieces]), cased=True).pieces[5:] == pieces


OTHER_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "MeCab": ({"word_tokenizer_type": "mecab"}, "tokenizer_config.json: word_tokenizer_type is 'mecab'"),
    "characters": ({"subword_tokenizer_type": "character"}, "subword_tokenizer_type is 'character'"),
    "words alone": ({"do_subword_tokenize": False}, "do_subword_tokenize is False"),
    "code": ({"auto_map": {"AutoTokenizer": ["own.Tokens", None]}}, r"auto_map is \['own.Tokens', None\]"),
    "a class": ({"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class is 'BertJapaneseTokenizer'"),
    "another family": ({"tokenizer_class": "RobertaTokenizerFast"}, "tokenizer_class is 'RobertaTokenizerFast'"),
}


@pytest.mark.parametrize("case", OTHER_SETTINGS)
def test_settings_of_another_tokenizer_are_named(case: str, tmp_path: Path) -> None:
    """They are refused beside vocab.txt and beside tokenizer.json, and where config.json names the class."""
    settings, message = OTHER_SETTINGS[case]
    pieces = [*SPECIAL, "a", "b", "##b"]
    path = written(tmp_path / "v", pieces)
    (tmp_path / "v" / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, **settings}))
    with pytest.raises(InputError, match=message):
        import_vocabulary(path, cased=True)
    with pytest.raises(InputError, match=message):
        Tokenizer.load(tmp_path / "v")
    tokenizer = import_vocabulary(path, cased=True, as_wordpiece=True)
    assert tokenizer.pieces == pieces
    tokenizer.save(tmp_path / "whole")
    assert Tokenizer.load(tmp_path / "whole").hash == tokenizer.hash
    config = json.loads((tmp_path / "whole" / "tokenizer_config.json").read_text())
    (tmp_path / "whole" / "tokenizer_config.json").write_text(json.dumps({**config, **settings}))
    with pytest.raises(InputError, match=message):
        Tokenizer.load(tmp_path / "whole")


def test_ideographs_that_are_no_words_are_refused_beside_tokenizer_json(tmp_path: Path) -> None:
    import_vocabulary(written(tmp_path, [*SPECIAL, "a", "##b"]), cased=False).save(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenize_chinese_chars": False}))
    with pytest.raises(InputError, match=r"tokenizer_config\.json: tokenize_chinese_chars is false"):
        Tokenizer.load(tmp_path)


def test_a_class_that_config_json_names_counts(tmp_path: Path) -> None:
    path = written(tmp_path, [*SPECIAL, "a", "##b"])
    (tmp_path / "config.json").write_text('{"tokenizer_class": "BertJapaneseTokenizer"}')
    with pytest.raises(InputError, match=r"config\.json: tokenizer_class is 'BertJapaneseTokenizer'"):
        import_vocabulary(path, cased=True)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": false}')
    assert import_vocabulary(path, cased=True).vocab_size == 7


def test_tokenizer_json_decides_for_classes_with_bert_rules(tmp_path: Path) -> None:
    tokenizer = import_vocabulary(written(tmp_path, [*SPECIAL, "a", "##b"]), cased=False)
    tokenizer.save(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    for kind in ("PreTrainedTokenizerFast", "ElectraTokenizer", "TokenizersBackend", "DistilBertTokenizerFast"):
        path.write_text(json.dumps({**settings, "tokenizer_class": kind}))
        assert Tokenizer.load(tmp_path).hash == tokenizer.hash


def test_a_tokenizer_json_of_another_kind_is_named(tmp_path: Path) -> None:
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"normalizer": None, "pre_tokenizer": None, "model": model}))
    with pytest.raises(InputError, match=r"tokenizer\.json: model is 'Unigram'; a BERT tokenizer has 'WordPiece'"):
        Tokenizer.load(tmp_path)
