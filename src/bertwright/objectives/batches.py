"""Rows → batches: epochs of shuffled rows of a corpus, or of a mixture of corpora (paper §3.1 and §A.2).

In a mixture, the number of rows of each corpus before row n is a function of n and the weights alone, so that a resumed
run needs only its step.

Shapes: B rows, T tokens of a row.
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
    lengths: np.ndarray  # int32 [B]: number of tokens before the padding


AnyBatch = TypeVar("AnyBatch", bound=TokenBatch)


class ShuffledRows(ABC, Generic[AnyBatch]):
    """Rows of a corpus, epoch after epoch; `length` is T.

    For a corpus and a seed, a row depends on its epoch and its number alone.
    """

    def __init__(self, length: int, seed: int) -> None:
        from bertwright.objectives.sampling import Sampler  # numba, slow to import

        self.length = length
        self._sampler = Sampler(self.num_rows, seed)

    @abstractmethod
    def num_rows(self, epoch: int) -> int:
        """Return the number of rows of an epoch, which differs a little between epochs."""

    @abstractmethod
    def batch(self, epoch: int, rows: np.ndarray) -> AnyBatch:
        """Return rows `rows`, int64 [B], of an epoch; IndexError for a row that the epoch does not have."""

    @abstractmethod
    def missing_plan_bytes(self, rows: int) -> int:
        """Return the number of bytes that the plans for the first `rows` rows add to CORPUS/plans."""

    @abstractmethod
    def text_tokens(self) -> int:
        """Return the number of tokens of the text from which the rows of epoch 0 are made, with what is cut off."""

    def epoch_tokens(self) -> list[int]:
        """Return the number of tokens of text in an epoch of each corpus; see `text_tokens`."""
        return [self.text_tokens()]

    def passes(self, rows: int) -> list[float]:
        """Return the number of epochs of each corpus in the first `rows` rows."""
        return [rows / self.num_rows(0)]

    def step_batch(self, step: int, batch_size: int) -> AnyBatch:
        """Return the batch of a step: the next `batch_size` shuffled rows, which may span two epochs."""
        return self.rows_between(step * batch_size, (step + 1) * batch_size)

    def rows_between(self, at: int, end: int) -> AnyBatch:
        """Return rows `at` … end-1 of the endless sequence of shuffled rows."""
        return concatenate([self.batch(epoch, rows) for epoch, rows in self._sampler.rows(at, end)])

    def first(self, n: int, batch_size: int = 64) -> Iterator[AnyBatch]:
        """Yield the first `n` rows of epoch 0 (all if it has fewer) in corpus order: the rows of a validation."""
        n = min(n, self.num_rows(0))
        for begin in range(0, n, batch_size):
            yield self.batch(0, np.arange(begin, min(begin + batch_size, n), dtype=np.int64))


def concatenate(batches: list[AnyBatch]) -> AnyBatch:
    """Return several batches as a single batch; their rows have the same shape."""
    first = batches[0]
    if len(batches) == 1:
        return first
    names = type(first).__dataclass_fields__
    return type(first)(**{name: np.concatenate([getattr(batch, name) for batch in batches]) for name in names})


def split_batch(batch: AnyBatch, rows: int) -> list[AnyBatch]:
    """Return the batch as pieces of at most `rows` rows, in order."""
    names = type(batch).__dataclass_fields__
    return [
        type(batch)(**{name: getattr(batch, name)[begin : begin + rows] for name in names})
        for begin in range(0, len(batch.ids), rows)
    ]


def refuse_outside(rows: np.ndarray, epoch: int, size: int) -> None:
    """Raise IndexError for rows that an epoch of `size` rows does not have."""
    if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < size:
        raise IndexError(f"epoch {epoch} has rows 0 to {size - 1}, not {rows.min()} to {rows.max()}")


class Mixture(Generic[AnyBatch]):
    """Rows of several corpora, mixed in proportion to `weights`; each corpus has its own epochs.

    A run uses it in place of `ShuffledRows`. weights: positive numbers of any sum.
    """

    def __init__(self, parts: Sequence[ShuffledRows[AnyBatch]], weights: Sequence[float]) -> None:
        self.parts = tuple(parts)
        self.length = parts[0].length
        exact = [Fraction(weight) for weight in weights]
        self.fractions = tuple(weight / sum(exact) for weight in exact)

    def num_rows(self, epoch: int) -> int:
        """Return the number of rows of an epoch, summed over the corpora."""
        return sum(part.num_rows(epoch) for part in self.parts)

    def epoch_tokens(self) -> list[int]:
        """Return the number of tokens of text in an epoch of each corpus; see `ShuffledRows.text_tokens`."""
        return [part.text_tokens() for part in self.parts]

    def passes(self, rows: int) -> list[float]:
        """Return the number of epochs of each corpus in the first `rows` rows."""
        return [count / part.num_rows(0) for part, count in zip(self.parts, self.rows_per_corpus(rows), strict=True)]

    def missing_plan_bytes(self, rows: int) -> int:
        """Return the number of bytes that the plans for the first `rows` rows add to all CORPUS/plans."""
        return sum(
            part.missing_plan_bytes(count) for part, count in zip(self.parts, self.rows_per_corpus(rows), strict=True)
        )

    def step_batch(self, step: int, batch_size: int) -> AnyBatch:
        """Return the batch of a step: the next rows of each corpus."""
        return self.rows_between(step * batch_size, (step + 1) * batch_size)

    def rows_between(self, at: int, end: int) -> AnyBatch:
        """Return rows `at` … end-1 of the endless sequence of rows, corpus after corpus."""
        begins, ends = self.rows_per_corpus(at), self.rows_per_corpus(end)
        return concatenate(
            [
                part.rows_between(first, last)
                for part, first, last in zip(self.parts, begins, ends, strict=True)
                if first < last
            ]
        )

    def first(self, n: int, batch_size: int = 64) -> Iterator[AnyBatch]:
        """Yield the first rows of each corpus, corpus after corpus; `n` rows in all, in proportion to the weights."""
        for part, count in zip(self.parts, self.rows_per_corpus(n), strict=True):
            yield from part.first(count, batch_size)

    def rows_per_corpus(self, n: int) -> list[int]:
        """Return the number of rows of each corpus among the first `n`; each is about its fraction and grows with n."""
        counts, rest, fraction_left = [], n, Fraction(1)
        for fraction in self.fractions[:-1]:
            # The fraction is taken of the rows that earlier corpora left: so no count shrinks as n grows.
            counts.append(int(rest * (fraction / fraction_left) + Fraction(1, 2)))
            rest -= counts[-1]
            fraction_left -= fraction
        return [*counts, rest]


def mixture_of(
    parts: Sequence[ShuffledRows[AnyBatch]], weights: Sequence[float]
) -> ShuffledRows[AnyBatch] | Mixture[AnyBatch]:
    """Return the mixture of several corpora; a single corpus is returned as it is."""
    return parts[0] if len(parts) == 1 else Mixture(parts, weights)


def parse_weights(texts: Sequence[str]) -> list[tuple[str, float]]:
    """Return (folder, weight) for each `FOLDER` or `FOLDER=WEIGHT` of --corpus; the default weight is 1.

    Raises ValueError for a weight that is not a positive number.
    """
    weighted = []
    for text in texts:
        folder, sign, weight = text.rpartition("=")
        if not sign or Path(text).exists():
            weighted.append((text, 1.0))
            continue
        number = float(weight)
        if not (number > 0 and np.isfinite(number)):
            raise ValueError(f"{text}: the weight {weight} is not a positive number")
        weighted.append((folder, number))
    return weighted
