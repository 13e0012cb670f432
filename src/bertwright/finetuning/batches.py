"""training rows of a bound task → the micro-batches of each step."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError
from bertwright.tasks.binding import BoundTask

MICRO_TOKENS = 4096
"""Largest number of tokens in a micro-batch: 32 rows of 128. Longer rows, or rows with many choices, need several."""

_WINDOW = 50
"""Number of batches that are sorted by length together: padding nearly vanishes, and the order stays random."""


def epoch_batches(lengths: NDArray[np.int64], batch_size: int, *, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """Return the row numbers of an epoch's batches, in random order; rows of similar length are in the same batch."""
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(lengths))
    batches = []
    for begin in range(0, len(order), _WINDOW * batch_size):
        window = order[begin : begin + _WINDOW * batch_size]
        window = window[np.argsort(lengths[window], kind="stable")]
        batches += [window[start : start + batch_size] for start in range(0, len(window), batch_size)]
    return [batches[index] for index in random.permutation(len(batches))]


def steps_of(bound: BoundTask, batch_size: int, *, seed: int, parts: int = 1) -> Callable[[int], Sequence[Any]]:
    """Return a function step → micro-batches: `parts` of them, or more where one would exceed MICRO_TOKENS.

    Raises InputError where the rows of a batch are each other's negatives, and a part would have a single row.
    """
    if bound.kind.contrasts and parts > 1 and min(batch_size, len(bound.lengths)) < 2 * parts:
        raise InputError(
            f"{parts} processes, batches of {batch_size} of {len(bound.lengths):,} rows: expected at least two rows "
            "for each process, which are each other's negatives; start fewer processes, or set a larger --batch-size"
        )
    per_epoch = -(-len(bound.lengths) // batch_size)

    @lru_cache(maxsize=1)
    def batches_of_epoch(epoch: int) -> list[NDArray[np.int64]]:
        return epoch_batches(_sorted_by(bound), batch_size, seed=seed, epoch=epoch)

    def batches_of(step: int) -> list[Any]:
        epoch, index = divmod(step, per_epoch)
        rows = batches_of_epoch(epoch)[index]
        equal_parts = np.array_split(rows, min(parts, len(rows)))
        return [bound.batch(part) for rows in equal_parts for part in micro_batches(bound, rows)]

    return batches_of


def tokens_left(bound: BoundTask, batch_size: int, *, seed: int, epochs: int) -> Callable[[int], float]:
    """Return a function number of steps done → tokens of the steps of `steps_of` after them."""
    per_epoch = -(-len(bound.lengths) // batch_size)

    @lru_cache(maxsize=2)
    def left_in_epoch(epoch: int) -> NDArray[np.int64]:
        batches = epoch_batches(_sorted_by(bound), batch_size, seed=seed, epoch=epoch)
        sums = np.array([bound.tokens[rows].sum() for rows in batches])
        return np.cumsum(sums[::-1])[::-1]

    def left(done: int) -> float:
        epoch, index = divmod(done, per_epoch)
        if epoch >= epochs:
            return 0.0
        return float(left_in_epoch(epoch)[index] + (epochs - 1 - epoch) * bound.tokens.sum())

    return left


def _sorted_by(bound: BoundTask) -> NDArray[np.int64]:
    """Return the numbers by which rows are put into batches: lengths, or zeros where rows are each other's negatives.

    Sorted rows would meet the same few others in every epoch of small data.
    """
    return np.zeros_like(bound.lengths) if bound.kind.contrasts else bound.lengths


def micro_batches(bound: BoundTask, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of each micro-batch; all rows at once where they are each other's negatives."""
    return iter([rows]) if bound.kind.contrasts else micro_batch_rows(rows, bound.tokens)


def micro_batch_rows(rows: NDArray[np.int64], tokens: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of a step in parts of at most MICRO_TOKENS tokens, padding included, or of one row."""
    begin, longest = 0, 0
    for index, row in enumerate(rows):
        longest = max(longest, int(tokens[row]))
        if (index - begin + 1) * longest > MICRO_TOKENS and index > begin:
            yield rows[begin:index]
            begin, longest = index, int(tokens[row])
    yield rows[begin:]
