"""The lock of a run folder; start and end of each session, which is the work of one process on a run, in run.json."""

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from bertwright.console import say
from bertwright.errors import InputError, Stopped
from bertwright.files import read_json
from bertwright.leftovers import is_leftover_name, remove_leftovers
from bertwright.locks import is_held, locked_file
from bertwright.training.run_folder import RunFolder

LOCK = ".lock"
"""Name of the file in a run folder whose lock the process of the run holds."""

State = Literal["finished", "running", "stopped", "crashed", "unfinished", "broken"]


@contextmanager
def session(run: RunFolder) -> Iterator[None]:
    """Hold the lock of a run inside the block, and note in run.json when the session started and how it ended.

    Raises InputError where another process holds the lock. An InputError raised inside, before metrics were written, is
    a refusal: the session is removed from run.json again. Only rank zero locks and notes.
    """
    if not run.writes:
        yield
        return
    with locked(run.folder) as is_locked_here:
        if is_locked_here:
            remove_unfinished(run.folder)
        run.record = dict(read_json(run.folder / "run.json"))  # another process may have ended it a moment ago
        earlier = [*run.record.get("sessions", [])]
        if earlier and "ended" not in earlier[-1]:
            last = earlier[-1]
            earlier[-1] = {**last, "ended": _last_written(run.folder) or last["started"], "how": "killed"}
        settings = run.record.get("settings")
        if run.changes:
            run.record["settings"] = {**run.record["settings"], **run.changes}
        current = {"started": _now(), "host": platform.node(), "pid": os.getpid(), "locked": is_locked_here}
        run.note(sessions=[*earlier, current])
        before = _metrics_size(run.folder)
        try:
            yield
        except InputError as error:
            if _metrics_size(run.folder) > before:  # it came after steps, so it is no refusal
                _end(run, current, how="failed", why=str(error))
            else:
                run.note(sessions=earlier, **({"settings": settings} if run.changes else {}))
            raise
        except (Stopped, KeyboardInterrupt, SystemExit):
            _end(run, current, how="stopped")
            raise
        except BaseException as error:
            _end(run, current, how="failed", why=str(error) or type(error).__name__)
            raise
        _end(run, current, how="finished" if run.finished else "stopped")


def say_finished(run: RunFolder) -> None:
    """Say that the run has finished, and remove unfinished files of a process that was killed at the very end."""
    say(f"{run.folder}: this run has finished; its model is in {run.model}")
    if run.writes:
        with suppress(OSError, InputError), locked(run.folder) as is_locked_here:  # the folder may be read-only
            if is_locked_here:
                remove_unfinished(run.folder)


def remove_unfinished(folder: Path) -> None:
    """Remove unfinished files of killed processes below `folder`, but not in other runs inside, which have a lock."""
    for parent, folders, files in os.walk(folder):
        if Path(parent) != folder and LOCK in files:
            folders.clear()
            continue
        remove_leftovers(Path(parent))
        folders[:] = [name for name in folders if not is_leftover_name(name)]


def state_of(folder: Path, record: Mapping[str, Any]) -> tuple[State, str]:
    """Return the state of a run and the reason, which may be empty; `record` is the content of its run.json."""
    if record.get("finished"):
        return "finished", ""
    if is_locked(folder):
        return "running", ""
    if "sessions" not in record:
        return "unfinished", f"its end was not recorded; last written {_last_written(folder) or 'never'}"
    if not record["sessions"]:
        return "stopped", "it was refused before its first step"
    last = record["sessions"][-1]
    if last.get("how") == "failed":
        return "crashed", str(last.get("why", ""))
    if "ended" in last and last.get("how") != "killed":
        return "stopped", ""
    written = f"last written {_last_written(folder) or last['started']}"
    if not last.get("locked"):
        return "unfinished", f"its file system has no locks, so it may be running; {written}"
    if last.get("host") != platform.node():
        return "unfinished", f"started on {last.get('host')}; its lock can be checked only there; {written}"
    return "crashed", f"its process ended without a message; {written}"


def is_locked(folder: Path) -> bool:
    """Return whether a live process holds the lock of the run in `folder`."""
    return is_held(folder / LOCK)


def locked(folder: Path) -> AbstractContextManager[bool]:
    """Return a context that holds the folder's lock; see `locked_file`."""
    return locked_file(folder / LOCK, f"{folder}: another process works on this run")


def _end(run: RunFolder, current: dict[str, Any], **facts: str) -> None:
    """Note the end of the current session, which is the last one in run.json."""
    with suppress(OSError):  # a full disk must not hide the error that it caused
        run.note(sessions=[*run.record["sessions"][:-1], {**current, "ended": _now(), **facts}])


def _now() -> str:
    return _time_text(datetime.now(UTC))


def _metrics_files(folder: Path) -> list[Path]:
    """Return the files metrics.jsonl of the run and of its seeds."""
    return [path for pattern in ("", "*/") for path in folder.glob(f"{pattern}metrics.jsonl")]


def _metrics_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in _metrics_files(folder))


def _last_written(folder: Path) -> str | None:
    """Return the time of the last line of metrics.jsonl, in the run or in one of its seeds."""
    times = [path.stat().st_mtime for path in _metrics_files(folder)]
    return _time_text(datetime.fromtimestamp(max(times), UTC)) if times else None


def _time_text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
