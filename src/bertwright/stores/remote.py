"""URL → stream of bytes: one file of a store, its size and its mark, and the faults of stores as messages."""

import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, cast

from bertwright.errors import InputError, MissingExtra, RunFailed

_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+)://(.*)", re.IGNORECASE | re.DOTALL)
_JOINED: Final = re.compile(r"([a-z][a-z0-9+.-]+):/(?!/)(.*)", re.IGNORECASE | re.DOTALL)
"""A URL that became a path, which joins its two slashes. The scheme has two letters or more: C:/ is a disk."""
_QUERY: Final = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]*", re.IGNORECASE)
LOCAL: Final = ("file", "local")
"""Schemes of the files of this machine."""
_CHECKSUMS: Final = (
    *("etag", "md5hash", "content-md5", "digest", "checksum", "sha256", "md5", "crc32c"),
    *("xet_hash", "blob_id", "sha"),  # of the Hugging Face Hub
)
_TIMES: Final = (
    *("lastmodified", "last_modified", "last-modified", "updated", "mtime", "modified", "created"),
    *("modificationtime", "last_write_time", "modify"),  # webhdfs, smb, ftp
)
"""Entries of fsspec's information about a file that change with its content, in small letters; checksums first."""
_BLOCK: Final = 1 << 18  # bytes


@dataclass(frozen=True)
class RemoteFile:
    """File of a store, as it was when it was listed.

    size    bytes; 0 where the store does not say it
    mark    checksum or time of change that the store notes, else the size; a file with another mark was changed
    """

    url: str
    size: int
    mark: str

    def __str__(self) -> str:
        return without_query(self.url)

    @property
    def has_mark(self) -> bool:
        """Return whether the store notes a checksum or time of change; without it a change may stay unnoticed."""
        return not self.mark.startswith("size ")

    @property
    def name(self) -> str:
        """Return the last part of the URL."""
        return PurePosixPath(str(self)).name

    @property
    def suffix(self) -> str:
        """Return the ending of the name, such as .gz."""
        return PurePosixPath(str(self)).suffix

    @property
    def stem(self) -> str:
        """Return the name without its ending."""
        return PurePosixPath(str(self)).stem

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open the file for reading its bytes in any order. Raises InputError where it cannot be opened.

        Reading raises RunFailed where the store fails, or ends the file before its size.
        """
        if mode != "rb":
            raise ValueError(f"{mode!r}: a file of a store is only read as bytes")
        system, path = open_store(self.url)
        with named_faults(self.url):
            stream = system.open(path, "rb")
        return io.BufferedReader(_Stream(self, stream), _BLOCK)

    def refuse_changed(self) -> None:
        """Raise RunFailed where the store now has another file by this name, or none."""
        if current_file(self.url) != self:
            raise RunFailed(f"{self}: was changed while it was read; give the same command again")


AnyFile = Path | RemoteFile
"""A file of this machine or of a store."""


class _Stream(io.RawIOBase):
    """Bytes of a file of a store."""

    def __init__(self, file: RemoteFile, stream: Any) -> None:
        self._file, self._stream = file, stream

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self._stream.tell())

    def readinto(self, buffer: Any) -> int:
        begin = self.tell()
        try:
            data = self._stream.read(len(buffer))
        except Exception as error:  # every store's library has errors of its own
            raise RunFailed(
                f"{self._file}: the store failed after {begin:,} of {self._file.size:,} bytes: {fault_text(error)}"
                "; give the same command again"
            ) from error
        if not data and len(buffer) and begin < self._file.size:
            raise RunFailed(
                f"{self._file}: expected {self._file.size:,} bytes, got {begin:,}: the store ended the file early; "
                "give the same command again"
            )
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def is_url(name: object) -> bool:
    """Return whether a name is written as `scheme://…`."""
    return isinstance(name, str) and _URL.fullmatch(name) is not None


def is_http(url: str) -> bool:
    """Return True for a URL of http or https."""
    return url.lower().startswith(("http:", "https:"))


def without_query(text: str) -> str:
    """Return a URL or message whose http URLs have no query, which may hold a secret."""
    return _QUERY.sub(r"\1", text)


def url_of_path(path: Path) -> str | None:
    """Return the URL that a path was made of, whose slashes it joined; None for the path of a file or folder."""
    match = _JOINED.fullmatch(str(path))
    if match is None or path.exists():
        return None
    return f"{match[1]}://{'/' if match[1].lower() in LOCAL else ''}{match[2]}"


def open_store(url: str) -> tuple[Any, str]:
    """Return the file system of fsspec for a URL, and the path there.

    Raises MissingExtra without fsspec, and InputError for an unknown scheme, one whose package is missing, and a URL
    with a password.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise InputError(f"{without_query(url)}: expected a URL such as s3://bucket/path")
    scheme, rest = match[1].lower(), match[2]
    if re.match(r"[^/@]*:[^/@]*@", rest):
        public = without_query(f"{scheme}://…@{rest.rpartition('@')[2]}")
        raise InputError(
            f"{public}: the URL has a password, which messages and manifests would show; "
            "give it in the environment, as the package of the scheme describes"
        )
    try:
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations
    except ImportError:
        raise MissingExtra("stores", f"reading {without_query(url)}") from None
    options = {"auto_mkdir": True} if scheme in LOCAL else {}
    try:
        system, path = url_to_fs(f"{scheme}://{rest}", use_listings_cache=False, **options)
    except ImportError as error:
        package = known_implementations.get(scheme, {}).get("class", "").partition(".")[0]
        if scheme in ("http", "https"):
            package = "'fsspec[http]'"
        advice = "" if package == "fsspec" else f": pip install {package}"  # the error names the package
        raise InputError(f"{without_query(url)}: {error}{advice}") from None
    except ValueError as error:
        raise InputError(f"{without_query(url)}: no store has the scheme '{scheme}' ({fault_text(error)})") from None
    except Exception as error:  # gcsfs looks for credentials here
        raise _fault(url, error) from error
    return system, path


@contextmanager
def named_faults(url: str) -> Iterator[None]:
    """Turn the errors of a store into InputError (no such file, no access) or RunFailed, each with the URL."""
    try:
        yield
    except (InputError, RunFailed):
        raise
    except Exception as error:  # every store's library has errors of its own
        raise _fault(url, error) from error


def _fault(url: str, error: Exception) -> InputError | RunFailed:
    url = without_query(url)
    if isinstance(error, FileNotFoundError):
        return InputError(f"{url}: there is no such file or folder in the store")
    if isinstance(error, PermissionError) or "credential" in f"{type(error).__name__} {error}".lower():
        return InputError(
            f"{url}: the store refuses access ({fault_text(error)}); set credentials as the package of the scheme "
            "describes, and check that they may read and write there"
        )
    return RunFailed(f"{url}: the store failed: {fault_text(error)}; give the same command again")


def fault_text(error: BaseException) -> str:
    """Return the first line of an error without queries of URLs, or the name of its class."""
    return without_query((str(error).splitlines() or [""])[0]) or type(error).__name__


def remote_file(url: str, info: Mapping[str, Any]) -> RemoteFile:
    """Return a file from fsspec's information about it."""
    values = {name.lower(): value for name, value in info.items() if value is not None}
    size = int(values.get("size", 0))
    for name in (*_CHECKSUMS, *_TIMES):
        if name in values:
            value = values[name]
            value = value.timestamp() if isinstance(value, datetime) else value
            return RemoteFile(url, size, f"{name} {str(value).strip(chr(34))}")
    return RemoteFile(url, size, f"size {size}")


def current_file(url: str) -> RemoteFile | None:
    """Return the file of a URL as the store has it now; None where there is none, or a folder."""
    system, path = open_store(url)
    if is_http(url) and path.endswith("/"):  # the page that lists a folder
        return None
    with named_faults(url):
        try:
            info = cast(dict[str, Any], system.info(path))
        except FileNotFoundError:
            return None
    if info.get("mimetype") == "text/html" and not PurePosixPath(path.partition("?")[0]).suffix:
        return None  # the page of a folder whose URL lacks the / at its end
    return remote_file(url, info) if info.get("type") == "file" else None


def read_remote_object(file: RemoteFile) -> dict[str, Any]:
    """Return the content of a JSON file that holds an object. Raises InputError where it is damaged."""
    with file.open() as stream:
        content = stream.read()
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InputError(
            f"{file}: expected a JSON object, got {len(content):,} bytes of other content: the file in the store is "
            "damaged; put a good copy there, or name another URL"
        )
    return value
