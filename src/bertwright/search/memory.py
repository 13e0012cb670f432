"""texts → an index in memory: the same search as in a folder, without files."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError, shown
from bertwright.search.exact import as_compared, check_similarity
from bertwright.search.index_files import IndexManifest, IndexRow, Segment
from bertwright.search.nearest import VectorIndex
from bertwright.tables.bad_rows import is_blank
from bertwright.tables.reader import refuse_halves
from bertwright.tasks.finite import check_finite
from bertwright.tasks.sentence_vectors import say_cut
from bertwright.tasks.static_vectors import TextVectors


class MemorySegment(Segment):
    """Rows and their vectors [N, W] in memory."""

    has_lists = False

    def __init__(self, vectors: NDArray[np.float32], rows: Sequence[IndexRow]) -> None:
        self.vectors, self._rows = vectors, rows
        self.kept, self.num_kept, self.removed = None, len(rows), np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, number: int) -> IndexRow:
        """Return a row by its number."""
        return self._rows[number]


class MemoryIndex(VectorIndex):
    """An index in memory, made of all of its texts."""

    @classmethod
    def of_texts(
        cls, encoder: TextVectors, texts: Sequence[str], *, ids: Sequence[str] | None = None, width: int | None = None
    ) -> "MemoryIndex":
        """Return an index of texts; without `ids` a text has its position as id, from 0 on.

        width: number of first components of the vectors. Raises InputError for no text, an empty one, ids of another
        number, empty ones or two that are equal, and a similarity that is no product of vectors; RunFailed for a vector
        that is not finite.
        """
        encoder.check_width(width, "width")
        check_similarity(encoder.similarity)
        names = list(map(str, range(len(texts)))) if ids is None else list(ids)
        _check(texts, names)
        encoded, cut = encoder.rows(texts, "document")
        say_cut(sum(cut), len(cut), "texts")
        vectors = encoder.of_rows(encoded, "document", width=width)
        check_finite(vectors, "text {}".format)
        manifest = IndexManifest(
            model="", fingerprint=encoder.fingerprint, width=vectors.shape[1], similarity=encoder.similarity
        )
        rows = [IndexRow(id, text, {}) for id, text in zip(names, texts, strict=True)]
        segment = MemorySegment(as_compared(vectors, encoder.similarity), rows)
        return cls(Path("the index in memory"), manifest, [segment])


def _check(texts: Sequence[str], ids: Sequence[Any]) -> None:
    """Raise InputError for texts and ids that cannot be searched."""
    if not texts:
        raise InputError("texts: expected at least one text, got none")
    if len(ids) != len(texts):
        raise InputError(f"ids: expected {len(texts)}, one for each text, got {len(ids)}")
    if len(set(ids)) < len(ids):
        twice = next(id for id, count in Counter(ids).items() if count > 1)
        raise InputError(f"ids: '{shown(twice)}' is there twice; ids must differ")
    for id in ids:
        if isinstance(id, str) and is_blank(id):
            raise InputError(f"ids: expected a visible text for each id, got {shown(repr(id))}")
    for number, text in enumerate(texts):
        refuse_halves([text], f"text {number} ")
        if is_blank(text):
            raise InputError(f"text {number}: expected a text, got an empty one")
