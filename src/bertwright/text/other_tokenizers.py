"""text → token ids: find out that a folder or a vocabulary belongs to another tokenizer than BERT's WordPiece.

Such a vocabulary would be read without an error, and would give wrong ids: its pieces have other marks, or its texts
were cut into words by another program.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bertwright.errors import InputError
from bertwright.files import read_object, read_object_if_there

_CONTINUATION: Final = "##"
_PREFIXES: Final = {"\u2581": "SentencePiece", "\u0120": "byte-level byte pairs"}
_SUFFIXES: Final = {"</w>": "byte pairs as GPT-1's", "@@": "byte pairs of subword-nmt"}
_LEAST_MARKED: Final = 0.01
"""Fraction of marked pieces above which a vocabulary counts as one of another convention."""
_USUAL_SETTINGS: Final = {
    "word_tokenizer_type": (None, "basic"),
    "subword_tokenizer_type": (None, "wordpiece"),
    "do_word_tokenize": (None, True),
    "do_subword_tokenize": (None, True),
}
"""Settings of transformers' BertJapaneseTokenizer → the values with which it cuts text as BERT does."""
_BERT_CLASSES: Final = ("BertTokenizer", "BertTokenizerFast", "BertTokenizerLegacy")
_SAME_RULES: Final = (
    *("PreTrainedTokenizer", "TokenizersBackend", "ConvBertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"),
    *("FunnelTokenizer", "LayoutLMTokenizer", "LxmertTokenizer", "MPNetTokenizer", "MobileBertTokenizer"),
    *("RealmTokenizer", "RetriBertTokenizer", "SplinterTokenizer", "SqueezeBertTokenizer"),
)
"""Classes, with or without "Fast", that cut text as tokenizer.json says; WordPiece ones cut it as BERT does."""


def refuse_other_rules(folder: Path) -> None:
    """Raise InputError where the settings of a folder name a tokenizer that does not cut text as BERT's does.

    Settings are those of tokenizer_config.json, and `tokenizer_class` of config.json where the former has none.
    """
    path = folder / "tokenizer_config.json"
    settings = read_object_if_there(path)
    for name, usual in _USUAL_SETTINGS.items():
        if settings.get(name) not in usual:
            raise _other_tokenizer(path, name, settings[name], f"{usual[1]!r}")
    mapped = settings.get("auto_map")
    code = mapped.get("AutoTokenizer") if isinstance(mapped, dict) else mapped
    if any(code) if isinstance(code, list) else code:
        raise _other_tokenizer(path, "auto_map", code, "no code of its own")
    if not settings.get("tokenizer_class") and (folder / "config.json").is_file():
        path = folder / "config.json"
        settings = read_object(path)
    kind = settings.get("tokenizer_class") or _BERT_CLASSES[0]
    same_rules = isinstance(kind, str) and kind.removesuffix("Fast") in _SAME_RULES
    if kind not in _BERT_CLASSES and not (same_rules and (folder / "tokenizer.json").is_file()):
        raise _other_tokenizer(path, "tokenizer_class", kind, _BERT_CLASSES[0])


def refuse_other_vocabulary(pieces: Sequence[str], source: str, *, advice: str = "give --as-wordpiece") -> None:
    """Raise InputError for pieces that are marked in another way than by "##" before a piece inside a word.

    advice   end of the message: how to read the vocabulary all the same
    """
    if convention := other_convention(pieces):
        raise InputError(
            f"{source}: expected a WordPiece vocabulary, in which {_CONTINUATION!r} begins pieces inside a word; got "
            f"one of {convention}, and none begins with {_CONTINUATION!r}. Read as WordPiece, words would become "
            f"[UNK]; to read it so all the same, {advice}"
        )


def other_convention(pieces: Sequence[str]) -> str | None:
    """Return the convention of pieces with other marks than WordPiece's, and their number; None for WordPiece."""
    if any(piece.startswith(_CONTINUATION) and piece != _CONTINUATION for piece in pieces):
        return None
    counts = {
        (mark, kind, "begin"): sum(piece.startswith(mark) and piece != mark for piece in pieces)
        for mark, kind in _PREFIXES.items()
    } | {
        (mark, kind, "end"): sum(piece.endswith(mark) and piece != mark for piece in pieces)
        for mark, kind in _SUFFIXES.items()
    }
    (mark, kind, side), marked = max(counts.items(), key=lambda item: item[1])
    if marked <= _LEAST_MARKED * len(pieces):
        return None
    return f"{kind}: {marked:,} of {len(pieces):,} pieces {side} with {mark!r}"


def _other_tokenizer(path: Path, name: str, value: Any, expected: str) -> InputError:
    return InputError(
        f"{path}: {name} is {value!r}; expected {expected}: a BERT tokenizer cuts text at white space and punctuation, "
        "and words into WordPiece, so the ids would be others than in training. To read the vocabulary so all the "
        "same, for text that is cut beforehand, give bertwright import --as-wordpiece"
    )
