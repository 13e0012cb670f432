"""text → token ids: the files of a WordPiece tokenizer's folder, read and checked (paper §3, "WordPiece embeddings").

`Tokenizer.save` writes tokenizer.json, vocab.txt and tokenizer_config.json. A published model may hold tokenizer.json
alone, as transformers writes it today, or vocab.txt and tokenizer_config.json, as it did before. Files that contradict
each other are an error.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from bertwright.config import Positive, Settings
from bertwright.errors import InputError
from bertwright.files import read_json, read_object_if_there
from bertwright.shipped import folder_of
from bertwright.text.other_tokenizers import refuse_other_rules, refuse_other_vocabulary

PAD, UNK, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPECIAL_BY_KEY = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
"""Key of tokenizer_config.json → the special token."""
CONTINUATION = "##"
"""Prefix of a piece that continues a word."""
LONGEST_WORD = 100  # characters; longer words become [UNK]
LONGEST_WORD_GOOGLE = 200  # the same for vocabularies released by Google
OWN_KEY = "bertwright"
"""Key of tokenizer_config.json under which bertwright notes the base of an extended vocabulary, and AS_WORDPIECE."""
AS_WORDPIECE = "as_wordpiece"
"""Entry that is true where pieces of another convention are read as WordPiece on request."""
_IMPORT = "make a folder of it: bertwright tokenizer import vocab.txt --out FOLDER --as-wordpiece"


class Rules(Settings):
    """Rules by which text becomes words, before the vocabulary splits these into pieces.

    cased           True where upper case is kept
    strip_accents   True where every letter (Hangul and voiced kana too) is decomposed and its marks are dropped
    longest_word    characters of the longest word that is split; longer ones become [UNK]
    """

    cased: bool
    strip_accents: bool
    longest_word: Annotated[int, Field(gt=0, lt=2**31)] = LONGEST_WORD


class Base(Settings):
    """The base of an extended vocabulary: its tokenizer's hash, and its size. Its pieces are the first `size` ones."""

    hash: str
    size: Positive


def vocabulary_hash(pieces: Sequence[str], rules: Rules) -> str:
    """Return the sha256 of pieces and rules, which decide every id."""
    text = json.dumps([list(pieces), rules.model_dump()], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_folder(folder: Path, *, as_wordpiece: bool = False) -> tuple[list[str], Rules, Base | None]:
    """Read pieces, rules and base of a tokenizer, model, run or corpus folder.

    as_wordpiece   True where the vocabulary is to be read as WordPiece although the settings name another tokenizer

    Raises InputError where a file is missing or broken, holds other rules than BERT's or pieces of another convention,
    or contradicts another file.
    """
    folder = folder_with(folder, "tokenizer.json", "vocab.txt")
    if not as_wordpiece:
        refuse_other_rules(folder)
    json_path, vocabulary_path, config_path = (
        folder / name for name in ("tokenizer.json", "vocab.txt", "tokenizer_config.json")
    )
    config = read_object_if_there(config_path)
    if not json_path.is_file():
        rules = _rules_of_config(config, config_path)
        pieces = read_vocabulary(vocabulary_path)
    else:
        described = read_json(json_path)
        rules = _rules_of(described, json_path)
        pieces = read_pieces(described, json_path)
        if vocabulary_path.is_file():
            _check_same(pieces, read_vocabulary(vocabulary_path), folder)
        _check_config(config, config_path, rules)
    _check_tokens(pieces, config, config_path)
    if not as_wordpiece and not _own_entries(config).get(AS_WORDPIECE):
        refuse_other_vocabulary(pieces, f"the vocabulary of {folder}", advice=_IMPORT)
    return pieces, rules, _base_of(config, config_path)


def folder_with(folder: Path, *names: str) -> Path:
    """Return the folder that holds one of the named files: `folder`, its model/ (a run) or its tokenizer/ (a corpus).

    `folder` may also name a model that comes with bertwright. Raises InputError where no folder holds such a file.
    """
    folder = folder_of(folder)
    for candidate in (folder, folder / "model", folder / "tokenizer"):
        if any((candidate / name).is_file() for name in names):
            return candidate
    raise InputError(
        f"{folder / 'tokenizer.json'}: there is no such file; name a tokenizer or model folder, which holds it or "
        "vocab.txt ('bertwright tokenizer' makes one)"
    )


def has_casing(folder: Path) -> bool:
    """Return whether the files of a tokenizer folder note if case is kept."""
    config = folder / "tokenizer_config.json"
    return (folder / "tokenizer.json").is_file() or (config.is_file() and "do_lower_case" in read_json(config))


def read_vocabulary(path: Path) -> list[str]:
    """Return the pieces of a vocab.txt, one a line. Raises InputError for an empty line.

    The id of a piece is the number of its line. A piece may be a white-space character, such as U+3000 or U+2028.
    """
    pieces = read_piece_lines(path)
    for number, piece in enumerate(pieces, start=1):
        if not piece:
            raise InputError(f"{path}:{number}: expected a piece, got an empty line; a vocabulary has one on each line")
    return pieces


def refuse_unwritable_pieces(pieces: Sequence[str], source: str) -> None:
    """Raise InputError for an empty piece and for one with a line feed or carriage return: no line can hold them."""
    for id, piece in enumerate(pieces):
        if not piece or "\n" in piece or "\r" in piece:
            raise InputError(
                f"{source}: expected pieces that a line of vocab.txt can hold, got {piece!r} with the id {id}; "
                "name that piece otherwise in tokenizer.json, such as '[unused]': no text is split into it"
            )


def read_piece_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file of pieces. Only line feeds end a line: pieces may hold other line ends."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        number = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"{path}:{number}: not UTF-8 text (byte {error.start + 1}); convert it to UTF-8") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def check_rules(described: Any, others: Mapping[str, tuple[object, object]], path: Path, *, kind: str) -> None:
    """Raise InputError where a tokenizer.json has other rules than those that BERT and GPT-1 share, or than `others`.

    others   name → (value in the file, value of a tokenizer of this kind)
    """
    normalizer = described["normalizer"]
    rules = {
        "normalizer": (normalizer["type"], "BertNormalizer"),
        "normalizer.clean_text": (normalizer["clean_text"], True),
        "normalizer.handle_chinese_chars": (normalizer["handle_chinese_chars"], True),
        "pre_tokenizer": (described["pre_tokenizer"]["type"], "BertPreTokenizer"),
        **others,
    }
    for name, (value, expected) in rules.items():
        if value != expected:
            raise InputError(f"{path}: {name} is {value!r}; a {kind} tokenizer has {expected!r}")


def _rules_of(described: Any, path: Path) -> Rules:
    """Return the rules of a tokenizer.json. Raises InputError where it describes no BERT tokenizer."""
    try:
        normalizer, model = described["normalizer"], described["model"]
        kind = model.get("type", "WordPiece")
        if kind != "WordPiece":  # first: other kinds lack the entries below
            raise InputError(f"{path}: model is {kind!r}; a BERT tokenizer has 'WordPiece'")
        expected = {
            "model.continuing_subword_prefix": (model["continuing_subword_prefix"], CONTINUATION),
            "model.unk_token": (model["unk_token"], UNK),
        }
        check_rules(described, expected, path, kind="BERT")
        lowercase, strip = normalizer["lowercase"], normalizer["strip_accents"]
        return Rules(
            cased=not lowercase,
            strip_accents=lowercase if strip is None else strip,
            longest_word=model["max_input_chars_per_word"],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not the description of a BERT tokenizer ({error!r})") from None


def _rules_of_config(config: dict[str, Any], path: Path) -> Rules:
    """Return the rules of a tokenizer_config.json without a tokenizer.json; its longest word has 100 letters.

    Raises InputError where do_lower_case is missing, and for settings that no BERT tokenizer has.
    """
    lower, strip = config.get("do_lower_case"), config.get("strip_accents")
    if not isinstance(lower, bool):
        raise InputError(
            f"{path}: expected do_lower_case (true or false), since there is no tokenizer.json, got {lower!r}; add it, "
            "or make a tokenizer folder with: bertwright tokenizer import vocab.txt [--cased]"
        )
    _check_ideographs(config, path)
    usual = {"do_basic_tokenize": (True, None), "never_split": ([], None), "strip_accents": (True, False, None)}
    for name, allowed in usual.items():
        if config.get(name) not in allowed:
            raise InputError(f"{path}: {name} is {config[name]!r}; a BERT tokenizer has {allowed[0]!r}")
    return Rules(cased=not lower, strip_accents=lower if strip is None else bool(strip))


def read_pieces(described: Any, path: Path) -> list[str]:
    """Return the pieces of a tokenizer.json by id. Raises InputError for gaps and for added tokens without their id."""
    vocabulary = described["model"].get("vocab")
    if not isinstance(vocabulary, dict):
        raise InputError(f"{path}: model.vocab is missing or no object")
    pieces = pieces_by_id(vocabulary, path)
    added = described.get("added_tokens") or []
    if not isinstance(added, list):
        raise InputError(f"{path}: expected a list in added_tokens, got {added!r}")
    for token in added:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise InputError(f"{path}: expected an added token with text in 'content', got {token!r}")
        if vocabulary.get(token["content"]) != token.get("id"):
            raise InputError(
                f"{path}: the added token {token['content']!r} is not in the vocabulary with the id {token.get('id')!r}"
            )
    return pieces


def pieces_by_id(ids: Mapping[str, Any], path: Path) -> list[str]:
    """Return the pieces of a JSON object piece → id in the order of the ids.

    Raises InputError for gaps and for ids that are no whole numbers.
    """
    for piece, id in ids.items():
        if type(id) is not int:
            raise InputError(f"{path}: the piece {piece!r} has the id {id!r}; expected a whole number")
    pieces = sorted(ids, key=lambda piece: (ids[piece], piece))
    for id, piece in enumerate(pieces):
        if ids[piece] != id:
            raise InputError(f"{path}: the piece {piece!r} has the id {ids[piece]}; expected {id}")
    return pieces


def _check_tokens(pieces: Sequence[str], config: dict[str, Any], path: Path) -> None:
    """Raise InputError for special tokens of other names and for added tokens that the vocabulary lacks."""
    for name, expected in SPECIAL_BY_KEY.items():
        token = config.get(name) or expected
        token = token.get("content") if isinstance(token, dict) else token
        if token != expected:
            raise InputError(f"{path}: {name} is {token!r}; a BERT tokenizer has {expected!r}")
    added_path = path.parent / "added_tokens.json"
    added: list[tuple[Any, Any]] = list(read_object_if_there(added_path).items())
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise InputError(f"{path}: expected an object in added_tokens_decoder, got {decoder!r}")
    added += [(token.get("content") if isinstance(token, dict) else token, id) for id, token in decoder.items()]
    for token, id in added:
        index = int(id) if str(id).isdecimal() else -1
        if not 0 <= index < len(pieces) or pieces[index] != token:
            raise InputError(f"{path.parent}: the added token {token!r} is not in the vocabulary with the id {id}")


def _check_same(json_pieces: Sequence[str], pieces: Sequence[str], folder: Path) -> None:
    """Raise InputError where the pieces of tokenizer.json are not those of vocab.txt."""
    ids = {piece: id for id, piece in enumerate(json_pieces)}
    for id, piece in enumerate(pieces):
        if ids.get(piece) != id:
            raise InputError(
                f"{folder / 'vocab.txt'}:{id + 1}: the piece {piece!r} has the id {id} here and "
                f"{ids.get(piece, 'none')} in tokenizer.json; expected the same"
            )
    if len(json_pieces) != len(pieces):
        raise InputError(
            f"{folder}: vocab.txt holds {len(pieces)} pieces and tokenizer.json {len(json_pieces)}; expected the same"
        )


def _check_config(config: dict[str, Any], path: Path, rules: Rules) -> None:
    """Raise InputError where a tokenizer_config.json notes another rule for case or accents than tokenizer.json."""
    for name, expected in {"do_lower_case": not rules.cased, "strip_accents": rules.strip_accents}.items():
        value = config.get(name)
        if value is not None and bool(value) != expected:
            raise InputError(f"{path}: {name} is {value}, but {expected} in tokenizer.json; expected the same")
    _check_ideographs(config, path)


def _check_ideographs(config: dict[str, Any], path: Path) -> None:
    """Raise InputError where ideographs are not split into words of their own."""
    if config.get("tokenize_chinese_chars", True) is False:
        raise InputError(f"{path}: tokenize_chinese_chars is false; a BERT tokenizer has true")


def _own_entries(config: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of tokenizer_config.json that only bertwright reads."""
    entries = config.get(OWN_KEY)
    return entries if isinstance(entries, dict) else {}


def _base_of(config: dict[str, Any], path: Path) -> Base | None:
    try:
        if OWN_KEY not in config or set(config[OWN_KEY]) == {AS_WORDPIECE}:
            return None
        base = config[OWN_KEY]["extended_from"]
        return None if base is None else Base.model_validate(base)
    except (KeyError, TypeError, ValidationError) as error:
        raise InputError(f"{path}: expected hash and size in {OWN_KEY}.extended_from ({error!r})") from None
