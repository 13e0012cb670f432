"""run folder → trackers: while the run trains, or afterwards."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from bertwright.errors import RunFailed, Stopped
from bertwright.files import read_object
from bertwright.tracking.points import TrackedPoint, describe_run, final_points, points_of
from bertwright.tracking.sender import Delivery, Sender, TrackerFaults
from bertwright.tracking.tracker import EndState, make_tracker, refuse_missing_tracker
from bertwright.training.run_folder import RunFolder, read_metrics

END_SECONDS: Final = 60.0
"""Seconds that a run waits at its end for trackers that have not received everything; the runs of a command after it do
not wait for those that did not answer."""
_trackers: ContextVar[tuple[str, ...]] = ContextVar("trackers", default=())
_faults: ContextVar[TrackerFaults] = ContextVar("faults")


@contextmanager
def track_with(names: Sequence[str]) -> Iterator[None]:
    """Send the metrics of all runs inside the block to the trackers of these names; see `TrackerName`.

    Raises MissingExtra where the package of one is not installed.
    """
    for name in names:
        refuse_missing_tracker(name)
    tokens = _trackers.set(tuple(dict.fromkeys(names))), _faults.set(TrackerFaults())
    try:
        yield
    finally:
        _trackers.reset(tokens[0])
        _faults.reset(tokens[1])


@contextmanager
def tracked(run: RunFolder) -> Iterator[None]:
    """Send what metrics.jsonl has, each line that is added inside the block, and at its end the results.

    It belongs around the training of one run or seed and the writing of its results. Without trackers, and on all ranks
    but rank zero, it does nothing.
    """
    names = _trackers.get() if run.writes else ()
    if not names:
        yield
        return
    described = describe_run(run.folder, run.record)
    points = _all_points(run.folder)
    senders = [Sender(name, make_tracker(name), described, points, faults=_faults.get()) for name in names]

    def add(line: Mapping[str, Any]) -> None:
        for sender in senders:
            sender.add(points_of(line))

    run.listeners.append(add)
    state: EndState = "failed"
    try:
        yield
        state = "finished" if run.finished else "stopped"
    except (Stopped, KeyboardInterrupt, SystemExit):
        state = "stopped"
        raise
    finally:
        run.listeners.remove(add)
        for sender in senders:
            sender.add(_results(run.folder, run.record))
            sender.end(state)
        until = time.monotonic() + END_SECONDS
        for sender in senders:
            sender.wait(until)


def send_run(folder: Path, name: str) -> int:
    """Send the metrics and results in a run folder, or in the folder of a seed, to a tracker.

    Returns the number of points that it did not have. Raises RunFailed where the tracker fails.
    """
    record = read_object(folder / "run.json")
    delivery = Delivery(make_tracker(name), describe_run(folder, record))
    try:
        count = delivery.deliver([*_all_points(folder), *_results(folder, record)])
        delivery.tracker.close("finished" if record.get("finished") else "stopped")
    except Exception as error:  # every tracker's library has errors of its own
        raise RunFailed(f"{folder}: sending to {name} failed: {type(error).__name__}: {error}") from error
    return count


def _all_points(folder: Path) -> list[TrackedPoint]:
    return [point for line in read_metrics(folder) for point in points_of(line)]


def _results(folder: Path, record: Mapping[str, Any]) -> list[TrackedPoint]:
    lines = read_metrics(folder) if record.get("finished") else []
    return final_points(record, lines[-1]["step"]) if lines else []
