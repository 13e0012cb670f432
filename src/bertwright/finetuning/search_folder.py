"""The folder of a search over settings: its record, its lock, and the model that is kept."""

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from bertwright.console import say, table_lines
from bertwright.errors import InputError
from bertwright.files import copy_folder, file_digest, read_json, write_json
from bertwright.finetuning.run_baselines import baseline_lines
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.folder import WEIGHTS, model_folder
from bertwright.tasks.spec import TaskSpec
from bertwright.training.run_lock import LOCK, locked

_OF_TASK: Final = "task: "
"""Beginning of the names of the task's settings in messages."""


def common_record(settings: FinetuneSettings, task: TaskSpec, model: str) -> dict[str, Any]:
    """Return the part of a record that every search has."""
    return {"task": task.name, "model": model, "settings": settings.model_dump(mode="json")}


@contextmanager
def opened_search(
    path: Path, record: Mapping[str, Any], *, resume: bool, ignored: Set[str]
) -> Iterator[dict[str, Any]]:
    """Hold the lock of the folder of a new or resumed search inside the block; yield its record as it is stored.

    path      file of the record
    record    values that a resumed search must have too
    ignored   names of the settings in which a resumed search may differ

    Raises InputError where the folder has anything else. A new folder is removed again where an InputError is raised
    inside before any run has begun.
    """
    out = path.parent
    is_new = not out.exists()
    stored = _open(path, record, resume=resume, ignored=ignored)
    with locked(out):
        try:
            yield stored
        except InputError:
            if not any(each.is_dir() for each in out.iterdir()):
                for name in (path.name, LOCK):
                    (out / name).unlink()
                if is_new:
                    out.rmdir()
            raise


def ranked_text(table: Sequence[Sequence[str]], result: Mapping[str, Any]) -> str:
    """Return the table of a search as text, with the baselines and a note on the bias of its first row."""
    note = "The first was chosen on dev, so its metric there is better than on other data."
    lines = [*table_lines(table), note, *baseline_lines({**result["rows"][0], "task": result.get("task")})]
    return "\n".join([*lines, f"its model: {result['model']}"])


def keep_model(best: Path, out: Path) -> Path:
    """Copy the model folder `best` to `out`/model; return that path.

    The copy stays as it is where a person has removed `best` since, and where it has the weights of `best`: a
    temperature may have been added to it.
    """
    kept = out / "model"
    if not best.is_dir() and kept.is_dir():
        say(f"{best}: is no longer there; {kept}, which was copied from it, stays as it is")
        return kept
    source, copy = best / WEIGHTS, kept / WEIGHTS
    if source.is_file() and copy.is_file() and file_digest(source) == file_digest(copy):
        return kept
    with model_folder(kept) as folder:
        copy_folder(best, folder)
    return kept


def _open(path: Path, record: Mapping[str, Any], *, resume: bool, ignored: Set[str]) -> dict[str, Any]:
    """Return the stored record of a new or resumed search."""
    out = path.parent
    if not path.exists():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out}: is not empty and has no search; choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        write_json(path, record)
        return dict(record)
    if not resume:
        raise InputError(f"{out}: already has a search; continue it with --resume or choose another --out")
    existing = read_json(path)
    if not isinstance(existing, dict):
        raise InputError(f"{path}: expected the record of a search, got a JSON {type(existing).__name__}")
    stored, current = _flat(existing), _flat(record)
    names = dict.fromkeys([*current, *(name for name in stored if name.startswith(_OF_TASK))])
    if "task_settings" not in existing:  # a search of an earlier version
        names = {name: None for name in names if not name.startswith(_OF_TASK)}
    differing = [
        f"{name} ({stored.get(name)!r} there, {current.get(name)!r} now)"
        for name in names
        if stored.get(name) != current.get(name) and name not in ignored
    ]
    if differing:
        raise InputError(f"{out}: has a search with other {', '.join(differing)}; choose another --out")
    return {**existing, **record}


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a record and its other values by name; settings added since have their defaults."""
    of_task = {f"{_OF_TASK}{name}": value for name, value in record.get("task_settings", {}).items()}
    settings = dict(record.get("settings", {}))
    with suppress(ValidationError):
        settings = FinetuneSettings.model_validate(settings).model_dump(mode="json")
    return (
        {name: record[name] for name in ("task", "model", "grid", "space", "data") if name in record}
        | of_task
        | settings
    )
