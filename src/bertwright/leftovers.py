"""Files and folders that are being written: their temporary names, their locks, and what a killed process left behind.

A temporary name is `.TARGET.bw-XXXXXXXX.tmp`, beside the target. The process that writes it holds a lock on it, which
the system drops when the process ends. So the next process that writes the same target sees what nobody works on.
"""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NAME = re.compile(r"\.(?P<target>.+)\.bw-[a-z0-9_]{8}\.(?P<kind>tmp|old)")
"""`tmp` is not whole and may go. `old` was whole: it stood under the target's name and made room for a new version."""


@contextmanager
def temporary(target: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """Yield a new empty file or folder beside `target`, locked until the block ends; what has that name then goes."""
    remove_leftovers(target.parent, target.name)
    path, lock = _create(target, is_folder)
    try:
        yield path
    finally:
        _remove(path)
        os.close(lock)


def remove_leftovers(folder: Path, target: str | None = None) -> None:
    """Remove what killed processes had begun to write in `folder`, for one target or for all.

    An old version whose target is absent gets its name back; one whose target is there stays.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match and target in (None, match["target"]):
                _settle(Path(entry.path), folder / match["target"], is_old=match["kind"] == "old")


def is_leftover_name(name: str) -> bool:
    """Return whether `name` is one that `temporary` gives, for a file in work or an old version."""
    return _NAME.fullmatch(name) is not None


def lock_of(path: Path) -> int:
    """Lock a file or folder and return the open descriptor that holds the lock; wait while another process has it.

    On a file system without locks the descriptor holds none, and nothing is ever taken for a leftover there.
    """
    lock = os.open(path, os.O_RDONLY)
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _create(target: Path, is_folder: bool) -> tuple[Path, int]:
    """Create a temporary file or folder; return it and its lock."""
    mode = 0o777 if is_folder else 0o666
    while True:
        if is_folder:
            name = tempfile.mkdtemp(prefix=f".{target.name}.bw-", suffix=".tmp", dir=target.parent)
        else:
            handle, name = tempfile.mkstemp(prefix=f".{target.name}.bw-", suffix=".tmp", dir=target.parent)
            os.close(handle)
        with suppress(FileNotFoundError):  # between its creation and its lock another process may have removed it
            lock = lock_of(Path(name))
            if os.path.lexists(name):
                os.chmod(name, mode & ~_umask())
                return Path(name), lock
            os.close(lock)


def _settle(path: Path, target: Path, *, is_old: bool) -> None:
    """Remove a leftover or give it its name back, unless a living process holds its lock."""
    with suppress(OSError):  # held by another process, gone meanwhile, or no locks here
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_old:
                _remove(path)
            elif not os.path.lexists(target):
                path.rename(target)
        finally:
            os.close(lock)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value
