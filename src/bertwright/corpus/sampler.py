"""Shards → batches: which rows a step sees, as a pure function of (seed, step) (paper §A.2, shuffled training rows).

The rows of an epoch are visited in the order of a keyed bijection of 0 … num_rows-1: a Feistel network over the next
even power of two, walked again where it leaves the range. It needs no memory: a run resumes from its step number alone.
"""

from bisect import bisect_right
from collections.abc import Callable

import numpy as np

from bertwright.compiled import compiled
from bertwright.corpus.random import child, draw, signed, stream_key

_ORDER = 0x0DE5  # the purpose in the stream's key
_ROUNDS = 6


class Sampler:
    """The endless sequence of rows: epoch after epoch, each in its own order.

    num_rows: how many rows an epoch has; asked for the epochs up to the one needed, once each.
    """

    def __init__(self, num_rows: Callable[[int], int], seed: int) -> None:
        self._num_rows = num_rows
        self._seed = seed
        self._begins = [0]  # of epoch 0, 1, 2 … in the endless sequence

    def rows(self, at: int, end: int) -> list[tuple[int, np.ndarray]]:
        """Rows `at` … end-1 of the endless sequence as groups (epoch, rows int64 [n]), mostly one."""
        groups = []
        while at < end:
            epoch = self._epoch_of(at)
            stop = min(end, self._begins[epoch + 1])
            places = np.arange(at - self._begins[epoch], stop - self._begins[epoch], dtype=np.int64)
            num_rows = self._begins[epoch + 1] - self._begins[epoch]
            groups.append((epoch, shuffled(places, num_rows, seed=self._seed, epoch=epoch)))
            at = stop
        return groups

    def _epoch_of(self, row: int) -> int:
        while self._begins[-1] <= row:
            num_rows = self._num_rows(len(self._begins) - 1)
            if num_rows < 1:
                raise ValueError(f"epoch {len(self._begins) - 1} has no rows")
            self._begins.append(self._begins[-1] + num_rows)
        return bisect_right(self._begins, row) - 1


def shuffled(places: np.ndarray, num_rows: int, *, seed: int, epoch: int) -> np.ndarray:
    """The rows int64 [n] that stand at `places` int64 [n] in the epoch's order; a bijection of 0 … num_rows-1."""
    half = max(1, ((num_rows - 1).bit_length() + 1) // 2)
    rows: np.ndarray = _feistel(places, np.uint64(num_rows), np.uint64(half), stream_key(seed, epoch, _ORDER))
    return rows


@compiled
def _feistel(places: np.ndarray, num_rows: np.uint64, half: np.uint64, key: np.uint64) -> np.ndarray:
    low = (np.uint64(1) << half) - np.uint64(1)
    rows = np.empty(places.size, np.int64)
    for i in range(places.size):
        value = np.uint64(places[i])
        outside = True
        while outside:
            left = value >> half
            right = value & low
            for number in range(_ROUNDS):
                word = draw(child(key, np.uint64(number)), right) & low
                left, right = right, left ^ word
            value = (left << half) | right
            outside = bool(value >= num_rows)
        rows[i] = signed(value)
    return rows
