"""text → token ids: a published tokenizer.json taken as it is: byte-level byte pairs (RoBERTa, ModernBERT) and Unigram.

The `tokenizers` package computes the ids by the rules in the file. The tokens that frame a row are those that its
post-processor adds; the names of the special tokens are in tokenizer_config.json.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from bertwright.errors import InputError
from bertwright.files import read_object, read_object_if_there
from bertwright.text.base_tokenizer import Frame, MaskTokenizer, RowFrame

_DESCRIPTION, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_ROLES: Final = {
    "pad": ("pad_token", "eos_token"),
    "unk": ("unk_token", "eos_token"),
    "cls": ("cls_token", "bos_token"),
    "sep": ("sep_token", "eos_token"),
    "mask": ("mask_token",),
}
"""Role of a special token → entries of tokenizer_config.json that may name it; the first one that is there counts."""
_USUAL: Final = {
    "pad": ("<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("<s>", "[CLS]"),
    "sep": ("</s>", "[SEP]"),
    "mask": ("<mask>", "[MASK]"),
}
"""Names of special tokens where the settings do not name them."""
BERT_MASK: Final = "[MASK]"
"""Mask token of BERT, which is read as the mask token of any tokenizer."""
_PADDING: Final = "<|pad|>"
"""Name of the padding that `with_frame` adds."""
_ANY: Final = "word"
"""Only piece of the tokenizer that splits words."""
_WORD_STARTS: Final = "\u0120\u2581"
"""Marks at the start of a piece that begins a word: of byte-level byte pairs, and of SentencePiece."""


_WHITE_SPACE: Final = {ord(space): repr(space)[1:-1] for space in "\t\n\v\f\r"}
"""White space that would break a line → its spelling."""
_SPACED: Final = tuple(f"{name}Tokenizer{kind}" for name in ("GPT2", "Roberta") for kind in ("", "Fast"))
"""Classes of transformers that put a space before a text as the settings say, whatever tokenizer.json says."""
_UNSPACED: Final = re.compile(
    "[\u3040-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
"""Kana, Bopomofo and ideographs: letters of texts without spaces between words."""


class PublishedTokenizer(MaskTokenizer):
    """A tokenizer whose rules are those of its tokenizer.json.

    described   content of tokenizer.json
    settings    content of tokenizer_config.json
    """

    def __init__(
        self,
        described: Mapping[str, Any],
        settings: Mapping[str, Any],
        *,
        place: str = "tokenizer",
        may_be_bare: bool = False,
    ) -> None:
        """Build the tokenizer; `place` names it in errors.

        may_be_bare: True where rows of a task may have no frame, because the model reads their last token.
        Raises InputError for a description that `tokenizers` refuses, for ids without a piece, and where no token for
        padding and unknown text is named.
        """
        self.described = {**described, "truncation": None, "padding": None}
        self.settings, self._may_be_bare = dict(settings), may_be_bare
        self._rust = self._build(place, self.described)
        pieces = self._rust.get_vocab(with_added_tokens=True)
        if sorted(pieces.values()) != list(range(len(pieces))):
            missing = next(id for id, at in enumerate(sorted(pieces.values())) if id != at)
            raise InputError(
                f"{place}: expected a piece for each id from 0 to {max(pieces.values())}, got none for {missing}"
            )
        self.pieces = sorted(pieces, key=pieces.__getitem__)
        self._ids = pieces
        roles = {role: self._role(role) for role in _ROLES}
        first = next((id for id in (roles["pad"], roles["unk"], roles["sep"]) if id is not None), None)
        if first is None:
            raise InputError(
                f"{place}: expected the name of a token for padding in {_SETTINGS} (pad_token), got none; add it"
            )
        self.pad_id = first if roles["pad"] is None else roles["pad"]
        self.unk_id = first if roles["unk"] is None else roles["unk"]
        self._mask, self._cls, self._sep = roles["mask"], roles["cls"], roles["sep"]
        special = [token["id"] for token in self.described.get("added_tokens") or [] if token.get("special")]
        self.special_ids = tuple(dict.fromkeys([*special, self.pad_id]))
        self.cased = self._rust.normalizer is None or self._rust.normalizer.normalize_str("A") != "a"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(PublishedTokenizer, may_be_bare=self._may_be_bare), (self.described, self.settings)

    @cached_property
    def hash(self) -> str:
        """The sha256 of the description: equal hashes give equal ids for every text."""
        return hashlib.sha256(json.dumps(self.described, sort_keys=True, ensure_ascii=False).encode()).hexdigest()

    @property
    def end_of_text_id(self) -> int | None:
        """Id of </s> or <|endoftext|>; None for a vocabulary without such a token."""
        return self._sep

    def characters(self) -> list[int]:
        """Return the number of characters of text in each piece, white space of ASCII left out [V].

        A character whose bytes are in several pieces belongs to the piece of its first byte.
        """
        if not self._is_byte_level:
            return [len(piece.replace(_WORD_STARTS[1], "")) for piece in self.pieces]
        others = {*map(_letter_of, b" \t\n\v\f\r"), *_inner_letters()}
        return [sum(letter not in others for letter in piece) for piece in self.pieces]

    @cached_property
    def readable_pieces(self) -> list[str]:
        """Pieces as a person reads them [V]: a piece of bytes as their text, with ▁ for the space before a word.

        A part of a character is written as \\xe3, white space of other kinds as \\n.
        """
        if not self._is_byte_level:
            return self.pieces
        bytes_of = {_letter_of(byte): byte for byte in range(256)}
        literal = {token["content"] for token in self.described.get("added_tokens") or []}
        return [piece if piece in literal else _readable(piece, bytes_of) for piece in self.pieces]

    @cached_property
    def continuation(self) -> npt.NDArray[np.bool_]:
        """True for pieces that start with a letter, digit or accent, and with no mark of a new word [V].

        Byte-level pieces that start inside a character continue it. An ideograph or kana begins a word, because no
        space stands between the words of such a text.
        """
        bytes_of = {_letter_of(byte): byte for byte in range(256)} if self._is_byte_level else None
        in_word = (_continues(piece, bytes_of) for piece in self.pieces)
        return np.fromiter(in_word, dtype=np.bool_, count=len(self.pieces))

    def ids(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """Return the ids of each text; nothing is added or truncated.

        "<mask>", "</s>" and so on in a text are plain text, unless `special` is true: then they are the tokens, and
        "[MASK]" is the mask token too.
        """
        if special and self._mask is not None and BERT_MASK not in self._ids:
            texts = [text.replace(BERT_MASK, self.pieces[self._mask]) for text in texts]
        return super().ids(texts, special=special)

    def word_ids(self, words: Sequence[str]) -> list[list[int]]:
        """Return the ids of each word as it is written within a text: byte pairs contain the space before it."""
        return self.ids([f" {word}" for word in words] if self._is_byte_level else words)

    def offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Return for each text its ids and the (first, one past last) character of each piece, without white space."""
        return [
            (ids, [_without_space(text, span) for span in spans])
            for text, (ids, spans) in zip(texts, super().offsets(texts), strict=True)
        ]

    @property
    def has_frame(self) -> bool:
        """True where tokens are added to a text; GPT-2's published tokenizer adds none."""
        return bool(self._rust.num_special_tokens_to_add(is_pair=False))

    @property
    def row_frame(self) -> RowFrame:
        """Ids before, between and after the texts of a row; none where rows may be bare and nothing is added."""
        return ((), (), ()) if self._may_be_bare and not self.has_frame else super().row_frame

    def for_last_token(self) -> "PublishedTokenizer":
        """Return the tokenizer for a model that reads the last token of a row, which then needs no frame."""
        if self.has_frame:
            return self
        bare = object.__new__(PublishedTokenizer)  # its vocabulary is not read a second time
        vars(bare).update(vars(self), _may_be_bare=True)
        return bare

    def with_frame(self) -> "PublishedTokenizer":
        """Return the tokenizer with tokens that frame the rows of a task; itself where it has them.

        GPT-2's vocabulary has one special token, the end of a text. It begins a row, stands between its texts and ends
        it. A token for padding is appended, because transformers takes the last token that is no padding for the end
        of a row. No other id changes.
        """
        if self.has_frame or self._sep is None:
            return self
        rust, end = self._build("tokenizer", self.described), self.pieces[self._sep]
        rust.add_special_tokens([_PADDING])
        rust.post_processor = processors.TemplateProcessing(
            single=f"{end} $A {end}", pair=f"{end} $A {end} $B {end}", special_tokens=[(end, self._sep)]
        )
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": _PADDING}  # read tokenizer.json as it is
        return PublishedTokenizer(json.loads(rust.to_str()), self.settings | settings)

    @cached_property
    def _frame(self) -> Frame:
        """The ids that the post-processor adds before, between and after two texts."""
        pair = self._rust.encode("a", "b", add_special_tokens=True)
        sides = list(zip(pair.ids, pair.sequence_ids, strict=True))
        first = next(index for index, (_, side) in enumerate(sides) if side == 0)
        second = next(index for index, (_, side) in enumerate(sides) if side == 1)
        before, after = sides[:first], [pair for pair in sides[second:] if pair[1] is None]
        between = [id for id, side in sides[first:second] if side is None]
        if len(before) != 1 or len(after) != 1 or not between:
            raise InputError(
                f"the tokenizer frames a pair of texts with {len(before)}, {len(between)} and {len(after)} tokens; a "
                "row of a task needs one before, at least one between, and one after"
            )
        return before[0][0], tuple(between), after[0][0]

    def _vocabulary_files(self) -> dict[str, str]:
        return {}

    def _config(self) -> dict[str, Any]:
        return self.settings

    @classmethod
    def load(cls, folder: Path) -> "PublishedTokenizer":
        """Read tokenizer.json and tokenizer_config.json of a folder. Raises InputError for broken files."""
        settings = folder / _SETTINGS
        return cls(
            read_object(folder / _DESCRIPTION),
            read_object_if_there(settings),
            place=str(folder / _DESCRIPTION),
        )

    def check_space(self, folder: Path) -> None:
        """Raise InputError where transformers, for its class in the settings, puts another space before a text."""
        if self.settings.get("tokenizer_class") not in _SPACED:
            return
        wanted, described = bool(self.settings.get("add_prefix_space")), self.described.get("pre_tokenizer") or {}
        for step in described.get("pretokenizers", [described]):
            has = step.get("add_prefix_space", wanted) if step.get("type") == "ByteLevel" else wanted
            if wanted != has:
                raise InputError(
                    f"{folder / _SETTINGS}: add_prefix_space is {wanted}, but {has} in {_DESCRIPTION}; they must agree"
                )

    def _encodings(self, texts: Sequence[str], *, spans: bool = True) -> list[Any]:
        encodings = super()._encodings(texts, spans=spans)
        if not self._lists_special:
            return encodings
        names, normalizer = [self.pieces[id] for id in self.special_ids], self._rust.normalizer
        for index, text in enumerate(texts):
            read = text if normalizer is None else normalizer.normalize_str(text)
            if any(name in read for name in names):
                encodings[index] = self._rust_plain.encode(text, add_special_tokens=False)
        return encodings

    def _word_encodings(self, texts: Sequence[str]) -> list[Any]:
        encodings: list[Any] = _splitter().encode_batch(list(texts), add_special_tokens=False)
        return encodings

    @property
    def _lists_special(self) -> bool:
        """True for Unigram, whose list of pieces holds the special tokens, so that it finds their names in a text."""
        return bool(self.described["model"].get("type") == "Unigram")

    @cached_property
    def _rust_plain(self) -> tokenizers.Tokenizer:
        """A Unigram tokenizer in which the names of the special tokens begin with characters that stand in no text."""
        special = {self.pieces[id] for id in self.special_ids}
        model = self.described["model"]
        pieces = [[f"\0\uffff\0{piece}" if piece in special else piece, score] for piece, score in model["vocab"]]
        changed: dict[str, Any] = {"model": {**model, "vocab": pieces}, "added_tokens": [], "post_processor": None}
        return self._build("tokenizer", self.described | changed)

    @cached_property
    def _rust_special(self) -> tokenizers.Tokenizer:
        rust = self._build("tokenizer", self.described)
        rust.encode_special_tokens = False
        return rust

    @property
    def _is_byte_level(self) -> bool:
        return '"ByteLevel"' in json.dumps(self.described.get("pre_tokenizer"))

    def _build(self, place: str, described: Mapping[str, Any]) -> tokenizers.Tokenizer:
        try:
            rust = tokenizers.Tokenizer.from_str(json.dumps(described))
        except Exception as error:  # the package raises Exception itself
            raise InputError(f"{place}: not the description of a tokenizer: {error}") from None
        rust.encode_special_tokens = True  # the package's name for reading "<mask>" as ordinary text
        return rust

    def _role(self, role: str) -> int | None:
        """Return the id of the special token with a role; None where there is none."""
        for entry in _ROLES[role]:
            named = self.settings.get(entry)
            name = named.get("content") if isinstance(named, dict) else named
            if isinstance(name, str) and name in self._ids:
                return self._ids[name]
        return next((self._ids[name] for name in _USUAL[role] if name in self._ids), None)


@cache
def _splitter() -> tokenizers.Tokenizer:
    """Return a tokenizer whose pieces are the words between white space and punctuation, as BERT splits them."""
    rust = tokenizers.Tokenizer(models.WordLevel({_ANY: 0}, unk_token=_ANY))
    rust.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return rust


def _letter_of(byte: int) -> str:
    """Return the letter by which byte-level pairs write a byte: itself where it is printable, else one from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in printable:
        return chr(byte)
    return chr(0x100 + [other for other in range(256) if other not in printable].index(byte))


def _inner_letters() -> set[str]:
    """Return the letters of the bytes that no character of UTF-8 begins with, but that are inside of one."""
    return {_letter_of(byte) for byte in range(0x80, 0xC0)}


def _readable(piece: str, bytes_of: Mapping[str, int]) -> str:
    """Return the text of a piece of bytes; a piece that has other letters stays as it is."""
    if not bytes_of.keys() >= {*piece}:
        return piece
    text = bytes(bytes_of[letter] for letter in piece).decode(errors="backslashreplace")
    return text.replace(" ", _WORD_STARTS[1]).translate(_WHITE_SPACE)


def _continues(piece: str, bytes_of: Mapping[str, int] | None) -> bool:
    """Return whether a piece continues a word; bytes_of: the byte of each letter of a byte-level piece.

    Of a character that a byte-level piece has in part, the first byte tells the script.
    """
    first = piece[:1]
    if first in _WORD_STARTS:
        return False
    if bytes_of is not None and first in bytes_of:
        begin = bytes_of[first]
        if 0x80 <= begin < 0xC0:  # inside a character
            return True
        count = 1 if begin < 0x80 else 2 if begin < 0xE0 else 3 if begin < 0xF0 else 4
        letters = bytes(bytes_of.get(letter, 0x20) for letter in piece[:count])
        try:
            first = letters.decode()
        except UnicodeDecodeError:
            return begin < 0xE2 or 0xEA <= begin < 0xEE  # alphabets and Hangul; the others are marks, kana, ideographs
    kind = unicodedata.category(first[:1] or " ")[0]
    return kind == "M" or (kind in "LN" and not _UNSPACED.match(first))


def is_published(described: Any) -> bool:
    """Return True for a tokenizer.json whose rules are neither BERT's WordPiece nor GPT-1's byte pairs."""
    model = described.get("model") if isinstance(described, dict) else None
    if not isinstance(model, dict):
        return False
    is_pairs = model.get("type") == "BPE" or "merges" in model
    return model.get("type") == "Unigram" or (is_pairs and not model.get("end_of_word_suffix"))


def _without_space(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """Return the span of a piece in a text without the white space at its begin."""
    first, last = span
    while first < last and text[first].isspace():
        first += 1
    return first, last
