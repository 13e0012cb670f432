"""Locks on files and folders. The system releases a lock when its process ends, however the process ends.

The library filelock takes the locks, on open files and folders, and never changes them. `is_held` takes flock's shared
lock, which filelock lacks: with exclusive locks, two processes that look at the same time would each take the other for
the holder, and on a network disk only a process with write permission could look.

On Windows a lock forbids others to read the first byte of its file. `is_held` therefore reads it there, and the name of
the holder begins at the second. Windows locks no folder, and renames no file that is open. There a file of its own, the
lock file, is locked in place of a path.
"""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import IO

from filelock import lock_descriptor

from bertwright.errors import InputError
from bertwright.portable import IS_POSIX

_TRIES, _PAUSE = 20, 0.05
"""Attempts to take the lock of a file and seconds between them: `is_held` holds the lock for a moment."""


@contextmanager
def locked_file(path: Path, fault: str) -> Iterator[bool]:
    """Hold the lock of a file, which is created where it is absent; yield False on a file system without locks.

    The file names this process inside the block and is empty afterwards. Where another process holds the lock, raises
    InputError with `fault` and the name of that process.
    """
    with path.open("a+b", buffering=0) as file:  # does not empty the file, which may name another process
        if not _take(file, fault):
            yield False
            return
        _write_owner(file, f" process {os.getpid()} on {platform.node()}")
        try:
            yield True
        finally:
            _write_owner(file, "")


def is_held(path: Path) -> bool:
    """Return whether a live process holds the lock of a file; False on a file system without locks. Writes nothing."""
    try:
        with path.open("rb", buffering=0) as file:
            return _is_locked(file)
    except OSError:  # no file, or a file system without locks
        return False


def lock_path(path: Path) -> int:
    """Wait for the lock of a file or folder, and return the open descriptor that holds it, for `unlock_path`.

    On a file system without locks the descriptor holds none. Raises OSError for a path that cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY) if IS_POSIX else _open_lock_file(path)
    with suppress(OSError):
        lock_descriptor(descriptor, poll_interval=0.01)
    return descriptor


def try_lock_path(path: Path) -> int | None:
    """Return the descriptor of `lock_path`, or None where another process holds the lock. A link is not followed.

    Raises OSError for a path that cannot be opened, and on a file system without locks.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW) if IS_POSIX else _open_lock_file(path)
    try:
        if lock_descriptor(descriptor, blocking=False):
            return descriptor
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def unlock_path(path: Path, lock: int) -> None:
    """Release the lock of `lock_path`."""
    os.close(lock)
    if not IS_POSIX:
        with suppress(OSError):  # another process has it open
            lock_file(path).unlink()


def lock_file(path: Path) -> Path:
    """Return the lock file of a path, which exists on Windows while the path is locked."""
    return path.with_name(f"{path.name}.lock")


def _open_lock_file(path: Path) -> int:
    return os.open(lock_file(path), os.O_RDWR | os.O_CREAT)


def _is_locked(file: IO[bytes]) -> bool:
    """Return whether another descriptor holds the lock of an open file."""
    try:
        if IS_POSIX:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        else:
            file.read(1)
    except (BlockingIOError, PermissionError):
        return True
    return False


def _take(file: IO[bytes], fault: str) -> bool:
    """Return whether the lock was taken; False on a file system without locks. InputError as in `locked_file`."""
    for _ in range(_TRIES):
        try:
            is_taken = lock_descriptor(file.fileno(), blocking=False)
        except OSError:
            return False
        if is_taken and os.fstat(file.fileno()).st_nlink:
            return True
        if is_taken:  # the lock of a removed file keeps nobody out
            raise InputError(f"{fault}; it has just ended, so give the command again")
        sleep(_PAUSE)
    file.seek(1)  # the first byte of a locked file cannot be read on Windows
    owner = file.read(200).decode(errors="replace") or "process unknown"
    raise InputError(f"{fault} ({owner}); wait for it or stop it")


def _write_owner(file: IO[bytes], owner: str) -> None:
    with suppress(OSError):  # a full disk
        file.truncate(0)
        file.write(owner.encode())
