"""text → token ids: what a tokenizer folder holds, read and checked (paper §3, "WordPiece embeddings").

A folder holds tokenizer.json, vocab.txt and tokenizer_config.json as `Tokenizer.save` writes them. A published model
may hold tokenizer.json alone, as transformers writes it today, or vocab.txt with a tokenizer_config.json beside it, as
it did before; where two files say the same thing they must agree.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from bertwright.config import Positive, Settings
from bertwright.errors import InputError
from bertwright.files import read_json, read_object
from bertwright.shipped import place_of

PAD, UNK, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
LONGEST_WORD = 100  # characters; longer words become [UNK]
LONGEST_WORD_GOOGLE = 200  # the same for vocabularies released by Google
_CLASSES = ("BertTokenizer", "BertTokenizerFast", "BertTokenizerLegacy")
_SAID = (True, False, None)
OWN_KEY = "bertwright"
"""Where tokenizer_config.json holds what only this project reads."""


class Rules(Settings):
    """What decides, besides the vocabulary, how text becomes pieces."""

    cased: bool
    strip_accents: bool  # decomposes every letter (Hangul and voiced kana too) and drops the marks
    longest_word: Annotated[int, Field(gt=0, lt=2**31)] = LONGEST_WORD


class Base(Settings):
    """The vocabulary that another was extended from: its first `size` pieces, and the hash of that tokenizer."""

    hash: str
    size: Positive


def vocabulary_hash(pieces: Sequence[str], rules: Rules) -> str:
    """The sha256 of all that decides ids."""
    decides = json.dumps([list(pieces), rules.model_dump()], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(decides.encode()).hexdigest()


def read_folder(folder: Path) -> tuple[list[str], Rules, Base | None]:
    """Read pieces, rules and base of a tokenizer, model, run or corpus folder.

    InputError where a file is missing or broken, holds other rules than BERT's, or contradicts another.
    """
    folder = folder_with(folder, "tokenizer.json", "vocab.txt")
    described_at, vocabulary_at, config_at = (
        folder / name for name in ("tokenizer.json", "vocab.txt", "tokenizer_config.json")
    )
    config = read_object(config_at) if config_at.is_file() else {}
    if not described_at.is_file():
        rules = _rules_of_config(config, config_at)
        pieces = read_vocabulary(vocabulary_at)
    else:
        described = read_json(described_at)
        rules = _rules_of(described, described_at)
        pieces = _pieces_of(described, described_at)
        if vocabulary_at.is_file():
            _check_same(pieces, read_vocabulary(vocabulary_at), folder)
        _check_config(config, config_at, rules)
    _check_tokens(pieces, config, config_at)
    return pieces, rules, _base_of(config, config_at)


def folder_with(folder: Path, *names: str) -> Path:
    """The folder itself, the model of a run folder, the copy in a corpus, or a model that comes with the program.

    InputError where none holds one of a tokenizer's files.
    """
    folder = place_of(folder)
    for place in (folder, folder / "model", folder / "tokenizer"):
        if any((place / name).is_file() for name in names):
            return place
    hint = "a tokenizer or model folder holds it, or vocab.txt ('bertwright tokenizer' makes one)"
    raise InputError(f"{folder / 'tokenizer.json'}: there is no such file; {hint}")


def has_casing(folder: Path) -> bool:
    """Whether the files of a tokenizer folder say if case is kept."""
    config = folder / "tokenizer_config.json"
    return (folder / "tokenizer.json").is_file() or (config.is_file() and "do_lower_case" in read_json(config))


def read_vocabulary(path: Path) -> list[str]:
    """Read one piece per line; only line feeds part lines, since pieces may hold other separators."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        at = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"{path}:{at}: not UTF-8 text (byte {error.start}); a vocabulary is UTF-8") from None
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise InputError(f"{path}:{number}: an empty line; a vocabulary holds one piece on every line")
    return lines


def numbered(pieces: Sequence[str], place: str) -> dict[str, int]:
    """Give piece → id; InputError for duplicates and missing special tokens."""
    ids: dict[str, int] = {}
    for id, piece in enumerate(pieces):
        first = ids.setdefault(piece, id)
        if first != id:
            raise InputError(f"{place}: the piece {piece!r} stands on line {first + 1} and again on line {id + 1}")
    missing = [token for token in SPECIAL if token not in ids]
    if missing:
        raise InputError(f"{place}: the special token {', '.join(missing)} is missing; {' '.join(SPECIAL)} are needed")
    return ids


def _rules_of(described: Any, path: Path) -> Rules:
    """Take the rules from a tokenizer.json, which must be BERT's in kind."""
    try:
        normalizer, model = described["normalizer"], described["model"]
        found = {
            "normalizer": (normalizer["type"], "BertNormalizer"),
            "normalizer.clean_text": (normalizer["clean_text"], True),
            "normalizer.handle_chinese_chars": (normalizer["handle_chinese_chars"], True),
            "pre_tokenizer": (described["pre_tokenizer"]["type"], "BertPreTokenizer"),
            "model": (model.get("type", "WordPiece"), "WordPiece"),
            "model.continuing_subword_prefix": (model["continuing_subword_prefix"], CONTINUATION),
            "model.unk_token": (model["unk_token"], UNK),
        }
        for name, (value, wanted) in found.items():
            if value != wanted:
                raise InputError(f"{path}: {name} is {value!r}; a BERT tokenizer has {wanted!r}")
        lowercase, strip = normalizer["lowercase"], normalizer["strip_accents"]
        return Rules(
            cased=not lowercase,
            strip_accents=lowercase if strip is None else strip,
            longest_word=model["max_input_chars_per_word"],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not the description of a BERT tokenizer ({error!r})") from None


def _rules_of_config(config: dict[str, Any], path: Path) -> Rules:
    """Take the rules from a tokenizer_config.json, where there is no tokenizer.json; its words may have 100 letters."""
    lower, strip = config.get("do_lower_case"), config.get("strip_accents")
    if not isinstance(lower, bool):
        raise InputError(
            f"{path}: says not whether case is folded (do_lower_case: true or false), nor is there a tokenizer.json; "
            "add it, or make a tokenizer folder with: bertwright tokenizer import vocab.txt [--cased]"
        )
    if not config.get("tokenize_chinese_chars", True):
        raise InputError(f"{path}: tokenize_chinese_chars is false; a BERT tokenizer sets ideographs apart")
    kind = config.get("tokenizer_class") or _CLASSES[0]
    if kind not in _CLASSES:
        raise InputError(f"{path}: tokenizer_class is {kind!r}; without a tokenizer.json {_CLASSES[0]} alone is read")
    for name, usual in (("do_basic_tokenize", (True, None)), ("never_split", ([], None)), ("strip_accents", _SAID)):
        if config.get(name) not in usual:
            raise InputError(f"{path}: {name} is {config[name]!r}; a BERT tokenizer has {usual[0]!r}")
    return Rules(cased=not lower, strip_accents=lower if strip is None else bool(strip))


def _pieces_of(described: Any, path: Path) -> list[str]:
    """The vocabulary in a tokenizer.json by id; InputError for gaps, and for added tokens that it does not hold."""
    vocabulary = described["model"].get("vocab")
    if not isinstance(vocabulary, dict):
        raise InputError(f"{path}: holds no vocabulary")
    pieces = pieces_by_id(vocabulary, path)
    added = described.get("added_tokens") or []
    if not isinstance(added, list):
        raise InputError(f"{path}: added_tokens is {added!r}; it must be a list")
    for token in added:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise InputError(f"{path}: the added token {token!r} is no object with a text as its content")
        if vocabulary.get(token.get("content")) != token.get("id"):
            raise InputError(f"{path}: the added token {token.get('content')!r} is not in its vocabulary")
    return pieces


def pieces_by_id(ids: Mapping[str, Any], path: Path) -> list[str]:
    """The pieces of a JSON object of ids in their order; InputError for gaps and for what is no id."""
    if strange := [piece for piece, id in ids.items() if type(id) is not int]:
        raise InputError(f"{path}: the piece {strange[0]!r} has the id {ids[strange[0]]!r}; ids are whole numbers")
    pieces = sorted(ids, key=lambda piece: (ids[piece], piece))
    for id, piece in enumerate(pieces):
        if ids[piece] != id:
            raise InputError(f"{path}: the piece {piece!r} has id {ids[piece]}, where {id} was expected")
    return pieces


def _check_tokens(pieces: Sequence[str], config: dict[str, Any], path: Path) -> None:
    """Refuse special tokens of other names, and added tokens that the vocabulary does not hold under their ids."""
    names = zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True)
    for name, usual in names:
        given = config.get(name) or usual
        given = given.get("content") if isinstance(given, dict) else given
        if given != usual:
            raise InputError(f"{path}: {name} is {given!r}; a BERT tokenizer has {usual!r}")
    beside = path.parent / "added_tokens.json"
    added: list[tuple[Any, Any]] = list((read_object(beside) if beside.is_file() else {}).items())
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise InputError(f"{path}: added_tokens_decoder is {decoder!r}; it must be an object")
    added += [(token.get("content") if isinstance(token, dict) else token, id) for id, token in decoder.items()]
    for token, id in added:
        place = int(id) if str(id).isdecimal() else -1
        if not 0 <= place < len(pieces) or pieces[place] != token:
            raise InputError(f"{path.parent}: the added token {token!r} with the id {id} is not in its vocabulary")


def _check_same(inside: Sequence[str], pieces: Sequence[str], folder: Path) -> None:
    """Refuse a tokenizer.json whose vocabulary differs from vocab.txt."""
    ids = {piece: id for id, piece in enumerate(inside)}
    for id, piece in enumerate(pieces):
        if ids.get(piece) != id:
            raise InputError(
                f"{folder / 'vocab.txt'}:{id + 1}: the piece {piece!r} has id {id} here and "
                f"{ids.get(piece, 'none')} in tokenizer.json; the two files must agree"
            )
    if len(inside) != len(pieces):
        raise InputError(
            f"{folder}: vocab.txt holds {len(pieces)} pieces and tokenizer.json {len(inside)}; they must agree"
        )


def _check_config(config: dict[str, Any], path: Path, rules: Rules) -> None:
    """Refuse a tokenizer_config.json that folds case or strips accents where the rules do not, or the other way."""
    said = {"do_lower_case": not rules.cased, "strip_accents": rules.strip_accents}
    for name, value in said.items():
        given = config.get(name)
        if given is not None and bool(given) != value:
            raise InputError(f"{path}: {name} is {given}, but tokenizer.json says {value}; they must agree")


def _base_of(config: dict[str, Any], path: Path) -> Base | None:
    try:
        given = config[OWN_KEY]["extended_from"] if OWN_KEY in config else None
        return None if given is None else Base.model_validate(given)
    except (KeyError, TypeError, ValidationError) as error:
        raise InputError(f"{path}: {OWN_KEY}.extended_from must hold hash and size ({error!r})") from None
