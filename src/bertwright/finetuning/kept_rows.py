"""model + labelled data → the validation rows that training kept of its only file: `evaluate` measures them alone.

A run without a validation file keeps a tenth of its training file. The model folder notes the sha256 of that file, so
that it is recognised under every name, and a digest of the lines that were kept.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import file_digest
from bertwright.model.folder import notes_of
from bertwright.tasks.beir import is_retrieval, judgements_file
from bertwright.tasks.binding import BoundTask, TaskKind
from bertwright.tasks.embedding.pairs import TextPairs
from bertwright.tasks.embedding.spec import VectorTask
from bertwright.tasks.embedding.task import EMBEDDING
from bertwright.tasks.spec import TaskSpec

_DEV: Final = re.compile(r"(^|[-_.])(dev|valid|val|validation)([-_.]|$)")
"""Part of the name of a validation file."""
_TRAIN: Final = re.compile(r"(^|[-_.])train")
"""Part of the name of the training file of a folder."""
NOTE: Final = "trained_on"
"""Entry of config.json: {"sha256", "kept"}; kept is {"rows", "sha256"}, or None where there was a validation file."""


def training_note(bound: BoundTask) -> dict[str, Any]:
    """Return the entry of config.json that names the training file and the rows that were kept of it."""
    digests = bound.digests
    if "train" not in digests:
        return {}
    kept = None if digests.get("dev") else _identity(bound.kind, next(iter(bound.validation.values()))[0])
    return {NOTE: {"sha256": digests["train"], "kept": kept}}


def kept_rows(kind: TaskKind, task: TaskSpec, notes: Mapping[str, Any], data: Path, *, calibrate: bool = False) -> Any:
    """Return the validation rows where `data` is the training file of a model, and print it; else None.

    notes: entries of bertwright in the config.json of the model. task: the task with the columns of the training. Where
    training had a validation file, the training file is measured as any other, with a warning. Raises InputError for
    `calibrate` then, and where other options than in training give other rows.
    """
    note = notes.get(NOTE)
    if not isinstance(note, Mapping):
        return None
    kept, paths = note.get("kept"), _training_files(data, note)
    if not paths:
        return None
    measured = data if data in paths else next((path for path in paths if _DEV.search(path.name)), None)
    if measured and (kept is None or measured != data):
        _warn_of_training_rows(measured, rows="rows" if kept else "all rows", calibrate=calibrate)
    if kept is None or (measured and measured != data):
        return None
    try:
        path, labelled = paths[0], kind.read(task, data)
    except InputError:
        if not data.is_dir() or any(_TRAIN.search(path.name.lower()) for path in paths):
            raise
        if kind is EMBEDDING:  # which measures each table of a folder
            _warn_of_training_rows(paths[0], rows="rows")
        return None  # training was not by this folder; its validation file is measured
    if labelled.digests["dev"]:
        return None
    (rows,) = labelled.validation.values()
    if _identity(kind, rows) != kept:
        raise InputError(
            f"{path}: the model was trained on this file, but the rows that were kept for validation cannot be told "
            "with these options; give the options of the training, such as --on-error, or another file"
        )
    say(
        f"{path}: the model was trained on this file; only the rows that training kept for validation are measured: "
        f"{kept['rows']:,}"
    )
    return rows


def kept_pairs(model: str, data: Path, task: VectorTask) -> TextPairs | None:
    """Return the pairs that training kept for validation where `data` is the training file of MODEL; else None."""
    pairs: TextPairs | None = kept_rows(EMBEDDING, task, notes_of(model), data)
    return pairs


def warn_of_judgements(model: str, data: Path) -> None:
    """Print a warning where a search would be measured on judgements, in BEIR's layout, that MODEL was trained on."""
    note = notes_of(model).get(NOTE)
    if not isinstance(note, Mapping) or not data.exists() or not is_retrieval(data):
        return
    path = judgements_file(data)
    if file_digest(path) == note.get("sha256"):
        _warn_of_training_rows(path, rows="rows" if note.get("kept") else "all rows")


def _training_files(data: Path, note: Mapping[str, Any]) -> list[Path]:
    """Return the files with the noted digest: `data` itself, or files in that folder."""
    paths = sorted(data.iterdir()) if data.is_dir() else [data]
    return [path for path in paths if path.is_file() and file_digest(path) == note.get("sha256")]


def _warn_of_training_rows(path: Path, *, rows: str, calibrate: bool = False) -> None:
    fact = f"{path}: the model was trained on {rows} of this file"
    if calibrate:
        raise InputError(f"--calibrate: {fact}; give rows that it was not trained on, such as the validation file")
    say(f"{fact}: the numbers below are better than those of other rows; give a file that it was not trained on")


def _identity(kind: TaskKind, rows: Any) -> dict[str, Any]:
    """Return the number of rows, and a digest of their lines or ids."""
    names = kind.row_names(rows)
    return {"rows": len(names), "sha256": hashlib.sha256(json.dumps(names).encode()).hexdigest()}
