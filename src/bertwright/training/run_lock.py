"""Who works on a run folder: a lock that the system drops with its process, and each start and end in run.json."""

import fcntl
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from time import sleep
from typing import Any, Literal

from bertwright.console import say
from bertwright.errors import InputError, Stopped
from bertwright.files import read_json
from bertwright.leftovers import is_leftover_name, remove_leftovers
from bertwright.training.run_folder import RunFolder

LOCK = ".lock"
_TRIES, _PAUSE = 20, 0.05
"""`is_locked` holds the lock for a moment to ask for it; who starts a run waits for that at most a second."""

State = Literal["finished", "running", "stopped", "crashed", "unfinished", "broken"]


@contextmanager
def session(run: RunFolder) -> Iterator[None]:
    """Work on a run: no other process can meanwhile, and run.json says when it began and how it ended.

    InputError where another process works on it; one raised inside is a refusal, after which nothing is noted. Of
    several ranks only rank zero, which writes, holds the lock and notes.
    """
    if not run.writes:
        yield
        return
    with locked(run.folder) as is_ours:
        if is_ours:
            remove_unfinished(run.folder)
        run.record = dict(read_json(run.folder / "run.json"))  # another process may have ended it a moment ago
        before = [*run.record.get("sessions", [])]
        if before and "ended" not in before[-1]:
            before[-1] = {**before[-1], "ended": _last_written(run.folder) or before[-1]["started"], "how": "killed"}
        settings = run.record.get("settings")
        if run.changes:
            run.record["settings"] = {**run.record["settings"], **run.changes}
        this = {"started": _now(), "host": platform.node(), "pid": os.getpid(), "locked": is_ours}
        run.note(sessions=[*before, this])
        try:
            yield
        except InputError:
            run.note(sessions=before, **({"settings": settings} if run.changes else {}))
            raise
        except (Stopped, KeyboardInterrupt, SystemExit):
            _end(run, this, how="stopped")
            raise
        except BaseException as error:
            _end(run, this, how="failed", why=str(error) or type(error).__name__)
            raise
        _end(run, this, how="finished" if run.finished else "stopped")


def say_finished(run: RunFolder) -> None:
    """Say that there is nothing left to train, and remove what a process killed at the very end had begun to write."""
    say(f"{run.folder}: this run has finished; its model is in {run.model}")
    if run.writes:
        with suppress(OSError, InputError), locked(run.folder) as is_ours:  # its files may be another's, or read-only
            if is_ours:
                remove_unfinished(run.folder)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes had begun to write below `folder`, but for other runs inside: they have a lock."""
    for parent, folders, files in os.walk(folder):
        if Path(parent) != folder and LOCK in files:
            folders.clear()
            continue
        remove_leftovers(Path(parent))
        folders[:] = [name for name in folders if not is_leftover_name(name)]


def state_of(folder: Path, record: Mapping[str, Any]) -> tuple[State, str]:
    """How a run stands, and why that is said; `record` is what its run.json holds."""
    if record.get("finished"):
        return "finished", ""
    if is_locked(folder):
        return "running", ""
    if "sessions" not in record:
        return "unfinished", f"how it ended was not recorded; last written {_last_written(folder) or 'never'}"
    if not record["sessions"]:
        return "stopped", "it was refused before its first step"
    last = record["sessions"][-1]
    if last.get("how") == "failed":
        return "crashed", str(last.get("why", ""))
    if "ended" in last and last.get("how") != "killed":
        return "stopped", ""
    sign = f"last written {_last_written(folder) or last['started']}"
    if not last.get("locked"):
        return "unfinished", f"its file system has no locks, so that it may be running; {sign}"
    if last.get("host") != platform.node():
        return "unfinished", f"begun on {last.get('host')}: only there can it be seen whether it runs; {sign}"
    return "crashed", f"its process is gone and had no time to say why; {sign}"


def is_locked(folder: Path) -> bool:
    """Whether a living process works on the run in `folder`."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(handle)
    return False


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the folder's lock; yields False on a file system that has none. InputError where another process has it."""
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield _take(handle, folder)
    finally:
        os.close(handle)


def _take(handle: int, folder: Path) -> bool:
    for _ in range(_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sleep(_PAUSE)
        except OSError:
            return False
        else:
            return True
    raise InputError(f"{folder}: another process works on this run; wait for it or stop it")


def _end(run: RunFolder, this: dict[str, Any], **facts: str) -> None:
    with suppress(OSError):  # a full disk must not hide the error that it caused
        run.note(sessions=[*run.record["sessions"][:-1], {**this, "ended": _now(), **facts}])


def _now() -> str:
    return _written(datetime.now(UTC))


def _last_written(folder: Path) -> str | None:
    """When the last line of metrics.jsonl was written, the run's own or one of its seeds'."""
    times = [path.stat().st_mtime for pattern in ("", "*/") for path in folder.glob(f"{pattern}metrics.jsonl")]
    return _written(datetime.fromtimestamp(max(times), UTC)) if times else None


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
