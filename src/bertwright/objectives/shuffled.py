"""Rows → batches: epoch after epoch of rows, each in an order of its own, whatever stands in them (paper §A.2).

Letters: B rows, T tokens of a row.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np


@dataclass(frozen=True)
class TokenBatch:
    """B rows, padded to T tokens."""

    ids: np.ndarray  # int32 [B, T]
    segments: np.ndarray  # int32 [B, T]: 1 in B and its [SEP]
    lengths: np.ndarray  # int32 [B]: tokens before the padding


AnyBatch = TypeVar("AnyBatch", bound=TokenBatch)


class ShuffledRows(ABC, Generic[AnyBatch]):
    """The rows of a corpus, epoch after epoch; `length` is T.

    A row is a function of epoch and row alone, once the corpus and a seed are given.
    """

    def __init__(self, length: int, seed: int) -> None:
        from bertwright.corpus.sampler import Sampler

        self.length = length
        self._sampler = Sampler(self.num_rows, seed)

    @abstractmethod
    def num_rows(self, epoch: int) -> int:
        """The number of rows of an epoch; epochs differ a little."""

    @abstractmethod
    def batch(self, epoch: int, rows: np.ndarray) -> AnyBatch:
        """The given rows, int64 [B], of an epoch; IndexError for a row that the epoch does not have."""

    @abstractmethod
    def missing_plan_bytes(self, rows: int) -> int:
        """What the plans of the epochs of the first `rows` rows will take in CORPUS/plans beyond those there are."""

    def passes(self, rows: int) -> list[float]:
        """How often the corpus is passed in the first `rows` rows: one figure, as a mixture has one for each corpus."""
        return [rows / self.num_rows(0)]

    def step_batch(self, step: int, batch_size: int) -> AnyBatch:
        """The batch of a step: the next `batch_size` of the shuffled rows; it may span epochs."""
        return self.stretch(step * batch_size, (step + 1) * batch_size)

    def stretch(self, at: int, end: int) -> AnyBatch:
        """Rows `at` … end-1 of the endless sequence of shuffled rows."""
        return joined([self.batch(epoch, rows) for epoch, rows in self._sampler.rows(at, end)])

    def first(self, n: int, batch_size: int = 64) -> Iterator[AnyBatch]:
        """The first `n` rows of epoch 0 in walk order, all where there are fewer: the fixed rows of an evaluation."""
        n = min(n, self.num_rows(0))
        for begin in range(0, n, batch_size):
            yield self.batch(0, np.arange(begin, min(begin + batch_size, n), dtype=np.int64))


def joined(batches: list[AnyBatch]) -> AnyBatch:
    """One batch of several, whose rows have the same shape."""
    first = batches[0]
    if len(batches) == 1:
        return first
    names = type(first).__dataclass_fields__
    return type(first)(**{name: np.concatenate([getattr(batch, name) for batch in batches]) for name in names})


def cut(batch: AnyBatch, rows: int) -> list[AnyBatch]:
    """Pieces of at most `rows` rows, in order."""
    names = type(batch).__dataclass_fields__
    return [
        type(batch)(**{name: getattr(batch, name)[begin : begin + rows] for name in names})
        for begin in range(0, len(batch.ids), rows)
    ]


def refuse_outside(rows: np.ndarray, epoch: int, size: int) -> None:
    """IndexError for rows that an epoch of `size` rows does not have."""
    if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < size:
        raise IndexError(f"epoch {epoch} has rows 0 to {size - 1}, not {rows.min()} to {rows.max()}")
