"""Temporary files and folders: their names, their locks, and the removal of those that a killed process left.

A temporary name is `.TARGET.bw-XXXXXXXX.tmp`, beside the target. The process that writes it holds a lock on it. The
system releases the lock when the process ends, so the next process that writes the same target can tell leftovers from
files in use. On a file system without locks no leftover is removed.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bertwright.errors import RunFailed
from bertwright.locks import lock_path, try_lock_path, unlock_path
from bertwright.portable import IS_POSIX, replace_path

_NAME = re.compile(r"\.(?P<target>.+)\.bw-[a-z0-9_]{8}\.(?P<kind>tmp|old)(?P<lock>\.lock)?")
"""A `tmp` is incomplete and can be removed. An `old` is the complete version that a new one was about to replace. Each
has a lock file on Windows."""


@contextmanager
def temporary(target: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """Yield a new empty file or folder beside `target`, locked until the block ends; it is removed at the end."""
    remove_leftovers(target.parent, target.name)
    path, lock = _create(target, is_folder)
    try:
        yield path
    finally:
        _remove(path)
        unlock_path(path, lock)


def remove_leftovers(folder: Path, target: str | None = None) -> None:
    """Remove the temporary files and folders of killed processes in `folder`, for one target or for all.

    An old version gets its name back where the target is absent, and stays where it exists.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match is None or target not in (None, match["target"]):
                continue
            if match["lock"]:
                _remove_lock_file(Path(entry.path))
            else:
                _remove_or_restore(Path(entry.path), folder / match["target"], is_old=match["kind"] == "old")


def is_leftover_name(name: str) -> bool:
    """Return whether `name` is a temporary name, of an unfinished file or an old version."""
    return _NAME.fullmatch(name) is not None


def _create(target: Path, is_folder: bool) -> tuple[Path, int]:
    """Create a temporary file or folder; return it and its lock."""
    mode = 0o777 if is_folder else 0o666
    while True:
        if is_folder:
            name = tempfile.mkdtemp(prefix=f".{target.name}.bw-", suffix=".tmp", dir=target.parent)
        else:
            handle, name = tempfile.mkstemp(prefix=f".{target.name}.bw-", suffix=".tmp", dir=target.parent)
            os.close(handle)
        with suppress(FileNotFoundError):  # another process may remove it before it is locked
            lock = lock_path(Path(name))
            if os.path.lexists(name):
                os.chmod(name, mode & ~_umask())
                return Path(name), lock
            unlock_path(Path(name), lock)


def _remove_or_restore(path: Path, target: Path, *, is_old: bool) -> None:
    """Remove a leftover, or give it its name back, unless a running process holds its lock."""
    with suppress(OSError, RunFailed):  # removed meanwhile, open on Windows, or a file system without locks
        if (lock := try_lock_path(path)) is None:
            return
        try:
            if not is_old:
                _remove(path)
            elif not os.path.lexists(target):
                replace_path(path, target)
        finally:
            unlock_path(path, lock)


def _remove_lock_file(path: Path) -> None:
    """Remove the lock file of a path that is gone. Windows refuses that while a process has it open."""
    if not IS_POSIX and not os.path.lexists(path.with_suffix("")):
        with suppress(OSError):
            path.unlink()


def _remove(path: Path) -> None:
    """Remove a file or folder, where it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _umask() -> int:
    """Return the mask of permissions of this process; the system only tells it when it is set."""
    value = os.umask(0)
    os.umask(value)
    return value
