"""The run folder: run.json (every setting, resolved), metrics.jsonl, checkpoints/, model/."""

import json
import os
import platform
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bertwright.config import Settings
from bertwright.console import say
from bertwright.errors import InputError, shown
from bertwright.files import atomic_file, read_object, sync, write_json
from bertwright.training.distributed import SINGLE_PROCESS, Ranks
from bertwright.version import __version__, package_version, source_commit


class RunFolder:
    """The files of a run. Create it with `start_run`.

    writes: False on every rank but rank zero, which alone writes files.
    """

    def __init__(self, folder: Path, record: Mapping[str, Any], *, writes: bool = True) -> None:
        self.folder = folder
        self.record = dict(record)
        """The content of run.json."""
        self.writes = writes
        self.changes: dict[str, Any] = {}
        """Settings that changed on resuming. They are noted once this process holds the run's lock."""
        self.listeners: list[Callable[[Mapping[str, Any]], None]] = []
        """Functions that get each line of metrics.jsonl after it was written."""

    @property
    def checkpoints(self) -> Path:
        """Return the folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def stable(self) -> Path:
        """Return the folder of the checkpoint from which a longer run can continue."""
        return self.folder / "stable"

    @property
    def model(self) -> Path:
        """Return the model folder, which is written when the run has finished."""
        return self.folder / "model"

    @property
    def finished(self) -> bool:
        """Return whether the run has finished."""
        return bool(self.record.get("finished"))

    def note(self, **facts: Any) -> None:
        """Add facts to run.json, atomically."""
        self.record |= facts
        if self.writes:
            write_json(self.folder / "run.json", self.record)

    def log(self, line: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        if not self.writes:
            return
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8", newline="\n") as stream:
            stream.write(json.dumps(line) + "\n")
        for listener in self.listeners:
            listener(line)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl as `read_metrics` does."""
        return read_metrics(self.folder)

    def flush_metrics(self) -> None:
        """Write metrics.jsonl through to the disk, before a checkpoint says that its lines are complete."""
        path = self.folder / "metrics.jsonl"
        if self.writes and path.exists():
            sync(path)

    def truncate_metrics(self, step: int) -> list[dict[str, Any]]:
        """Remove the lines after `step`, which a resumed run computes again; return the other lines.

        Says so where the run has lines but no checkpoint, and therefore starts again.
        """
        if not self.writes:
            return []
        lines = self.metrics()
        if lines and not step:
            say(f"{self.folder}: has no checkpoint, though it reached step {lines[-1]['step']}; starting from step 0")
        kept = [line for line in lines if line["step"] <= step]
        with atomic_file(self.folder / "metrics.jsonl") as stream:
            stream.writelines(json.dumps(line).encode() + b"\n" for line in kept)
        return kept


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return every complete line of a run's metrics.jsonl, if there is one. Raises InputError for a broken line."""
    path = folder / "metrics.jsonl"
    lines = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True) if path.exists() else [], start=1):
        if not line.endswith(b"\n"):  # a crash cut the last line
            break
        try:
            entry = json.loads(line)
        except ValueError:
            raise InputError(f"{path}:{number}: not valid JSON: {line[:60]!r}") from None
        if not isinstance(entry, dict) or type(step := entry.get("step")) is not int or step < 0:
            raise InputError(f"{path}:{number}: expected an object whose step is a whole number from 0: {line[:60]!r}")
        lines.append(entry)
    return lines


def start_run(
    folder: Path,
    *,
    kind: str,
    settings: Settings | Mapping[str, Any],
    data: Mapping[str, Any],
    resume: bool,
    allow_other_numerics: bool = False,
    ranks: Ranks = SINGLE_PROCESS,
) -> RunFolder:
    """Create a run folder, or open one with `resume`, which needs the same kind, settings and data.

    Settings in `Settings.changeable` may change on resuming, and with `allow_other_numerics` those in
    `Settings.numeric`. Rank zero reads and writes the files; the other ranks get its record. Raises InputError where
    the folder holds something else.
    """
    if not ranks.is_main:
        return RunFolder(folder, ranks.broadcast(None), writes=False)
    refuse_used(folder, resume=resume)
    values = settings.model_dump(mode="json") if isinstance(settings, Settings) else dict(settings)
    configuration = {"kind": kind, "settings": values, "data": dict(data)}
    if (folder / "run.json").exists():
        settings_class = type(settings) if isinstance(settings, Settings) else Settings
        run = _open_run(folder, configuration, settings_class, allow_other_numerics=allow_other_numerics)
    else:
        run = _create_run(folder, configuration)
    ranks.broadcast(run.record)
    return run


def refuse_used(folder: Path, *, resume: bool, ranks: Ranks = SINGLE_PROCESS) -> None:
    """Raise InputError where no run can start in `folder`, or with `resume` continue: to call before long work.

    Rank zero checks for all ranks, since it makes the folder while others may still look.
    """
    if not ranks.is_main:
        return
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; --out names a folder")
    if (folder / "run.json").exists():
        if not resume:
            raise InputError(f"{folder}: already holds a run; continue it with --resume or choose another --out")
    elif folder.exists() and any(entry for entry in folder.iterdir() if not entry.name.startswith(".")):
        raise InputError(f"{folder}: is not empty and holds no run; choose another --out")


def _create_run(folder: Path, configuration: Mapping[str, Any]) -> RunFolder:
    folder.mkdir(parents=True, exist_ok=True)
    run = RunFolder(folder, configuration)
    run.note(versions=_versions())
    return run


def _open_run(
    folder: Path,
    configuration: Mapping[str, Any],
    settings_class: type[Settings],
    *,
    allow_other_numerics: bool,
) -> RunFolder:
    """Return the run in `folder`, with the settings that change. InputError for a damaged record or another run."""
    path = folder / "run.json"
    record = read_object(path)
    _refuse_damaged(path, record)
    run, other_numerics = RunFolder(folder, record), ""
    recorded, current = record.get("settings"), configuration["settings"]
    if isinstance(recorded, Mapping):
        recorded = _with_new_settings(recorded, settings_class)
        changeable = settings_class.changeable | settings_class.numeric
        changes = {name: value for name, value in current.items() if name in changeable and recorded.get(name) != value}
        numeric_changes = {name: value for name, value in changes.items() if name in settings_class.numeric}
        other_numerics = _differences(recorded, numeric_changes)
        record = {**record, "settings": {**recorded, **changes}}
        if other_numerics and record["settings"] == current and not allow_other_numerics:
            raise InputError(
                f"{folder}: the run was started with other numerics: {_differences(recorded, current)}; "
                "--allow-other-numerics resumes nevertheless"
            )
        run.changes = {} if run.finished else changes
    if any(record.get(name) != value for name, value in configuration.items()):
        further = f"; to train its model further, start another run with --init-from {folder}"
        raise InputError(
            f"{folder}: holds a run of another configuration: {_differences(record, configuration)}"
            f"{further if configuration.get('kind') == 'pretrain' else ''}"
        )
    if run.changes and other_numerics:
        say(f"{folder}: resumes with other numerics: {other_numerics}")
    return run


def _with_new_settings(recorded: Mapping[str, Any], settings_class: type[Settings]) -> Mapping[str, Any]:
    """Return recorded settings with the defaults of settings that the version that wrote them did not have."""
    try:
        return settings_class.model_validate(recorded).model_dump(mode="json")
    except ValidationError:  # a setting that is gone, or a damaged record: the comparison names it
        return recorded


def _refuse_damaged(path: Path, record: Mapping[str, Any]) -> None:
    """Raise InputError where a part of the record cannot have been written by a run."""
    sessions, resolved = record.get("sessions", []), record.get("resolved")
    is_resolved = "resolved" not in record or (isinstance(resolved, Mapping) and bool(resolved))
    for name, is_valid, expected in (
        ("sessions", isinstance(sessions, list) and all(map(_is_session, sessions)), "a list of objects"),
        ("resolved", is_resolved, "an object with resolved settings"),
        ("result", not record.get("finished") or isinstance(record.get("result"), Mapping), "an object, once finished"),
    ):
        if not is_valid:
            raise InputError(f"{path}: {name} is {shown(record.get(name))}; expected {expected}: the file is damaged")


def _is_session(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("started"), str)


def _differences(recorded: Mapping[str, Any], current: Mapping[str, Any], prefix: str = "") -> str:
    """Return the first three differences of two nested records, as `name is … there and … here`."""
    differences = []
    for name in {**current, **recorded} if prefix else current:  # at the top a record holds more than a configuration
        there, here = recorded.get(name), current.get(name)
        if there == here:
            continue
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            differences.append(_differences(there, here, f"{prefix}{name}."))
        else:
            if _is_digest(there) and _is_digest(here):
                differences.append(
                    f"{prefix}{name} has other content here: sha256 {str(here)[:12]}…, there {str(there)[:12]}…"
                )
            else:
                differences.append(f"{prefix}{name} is {there!r} there and {here!r} here")
    return "; ".join(differences[:3])


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _versions() -> dict[str, str]:
    """Return the versions of Python, the platform and the packages that decide results."""
    packages = ("torch", "numpy", "tokenizers", "pyarrow", "numba")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": str(os.cpu_count()),
        "bertwright": __version__,
        "commit": _commit(),
        **{name: package_version(name) or "unknown" for name in packages},
    }


@cache
def _commit() -> str:
    """Return the commit of the program; git is asked once, and not for every seed."""
    return source_commit() or "unknown"
