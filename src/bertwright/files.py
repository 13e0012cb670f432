"""Files that are either whole or absent: every write goes to a temporary name, is flushed, then renamed."""

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os.path import samefile
from pathlib import Path
from typing import IO, Any, Final

from bertwright.errors import Damaged, InputError, shown

MOST_JSON: Final = 200_000_000
"""Bytes of a JSON file that is read as a whole; parsed it may take over twenty times as much."""

_MOST_NOTE: Final = 4096
"""Bytes that are read of a note of a digest, which has about a hundred."""

_FULL: Final = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
"""What the system says where there is no room: it does not say where."""


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
    """InputError for an --output in a folder that is not there, or that is the file of --input; "-" is neither."""
    if target != "-" and not Path(target).absolute().parent.is_dir():
        raise InputError(f"--output {target}: there is no folder {Path(target).parent}")
    if "-" not in (source, target) and Path(source).exists() and Path(target).exists() and samefile(source, target):
        raise InputError(f"--output {target}: is the file that --input names; name another")


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open `path` for writing bytes; it appears under its name only when the block ends without an error.

    A link is followed. What is no regular file, such as /dev/null, a pipe or /dev/stdout, is written to as it is.
    """
    if is_stream(path):
        descriptor = _descriptor(path)  # opened by its name, a file that it leads to would be emptied
        with path.open("wb") if descriptor is None else os.fdopen(os.dup(descriptor), "wb") as stream:
            yield stream
        return
    path = Path(os.path.realpath(path))
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        _say_where(error, path)
        raise
    sync_folder(path.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty sibling folder to fill; it takes the place of `path` when the block ends without an error.

    A link stays, and what it leads to is replaced.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    os.chmod(temporary, 0o777 & ~_umask())
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                with file.open("rb") as stream:
                    os.fsync(stream.fileno())
        sync_folder(temporary)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent))
            try:
                os.replace(path, old)
            except BaseException:
                old.rmdir()
                raise
            try:
                os.replace(temporary, path)
            except BaseException:
                os.replace(old, path)
                raise
            shutil.rmtree(old)
        else:
            os.replace(temporary, path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        _say_where(error, path)
        raise
    sync_folder(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill, which is then whole or empty: `path` itself where it is there, else as atomic_folder.

    InputError where something lies there already, or does when all is written.
    """
    if path.is_dir() and not any(path.iterdir()):  # it may be another disk's, which nothing can take the place of
        try:
            yield path
        except BaseException:
            for each in path.iterdir():
                shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
            raise
        return
    with atomic_folder(path) as folder:
        yield folder
        if os.path.lexists(path):
            raise InputError(f"{path}: exists, made by somebody else meanwhile; nothing is written")


def refuse_file_above(out: Path) -> None:
    """InputError where a file stands where a folder would have to be made."""
    if in_way := next((parent for parent in out.parents if parent.exists() and not parent.is_dir()), None):
        raise InputError(f"--out {out}: {in_way} is a file, and no folder")


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


def _say_where(error: BaseException, path: Path) -> None:
    if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
        error.filename = str(path)


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


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
