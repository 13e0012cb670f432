"""Path of a file from its run folder → what it is: record, metrics, checkpoint or model, and when it is uploaded.

The folder of a seed of a fine-tuning holds the same files as that of a pre-training.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from bertwright.files import read_object_if_there

IDENTITY: Final = ".store.json"
"""File that identifies the run, and the process that writes it to the store: two runs or processes never mix there."""
ENTRY_RECORD: Final = "entry.json"
"""File of an entry's folder with its request; it marks the folder as an entry's, with its run in `pretraining`."""
RUN_FILE: Final = "run.json"
"""File of a run folder with its settings, and whether it has finished."""
METRICS_FILE: Final = "metrics.jsonl"
"""File of a run folder to which lines are added."""
CONFIG: Final = "config.json"
"""File that makes a model folder complete."""
STATE: Final = "state.json"
"""File of a checkpoint that is written last."""
_STEP: Final = re.compile(r"step-\d{9,}")
_CHECKPOINT: Final = re.compile(r"((?:.*/)?step-\d{9,})/[^/]+")
_OF_TRAINING: Final = re.compile(r"((?:[^/]+/)?)checkpoints/step-\d{9,}")
_SEED_RECORD: Final = re.compile(r"([^/]+/)run\.json")


def run_record(folder: Path) -> dict[str, Any]:
    """Return the record of a run, its run.json; empty where it was not begun."""
    return read_object_if_there(folder / RUN_FILE)


def is_finished(folder: Path) -> bool:
    """Return True where the run in a folder has finished."""
    return bool(run_record(folder).get("finished"))


def noted_corpora(record: Mapping[str, Any], key: str = "corpus") -> list[str]:
    """Return the fingerprints of the corpora of a pre-training; key: "corpus" or "held_out"."""
    noted = record["data"].get(key)
    if isinstance(noted, list):
        return [part["fingerprint"] for part in noted]
    return [noted] if noted else []


def step_name(step: int) -> str:
    """Return the name of the folder of a checkpoint or a snapshot after a step."""
    return f"step-{step:09d}"


def step_folders(folder: Path) -> dict[int, Path]:
    """Return step → folder of the checkpoints or snapshots in `folder`, ascending; other names are left out."""
    paths = [path for path in folder.glob("step-*") if _STEP.fullmatch(path.name) and path.is_dir()]
    return dict(sorted((step_of(path.name), path) for path in paths))


def checkpoint_of(name: str) -> str | None:
    """Return the folder of the checkpoint that a file belongs to, from the run folder; None for another file."""
    match = _CHECKPOINT.fullmatch(name)
    return match[1] if match else None


def step_of(checkpoint: str) -> int:
    """Return the step of the folder of a checkpoint."""
    return int(checkpoint.rpartition("step-")[2])


def trained_part(checkpoint: str) -> str | None:
    """Return the part of the run that a checkpoint continues: "" or the folder of a seed with a slash, else None."""
    match = _OF_TRAINING.fullmatch(checkpoint)
    return match[1] if match else None


def seed_folder(name: str) -> str | None:
    """Return the folder of a seed with a slash, where `name` is its run.json; None for another file."""
    match = _SEED_RECORD.fullmatch(name)
    return match[1] if match else None


def is_of_machine(name: str) -> bool:
    """Return whether a file of a run folder belongs to this machine alone; `name` is its path from the folder."""
    return any(part.startswith(".") for part in name.split("/"))


def is_metrics(name: str) -> bool:
    """Return whether a file has the metrics of the run or of a seed."""
    return name.rpartition("/")[2] == METRICS_FILE


def _is_of_model(name: str) -> bool:
    return "model" in name.split("/")[:-1]


def is_weights(name: str) -> bool:
    """Return whether a file has weights of a model."""
    return _is_of_model(name) and name.endswith(".safetensors")


def is_fixed(name: str) -> bool:
    """Return whether a file is in a folder that is complete when it gets its name: a checkpoint or a model."""
    return checkpoint_of(name) is not None or _is_of_model(name)


def is_result(name: str, seeds: Iterable[str]) -> bool:
    """Return whether a file is uploaded before run.json of the seeds: metrics, models, and other files of seeds."""
    return is_metrics(name) or _is_of_model(name) or name.startswith(tuple(seeds))


def upload_rank(name: str) -> int:
    """Return when a file is uploaded: 0 first, 3 last."""
    if is_metrics(name):
        return 0
    if not is_fixed(name):
        return 3
    return 2 if name.rpartition("/")[2] in (STATE, CONFIG) else 1
