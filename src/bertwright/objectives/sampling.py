"""Random numbers of the arrow shards → batches: pure functions of a key and a counter (paper §A.1, its draws).

There is no generator state: number `counter` of a stream is a hash of the stream's key and the counter (the
construction of splitmix64), and a key is a hash of what the stream belongs to, such as (seed, epoch, purpose, row). So
any number can be made alone, in any order, by any worker. Everything is uint64: one int64 among them would turn the
arithmetic to float64.
"""

from bisect import bisect_right
from collections.abc import Callable

import numpy as np

from bertwright.jit import compiled

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


@compiled
def mix(value: np.uint64) -> np.uint64:
    """Scramble 64 bits, one to one (the finaliser of splitmix64)."""
    value = (value ^ (value >> _30)) * _FIRST
    value = (value ^ (value >> _27)) * _SECOND
    return value ^ (value >> _31)


@compiled
def child(key: np.uint64, item: np.uint64) -> np.uint64:
    """The key of the stream that belongs to `item` under `key`."""
    return mix((key ^ item) + _GOLDEN)


@compiled
def draw(key: np.uint64, counter: np.uint64) -> np.uint64:
    """Number `counter` of a stream: 64 random bits."""
    return mix(key + (counter + _ONE) * _GOLDEN)


@compiled
def below(bits: np.uint64, limit: np.uint64) -> np.uint64:
    """A uniform number of 0 … limit-1 from 64 random bits; limit < 2**32 (uneven by at most limit / 2**32)."""
    return ((bits >> _32) * limit) >> _32


@compiled
def happens(bits: np.uint64, threshold: np.uint64) -> bool:
    """Whether an event with the probability behind `threshold` happens."""
    return bool((bits >> _32) < threshold)


@compiled
def signed(value: np.uint64) -> int:
    """A number under 2**63 as int64, to be mixed with sizes and places."""
    return np.int64(value)  # type: ignore[return-value]


def probability(share: float) -> np.uint64:
    """The threshold for `happens` of a probability of 0 to 1, in steps of 2**-32."""
    return np.uint64(round(share * 2**32))


def stream_key(*words: int) -> np.uint64:
    """The key of a stream named by whole numbers, such as (seed, epoch, purpose); each counts modulo 2**64."""
    key = np.uint64(0)
    for word in words:
        key = np.uint64(child(key, np.uint64(word & 0xFFFFFFFFFFFFFFFF)))
    return key


# Shards → batches: which rows a step sees, as a pure function of (seed, step) (paper §A.2, shuffled training rows).
#
# The rows of an epoch are visited in the order of a keyed bijection of 0 … num_rows-1: a Feistel network over the
# next even power of two, walked again where it leaves the range. It needs no memory: a run resumes from its step
# number alone.

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
