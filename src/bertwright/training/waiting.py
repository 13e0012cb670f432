"""Waiting of OpenMP's threads beside other programs: they sleep sooner while those take the cores.

A step divides each operation among threads, which wait for each other at its end. A waiting thread spins first, since
that is fastest where each thread has a core. Where another program has one of the cores, spinning takes the other core
from the very thread that is waited for, and a small model learns at a fifth of its speed (docs/log.md).

GNU's OpenMP spins 1,000 rounds at most while a process has more threads in its pools than there are cores. So a thread
here watches for how long the process waited for a core. Where that is long, it starts a second pool, which does
nothing. The number of threads of each operation stays the same. So the bits of a run stay the same. Two pools are more
threads than cores where an operation has more threads than half of the cores, as by default; with fewer, nothing
changes.
"""

import atexit
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

import torch

INTERVAL: Final = 0.5
"""Seconds between two looks at the waiting times."""
CROWDED: Final = 0.15
"""Seconds that a thread of an operation waits for a core, in each second, from which the machine is crowded."""
FREE: Final = 0.10
"""Seconds of such waiting below which a crowded machine is free again."""
_TASKS: Final = Path("/proc/self/task")
_started = threading.Lock()


def watch_cores() -> None:
    """Start a thread that watches the waiting times until this process ends. Only Linux has such times."""
    if sys.platform == "linux" and _started.acquire(blocking=False):
        ended = threading.Event()
        watching = threading.Thread(target=_watch, args=(ended,), name="bertwright-cores", daemon=True)
        watching.start()

        @atexit.register
        def end() -> None:
            ended.set()
            watching.join()


class Look(NamedTuple):
    """State of the process as the thread sees it at one moment."""

    at: float
    """Moment of the look, in seconds of a clock that only goes forward."""
    times: Mapping[str, int]
    """Result of `waiting_times`."""
    threads: int
    """Number of threads of an operation."""


class SecondPool:
    """A pool of OpenMP's threads that do nothing, from `start` to `end`."""

    def __init__(self) -> None:
        self._ended, self._ready = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, name="bertwright-pool", daemon=True)

    def start(self) -> None:
        """Start the threads, and return when they are there."""
        self._thread.start()
        self._ready.wait()

    def end(self) -> None:
        """End the threads."""
        self._ended.set()
        self._thread.join()

    def _compute(self) -> None:
        torch.ones(1 << 18).neg_()  # large enough to be divided: this thread of Python gets a pool

    def _hold(self) -> None:
        try:
            self._compute()
        finally:
            self._ready.set()
        self._ended.wait()


def is_crowded(waited: float, seconds: float, *, threads: int, was_crowded: bool) -> bool:
    """Return whether other programs take the cores.

    waited       seconds that all threads together waited for a core, while `seconds` went by
    threads      number of threads of an operation; one thread waits for no other
    was_crowded  the result of the look before
    """
    return threads > 1 and waited / (seconds * threads) > (FREE if was_crowded else CROWDED)


def waited_since(before: Mapping[str, int], now: Mapping[str, int]) -> float:
    """Return the seconds for which the threads waited between two results of `waiting_times`."""
    return sum(waited - before.get(thread, waited) for thread, waited in now.items()) / 1e9


def waiting_times(threads: Path = _TASKS) -> dict[str, int]:
    """Return for how long each thread of this process waited for a core so far, in nanoseconds, by its number.

    threads   folder of the threads, each with a file `schedstat`
    """
    times: dict[str, int] = {}
    try:
        folders = list(threads.iterdir())
    except OSError:  # there is no /proc here, or too many files are open
        return times
    for folder in folders:
        try:
            times[folder.name] = int((folder / "schedstat").read_text("ascii").split()[1])
        except (OSError, IndexError, ValueError):  # the thread has ended, or this kernel keeps no such times
            continue
    return times


def crowded_at(looks: Iterable[Look]) -> Iterator[bool]:
    """Yield whether the machine is crowded, at each of the looks but the first."""
    crowded = False
    for before, now in pairwise(looks):
        waited = waited_since(before.times, now.times)
        crowded = is_crowded(waited, now.at - before.at, threads=now.threads, was_crowded=crowded)
        yield crowded


def hold_while_crowded(crowded: Iterable[bool], new_pool: Callable[[], SecondPool] = SecondPool) -> None:
    """Start a pool when the machine gets crowded, and end it when it is free again or the looks end."""
    pool: SecondPool | None = None
    for is_now in crowded:
        if is_now and pool is None:
            pool = new_pool()
            pool.start()
        elif pool is not None and not is_now:
            pool.end()
            pool = None
    if pool is not None:
        pool.end()


def _looks(ended: threading.Event) -> Iterator[Look]:
    yield Look(monotonic(), waiting_times(), torch.get_num_threads())
    while not ended.wait(INTERVAL):
        yield Look(monotonic(), waiting_times(), torch.get_num_threads())


def _watch(ended: threading.Event) -> None:
    hold_while_crowded(crowded_at(_looks(ended)))
