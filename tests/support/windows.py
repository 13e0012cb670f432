"""Windows as far as Linux can play it: a process whose bertwright lacks what Windows lacks and is refused what Windows
refuses.

`environment` gives the variables for such a process and for all processes that it starts. In them

- bertwright's modules see no module and no attribute that only POSIX has, and no /proc;
- no folder can be opened, and nothing can be flushed that is open for reading alone;
- a file that the process has open or mapped cannot be renamed, replaced or removed, nor can the folders above it;
- the first byte of a locked file cannot be read through another descriptor;
- a rename replaces no folder, and `rename` no file;
- names that Windows forbids cannot be made;
- a text that bertwright reads or writes without an encoding is an error, and standard streams have Windows' encoding.

Other packages see Linux, because they have code for Windows that chooses by `sys.platform`. psutil, which is installed
on Windows alone, is replaced by constants.
"""

import builtins
import errno
import importlib.util
import io
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

ABSENT_MODULES = frozenset("fcntl grp posix pty pwd resource syslog termios tty".split())
ABSENT = {
    "os": frozenset(
        "chown fchmod fchown fork forkpty getegid geteuid getgid getloadavg getpgid getuid killpg lchown mkfifo mknod "
        "nice openpty posix_fadvise posix_fallocate pread preadv pwrite pwritev sched_getaffinity sched_setaffinity "
        "sched_yield sendfile setsid statvfs sync sysconf sysconf_names uname wait wait3 wait4 O_CLOEXEC O_DIRECTORY "
        "O_DSYNC O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_SYNC".split()
    ),
    "signal": frozenset(
        "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIG_BLOCK SIG_SETMASK "
        "SIG_UNBLOCK alarm pause pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigwait".split()
    ),
    "select": frozenset("epoll poll".split()),
}
_FORBIDDEN = re.compile(r'[<>:"\\|?*\x00-\x1f]|[. ]$')
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_ROOT = "BERTWRIGHT_TEST_WINDOWS"


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a process that plays Windows; `folder` gets the module that starts the play.

    Names of new files are checked below the folder above it.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("from tests.support.windows import play\n\nplay()\n", "utf-8")
    paths = [str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), os.getcwd()]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONWARNDEFAULTENCODING": "1",
        "PYTHONIOENCODING": "cp1252",
        "PYTHONUTF8": "0",
        _ROOT: str(folder.parent),
    }


def windows_fault(path: str) -> str | None:
    """Return the first name in a path with slashes that Windows refuses; None for a path without one."""
    names = [name for name in path.split("/") if name not in ("", ".", "..")]
    return next((name for name in names if _FORBIDDEN.search(name) or _DEVICES.fullmatch(name)), None)


def play() -> None:
    """Take from bertwright in this process what Windows lacks."""
    _hide_attributes()
    _hide_modules()
    _Files(Path(os.environ[_ROOT])).install()
    warnings.filterwarnings("error", category=EncodingWarning, module="bertwright")


def _is_called_by(module: str, depth: int) -> bool:
    return str(sys._getframe(depth + 1).f_globals.get("__name__", "")).startswith(module)


class _Hiding(ModuleType):
    """A module without the attributes that Windows lacks, for bertwright alone."""

    def __getattribute__(self, name: str) -> Any:
        if name in ABSENT[ModuleType.__getattribute__(self, "__name__")] and _is_called_by("bertwright", 1):
            raise AttributeError(f"module has no attribute '{name}' on Windows")
        return ModuleType.__getattribute__(self, name)


def _hide_attributes() -> None:
    for module in (os, signal, select):
        module.__class__ = _Hiding


def _hide_modules() -> None:
    real_import, real_spec = builtins.__import__, importlib.util.find_spec
    memory = SimpleNamespace(rss=1 << 28, peak_wset=1 << 29)
    machine = SimpleNamespace(total=1 << 34, available=1 << 33)
    psutil: Any = ModuleType("psutil")
    psutil.Process, psutil.virtual_memory = lambda: SimpleNamespace(memory_info=lambda: memory), lambda: machine

    def load(name: str, globals: Any = None, *rest: Any, **named: Any) -> Any:
        if str((globals or {}).get("__name__", "")).startswith("bertwright"):
            if name in ABSENT_MODULES:
                raise ModuleNotFoundError(f"No module named '{name}' on Windows", name=name)
            if name == "psutil":
                return psutil
        return real_import(name, globals, *rest, **named)

    def find_spec(name: str, package: str | None = None) -> Any:
        if name == "psutil":
            return importlib.util.spec_from_loader("psutil", None)
        return None if name in ABSENT_MODULES else real_spec(name, package)

    builtins.__import__, importlib.util.find_spec = load, find_spec


class _LockedFile(io.FileIO):
    """A file whose first byte another descriptor has locked."""

    def read(self, size: int | None = -1, /) -> Any:
        if self.tell() == 0:
            raise PermissionError(errno.EACCES, "the process cannot read a locked part of the file", self.name)
        return super().read(-1 if size is None else size)


class _Files:
    """The rules of Windows for files, in place of those of Linux. `root`: folder in which names are checked."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self._locks: dict[tuple[int, int], int] = {}

    def install(self) -> None:
        """Replace the functions of `os`, `io` and filelock."""
        import fcntl

        import filelock

        flags, lock, self._open_text = fcntl.fcntl, filelock.lock_descriptor, io.open
        kept = {name: getattr(os, name) for name in "open fsync replace rename unlink rmdir mkdir".split()}

        def lock_descriptor(fd: int, **named: Any) -> bool:
            is_taken = lock(fd, **named)
            if is_taken:
                self._locks[_inode(os.fstat(fd))] = fd
            return is_taken

        def open_descriptor(path: Any, mode: int, *rest: Any, **named: Any) -> int:
            if os.path.isdir(path):
                raise PermissionError(errno.EACCES, "Windows opens no folder", path)
            if mode & os.O_CREAT:
                self._check_name(path)
            descriptor: int = kept["open"](path, mode, *rest, **named)
            return descriptor

        def fsync(fd: Any) -> None:
            fd = fd if isinstance(fd, int) else fd.fileno()
            if flags(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                raise OSError(errno.EBADF, "Windows flushes no file that is open for reading alone")
            kept["fsync"](fd)

        def replace(source: Any, target: Any, **named: Any) -> None:
            self._refuse_open(source, target)
            if os.path.isdir(target):
                raise PermissionError(errno.EACCES, "Windows replaces no folder", target)
            kept["replace"](source, target, **named)

        def rename(source: Any, target: Any, **named: Any) -> None:
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, "the file exists", target)
            replace(source, target, **named)

        def unlink(path: Any, **named: Any) -> None:
            if not _is_called_by("tempfile", 1):  # which makes files there that Windows removes when they are closed
                self._refuse_open(path)
            kept["unlink"](path, **named)

        def rmdir(path: Any, **named: Any) -> None:
            self._refuse_open(path)
            kept["rmdir"](path, **named)

        def mkdir(path: Any, *rest: Any, **named: Any) -> None:
            self._check_name(path)
            kept["mkdir"](path, *rest, **named)

        filelock.lock_descriptor = lock_descriptor
        os.open, os.fsync, os.replace, os.rename = open_descriptor, fsync, replace, rename
        os.unlink = os.remove = unlink
        os.rmdir, os.mkdir = rmdir, mkdir
        io.open = builtins.open = self._open
        shutil._use_fd_functions, tempfile._O_TMPFILE_WORKS = False, False

    def _open(self, file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
        if not isinstance(file, str | Path):
            return self._open_text(file, mode, buffering, *rest, **named)
        if str(file).startswith(("/proc/", "/sys/")):
            raise FileNotFoundError(errno.ENOENT, "Windows has no such file", str(file))
        if not mode.startswith("r"):
            self._check_name(file)
        if buffering == 0 and os.path.exists(file) and self._is_locked(_inode(os.stat(file))):
            return _LockedFile(file, mode.replace("b", ""))
        if "b" not in mode and not rest and "encoding" not in named and _is_called_by("bertwright", 1):
            raise EncodingWarning(f"{file}: is opened as text without an encoding")
        return self._open_text(file, mode, buffering, *rest, **named)

    def _is_locked(self, inode: tuple[int, int]) -> bool:
        try:
            return inode in self._locks and _inode(os.fstat(self._locks[inode])) == inode
        except OSError:
            return False

    def _check_name(self, path: Any) -> None:
        path = os.path.realpath(path)
        if path.startswith(f"{self._root}/") and (fault := windows_fault(path.removeprefix(self._root))):
            raise OSError(errno.EINVAL, f"Windows refuses the name {fault!r}", path)

    def _refuse_open(self, *paths: Any) -> None:
        for path in paths:
            target = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
            for used in self._used():
                if used == target or used.startswith(f"{target}/"):
                    raise PermissionError(errno.EACCES, f"{used} is used by a process", str(path))

    def _used(self) -> Iterator[str]:
        """Yield the paths that this process has open or mapped."""
        for name in os.listdir("/proc/self/fd"):
            try:
                yield os.readlink(f"/proc/self/fd/{name}")
            except OSError:  # closed meanwhile
                continue
        with self._open_text("/proc/self/maps", encoding="utf-8") as lines:
            yield from (line.rstrip("\n").split(maxsplit=5)[5] for line in lines if "/" in line)


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
