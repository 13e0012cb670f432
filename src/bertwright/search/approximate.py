"""vectors of a segment → lists of near vectors, by the library faiss; query → rows that are worth comparing.

An inverted file (Jégou, Douze and Schmid 2011): each vector is in the list of the nearest of many centres, with a byte
for each component. A query reads the lists of the nearest centres only. The rows that it finds there are then compared
exactly, so that they have the scores of the exact search up to its rounding; a row may be missed.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError, MissingExtra
from bertwright.search.exact import BestDocuments

LEAST_ROWS: Final = 10_000
"""Number of rows from which on a segment gets lists; a smaller one is compared exactly in a moment."""
WANTED_RECALL: Final = 0.95
"""Fraction of the ten nearest rows that a query shall find; lists are read until this is reached."""
_NEAREST: Final = 10
_SAMPLE: Final = 200
"""Number of rows that are searched with to measure the recall."""
_TRAINED: Final = 40
"""Number of vectors for each centre that it is computed from."""
_BLOCK: Final = 16_384


class Lists:
    """Lists of a segment, in memory.

    probes: number of lists that a query reads.
    """

    def __init__(self, index: Any, probes: int) -> None:
        self._index, self.probes = index, probes

    @classmethod
    def of_bytes(cls, content: NDArray[np.uint8] | None, probes: int, *, location: str) -> "Lists":
        """Return the lists of a file, whose digest was checked. Raises MissingExtra without faiss."""
        faiss = _faiss()
        try:
            return cls(faiss.deserialize_index(content), probes)
        except RuntimeError as error:
            raise InputError(f"{location}: cannot be read by faiss: {error}; build the index again") from None

    def candidates(
        self, queries: NDArray[np.float32], top_k: int, removed: NDArray[np.int64]
    ) -> list[NDArray[np.int64]]:
        """Return for each query vector [Q, W] the numbers of the rows that may be its `top_k` nearest, ascending.

        There are fewer than `top_k` where the lists that the query reads have fewer.
        """
        faiss = _faiss()
        selector = faiss.IDSelectorBatch(removed) if len(removed) else None
        chosen = {} if selector is None else {"sel": faiss.IDSelectorNot(selector)}
        parameters = faiss.SearchParametersIVF(nprobe=self.probes, **chosen)
        count = min(4 * top_k + 32, self._index.ntotal)  # more than top_k, since a byte is no exact component
        _, rows = self._index.search(np.ascontiguousarray(queries), count, params=parameters)
        return [np.sort(of_query[of_query >= 0]) for of_query in rows]


def make_lists(vectors: NDArray[np.float32]) -> tuple[bytes, int, float]:
    """Return the file of the lists of vectors [N, W], the number of lists that a query reads, and the recall.

    The recall is that of the ten nearest rows, with rows of the segment as queries, each without itself. Raises
    MissingExtra without faiss.
    """
    faiss = _faiss()
    num_rows, width = vectors.shape
    num_lists = max(1, min(int(4 * np.sqrt(num_rows)), num_rows // _TRAINED))
    index = faiss.index_factory(width, f"IVF{num_lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors[_spread(num_rows, _TRAINED * num_lists)])
    for first in range(0, num_rows, _BLOCK):
        index.add(np.ascontiguousarray(vectors[first : first + _BLOCK]))
    rows = _spread(num_rows, _SAMPLE)
    nearest = _nearest_rows(vectors, rows)
    lists = Lists(index, min(4, num_lists))
    while True:
        candidates = lists.candidates(vectors[rows], _NEAREST + 1, np.zeros(0, np.int64))
        recall = float(
            np.mean([np.isin(wanted, read).mean() for wanted, read in zip(nearest, candidates, strict=True)])
        )
        if recall >= WANTED_RECALL or lists.probes >= num_lists:
            return faiss.serialize_index(index).tobytes(), lists.probes, round(recall, 4)
        lists.probes = min(2 * lists.probes, num_lists)


def check_faiss() -> None:
    """Raise MissingExtra without faiss."""
    _faiss()


def _nearest_rows(vectors: NDArray[np.float32], rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the numbers of the nearest other rows of each of these rows, by the exact search."""
    best = BestDocuments(len(rows), min(_NEAREST, len(vectors) - 1))
    for first in range(0, len(vectors), _BLOCK):
        block = vectors[first : first + _BLOCK]
        best.add_vectors(vectors[rows], block, np.arange(first, first + len(block)), rows)
    return [numbers for numbers, _ in best.best()]


def _spread(count: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` row numbers below `count`, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtra("search", "an approximate index") from None
    return faiss
