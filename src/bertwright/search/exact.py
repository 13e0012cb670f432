"""query vectors [Q, W], blocks of documents → the best documents of each query; exact, in bounded memory.

Documents are numbered so that of two with the same score the one with the lower number is the better one. Score and
number are one integer, so that the order is the same for every size of the blocks. Products of vectors are computed in
fp64: those of fp32 differ from block to block by more than the last digit of a large score, and would break ties.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

QUERIES: Final = 256
"""Number of queries that are compared with a block of documents at a time."""
DECIMALS: Final = 6
"""Decimals of a score; a score above 8 has fewer, those of fp32."""
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
        rows = slice(first, first + len(scores))
        together = np.concatenate([self._keys[rows], keys], axis=1)
        kept = together.shape[1] - self.most
        self._keys[rows] = np.partition(together, kept - 1, axis=1)[:, kept:] if kept else together

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
    ) -> None:
        """Add document vectors [N, W]; their scores are the products with the query vectors [Q, W]."""
        exact = documents.T.astype(np.float64)
        for first in range(0, len(queries), QUERIES):
            rows = slice(first, first + QUERIES)
            self.add(first, queries[rows].astype(np.float64) @ exact, numbers, left_out[rows])
