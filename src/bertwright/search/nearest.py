"""queries + segments of an index → the nearest rows, exactly or by lists of near vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError
from bertwright.model.vector_settings import Similarity
from bertwright.search.exact import DECIMALS, BestDocuments, as_compared
from bertwright.search.index_files import IndexManifest, Segment
from bertwright.tables.bad_rows import is_blank
from bertwright.tables.reader import refuse_halves
from bertwright.tasks.finite import check_finite
from bertwright.tasks.sentence_vectors import say_cut
from bertwright.tasks.static_vectors import TextVectors

_SCORES: Final = 1 << 22
"""Number of scores in memory at a time."""
_BYTES: Final = 1 << 26
"""Number of bytes of the vectors that are compared at a time."""


@dataclass(frozen=True)
class Hit:
    """A row that a query found. score: cosine or dot product, rounded to six decimals."""

    id: str
    score: float
    text: str
    fields: dict[str, Any]


class VectorIndex:
    """Vectors of texts with their ids and fields. Threads may search together.

    folder: the folder of the index, or its name in messages.
    """

    def __init__(self, folder: Path, manifest: IndexManifest, segments: Sequence[Segment]) -> None:
        self.folder, self.manifest, self.segments = folder, manifest, segments
        self._begins = np.cumsum([0, *map(len, segments)])

    def check_model(self, encoder: TextVectors) -> None:
        """Raise InputError where the vectors of `encoder` are not those of the index, or fewer than it compares."""
        if encoder.fingerprint != self.manifest.fingerprint:
            made_by = f"{self.manifest.model}, " if self.manifest.model else ""
            raise InputError(
                f"{self.folder}: expected the model that made this index ({made_by}fingerprint "
                f"{self.manifest.fingerprint[:12]}), got one with the fingerprint {encoder.fingerprint[:12]}: its "
                "weights, tokenizer or settings of vectors differ; use that model, or build the index again"
            )
        encoder.check_width(self.manifest.width, f"{self.folder}: build the index again; its width")

    def search(
        self, encoder: TextVectors, queries: Sequence[str], top_k: int = 10, *, exact: bool = False
    ) -> list[list[Hit]]:
        """Return the best rows of each query, the best first; of two with the same score, the one added first.

        exact: True compares all rows of an approximate index too.
        Raises InputError for another model, a query that is empty or no text, and a `top_k` below 1.
        """
        if top_k < 1:
            raise InputError(f"top_k {top_k}: expected at least 1")
        self.check_model(encoder)
        for number, query in enumerate(queries):
            refuse_halves([query], f"query {number} ")
            if is_blank(query):
                raise InputError(f"query {number}: expected a text, got an empty one")
        rows, cut = encoder.rows(queries, "query")
        say_cut(sum(cut), len(cut), "queries")
        vectors = encoder.of_rows(rows, "query", width=self.manifest.width)
        check_finite(vectors, "query {}".format)
        return self.hits(as_compared(vectors, self.manifest.similarity), top_k, exact=exact)

    def hits(self, queries: NDArray[np.float32], top_k: int, *, exact: bool = False) -> list[list[Hit]]:
        """Return the best rows for each query vector [Q, W], as `nearest`."""
        return [
            [self._hit(number, score) for number, score in zip(numbers.tolist(), scores.tolist(), strict=True)]
            for numbers, scores in self.nearest(queries, top_k, exact=exact)
        ]

    def nearest(
        self, queries: NDArray[np.float32], top_k: int, *, exact: bool = False
    ) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Return the numbers and scores of the best rows for each query vector [Q, W], the best first.

        Rows are numbered through all segments from 0 on. For cosine the query vectors have length 1. exact: as in
        `search`.
        """
        best = BestDocuments(len(queries), min(top_k, max(1, len(self))))
        for begin, segment in zip(self._begins.tolist(), self.segments, strict=False):
            scanned = np.arange(len(queries))
            # Where most rows are removed, few of those that a query reads are left.
            if segment.has_lists and not exact and 2 * segment.num_kept > len(segment):
                scanned = _add_candidates(best, queries, segment, begin)
            if len(scanned):
                best.merge(scanned, _scan(segment, queries[scanned], best.most, begin, self.manifest.similarity))
        return best.best()

    def __len__(self) -> int:
        return sum(segment.num_kept for segment in self.segments)

    def _hit(self, number: int, score: float) -> Hit:
        holder = int(np.searchsorted(self._begins, number, side="right")) - 1
        row = self.segments[holder].row(number - int(self._begins[holder]))
        return Hit(row.id, round(score, DECIMALS), row.text, row.fields)


def _add_candidates(
    best: BestDocuments, queries: NDArray[np.float32], segment: Segment, begin: int
) -> NDArray[np.int64]:
    """Add the rows in the lists that each query reads; return the numbers of the queries that read too few of them."""
    nothing, too_few = np.full(1, -1, dtype=np.int64), []
    for query, numbers in enumerate(segment.candidates(queries, best.most)):
        if len(numbers) < min(best.most, segment.num_kept):
            too_few.append(query)
            continue
        scores = segment.vectors[numbers].astype(np.float64) @ queries[query].astype(np.float64)
        best.add(query, scores[None], begin + numbers, nothing)
    return np.array(too_few, dtype=np.int64)


def _scan(
    segment: Segment, queries: NDArray[np.float32], most: int, begin: int, similarity: Similarity
) -> BestDocuments:
    """Return the best rows of a segment for each query vector [Q, W], by comparing all; `begin` is its first number."""
    best, longest = BestDocuments(len(queries), most), 1.0 if similarity == "cosine" else None
    nothing = np.full(len(queries), -1, dtype=np.int64)
    block = max(1, min(_SCORES // max(1, len(queries)), _BYTES // segment.vectors[0].nbytes))
    for first in range(0, len(segment), block):
        rows = slice(first, min(len(segment), first + block))  # views: no vector is copied
        kept = None if segment.kept is None else segment.kept[rows]
        numbers = begin + np.arange(rows.start, rows.stop)
        best.add_vectors(queries, segment.vectors[rows], numbers, nothing, longest=longest, kept=kept)
    return best
