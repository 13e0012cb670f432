"""Threads that sleep sooner while other programs take the cores."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bertwright.training.waiting import (
    Look,
    SecondPool,
    crowded_at,
    hold_while_crowded,
    is_crowded,
    waited_since,
    waiting_times,
)

SECOND = 1_000_000_000
"""Nanoseconds in a second."""


def test_waiting_times_are_the_second_number_of_each_thread(tmp_path: Path) -> None:
    for thread, text in {"11": "5000 700 3", "12": "1 0 1", "13": "", "14": "1 many 2"}.items():
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(text, "ascii")
    (tmp_path / "15").mkdir()  # a thread that has just ended
    assert waiting_times(tmp_path) == {"11": 700, "12": 0}


def test_threads_that_begin_or_end_between_two_looks_count_nothing() -> None:
    before = {"1": 5 * SECOND, "2": 1 * SECOND}
    assert waited_since(before, {"1": 6 * SECOND, "3": 9 * SECOND}) == 1.0


@pytest.mark.parametrize(
    ("waited", "threads", "was_crowded", "crowded"),
    [
        (0.05, 2, False, False),
        (0.35, 2, False, True),
        (0.25, 2, False, False),  # between the two limits the result stays
        (0.25, 2, True, True),
        (0.15, 2, True, False),
        (0.35, 8, False, False),  # one of eight threads
        (0.90, 1, False, False),
    ],
)
def test_a_machine_is_crowded_while_threads_wait_for_cores(
    waited: float, threads: int, was_crowded: bool, crowded: bool
) -> None:
    assert is_crowded(waited, 1.0, threads=threads, was_crowded=was_crowded) == crowded
    assert is_crowded(2 * waited, 2.0, threads=threads, was_crowded=was_crowded) == crowded


ADDED = """
import os, torch
from bertwright.training.waiting import SecondPool
torch.set_num_threads(3)
torch.ones(1 << 18).neg_()  # the pool of this thread
alone, pool = set(os.listdir("/proc/self/task")), SecondPool()
pool.start()
print(len(set(os.listdir("/proc/self/task")) - alone))
pool.end()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads in /proc")
def test_the_second_pool_has_threads_of_its_own() -> None:
    """In a process of its own, where no other test has left a thread."""
    done = subprocess.run([sys.executable, "-c", ADDED], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 3  # the thread of Python, and two more


def test_a_pool_that_cannot_compute_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(SecondPool):
        def _compute(self) -> None:
            raise MemoryError

    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    pool = Broken()
    pool.start()
    pool.end()
    assert [failure.exc_type for failure in failed] == [MemoryError]


def test_without_proc_there_are_no_waiting_times(tmp_path: Path) -> None:
    assert waiting_times(tmp_path / "missing") == {}


def test_looks_say_when_the_machine_is_crowded() -> None:
    """Seconds of waiting before six looks, a second apart: none, none, long, long, none, long."""
    looks = [Look(float(at), {"1": waited * SECOND}, 2) for at, waited in enumerate([0, 0, 1, 2, 2, 3])]
    assert list(crowded_at(looks)) == [False, True, True, False, True]


def test_a_pool_is_held_only_while_the_machine_is_crowded() -> None:
    events: list[str] = []

    class Pool(SecondPool):
        def start(self) -> None:
            events.append("start")

        def end(self) -> None:
            events.append("end")

    def crowded() -> Iterator[bool]:
        for look in (False, True, True, False, True):
            events.append("look")
            yield look

    hold_while_crowded(crowded(), Pool)
    assert events == ["look", "look", "start", "look", "look", "end", "look", "start", "end"]
