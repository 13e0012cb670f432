"""Locks on files and folders. The system releases a lock when its process ends, however the process ends.

The library filelock takes the locks, on open files and folders, and never changes them. `is_held` takes flock's shared
lock, which filelock lacks: with exclusive locks, two processes that look at the same time would each take the other for
the holder, and on a network disk only a process with write permission could look.
"""

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import IO

from filelock import lock_descriptor

from bertwright.errors import InputError

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
        _write_owner(file, f"process {os.getpid()} on {platform.node()}")
        try:
            yield True
        finally:
            _write_owner(file, "")


def is_held(path: Path) -> bool:
    """Return whether a live process holds the lock of a file; False on a file system without locks. Writes nothing."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no file, or a file system without locks
        return False
    return False


def lock_path(path: Path) -> int:
    """Wait for the lock of a file or folder, and return the open descriptor that holds it.

    On a file system without locks the descriptor holds none.
    """
    descriptor = os.open(path, os.O_RDONLY)
    with suppress(OSError):
        lock_descriptor(descriptor, poll_interval=0.01)
    return descriptor


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
    file.seek(0)
    owner = file.read(200).decode(errors="replace") or "process unknown"
    raise InputError(f"{fault} ({owner}); wait for it or stop it")


def _write_owner(file: IO[bytes], owner: str) -> None:
    with suppress(OSError):  # a full disk
        file.truncate(0)
        file.write(owner.encode())
