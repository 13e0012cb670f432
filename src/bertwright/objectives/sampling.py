"""Shards → batches: the random numbers of the rows, and the order of the rows in training (paper §A.1 and §A.2).

Random numbers are pure functions of a key and a counter; there is no generator state. Number `counter` of a stream is a
hash of the stream's key and the counter (the construction of splitmix64). A key is a hash of the stream's name, such as
(seed, epoch, purpose, row). Each number can therefore be computed alone, in any order and by any worker. All values are
uint64, because a single int64 would turn the arithmetic into float64.

The rows of a step are a pure function of (seed, step). The rows of an epoch are visited in the order of a keyed
bijection of 0 … num_rows-1: a Feistel network over the next even power of two, applied again while the result is out of
range. The order needs no memory, so a run resumes from its step number alone.
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
    """Return the key of the stream that belongs to `item` under `key`."""
    return mix((key ^ item) + _GOLDEN)


@compiled
def draw(key: np.uint64, counter: np.uint64) -> np.uint64:
    """Return number `counter` of a stream: 64 random bits."""
    return mix(key + (counter + _ONE) * _GOLDEN)


@compiled
def below(bits: np.uint64, limit: np.uint64) -> np.uint64:
    """Return a uniform number in 0 … limit-1 from 64 random bits; limit < 2**32 (uneven by at most limit / 2**32)."""
    return ((bits >> _32) * limit) >> _32


@compiled
def happens(bits: np.uint64, threshold: np.uint64) -> bool:
    """Return whether an event happens; `threshold` comes from `probability`."""
    return bool((bits >> _32) < threshold)


@compiled
def signed(value: np.uint64) -> int:
    """Return a number below 2**63 as int64, for arithmetic with sizes and positions."""
    return np.int64(value)  # type: ignore[return-value]


def probability(chance: float) -> np.uint64:
    """Return the threshold for `happens` of a probability from 0 to 1, in steps of 2**-32."""
    return np.uint64(round(chance * 2**32))


def stream_key(*numbers: int) -> np.uint64:
    """Return the key of the stream named by integers, such as (seed, epoch, purpose); each is taken modulo 2**64."""
    key = np.uint64(0)
    for number in numbers:
        key = np.uint64(child(key, np.uint64(number & 0xFFFFFFFFFFFFFFFF)))
    return key


@compiled
def row_draws(rows: np.ndarray, width: int, key: np.uint64) -> np.ndarray:
    """Return the first `width` numbers of the stream of each row as numbers below 2**32: int64 [B, width].

    rows: row numbers, int64 [B]. key: key of the epoch's stream.
    """
    numbers = np.empty((rows.size, width), np.int64)
    for i in range(rows.size):
        stream = child(key, np.uint64(rows[i]))
        for k in range(width):
            numbers[i, k] = signed(draw(stream, np.uint64(k)) >> _32)
    return numbers


_ORDER = 0x0DE5  # the purpose in the stream's key
_ROUNDS = 6


class Sampler:
    """Endless sequence of rows: epoch after epoch, each in its own order.

    num_rows: function that returns the number of rows of an epoch. It is called once for each epoch up to the last one
    that is needed.
    """

    def __init__(self, num_rows: Callable[[int], int], seed: int) -> None:
        self._num_rows = num_rows
        self._seed = seed
        self._begins = [0]  # first position of epoch 0, 1, 2, … in the endless sequence

    def rows(self, at: int, end: int) -> list[tuple[int, np.ndarray]]:
        """Return rows `at` … end-1 of the endless sequence as groups (epoch, rows int64 [n]), usually a single one."""
        groups = []
        while at < end:
            epoch = self._epoch_of(at)
            stop = min(end, self._begins[epoch + 1])
            positions = np.arange(at - self._begins[epoch], stop - self._begins[epoch], dtype=np.int64)
            num_rows = self._begins[epoch + 1] - self._begins[epoch]
            groups.append((epoch, shuffled(positions, num_rows, seed=self._seed, epoch=epoch)))
            at = stop
        return groups

    def _epoch_of(self, row: int) -> int:
        while self._begins[-1] <= row:
            num_rows = self._num_rows(len(self._begins) - 1)
            if num_rows < 1:
                raise ValueError(f"epoch {len(self._begins) - 1} has no rows")
            self._begins.append(self._begins[-1] + num_rows)
        return bisect_right(self._begins, row) - 1


def shuffled(positions: np.ndarray, num_rows: int, *, seed: int, epoch: int) -> np.ndarray:
    """Return the rows, int64 [n], at `positions`, int64 [n], of the epoch's order: a bijection of 0 … num_rows-1."""
    half = max(1, ((num_rows - 1).bit_length() + 1) // 2)
    rows: np.ndarray = _feistel(positions, np.uint64(num_rows), np.uint64(half), stream_key(seed, epoch, _ORDER))
    return rows


@compiled
def _feistel(positions: np.ndarray, num_rows: np.uint64, half: np.uint64, key: np.uint64) -> np.ndarray:
    low = (np.uint64(1) << half) - np.uint64(1)
    rows = np.empty(positions.size, np.int64)
    for i in range(positions.size):
        value = np.uint64(positions[i])
        outside = True
        while outside:
            left = value >> half
            right = value & low
            for number in range(_ROUNDS):
                bits = draw(child(key, np.uint64(number)), right) & low
                left, right = right, left ^ bits
            value = (left << half) | right
            outside = bool(value >= num_rows)
        rows[i] = signed(value)
    return rows
