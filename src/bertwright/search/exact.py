"""query vectors [Q, W], blocks of documents → the best documents of each query; exact, in bounded memory.

Documents are numbered so that of two with the same score the one with the lower number is the better one. Score and
number are one integer, so that the order is the same for every size of the blocks. Products of vectors are computed in
fp64: those of fp32 differ from block to block by more than the last digit of a large score, and would break ties. Of
many documents, only those whose product in fp32 is near the best ones are computed so.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError
from bertwright.model.vector_settings import Similarity
from bertwright.tasks.embedding.metrics import unit

QUERIES: Final = 256
"""Number of queries that are compared with a block of documents at a time."""
DECIMALS: Final = 6
"""Decimals of a score; a score above 8 has fewer, those of fp32."""
_MANY: Final = 8
"""Documents of a block for each one that is kept, from which on candidates are chosen by products in fp32."""
_NO_KEY: Final = np.iinfo(np.int64).min
_NUMBERS: Final = (1 << 32) - 1


class BestDocuments:
    """The `most` best documents of each of `num_queries` queries, among those that were added so far."""

    def __init__(self, num_queries: int, most: int) -> None:
        self.most = most
        self._keys = np.full((num_queries, most), _NO_KEY, dtype=np.int64)

    def add(
        self, first: int, scores: NDArray[np.floating], numbers: NDArray[np.int64], left_out: NDArray[np.int64]
    ) -> None:
        """Add documents [N] by their numbers, with scores [Q, N] of the queries from `first` on.

        left_out [Q] is the number of a document that does not count for a query; -1: none.
        """
        ordered = np.round(scores.astype(np.float64), DECIMALS).astype(np.float32) + np.float32(0.0)  # no -0.0
        bits = ordered.view(np.int32)
        bits = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)  # integers in the order of the scores
        keys = (bits.astype(np.int64) << 32) | (_NUMBERS - numbers)
        keys[left_out[:, None] == numbers] = _NO_KEY
        self._add_keys(np.arange(first, first + len(scores)), keys)

    def merge(self, queries: NDArray[np.int64], others: "BestDocuments") -> None:
        """Add the best documents of `others`, whose query i is query `queries[i]` here; no document may be in both."""
        self._add_keys(queries, others._keys)

    def _add_keys(self, queries: NDArray[np.int64], keys: NDArray[np.int64]) -> None:
        together = np.concatenate([self._keys[queries], keys], axis=1)
        dropped = together.shape[1] - self.most
        self._keys[queries] = np.partition(together, dropped - 1, axis=1)[:, dropped:] if dropped else together

    def best(self) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Return the numbers and the scores of the best documents of each query, the best first."""
        answers = []
        for keys in -np.sort(-self._keys, axis=1):
            real = keys[keys != _NO_KEY]
            bits = (real >> 32).astype(np.int32)
            bits = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)
            answers.append((_NUMBERS - (real & _NUMBERS), bits.view(np.float32)))
        return answers

    def add_vectors(
        self,
        queries: NDArray[np.float32],
        documents: NDArray[np.float32],
        numbers: NDArray[np.int64],
        left_out: NDArray[np.int64],
        *,
        longest: float | None = None,
        kept: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add document vectors [N, W]; their scores are the products with the query vectors [Q, W].

        longest: length that no document vector exceeds; None measures it, which takes as long as a query.
        kept [N]: False for a document that does not count for any query; None: all count. The vectors are not copied.
        """
        if not len(documents) or (kept is not None and not kept.any()):
            return
        is_small = len(documents) < _MANY * (self.most + 1)
        if is_small and kept is not None:
            documents, numbers = documents[kept], numbers[kept]
        if longest is None:
            longest = float(np.sqrt(np.einsum("nw,nw->n", documents, documents).max()))
        for first in range(0, len(queries), QUERIES):
            rows = slice(first, first + QUERIES)
            if is_small:
                products = queries[rows].astype(np.float64) @ documents.T.astype(np.float64)
                self.add(first, products, numbers, left_out[rows])
                continue
            for row, scores in enumerate(queries[rows] @ documents.T, first):
                query = queries[row].astype(np.float64)
                # One more than the best ones: one may be left out.
                near = _candidates(scores, self.most + 1, _error(query, longest), kept)
                exact = documents[near].astype(np.float64) @ query
                self.add(row, exact[None], numbers[near], left_out[row : row + 1])


def check_similarity(similarity: Similarity) -> None:
    """Raise InputError for a similarity that is no product of vectors."""
    if similarity not in ("cosine", "dot"):
        raise InputError(f"the model's similarity is {similarity}; a search computes cosine or dot")


def as_compared(vectors: NDArray[np.float32], similarity: Similarity) -> NDArray[np.float32]:
    """Return vectors [N, W] whose products are the similarity: for cosine, divided by their lengths."""
    return unit(vectors) if similarity == "cosine" else vectors


def _error(query: NDArray[np.float64], longest: float) -> float:
    """Return a bound of the error of a product [W] · [W] in fp32: W roundings of at most |q| |d| (Higham 2002, 3.5)."""
    return float(len(query) * 2.0**-24 * np.linalg.norm(query) * longest)


def _candidates(
    scores: NDArray[np.float32], most: int, error: float, kept: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    """Return the positions of all scores [N] that may be among the best `most` once they are exact, and rounded.

    Those count for which `kept` [N] is True; None: all. Rounding keeps the order of two scores or makes them equal.
    Scores that it makes equal differ by less than the margin, which also covers the rounding of large scores to fp32.
    """
    if kept is not None:
        if np.count_nonzero(kept) <= most:
            return np.flatnonzero(kept)
        scores = np.where(kept, scores, np.float32(-np.inf))
    least = float(np.partition(scores, len(scores) - most)[len(scores) - most])
    margin = 2.0 * error + 2.0 * 10.0**-DECIMALS + 1e-6 * abs(least)
    return np.flatnonzero(scores >= np.float32(least - margin))
