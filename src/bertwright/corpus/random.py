"""Random numbers of the arrow shards → batches: pure functions of a key and a counter (paper §A.1, its draws).

There is no generator state: number `counter` of a stream is a hash of the stream's key and the counter (the
construction of splitmix64), and a key is a hash of what the stream belongs to, such as (seed, epoch, purpose, row). So
any number can be made alone, in any order, by any worker. Everything is uint64: one int64 among them would turn the
arithmetic to float64.
"""

import numpy as np

from bertwright.compiled import compiled

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
