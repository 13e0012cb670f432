"""steps that were computed → the time that is left, for the progress line."""

from collections.abc import Callable
from typing import Final

_KEPT: Final = 0.98
"""Weight of the steps before against the last one, so that about 50 steps decide the rate."""


class TimeLeft:
    """Estimate of the seconds that are left, from the work that is left and a smoothed rate.

    work_left   work of the steps after `done` steps, such as their tokens, since steps differ in length
    """

    def __init__(self, work_left: Callable[[int], float]) -> None:
        self._work_left = work_left
        self._seconds = self._work = 0.0
        self._steps = 0

    def add(self, done: int, seconds: float) -> None:
        """Take the time of step `done`, counted from 1. The first step also warms up, so it counts until the second."""
        kept = _KEPT if self._steps != 1 else 0.0
        self._seconds = kept * self._seconds + seconds
        self._work = kept * self._work + self._work_left(done - 1) - self._work_left(done)
        self._steps += 1

    def seconds(self, done: int) -> float:
        """Return the seconds of the steps after `done` steps; 0 before the first step."""
        return self._work_left(done) * self._seconds / self._work if self._work else 0.0
