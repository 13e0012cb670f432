"""Rows → batches: epoch after epoch of rows, each in an order of its own, whatever stands in them (paper §A.2).

Letters: B rows, T tokens of a row.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
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
        from bertwright.objectives.sampling import Sampler

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


# Shards → batches: rows of several corpora, each with its share of every step (paper §3.1: books and Wikipedia).
#
# How many rows of each corpus come before row n of the mixture is a function of n and the weights alone, so a resumed
# run needs nothing but its step.


class Mixture(Generic[AnyBatch]):
    """The rows of several corpora in shares of `weights`; where a corpus is at its end, its next epoch begins.

    It does for the run what `ShuffledRows` do for one corpus. weights: positive, of any sum.
    """

    def __init__(self, parts: Sequence[ShuffledRows[AnyBatch]], weights: Sequence[float]) -> None:
        self.parts = tuple(parts)
        self.length = parts[0].length
        exact = [Fraction(weight) for weight in weights]
        self.shares = tuple(weight / sum(exact) for weight in exact)

    def num_rows(self, epoch: int) -> int:
        """The rows of that epoch of all corpora."""
        return sum(part.num_rows(epoch) for part in self.parts)

    def passes(self, rows: int) -> list[float]:
        """How often each corpus is passed in the first `rows` rows."""
        return [count / part.num_rows(0) for part, count in zip(self.parts, self.taken(rows), strict=True)]

    def missing_plan_bytes(self, rows: int) -> int:
        """See `ShuffledRows`."""
        return sum(part.missing_plan_bytes(count) for part, count in zip(self.parts, self.taken(rows), strict=True))

    def step_batch(self, step: int, batch_size: int) -> AnyBatch:
        """The batch of a step: of each corpus its next rows."""
        begins, ends = self.taken(step * batch_size), self.taken((step + 1) * batch_size)
        return joined(
            [part.stretch(begin, end) for part, begin, end in zip(self.parts, begins, ends, strict=True) if begin < end]
        )

    def first(self, n: int, batch_size: int = 64) -> Iterator[AnyBatch]:
        """The first rows of each corpus, `n` in all in shares of the weights, corpus after corpus."""
        for part, count in zip(self.parts, self.taken(n), strict=True):
            yield from part.first(count, batch_size)

    def taken(self, n: int) -> list[int]:
        """Of the first `n` rows, how many each corpus gives: within about one of its share; it only grows with n."""
        counts, rest, share_left = [], n, Fraction(1)
        for share in self.shares[:-1]:
            # a part of what the corpora before left over: so each count grows with n, whatever the weights
            counts.append(int(rest * (share / share_left) + Fraction(1, 2)))
            rest -= counts[-1]
            share_left -= share
        return [*counts, rest]


def blended(
    parts: Sequence[ShuffledRows[AnyBatch]], weights: Sequence[float]
) -> ShuffledRows[AnyBatch] | Mixture[AnyBatch]:
    """The rows of one corpus, or a mixture of several."""
    return parts[0] if len(parts) == 1 else Mixture(parts, weights)


def parse_weights(given: Sequence[str]) -> list[tuple[str, float]]:
    """`FOLDER` or `FOLDER=WEIGHT`, as given to --corpus, as (folder, weight); a weight is 1 where none is named.

    ValueError for a weight that is no positive number.
    """
    found = []
    for text in given:
        folder, sign, weight = text.rpartition("=")
        if not sign or Path(text).exists():
            found.append((text, 1.0))
            continue
        number = float(weight)
        if not (number > 0 and np.isfinite(number)):
            raise ValueError(f"{text}: the weight {weight} is not a positive number")
        found.append((folder, number))
    return found
