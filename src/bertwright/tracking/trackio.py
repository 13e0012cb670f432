"""points → trackio's database on this machine: TRACKIO_DIR, otherwise the cache of Hugging Face."""

import os
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final

from bertwright.tracking.points import TrackedPoint, TrackedRun
from bertwright.tracking.tracker import EndState, read_note, write_note

_PROJECT: Final = "bertwright"


class TrackioTracker:
    """A run of trackio. Rows are written to the database itself: `trackio.init` prints to standard output."""

    def __init__(self) -> None:
        self._storage: Any = None
        self._config: dict[str, Any] | None = None
        self._name = self._id = ""

    def open(self, run: TrackedRun) -> Mapping[str, int]:
        """Read the rows that the noted run has, if there is one."""
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        from trackio.sqlite_storage import SQLiteStorage

        self._storage = SQLiteStorage
        note = read_note(run, "trackio")
        self._name, self._id = run.name, note.get("id") or uuid.uuid4().hex
        write_note(run, "trackio", id=self._id)
        group = {"_Group": run.group} if run.group else {}
        self._config = {**run.parameters, **group, "_Created": datetime.now(UTC).isoformat()}
        steps: dict[str, int] = {}
        for row in SQLiteStorage.get_logs(_PROJECT, run_id=self._id):
            for name in row.keys() - {"step", "timestamp"}:
                steps[name] = max(row["step"], steps.get(name, -1))
        return steps

    def send(self, points: Sequence[TrackedPoint]) -> None:
        """Write a row for each step."""
        rows = [
            (step, {point.name: point.value for point in group})
            for step, group in groupby(points, key=lambda point: point.step)
        ]
        self._storage.bulk_log(
            _PROJECT,
            self._name,
            [values for _, values in rows],
            steps=[step for step, _ in rows],
            config=self._config,
            run_id=self._id,
        )
        self._config = None

    def close(self, state: EndState) -> None:
        """Do nothing: each row was written at once."""
