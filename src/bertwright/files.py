"""Files that are either whole or absent: every write goes to a temporary name, is flushed, then renamed."""

import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os.path import samefile
from pathlib import Path
from typing import IO, Any, Final

from bertwright.errors import Damaged, DiskFull, InputError, shown
from bertwright.leftovers import lock_of, temporary

MOST_JSON: Final = 200_000_000
"""Bytes of a JSON file that is read as a whole; parsed it may take over twenty times as much."""

_MOST_NOTE: Final = 4096
"""Bytes that are read of a note of a digest, which has about a hundred."""

FULL_DISK: Final = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
"""Error numbers of the system where there is no room; such an error names no file."""


def cache_folder() -> Path:
    """Where what can be made again is kept for the next process; it may not exist. OSError where nobody says where."""
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "bertwright"
    try:
        return Path.home() / ".cache" / "bertwright"
    except RuntimeError:
        raise OSError("there is no home folder; XDG_CACHE_HOME names one for what is kept") from None


def is_stream(path: Path) -> bool:
    """Whether it is written to as it is: a pipe, a device, or one of this process' own descriptors."""
    return _descriptor(path) is not None or (path.exists() and not path.is_file() and not path.is_dir())


def _descriptor(path: Path) -> int | None:
    """The number of the open file that a path such as /dev/stdout or /dev/fd/3 stands for."""
    found = re.fullmatch(r"(/dev/fd/|/proc/self/fd/)(\d+)", str(path))
    return int(found[2]) if found else {"/dev/stdout": 1, "/dev/stderr": 2}.get(str(path))


def refuse_target(target: str, *, source: str) -> None:
    """Raise InputError for an --output in a folder that is absent, or that is the file of --input; "-" is neither."""
    if target != "-":
        refuse_unwritable(Path(target), "--output", is_folder=False)
    if "-" not in (source, target) and Path(source).exists() and Path(target).exists() and samefile(source, target):
        raise InputError(f"--output {target}: is the file that --input names; name another")


def refuse_unwritable(path: Path, option: str, *, is_folder: bool) -> None:
    """Raise InputError where `path` cannot be written, so that a command finds it out before its work.

    option: the option that names the path, for the message. is_folder: missing folders above it are made later; those
    above a file are not.
    """
    if is_stream(path):
        return
    above = path.absolute().parents
    folder = path if path.is_dir() else next(parent for parent in above if parent.exists())
    if not folder.is_dir():
        raise InputError(f"{option} {path}: expected a folder, but {folder} is a file; name another path")
    if not is_folder and not path.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}; make it first")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(
            f"{option} {path}: no file can be written in {folder} ({error.strerror}); name a path that can be written"
        ) from None


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open `path` for writing bytes; it appears under its name only when the block ends without an error.

    A link is followed. What is no regular file, such as /dev/null, a pipe or /dev/stdout, is written to as it is.
    Raises DiskFull where there is no room; an earlier file stays then.
    """
    if is_stream(path):
        descriptor = _descriptor(path)  # opened by its name, a file that it leads to would be emptied
        with path.open("wb") if descriptor is None else os.fdopen(os.dup(descriptor), "wb") as stream:
            yield stream
        return
    path = Path(os.path.realpath(path))
    with _full_disk_told(path), temporary(path) as unfinished:
        with unfinished.open("w+b") as stream:  # some map what they write
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(unfinished, path)
    sync_folder(path.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty sibling folder to fill; it takes the place of `path` when the block ends without an error.

    A link stays, and what it leads to is replaced. Only the content that `path` has at the start is replaced: raises
    InputError, and leaves `path` as it is, where another process has made or changed it by the end. Raises DiskFull
    where there is no room.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: is a file, and a folder is to be written under this name; choose another one")
    path.parent.mkdir(parents=True, exist_ok=True)
    before = _content(path) if path.is_dir() else {}
    with _full_disk_told(path), temporary(path, is_folder=True) as folder:
        yield folder
        for file in folder.rglob("*"):
            if file.is_file():
                with file.open("rb") as stream:
                    os.fsync(stream.fileno())
        sync_folder(folder)
        if before:
            _replace_folder(folder, path, before)
        else:
            _rename_folder(folder, path)
    sync_folder(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill, whose content `path` has when the block ends without an error, and else stays as it was.

    Raises InputError where `path` holds anything at the start, or at the end.
    """
    if os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path}: exists already and is not an empty folder; name another one or remove it")
    if not path.is_dir():
        with atomic_folder(path) as folder:
            yield folder
        return
    with _full_disk_told(path), temporary(path / "content", is_folder=True) as folder:
        yield folder  # inside, since another disk may be mounted there, which nothing can take the place of
        sync_folder(folder)
        if [each.name for each in path.iterdir()] != [folder.name]:
            raise InputError(_made_meanwhile(path))
        for each in folder.iterdir():
            os.replace(each, path / each.name)
    sync_folder(path)


def _content(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Map each path below `folder` to inode, size and time of change (ns); folders have their inode alone."""
    content = {}
    for parent, folders, files in os.walk(folder):
        for name in folders + files:
            found = os.lstat(path := os.path.join(parent, name))
            size, changed = (0, 0) if name in folders else (found.st_size, found.st_mtime_ns)
            content[os.path.relpath(path, folder)] = (found.st_ino, size, changed)
    return content


def _replace_folder(folder: Path, path: Path, before: dict[str, tuple[int, int, int]]) -> None:
    """Swap the two folders, if `path` still has the content `before`."""
    lock, old = lock_of(path), folder.with_suffix(".old")
    try:
        os.replace(path, old)
        try:
            if _content(old) != before:
                raise InputError(_made_meanwhile(path))
            _rename_folder(folder, path)
        except BaseException:
            os.replace(old, path)  # fails where something lies there by now: both stay then
            raise
        os.replace(old, folder)
    finally:
        os.close(lock)


def _rename_folder(folder: Path, path: Path) -> None:
    """Rename a folder to a name that is free or that an empty folder has; InputError where there is anything else."""
    try:
        os.replace(folder, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise InputError(_made_meanwhile(path)) from None


def _made_meanwhile(path: Path) -> str:
    return (
        f"{path}: was made or changed by another process while this command worked. It stays as it is, and the result "
        "of this command was not written. Run the command again with another name"
    )


def sync_folder(path: Path) -> None:
    """Make renames in a folder survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented UTF-8 JSON, atomically."""
    with atomic_file(path) as stream:
        stream.write(json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """`value` as `write_json` writes it."""
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


def read_json(path: Path) -> Any:
    """Read a JSON file; InputError with the place where it is broken, and for one beyond `MOST_JSON`."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MOST_JSON + 1)
        if len(raw) > MOST_JSON:
            raise InputError(f"{path}: over {MOST_JSON // 10**6} MB of JSON, which no file of this kind has")
        value = json.loads(raw.decode())
        if b"\\ud" in raw.lower():  # an escaped half of a surrogate pair is valid JSON, but no text
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except UnicodeEncodeError:
        raise InputError(f"{path}: holds half of a surrogate pair (\\ud800 to \\udfff), which is no text") from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply to be read as JSON") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"{path}: not usable JSON: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object; InputError for another value."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds a JSON {type(value).__name__}; it must be an object")
    return value


@contextmanager
def _full_disk_told(path: Path) -> Iterator[None]:
    """Within, an error of a full disk, which names no file, becomes one that does and says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK or isinstance(error, DiskFull):
            raise
        raise DiskFull(path, error) from error


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_note(path: Path) -> Path:
    """The file beside `path` that notes its digest, in the form that `sha256sum --check` reads."""
    return path.with_name(f"{path.name}.sha256")


def note_digest(path: Path) -> None:
    """Write the digest of a file beside it; no other program may have the folder in use."""
    digest_note(path).write_text(f"{file_digest(path)}  {path.name}\n", "utf-8")


def check_digest(path: Path) -> str | None:
    """Return the digest of a file, None where none is noted beside it; Damaged where another one is noted."""
    note = digest_note(path)
    if not note.is_file() or not path.is_file():
        return None
    with note.open("rb") as stream:
        line = stream.read(_MOST_NOTE).decode("utf-8", "replace")
    noted = line.partition(" ")[0].strip().lower()
    if not re.fullmatch("[0-9a-f]{64}", noted):
        raise Damaged(
            f"{note}: begins with {shown(line)!r}; expected the sha256 of {path.name}, 64 hex digits: the file was "
            f"damaged. Put it back from a copy, or remove it: then {path.name} is not checked"
        )
    digest = file_digest(path)
    if digest != noted:
        raise Damaged(
            f"{path}: its sha256 is {digest[:12]}…, and {note.name} beside it notes {noted[:12]}…: one of the two was "
            f"changed or damaged after they were written. Put the file back from a copy or make it again; who changed "
            f"it on purpose, or saved it anew with another program, removes {note}"
        )
    return digest
