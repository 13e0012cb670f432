"""Shards → batches: rows of several corpora, each with its share of every step (paper §3.1: books and Wikipedia).

How many rows of each corpus come before row n of the mixture is a function of n and the weights alone, so a resumed run
needs nothing but its step.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Generic

import numpy as np

from bertwright.objectives.shuffled import AnyBatch, ShuffledRows, joined


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
