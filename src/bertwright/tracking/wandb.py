"""points → Weights & Biases, offline unless WANDB_MODE is set: RUN/wandb, which `wandb sync` uploads later."""

import os
import uuid
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from bertwright.tracking.points import TrackedPoint, TrackedRun
from bertwright.tracking.tracker import EndState, read_note, write_note


class WandbTracker:
    """A run of Weights & Biases, which keeps its id; each start writes a further folder in RUN/wandb.

    An offline run cannot be asked for its points, so the steps that it has are noted. It writes a row when the next one
    comes: after a crash the last row is sent again.
    """

    def __init__(self) -> None:
        self._wandb_run: Any = None
        self._run: TrackedRun | None = None
        self._id = ""
        self._written: dict[str, int] = {}
        self._row: dict[str, int] = {}
        """Steps of the points of the row that is not yet written, by name."""

    def open(self, run: TrackedRun) -> Mapping[str, int]:
        """Start a run, or continue the noted one, in the project of WANDB_PROJECT (bertwright)."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        folder = Path(os.environ.get("WANDB_DIR") or run.whole)
        note = read_note(run, "wandb")
        self._id, self._run = note.get("id") or uuid.uuid4().hex[:8], run
        has_files = any(folder.glob(f"wandb/*run-*-{self._id}"))
        self._written, self._row = note.get("written", {}) if has_files else {}, {}
        if self._wandb_run is not None:
            self._wandb_run.finish(exit_code=1)
        self._wandb_run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "bertwright"),
            id=self._id,
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "offline"),
            dir=str(folder),
            name=run.name,
            group=run.group,
            config=dict(run.parameters),
            reinit="create_new",
            settings=wandb.Settings(
                console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True, init_timeout=30
            ),
        )
        self._note()
        return self._written

    def send(self, points: Sequence[TrackedPoint]) -> None:
        """Give the points to its process, a row for each step."""
        for step, group in groupby(points, key=lambda point: point.step):
            row = list(group)
            self._wandb_run.log({point.name: point.value for point in row}, step=step)
            if step not in self._row.values():
                self._written = {**self._written, **self._row}
                self._row = {}
            self._row |= {point.name: step for point in row}
        self._note()

    def close(self, state: EndState) -> None:
        """Wait until everything is written."""
        self._wandb_run.finish(exit_code=0 if state == "finished" else 1)
        self._written = {**self._written, **self._row}
        self._note()

    def _note(self) -> None:
        assert self._run is not None
        write_note(self._run, "wandb", id=self._id, written=self._written)
