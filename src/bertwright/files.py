"""Atomic writing of files and folders: each is written under a temporary name, flushed, then renamed."""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os.path import samefile
from pathlib import Path
from typing import IO, Any, Final

from bertwright.errors import Damaged, DiskFull, InputError, RunFailed, shown
from bertwright.leftovers import temporary
from bertwright.locks import lock_file, lock_path, unlock_path
from bertwright.portable import IS_POSIX, replace_path

LONGEST_NAME: Final = 255 - len("..bw-XXXXXXXX.tmp" if IS_POSIX else "..bw-XXXXXXXX.tmp.lock")
"""Largest number of bytes of an output's name: systems allow 255, and its temporary name is longer."""
MOST_JSON: Final = 200_000_000
"""Largest JSON file that is read, in bytes; parsed it may take over twenty times as much memory."""

_MOST_NOTE: Final = 4096
"""Number of bytes that are read of a digest file, which has about a hundred."""

FULL_DISK: Final = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
"""Error numbers of a full disk; such an error names no file."""


def cache_folder() -> Path:
    """Return the folder of files that are kept for the next process but can be made again; it may not exist.

    Raises OSError where neither XDG_CACHE_HOME nor the home folder is known.
    """
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "bertwright"
    try:
        return Path.home() / ".cache" / "bertwright"
    except RuntimeError:
        raise OSError("there is no home folder; set XDG_CACHE_HOME to the folder of the cache") from None


def named_cache(name: str) -> Path:
    """Return the folder `name` of BERTWRIGHT_CACHE, or of the usual cache; it may not exist."""
    folder = os.environ.get("BERTWRIGHT_CACHE")
    return (Path(folder) if folder else cache_folder()) / name


def is_stream(path: Path) -> bool:
    """Return whether `path` is written in place: a pipe, a device, or a descriptor of this process."""
    return _descriptor(path) is not None or (path.exists() and not path.is_file() and not path.is_dir())


def _descriptor(path: Path) -> int | None:
    """Return the descriptor that a path such as /dev/stdout or /dev/fd/3 stands for; None for other paths."""
    match = re.fullmatch(r"(/dev/fd/|/proc/self/fd/)(\d+)", str(path))
    return int(match[2]) if match else {"/dev/stdout": 1, "/dev/stderr": 2}.get(str(path))


def refuse_occupied(path: Path) -> None:
    """Raise InputError where `path` cannot become a new folder: only a free path or an empty folder can."""
    if os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path}: exists already and is not an empty folder; name another one or remove it")


@contextmanager
def atomic_file(path: Path, *, keep_new: bool = False) -> Iterator[IO[bytes]]:
    """Open `path` for writing bytes; the file gets its name only when the block ends without an error.

    A link is followed. A path that is no regular file, such as /dev/null, a pipe or /dev/stdout, is written in place.
    keep_new: a file that another process makes at a free `path` during the block stays; raises InputError then.
    Raises DiskFull where there is no room; an earlier file then stays.
    """
    if is_stream(path):
        descriptor = _descriptor(path)  # opening it by name would empty a file that it leads to
        with path.open("wb") if descriptor is None else os.fdopen(os.dup(descriptor), "wb") as stream:
            yield stream
        return
    path = Path(os.path.realpath(path))
    is_free = not os.path.lexists(path)
    with _name_full_disk(path), temporary(path) as unfinished:
        with unfinished.open("w+b") as stream:  # readable too, since some callers map the file
            if not is_free:
                _keep_mode(path, unfinished)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if path.is_dir() or (keep_new and is_free and os.path.lexists(path)):
            raise InputError(_changed_meanwhile(path))
        replace_path(unfinished, path)
    sync(path.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty sibling folder to fill; it replaces `path` when the block ends without an error.

    Where `path` is a link, the folder that it leads to is replaced. Raises InputError, and leaves `path` as it is,
    where another process made or changed it during the block. Raises DiskFull where there is no room.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    if _is_here(path):
        raise InputError(f"{path}: is the working folder, which cannot be replaced; name another folder")
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: expected a folder or a free name, got a file; choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    before = _content(path) if path.is_dir() else {}
    with _name_full_disk(path), temporary(path, is_folder=True) as folder:
        if path.is_dir():
            _keep_mode(path, folder)
        yield folder
        for file in folder.rglob("*"):
            if file.is_file():
                if (earlier := path / file.relative_to(folder)).is_file():
                    _keep_mode(earlier, file)
                sync(file)
        sync(folder)
        if before:
            _replace_folder(folder, path, before)
        else:
            _rename_folder(folder, path)
    sync(path.parent)


def _keep_mode(earlier: Path, replacement: Path) -> None:
    """Give a file or folder the permissions of the earlier one, so that a private one stays private."""
    with suppress(OSError):  # a file system without permissions
        mode = stat.S_IMODE(earlier.stat().st_mode)
        replacement.chmod(mode | stat.S_IRWXU if earlier.is_dir() else mode)


def copy_folder(source: Path, target: Path) -> None:
    """Copy the files below `source` into the folder `target`. Raises InputError where `source` is no folder.

    shutil.copytree would hide the error of a full disk in a list of all its errors.
    """
    if not source.is_dir():
        raise InputError(f"{source}: there is no such folder; nothing was copied")
    for path in sorted(source.rglob("*")):
        copied = target / path.relative_to(source)
        if path.is_dir():
            copied.mkdir(exist_ok=True)
        else:
            shutil.copy2(path, copied)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill; `path` has its content when the block ends without an error, and else is unchanged.

    Raises InputError where `path` is not empty at the start, or at the end.
    """
    refuse_occupied(path)
    is_mount = os.path.ismount(path) or not os.access(path.absolute().parent, os.W_OK)
    if not path.is_dir() or not (is_mount or _is_here(path)):
        with atomic_folder(path) as folder:
            yield folder
        return
    with _name_full_disk(path), temporary(path / "content", is_folder=True) as folder:
        yield folder  # inside `path`, which may be the working folder or the mount point of a disk: both stay
        sync(folder)
        if {each.name for each in path.iterdir()} - {lock_file(folder).name} != {folder.name}:
            raise InputError(_changed_meanwhile(path))
        for each in folder.iterdir():
            replace_path(each, path / each.name)
    sync(path)


def _is_here(path: Path) -> bool:
    """Return True for the working folder: once it is replaced, the shell is in a removed folder."""
    return path.is_dir() and samefile(path, os.curdir)


def _content(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return inode, size and time of change (ns) of each path below `folder`; of folders the inode alone."""
    content = {}
    for parent, folders, files in os.walk(folder):
        for name in folders + files:
            entry = os.lstat(path := os.path.join(parent, name))
            size, changed = (0, 0) if name in folders else (entry.st_size, entry.st_mtime_ns)
            content[os.path.relpath(path, folder)] = (entry.st_ino, size, changed)
    return content


def _replace_folder(folder: Path, path: Path, before: dict[str, tuple[int, int, int]]) -> None:
    """Replace `path` by `folder`; InputError where it no longer has the content `before`."""
    old = folder.with_suffix(".old")
    locked = path if IS_POSIX else old  # a lock goes with its folder to the new name, a lock file does not
    lock = lock_path(locked)
    try:
        replace_path(path, old)
        try:
            if _content(old) != before:
                raise InputError(_changed_meanwhile(path))
            _rename_folder(folder, path)
        except BaseException:
            replace_path(old, path)  # fails where the name is taken by now: both folders then stay
            raise
        replace_path(old, folder)
    finally:
        unlock_path(locked, lock)


def _rename_folder(folder: Path, path: Path) -> None:
    """Rename a folder to a free name, or the name of an empty folder; InputError where the name is taken."""
    try:
        replace_path(folder, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise InputError(_changed_meanwhile(path)) from None


def _changed_meanwhile(path: Path) -> str:
    """Return the message for a folder that another process made or changed."""
    return (
        f"{path}: was made or changed by another process while this command worked. It stays as it is, and the result "
        "of this command was not written. Run the command again with another name"
    )


def sync(path: Path) -> None:
    """Write a file, or the entries of a folder, through to the disk, so that they survive a power cut.

    Windows opens no folder, and writes its entries through by itself.
    """
    if not IS_POSIX and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if IS_POSIX else os.O_RDWR)  # Windows flushes what is open for writing alone
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented UTF-8 JSON, atomically."""
    with atomic_file(path) as stream:
        stream.write(json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Return `value` as the bytes that `write_json` writes."""
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises InputError for one that is broken, with its line, or larger than `MOST_JSON`."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MOST_JSON + 1)
        if len(raw) > MOST_JSON:
            raise InputError(f"{path}: expected at most {MOST_JSON // 10**6} MB of JSON, got more")
        value = json.loads(raw.decode())
        if b"\\ud" in raw.lower():  # an escaped half of a surrogate pair is valid JSON, but no text
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start + 1})") from None
    except UnicodeEncodeError:
        raise InputError(f"{path}: holds half of a surrogate pair (\\ud800 to \\udfff), which is no text") from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply to be read as JSON") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"{path}: not usable JSON: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object. Raises InputError for another value."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, got a {type(value).__name__}")
    return value


def read_object_if_there(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty where there is no file. Raises InputError for another value."""
    return read_object(path) if path.is_file() else {}


@contextmanager
def _name_full_disk(path: Path) -> Iterator[None]:
    """Raise DiskFull, which names the path, in place of an error of a full disk, which names none."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK or isinstance(error, DiskFull):
            raise
        raise DiskFull(path, error) from error


def write_error(error: Exception, what: str) -> OSError | RunFailed:
    """Return the error for one of a library that has no error number: that of a full disk where its text names it.

    what: path and kind of what is written, for the message.
    """
    match = re.search(r"\(os error (\d+)\)", str(error))
    number = int(match[1]) if match else 0
    if number in FULL_DISK:
        return OSError(number, os.strerror(number))
    return RunFailed(f"{what} cannot be written: {error}")


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_note(path: Path) -> Path:
    """Return the path of the digest file beside `path`, which `sha256sum --check` reads."""
    return path.with_name(f"{path.name}.sha256")


def note_digest(path: Path) -> None:
    """Write the digest of a file beside it, not atomically: no other program may use the folder meanwhile."""
    digest_note(path).write_text(f"{file_digest(path)}  {path.name}\n", "utf-8", newline="\n")


def check_digest(path: Path) -> str | None:
    """Return the digest of a file; None where none is noted beside it. Raises Damaged where the two differ."""
    note = digest_note(path)
    if not note.is_file() or not path.is_file():
        return None
    with note.open("rb") as stream:
        line = stream.read(_MOST_NOTE).decode("utf-8", "replace")
    noted = line.partition(" ")[0].strip().lower()
    if not re.fullmatch("[0-9a-f]{64}", noted):
        raise Damaged(
            f"{note}: expected the sha256 of {path.name}, 64 hex digits, got {shown(line)!r}: the file was damaged. "
            f"Put it back from a copy, or remove it: then {path.name} is not checked"
        )
    digest = file_digest(path)
    if digest != noted:
        raise Damaged(
            f"{path}: expected the sha256 {noted[:12]}… that {note.name} beside it notes, got {digest[:12]}…: one of "
            "the two files was changed or damaged after they were written. Put the file back from a copy or make it "
            f"again; if you changed it on purpose, remove {note}"
        )
    return digest
