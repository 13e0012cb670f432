"""points → event files of TensorBoard, in RUN/tensorboard."""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from bertwright.tracking.points import TrackedPoint, TrackedRun
from bertwright.tracking.tracker import EndState

_SPEEDS: Final = frozenset({"seconds", "data_share", "tokens_per_second", "mfu"})
"""Numbers about the machine. They are a group of charts of their own, apart from those of the training."""
_GROUPS: Final = ("train/", "speed/")


class TensorBoardTracker:
    """Event files; each start of the run writes a further file into the same folder, and TensorBoard joins them."""

    def __init__(self) -> None:
        self._writer: Any = None

    def open(self, run: TrackedRun) -> Mapping[str, int]:
        """Read the event files that are there, and open a new one. Raises OSError."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = run.whole / "tensorboard" / ("" if run.folder == run.whole else run.folder.name)
        steps: dict[str, int] = {}
        files = sorted(folder.glob("events.out.tfevents.*"))
        for path in files:
            for name, step in _written(path):
                steps[name] = max(step, steps.get(name, -1))
        self._writer = EventFileWriter(str(folder))
        if not files:
            rows = [f"| {name} | {value} |" for name, value in run.parameters.items()]
            self._add(0, text_pb("settings", "\n".join(["| setting | value |", "|---|---|", *rows])))
            known = {name: value for name, value in run.parameters.items() if value is not None}
            self._add(0, hparams_pb(known, trial_id=run.group or run.name))
        return steps

    def send(self, points: Sequence[TrackedPoint]) -> None:
        """Write the points, in float32, as TensorBoard stores them."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        for step, group in groupby(points, key=lambda point: point.step):
            values = [Summary.Value(tag=_tag(point.name), simple_value=point.value) for point in group]
            self._add(step, Summary(value=values))
        self._writer.flush()

    def close(self, state: EndState) -> None:
        """Close the event file."""
        self._writer.close()

    def _add(self, step: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))


def _tag(name: str) -> str:
    """Return the name of a chart. TensorBoard groups charts by what stands before the slash."""
    if "/" in name:
        return name
    return f"speed/{name}" if name in _SPEEDS else f"train/{name}"


def _name(tag: str) -> str:
    """Return the name of the points of a chart."""
    group = next((each for each in _GROUPS if tag.startswith(each)), "")
    return tag.removeprefix(group)


def _written(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the name and the step of each point in an event file; a crash may have cut its end."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    for record in RawEventFileLoader(str(path)).Load():
        event = Event.FromString(record)
        for value in event.summary.value:
            if value.HasField("simple_value"):
                yield _name(value.tag), event.step
