"""A tracker that records in memory, and one that fails: what a run does with trackers needs no library."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bertwright.tracking.points import TrackedPoint, TrackedRun
from bertwright.tracking.tracker import EndState


@dataclass
class Recorder:
    """Keeps the points of each run by its name, as a server does that outlives the processes of the run."""

    points: dict[str, list[TrackedPoint]] = field(default_factory=dict)
    runs: dict[str, TrackedRun] = field(default_factory=dict)
    states: list[tuple[str, EndState]] = field(default_factory=list)

    def make(self, name: str) -> "RecordingTracker":
        """Stands for `make_tracker`."""
        return RecordingTracker(self)

    def values(self, run: str) -> dict[tuple[str, int], float]:
        """Points by name and step; none twice."""
        values = {(point.name, point.step): point.value for point in self.points[run]}
        assert len(values) == len(self.points[run])
        return values


class RecordingTracker:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._name = recorder, ""

    def open(self, run: TrackedRun) -> Mapping[str, int]:
        self._name = run.name
        self._recorder.runs[run.name] = run
        return {point.name: point.step for point in self._recorder.points.setdefault(run.name, [])}

    def send(self, points: Sequence[TrackedPoint]) -> None:
        self._recorder.points[self._name] += points

    def close(self, state: EndState) -> None:
        self._recorder.states.append((self._name, state))


class FailingTracker(RecordingTracker):
    """Fails in `send` after half of the points while `fails` says so."""

    def __init__(self, recorder: Recorder, fails: Callable[[], bool] = lambda: True) -> None:
        super().__init__(recorder)
        self._fails = fails

    def send(self, points: Sequence[TrackedPoint]) -> None:
        if self._fails():
            super().send(points[: len(points) // 2])
            raise OSError("no route to the server\nand more lines")
        super().send(points)
