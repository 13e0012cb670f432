"""points → one tracker, in a thread of its own, so that a slow or absent server holds up no training."""

import threading
import time
from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Final

from bertwright.console import say
from bertwright.tracking.points import TrackedPoint, TrackedRun
from bertwright.tracking.tracker import EndState, Tracker

_RETRY_SECONDS: Final = 60.0
"""Seconds between a failure and the next attempt; the end of the run cuts them short."""


@dataclass
class TrackerFaults:
    """Names of the trackers that failed in a command, which its runs and seeds share.

    reported   those whose failure was reported
    silent     those that did not answer in time at the end of a run; the next ends do not wait for them
    """

    reported: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)


class Delivery:
    """Sends points to a tracker, each once: what the tracker has already is left out.

    A step that is done again after a crash keeps its first point. No point is sent twice, since after each start and
    each failure the tracker is asked for the steps that it has.
    """

    def __init__(self, tracker: Tracker, run: TrackedRun) -> None:
        self.tracker, self.run = tracker, run
        self._last: dict[str, int] | None = None

    def deliver(self, points: Sequence[TrackedPoint]) -> int:
        """Send the points that the tracker does not have; return their number. Raises what the tracker raises."""
        if self._last is None:
            self._last = dict(self.tracker.open(self.run))
        last, fresh = self._last, []
        for point in points:
            if point.step > last.get(point.name, -1):
                last[point.name] = point.step
                fresh.append(point)
        if fresh:
            try:
                self.tracker.send(fresh)
            except BaseException:
                self._last = None  # an unknown part of them arrived
                raise
        return len(fresh)


class Sender:
    """A thread that delivers points to one tracker while a run trains.

    A failure is reported once, and the points are kept and tried again later. The run waits for the tracker at its end
    alone, in `wait`. faults: those of the command.
    """

    def __init__(
        self, name: str, tracker: Tracker, run: TrackedRun, points: Sequence[TrackedPoint], *, faults: TrackerFaults
    ) -> None:
        self._name, self._run, self._faults = name, run, faults
        self._delivery = Delivery(tracker, run)
        self._points = list(points)
        self._state: EndState | None = None
        self._changed = threading.Condition()
        run_thread = copy_context().run  # messages go where those of the run go
        self._thread = threading.Thread(target=run_thread, args=(self._work,), name=f"track-{name}", daemon=True)
        self._thread.start()

    def add(self, points: Sequence[TrackedPoint]) -> None:
        """Give points to the thread; return at once."""
        with self._changed:
            self._points += points
            self._changed.notify()

    def end(self, state: EndState) -> None:
        """Tell the thread that no more points come, and how the run ended; return at once."""
        with self._changed:
            self._state = state
            self._changed.notify()

    def wait(self, until: float) -> None:
        """Wait until everything is sent, up to a moment of `time.monotonic`; then the thread is left behind."""
        seconds = 0.0 if self._name in self._faults.silent else max(0.0, until - time.monotonic())
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._faults.silent.add(self._name)
            self._warn("does not answer")

    def _work(self) -> None:
        while not self._deliver_next():
            pass

    def _deliver_next(self) -> bool:
        """Wait for points or the end, and deliver; return True after the last attempt."""
        with self._changed:
            self._changed.wait_for(lambda: self._points or self._state)
            points, state = list(self._points), self._state
        try:
            self._delivery.deliver(points)
            with self._changed:
                del self._points[: len(points)]
            if state:
                self._delivery.tracker.close(state)
        except BaseException as error:
            self._warn(_reason(error))
            with self._changed:
                self._changed.wait_for(lambda: self._state is not state, timeout=0.0 if state else _RETRY_SECONDS)
        return state is not None

    def _warn(self, reason: str) -> None:
        if self._name not in self._faults.reported:
            self._faults.reported.add(self._name)
            say(
                f"warning: --track {self._name}: {reason}; the run does not need it, and its metrics.jsonl is whole; "
                f"`bertwright track {self._run.whole} --to {self._name}` sends what is missing"
            )


def _reason(error: BaseException) -> str:
    """Return the first line of an error, cut to 200 characters."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
