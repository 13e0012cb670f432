"""What turns text into ids, as far as most who encode rows ask for it; tokenizers of any make answer to it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Pieces(Protocol):
    """Ids of texts, and those that hold the texts of a row together: see `BaseTokenizer`."""

    @property
    def begin_id(self) -> int:
        """The id that a row of a task begins with."""
        ...

    @property
    def between_id(self) -> int:
        """The id between two texts of a row."""
        ...

    @property
    def end_id(self) -> int:
        """The id that a row ends with."""
        ...

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text: nothing is added or truncated."""
        ...


class PlacedPieces(Pieces, Protocol):
    """Pieces that know where in the text they lie."""

    def offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """For each text its ids, and (first, one past last) character of each piece."""
        ...


class BaseTokenizer(PlacedPieces, Protocol):
    """A vocabulary with its rules, of either kind; `pieces[id]` is the text of an id."""

    pieces: list[str]

    @property
    def vocab_size(self) -> int:
        """Number of pieces, special tokens included."""
        ...

    @property
    def hash(self) -> str:
        """Equal hashes give equal ids for every text."""
        ...

    @property
    def cased(self) -> bool:
        """Whether upper case is kept."""
        ...

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids that stand for no text."""
        ...

    @property
    def pad_id(self) -> int:
        """The id that fills rows up."""
        ...

    @property
    def unk_id(self) -> int:
        """The id of what no piece stands for."""
        ...

    def words(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """For each text where its words lie: (first, one past last) character."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text of pieces."""
        ...

    def id_of(self, piece: str) -> int | None:
        """The id of a piece, or None where the vocabulary does not hold it."""
        ...

    def save(self, folder: Path) -> None:
        """Write the files of which `open_tokenizer_folder` makes it again."""
        ...
