"""The interface of a tracker, and the trackers by their names."""

import importlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from bertwright.errors import InputError, MissingExtra
from bertwright.files import read_object_if_there, write_json
from bertwright.tracking.points import TrackedPoint, TrackedRun

TrackerName = Literal["tensorboard", "mlflow", "wandb", "trackio"]
EndState = Literal["finished", "stopped", "failed"]

_CLASSES: Final[Mapping[str, str]] = {
    "tensorboard": "TensorBoardTracker",
    "mlflow": "MLflowTracker",
    "wandb": "WandbTracker",
    "trackio": "TrackioTracker",
}
"""name of a tracker → its class, in the module of this folder that has the same name."""
_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
}
"""name of a tracker → modules of its extra, which has the same name."""


class Tracker(Protocol):
    """Program that stores and shows the points of runs. Its methods may raise any exception."""

    def open(self, run: TrackedRun) -> Mapping[str, int]:
        """Start a tracker run, or continue the one whose id was noted; return the last step that it has of each name.

        It is called again after a failure.
        """

    def send(self, points: Sequence[TrackedPoint]) -> None:
        """Store points, whose steps do not fall."""

    def close(self, state: EndState) -> None:
        """Store what is buffered, and say how the run ended."""


def refuse_missing_tracker(name: str) -> None:
    """Raise InputError for a name that is no tracker, and MissingExtra where the packages of the tracker are missing.

    A folder without code, such as the `wandb` that Weights & Biases writes, is no package.
    """
    if name not in _MODULES:
        raise InputError(f"--track {name}: expected one of {', '.join(_MODULES)}")
    for module in _MODULES[name]:
        specification = find_spec(module)
        if specification is None or specification.origin is None:
            raise MissingExtra(name, f"--track {name}")


def make_tracker(name: str) -> Tracker:
    """Return a tracker by its name. Its package is not imported before `open`."""
    module = importlib.import_module(f"bertwright.tracking.{name}")
    tracker: Tracker = getattr(module, _CLASSES[name])()
    return tracker


def read_note(run: TrackedRun, tracker: str) -> dict[str, Any]:
    """Return what a tracker noted in the folder of the run, such as the id of its own run; empty at first."""
    path = _note_path(run.folder, tracker)
    return read_object_if_there(path)


def write_note(run: TrackedRun, tracker: str, **facts: Any) -> None:
    """Replace what a tracker noted in the folder of the run, atomically."""
    path = _note_path(run.folder, tracker)
    path.parent.mkdir(exist_ok=True)
    write_json(path, facts)


def _note_path(folder: Path, tracker: str) -> Path:
    return folder / "tracking" / f"{tracker}.json"
