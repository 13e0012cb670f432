"""file → lines of text: unpack and decode files (paper §3.1).

Files are read as a stream. They may be packed with gzip, bzip2, xz or Zstandard, which their name or their first bytes
show. Errors name the file and the line.
"""

import bz2
import codecs
import gzip
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from bertwright.errors import InputError, RunFailed
from bertwright.stores.remote import AnyFile

MAGIC = {".gz": b"\x1f\x8b", ".bz2": b"BZh", ".xz": b"\xfd7zXZ\x00", ".zst": b"\x28\xb5\x2f\xfd"}
"""First bytes of each kind of packed file, by the ending of its name."""

LONGEST = 20_000_000
"""Most characters of a line, and of a document; each is held in memory as a whole."""

LONGEST_CELL = 2**31 - 1
"""Most characters of a cell of csv: the largest limit that Python's csv module takes on every system."""

MOST_UNPACKED = 300
"""Most bytes that a byte of a packed file may become. A file that repeats one text for ever reaches 1,000 and more."""

_ALWAYS_UNPACKED = 100_000_000  # bytes that every packed file may become, however small it is
_XZ_MEMORY = 1 << 28  # bytes of memory that unpacking xz may take; xz -9 takes a quarter of them
_BLOCK = 1 << 16  # bytes
_BZ2 = re.compile(rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)")  # a block follows, or the end of an empty stream
_UNDECODED = re.compile("[\udc80-\udcff]")  # bytes that are not UTF-8, as "surrogateescape" decodes them


def open_bytes(path: AnyFile) -> BinaryIO:
    """Open a file for reading its unpacked bytes. Raises InputError where it cannot be opened.

    Reading raises InputError where the file unpacks to more than MOST_UNPACKED times its size.
    """
    try:
        with path.open("rb") as stream:
            begin = stream.read(10)
        kind = path.suffix.lower()
        if kind not in MAGIC:
            kind = next((name for name, magic in MAGIC.items() if begin.startswith(magic)), "")
            if kind == ".bz2" and not _BZ2.match(begin):  # a plain text that begins with "BZh"
                kind = ""
        if not kind:
            return path.open("rb")
        if not begin:
            raise _broken(path, 0, EOFError("it is empty"))
        size = _size(path)
        most = max(_ALWAYS_UNPACKED, MOST_UNPACKED * size) if size else sys.maxsize  # not every store tells the size
        return cast(BinaryIO, io.BufferedReader(_Bounded(path, _unpacked(path, kind), most), _BLOCK))
    except OSError as error:
        raise InputError(f"{path}: cannot be opened: {error.strerror or error}") from None


def read_lines(path: AnyFile) -> Generator[tuple[int, str], None, None]:
    """Yield (line number from 1, line). All line ends become line feeds, and a leading byte order mark is dropped.

    A line that is not UTF-8 is yielded too: `is_undecoded` is true for it, and `decoded_lines` raises InputError.
    """
    number = 0
    binary = open_bytes(path)
    encoding: Any = {"encoding": "utf-8-sig", "errors": "surrogateescape", "newline": None}
    with reading(path, lambda: number), io.TextIOWrapper(binary, **encoding) as text:
        while line := text.readline(LONGEST + 1):
            number += 1
            if len(line) > LONGEST:
                raise InputError(
                    f"{path}:{number}: the line has over {LONGEST // 10**6} million characters; break it up"
                )
            if "\0" in line and 3 * line.count("\0") > len(line):
                raise InputError(
                    f"{path}:{number}: expected text, got a line that is a third NUL bytes; convert UTF-16 to UTF-8, "
                    "unpack a tar archive"
                )
            yield number, line


def decoded_lines(path: AnyFile, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a text. Raises InputError at the first line that is not UTF-8."""
    for number, line in lines:
        if is_undecoded(line):
            raise not_utf8(path, number)
        yield number, line


def is_undecoded(line: str) -> bool:
    """Return whether a line holds bytes that are not UTF-8."""
    return not line.isascii() and _UNDECODED.search(line) is not None


@contextmanager
def reading(path: AnyFile, line: Callable[[], int]) -> Iterator[None]:
    """Turn errors of reading into InputError or RunFailed, with the file's name and the last complete line.

    line   returns the number of that line
    """
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise _broken(path, line(), error) from None
    except OSError as error:
        # Decompressors raise OSError without a number for bad data. A number means that the disk or system failed.
        if error.errno is None:
            raise _broken(path, line(), error) from None
        raise RunFailed(f"{path}: reading failed after line {line()}: {error.strerror}") from error


def _size(path: AnyFile) -> int:
    """Return the bytes of a file, packed where it is packed."""
    return path.stat().st_size if isinstance(path, Path) else path.size


def _unpacked(path: AnyFile, kind: str) -> BinaryIO:
    if kind == ".gz":
        return cast(BinaryIO, gzip.open(path if isinstance(path, Path) else path.open(), "rb"))
    if kind == ".bz2":
        return cast(BinaryIO, io.BufferedReader(_Streams(path.open("rb"), bz2.BZ2Decompressor), _BLOCK))
    if kind == ".xz":
        # lzma.open allocates as much memory as the file's header states, up to 4 GB.
        bounded = partial(lzma.LZMADecompressor, memlimit=_XZ_MEMORY)
        return cast(BinaryIO, io.BufferedReader(_Streams(path.open("rb"), bounded), _BLOCK))
    import pyarrow as pa

    return cast(BinaryIO, pa.input_stream(str(path) if isinstance(path, Path) else path.open(), compression="zstd"))


class _Streams(io.RawIOBase):
    """Unpacked bytes of all streams of a file, one after the other.

    bz2.open is no substitute: it takes a damaged stream for the end of the file.
    """

    def __init__(self, packed: BinaryIO, begin: Callable[[], Any]) -> None:
        self._packed, self._begin = packed, begin
        self._unpacker = begin()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data:
            if self._unpacker.eof:
                rest = self._unpacker.unused_data.lstrip(b"\0")
                while not rest:
                    block = self._packed.read(_BLOCK)
                    if not block:
                        return 0
                    rest = block.lstrip(b"\0")
                self._unpacker = self._begin()
                data = self._unpacker.decompress(rest, len(buffer))
            else:
                packed = self._packed.read(_BLOCK) if self._unpacker.needs_input else b""
                if self._unpacker.needs_input and not packed:
                    raise EOFError("the file ends before the end of its stream")
                data = self._unpacker.decompress(packed, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._packed.close()
        super().close()


class _Bounded(io.RawIOBase):
    """Stream that raises InputError after `most` bytes."""

    def __init__(self, path: AnyFile, stream: Any, most: int) -> None:
        self._path, self._stream, self._left = path, stream, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read1(len(buffer))  # read1 returns the bytes before a fault; the next call raises
        self._left -= len(data)
        if self._left < 0:
            raise InputError(
                f"{self._path}: unpacks to more than {MOST_UNPACKED} times its size, as no text does; refused"
            )
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _broken(path: AnyFile, number: int, error: Exception) -> InputError:
    return InputError(f"{path}:{number + 1}: the compressed file is broken or cut short: {error}")


def not_utf8(path: AnyFile, number: int) -> InputError:
    """Return the error for a line that is not UTF-8, with the position of the byte.

    The file is read again as bytes and to its end, because a broken archive gives wrong bytes too: then its error is
    returned.
    """
    offset = lines = 0
    message = ""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with open_bytes(path) as binary:
            while block := binary.read(_BLOCK):
                begun = len(decoder.getstate()[0])  # bytes of a character that the last block began
                try:
                    decoder.decode(block)
                except UnicodeDecodeError as error:
                    byte = (
                        f"byte 0x{error.object[error.start]:02x} at byte {offset - begun + error.start + 1} of the text"
                    )
                    message = (
                        message or f"{path}:{number}: not UTF-8 text: {byte} ({error.reason}); convert it to UTF-8"
                    )
                    decoder.reset()
                offset += len(block)
                lines += block.count(b"\n")
        if not message and decoder.getstate()[0]:
            message = f"{path}:{number}: not UTF-8 text: it ends in the middle of a character; was the file cut short?"
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        return _broken(path, lines, error)
    return InputError(message or f"{path}:{number}: not UTF-8 text; convert it to UTF-8")
