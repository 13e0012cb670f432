"""text → token ids: the base class of BERT's WordPiece tokenizer (wordpiece.py) and GPT-1's byte-pair one (bpe.py).

The two protocols list the methods that a task needs. A task accepts every tokenizer with these methods.
The `tokenizers` package is not imported here: the two subclasses build its objects.
"""

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bertwright.errors import InputError
from bertwright.files import atomic_file, atomic_folder, write_json

Frame = tuple[int, tuple[int, ...], int]
"""Ids before the first text of a row, between two texts, and after the last text."""
RowFrame = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Ids before the first text of a row, between two texts, and after the last text; each part may be empty."""


class Pieces(Protocol):
    """Ids of texts, and the ids that frame the texts of a row: see `BaseTokenizer`."""

    @property
    def begin_id(self) -> int:
        """Id of the token that begins a row of a task."""
        ...

    @property
    def between_ids(self) -> tuple[int, ...]:
        """Ids of the tokens between two texts of a row."""
        ...

    @property
    def end_id(self) -> int:
        """Id of the token that ends a row."""
        ...

    @property
    def row_frame(self) -> RowFrame:
        """Ids before, between and after the texts of a row; none for a GPT-2 that was trained without them."""
        ...

    @property
    def unk_id(self) -> int:
        """Id of the unknown piece."""
        ...

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text; nothing is added or truncated."""
        ...


class PlacedPieces(Pieces, Protocol):
    """Pieces with their character offsets."""

    def offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Return for each text its ids, and the (first, one past last) character of each piece."""
        ...


class BaseTokenizer(ABC):
    """A vocabulary and its rules. Instances are cheap to pickle, so worker processes can receive them.

    A row of a task is `begin_id`, a text, then `between_ids` and the second text of a pair, and `end_id`:
    [CLS] A [SEP] B [SEP] for WordPiece, _start_ A _delimiter_ B _classify_ for GPT-1,
    <s> A </s></s> B </s> for RoBERTa.

    pieces       the text of each id
    cased        True where upper case is kept
    special_ids  ids of the special tokens, which stand for no text
    pad_id       id that fills rows up
    unk_id       id for text that no piece matches
    """

    pieces: list[str]
    cased: bool
    special_ids: tuple[int, ...]
    pad_id: int
    unk_id: int
    _ids: dict[str, int]
    _rust: Any  # a tokenizers.Tokenizer

    @property
    @abstractmethod
    def hash(self) -> str:
        """The sha256 of everything that decides ids: equal hashes give equal ids for every text."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return readable text for ids."""

    @property
    def readable_pieces(self) -> list[str]:
        """Pieces as a person reads them [V]; they differ from `pieces` where those are letters that stand for bytes."""
        return self.pieces

    @property
    @abstractmethod
    def _frame(self) -> Frame:
        """The ids at the begin of a row, between its texts and at its end."""

    @abstractmethod
    def _vocabulary_files(self) -> dict[str, str]:
        """Return name → text of the files that list pieces and merges."""

    @abstractmethod
    def _config(self) -> dict[str, Any]:
        """Return the content of tokenizer_config.json."""

    @property
    def vocab_size(self) -> int:
        """Number of pieces, special tokens included."""
        return len(self.pieces)

    @property
    def end_of_text_id(self) -> int | None:
        """Id of the token that ends a text in the training of a language model; None where there is no such token."""
        return None

    @property
    def begin_id(self) -> int:
        """Id of the token that begins a row; a byte-pair vocabulary without it raises InputError."""
        return self._frame[0]

    @property
    def between_ids(self) -> tuple[int, ...]:
        """Ids of the tokens between two texts of a row; InputError as for `begin_id`."""
        return self._frame[1]

    @property
    def end_id(self) -> int:
        """Id of the token that ends a row; InputError as for `begin_id`."""
        return self._frame[2]

    @property
    def row_frame(self) -> RowFrame:
        """Ids before, between and after the texts of a row; InputError as for `begin_id`."""
        begin, between, end = self._frame
        return (begin,), between, (end,)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text. Nothing is added or truncated; the name of a special token is plain text."""
        return [encoding.ids for encoding in self._encodings(texts, spans=False)]

    def word_ids(self, words: Sequence[str]) -> list[list[int]]:
        """Return the ids of each word as it is written within a text."""
        return self.ids(words)

    def offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Return for each text its ids, as `ids` does, and the (first, one past last) character of each piece."""
        return [(encoding.ids, encoding.offsets) for encoding in self._encodings(texts)]

    def words(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Return for each text the (first, one past last) character of its words, split at white space and punctuation.

        A combining mark belongs to the word before it, also where the rules drop the mark or begin a word with it.
        A word that the rules delete is left out. No character belongs to two words.
        """
        spans_of_texts = []
        for text, encoding in zip(texts, self._word_encodings(texts), strict=True):
            words: dict[int | None, tuple[int, int]] = {}
            for word, (first, last) in zip(encoding.word_ids, encoding.offsets, strict=True):
                words[word] = (words[word][0] if word in words else first, last)
            spans: list[tuple[int, int]] = []
            for first, last in words.values():
                first = max(first, spans[-1][1]) if spans else first
                if first < last:
                    spans.append((first, _past_marks(text, last)))
            spans_of_texts.append(spans)
        return spans_of_texts

    def _encodings(self, texts: Sequence[str], *, spans: bool = True) -> list[Any]:
        """Return the encodings of the tokenizers package; without `spans` they are made faster and hold ids alone."""
        encode = self._rust.encode_batch if spans else self._rust.encode_batch_fast
        encodings: list[Any] = encode(list(texts), add_special_tokens=False)
        return encodings

    def _word_encodings(self, texts: Sequence[str]) -> list[Any]:
        """Return encodings whose `word_ids` are the words between white space and punctuation."""
        return self._encodings(texts)

    def id_of(self, piece: str) -> int | None:
        """Return the id of a piece, or None where the vocabulary does not hold it."""
        return self._ids.get(piece)

    def save(self, folder: Path) -> None:
        """Write the files that `open_tokenizer_folder` and transformers read; a new folder is complete or absent."""
        if not folder.exists():
            with atomic_folder(folder) as temporary:
                self.save(temporary)
            return
        files = {**self._vocabulary_files(), "tokenizer.json": self._rust.to_str(pretty=True) + "\n"}
        for name, text in files.items():
            with atomic_file(folder / name) as stream:
                stream.write(text.encode())
        write_json(folder / "tokenizer_config.json", self._config())


class MaskTokenizer(BaseTokenizer):
    """A tokenizer with the tokens of masked LM.

    cls_id, sep_id, mask_id   ids of special tokens, as `pad_id` and `unk_id`
    continuation              bool [V], True for pieces that continue a word
    """

    _cls: int | None
    _sep: int | None
    _mask: int | None

    @property
    def cls_id(self) -> int:
        """Id of the token at the begin of a row; InputError for a vocabulary without one."""
        return self._needed(self._cls, "cls")

    @property
    def sep_id(self) -> int:
        """Id of the token at the end of a text; InputError for a vocabulary without one."""
        return self._needed(self._sep, "sep")

    @property
    def mask_id(self) -> int:
        """Id of the token that stands for a masked piece; InputError for a vocabulary without one, such as GPT-2's."""
        return self._needed(self._mask, "mask")

    @property
    def mask_or_none(self) -> int | None:
        """Id of the token that stands for a masked piece; None for a vocabulary without one."""
        return self._mask

    def _needed(self, id: int | None, role: str) -> int:
        if id is None:
            raise InputError(f"the vocabulary of {self.vocab_size:,} pieces has no {role} token, which this use needs")
        return id

    @property
    @abstractmethod
    def continuation(self) -> npt.NDArray[np.bool_]:
        """True for pieces that continue a word [V]."""

    @property
    @abstractmethod
    def _rust_special(self) -> Any:
        """The tokenizers.Tokenizer that reads the names of special tokens as the tokens."""

    def ids(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """Return the ids of each text; nothing is added or truncated.

        "[MASK]", "[SEP]" and so on in a text are plain text, unless `special` is true: then they are the tokens.
        """
        if not special:
            return super().ids(texts)
        rust = self._rust_special
        return [encoding.ids for encoding in rust.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Join pieces into readable text, special tokens included; WordPiece gets the spacing of English."""
        return str(self._rust.decode([int(id) for id in ids], skip_special_tokens=False))


def number_pieces(pieces: Sequence[str], *, required: Sequence[str], source: str) -> dict[str, int]:
    """Return piece → id. Raises InputError for a piece that appears twice and for a required one that is missing."""
    ids: dict[str, int] = {}
    for id, piece in enumerate(pieces):
        first = ids.setdefault(piece, id)
        if first != id:
            raise InputError(
                f"{source}: the piece {piece!r} has two ids, {first} and {id} "
                f"(in vocab.txt lines {first + 1} and {id + 1}); remove one"
            )
    missing = [token for token in required if token not in ids]
    if missing:
        raise InputError(f"{source}: the special token {', '.join(missing)} is missing; expected {' '.join(required)}")
    return ids


def _past_marks(text: str, end: int) -> int:
    """Return the first position from `end` on that holds no combining mark."""
    while end < len(text) and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return end
