"""What turns text into ids, as far as most who encode rows ask for it; tokenizers of any make answer to it."""

from collections.abc import Sequence
from typing import Protocol


class Pieces(Protocol):
    """Ids of texts, and those that hold the texts of a row together: see `AnyTokenizer`."""

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
