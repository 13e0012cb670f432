"""The run folder: run.json (every setting, resolved), metrics.jsonl, checkpoints/, model/."""

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bertwright.config import Settings
from bertwright.console import say
from bertwright.errors import InputError, shown
from bertwright.files import atomic_file, read_json, write_json
from bertwright.training.distributed import SINGLE_PROCESS, Ranks


class RunFolder:
    """A run's place on disk. Create it with `start_run`.

    writes: False for those of several processes that only read what rank zero writes.
    """

    def __init__(self, folder: Path, record: Mapping[str, Any], *, writes: bool = True) -> None:
        self.folder = folder
        self.record = dict(record)
        self.writes = writes
        self.changes: dict[str, Any] = {}
        """Settings that the run goes on with otherwise; noted by who works on it, once no other process does."""

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.folder / "checkpoints"

    @property
    def model(self) -> Path:
        """The model folder, written when the run has finished."""
        return self.folder / "model"

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return bool(self.record.get("finished"))

    def note(self, **facts: Any) -> None:
        """Add to run.json, atomically."""
        self.record |= facts
        if self.writes:
            write_json(self.folder / "run.json", self.record)

    def log(self, line: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        if not self.writes:
            return
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Every whole line of metrics.jsonl; the last one may have been cut by a crash."""
        return read_metrics(self.folder)

    def keep_lines(self) -> None:
        """Let what was logged survive a power cut, as the checkpoint will that says up to where nothing is missing."""
        path = self.folder / "metrics.jsonl"
        if self.writes and path.exists():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())

    def forget_after(self, step: int) -> list[dict[str, Any]]:
        """Drop the lines of steps that a resumed run computes again, and return the others; where it begins anew, that
        is said."""
        if not self.writes:
            return []
        lines = self.metrics()
        if lines and not step:
            say(f"{self.folder}: has no checkpoint, though it came to step {lines[-1]['step']}; it begins anew")
        kept = [line for line in lines if line["step"] <= step]
        with atomic_file(self.folder / "metrics.jsonl") as stream:
            stream.writelines(json.dumps(line).encode() + b"\n" for line in kept)
        return kept


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Every whole line of a run's metrics.jsonl, none where there is no such file; InputError names a broken line."""
    path = folder / "metrics.jsonl"
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True) if path.exists() else [], start=1):
        if not line.endswith(b"\n"):
            break
        try:
            entry = json.loads(line)
        except ValueError:
            raise InputError(f"{path}:{number}: not valid JSON: {line[:60]!r}") from None
        if not isinstance(entry, dict) or type(step := entry.get("step")) is not int or step < 0:
            raise InputError(f"{path}:{number}: {line[:60]!r}; expected an object whose step is a whole number from 0")
        found.append(entry)
    return found


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
    """Make or reopen a run folder; a non-empty one needs `resume` and must hold the same configuration.

    allow_other_numerics: also go on with a run whose `bits` were other ones; the record says the new ones from then on.

    Of several ranks, rank zero does, and the others read what it found.

    A record of an earlier version may lack settings that came later, which then had what is their default today, or
    have them under names that their class still understands.
    """
    if not ranks.is_main:
        return RunFolder(folder, ranks.broadcast(None), writes=False)
    run = _started(folder, kind=kind, settings=settings, data=data, resume=resume, allow=allow_other_numerics)
    ranks.broadcast(run.record)
    return run


def _started(
    folder: Path,
    *,
    kind: str,
    settings: Settings | Mapping[str, Any],
    data: Mapping[str, Any],
    resume: bool,
    allow: bool,
) -> RunFolder:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; --out names a folder")
    path = folder / "run.json"
    values = settings.model_dump(mode="json") if isinstance(settings, Settings) else dict(settings)
    wanted = {"kind": kind, "settings": values, "data": dict(data)}
    if path.exists():
        if not resume:
            raise InputError(f"{folder}: already holds a run; continue it with --resume or choose another --out")
        record = read_json(path)
        if not isinstance(record, dict):
            raise InputError(f"{path}: holds a JSON {type(record).__name__}, and no run")
        _refuse_damaged(path, record)
        there = record | {"settings": _as_today(record.get("settings"), settings)}
        changed: dict[str, Any] = {}
        other: dict[str, Any] = {}
        if isinstance(settings, Settings) and isinstance(there["settings"], Mapping):
            found = there["settings"]
            may = {name: values[name] for name in sorted(settings.free | settings.bits)}
            there["settings"] = {**found, **may}
            changed = {name: value for name, value in may.items() if found.get(name) != value}
            other = {name: values[name] for name in values if name in changed and name in settings.bits}
            if other and there["settings"] == values and not allow:
                raise InputError(
                    f"{folder}: holds a run of other numerics: {_difference(found, values)}; --allow-other-numerics "
                    f"goes on all the same"
                )
        if any(there.get(name) != wanted[name] for name in wanted):
            raise InputError(f"{folder}: holds a run of another configuration: {_difference(there, wanted)}")
        run = RunFolder(folder, record)
        if changed and not run.finished:
            run.changes = changed
            if other:
                say(f"{folder}: goes on, though {_difference(found, other)}")
        return run
    if folder.exists() and any(entry for entry in folder.iterdir() if not entry.name.startswith(".")):
        raise InputError(f"{folder}: is not empty and holds no run; choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    run = RunFolder(folder, wanted)
    run.note(versions=_versions())
    return run


def _refuse_damaged(path: Path, record: Mapping[str, Any]) -> None:
    """InputError where a record is not what any run notes of itself."""
    sessions, resolved = record.get("sessions", []), record.get("resolved")
    is_settled = "resolved" not in record or (isinstance(resolved, Mapping) and bool(resolved))
    for name, is_whole, what in (
        ("sessions", isinstance(sessions, list) and all(_is_session(one) for one in sessions), "a list of objects"),
        ("resolved", is_settled, "an object with what was settled"),
        ("result", not record.get("finished") or isinstance(record.get("result"), Mapping), "an object, once finished"),
    ):
        if not is_whole:
            raise InputError(f"{path}: {name} is {shown(record.get(name))}; expected {what}: the file is damaged")


def _is_session(one: Any) -> bool:
    return isinstance(one, Mapping) and isinstance(one.get("started"), str)


def _as_today(recorded: Any, settings: Settings | Mapping[str, Any]) -> Any:
    """Recorded settings as the class of `settings` reads them; as they are where it cannot."""
    if not isinstance(settings, Settings):
        return recorded
    try:
        return type(settings).model_validate(recorded).model_dump(mode="json")
    except ValidationError:
        return recorded


def _difference(record: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> str:
    """The first places where two nested records differ, as `name: there … here …`."""
    found = []
    for name in {**wanted, **record} if prefix else wanted:  # a record holds more than a configuration
        there, here = record.get(name), wanted.get(name)
        if there == here:
            continue
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            found.append(_difference(there, here, f"{prefix}{name}."))
        else:
            found.append(f"{prefix}{name} is {there!r} there and {here!r} here")
    return "; ".join(found[:3])


def _versions() -> dict[str, str]:
    names = ("bertwright", "torch", "numpy", "tokenizers", "pyarrow", "numba")
    found = {"python": platform.python_version(), "platform": platform.platform(), "cpus": str(os.cpu_count())}
    for name in names:
        try:
            found[name] = version(name)
        except ImportError:  # PackageNotFoundError: run from a source tree that is not installed
            found[name] = "source"
    return found
