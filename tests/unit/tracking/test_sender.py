"""The thread of a tracker: everything arrives once, failures are reported once, and nothing waits for a slow one."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from bertwright.errors import InputError, MissingExtra
from bertwright.tracking.points import TrackedPoint, TrackedRun
from bertwright.tracking.sender import Delivery, Sender, TrackerFaults
from bertwright.tracking.tracker import refuse_missing_tracker
from tests.support.trackers import FailingTracker, Recorder, RecordingTracker

RUN = TrackedRun(Path("run"), Path("run"), "run", None, {})
POINTS = [TrackedPoint(name, step, float(step)) for step in range(1, 6) for name in ("mlm", "nsp")]


def in_a_minute() -> float:
    """The moment until which the tests wait for a thread, which takes no time."""
    return time.monotonic() + 60


def test_points_that_are_there_are_left_out() -> None:
    recorder = Recorder()
    assert Delivery(RecordingTracker(recorder), RUN).deliver(POINTS[:7]) == 7
    again = [TrackedPoint("mlm", 3, -1.0), *POINTS]  # step 3 is done again
    assert Delivery(RecordingTracker(recorder), RUN).deliver(again) == 3
    assert recorder.points["run"] == POINTS


def test_a_failure_is_reported_once_and_all_points_arrive_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    recorder, failed = Recorder(), threading.Event()
    fails = iter([True, False])

    def fail() -> bool:
        failed.set()
        return next(fails)

    sender = Sender("mlflow", FailingTracker(recorder, fail), RUN, POINTS[:4], faults=TrackerFaults())
    assert failed.wait(60)
    sender.add(POINTS[4:])
    sender.end("finished")
    sender.wait(in_a_minute())
    assert recorder.values("run") == {(point.name, point.step): point.value for point in POINTS}
    assert recorder.states == [("run", "finished")]
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning == (
        "warning: --track mlflow: OSError: no route to the server; the run does not need it, and its metrics.jsonl is "
        "whole; `bertwright track run --to mlflow` sends what is missing"
    )


def test_a_tracker_that_hangs_is_left_behind_and_not_waited_for_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    release, sending, faults = threading.Event(), threading.Event(), TrackerFaults()

    class Hanging(RecordingTracker):
        def send(self, points: Sequence[TrackedPoint]) -> None:
            sending.set()
            assert release.wait(60)

    sender = Sender("mlflow", Hanging(Recorder()), RUN, POINTS, faults=faults)
    assert sending.wait(60)
    sender.add(POINTS)
    sender.end("finished")
    sender.wait(time.monotonic())
    assert "--track mlflow: does not answer; the run does not need it" in capsys.readouterr().err
    waits: list[float | None] = []
    monkeypatch.setattr(threading.Thread, "join", lambda _, timeout=None: waits.append(timeout))
    Sender("mlflow", Hanging(Recorder()), RUN, POINTS, faults=faults).wait(in_a_minute())
    assert waits == [0.0]
    release.set()
    assert capsys.readouterr().err == ""


def test_a_missing_package_is_refused_and_a_folder_of_its_name_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="--track neptune: expected one of tensorboard, mlflow, wandb, trackio"):
        refuse_missing_tracker("neptune")
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(MissingExtra, match=r"--track wandb needs the extra 'wandb': pip install 'bertwright\[wandb\]'"):
        refuse_missing_tracker("wandb")
