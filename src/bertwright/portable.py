"""Differences between operating systems: signals, processors, and renaming. Each difference is answered here once."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from bertwright.errors import RunFailed

IS_POSIX: Final = find_spec("fcntl") is not None
"""True on Linux and macOS. On Windows a folder cannot be opened, an open file cannot be renamed or removed, and a
locked file cannot be read."""

END_SIGNALS: Final = tuple(
    signal.Signals(getattr(signal, name)) for name in ("SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
)
"""Signals that ask a process to end, other than Ctrl-C: SIGHUP for a closed terminal; SIGBREAK on Windows alone."""

_PAUSES: Final = (0.01, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds between the attempts to rename: on Windows a virus scanner opens each new file for a moment."""


def num_cores() -> int:
    """Return the number of cores that this process may use; on macOS and Windows all of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block SIGINT, so that processes started within never receive the terminal's Ctrl-C, not even at their start.

    Windows cannot block signals; there a process ignores Ctrl-C once it has started.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def remove_unused(path: Path) -> None:
    """Remove a file that is no longer needed, where it exists. A process that has it open keeps its content.

    On Windows the file then stays, and the next call removes it.
    """
    with nullcontext() if IS_POSIX else suppress(PermissionError):
        path.unlink(missing_ok=True)


def replace_path(source: Path, target: Path) -> None:
    """Rename a file or a folder; a file or an empty folder at `target` is replaced.

    Raises OSError where that is impossible, and RunFailed on Windows where a program has a file open there.
    """
    if IS_POSIX:
        os.replace(source, target)
        return
    if source.is_dir() and target.is_dir():
        target.rmdir()  # Windows replaces no folder; raises OSError for one that is not empty
    for pause in _PAUSES:
        with suppress(PermissionError):
            os.replace(source, target)
            return
        time.sleep(pause)
    try:
        os.replace(source, target)
    except PermissionError as error:
        raise RunFailed(
            f"{target}: cannot be written ({error.strerror}): a program has this file or folder open, or you may not "
            "change it. Close that program and give the same command again"
        ) from None
