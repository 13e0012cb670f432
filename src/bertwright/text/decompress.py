"""File → lines of text: what lies around a text, its packing and its encoding (paper §3.1).

Files are read as a stream, packed with gzip, bzip2, xz or Zstandard or not at all, told by name or by the first bytes.
Everything that can go wrong on the way is said with the file and the line.
"""

import bz2
import codecs
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from bertwright.errors import InputError, RunFailed

MAGIC = {".gz": b"\x1f\x8b", ".bz2": b"BZh", ".xz": b"\xfd7zXZ\x00", ".zst": b"\x28\xb5\x2f\xfd"}
"""The first bytes of each kind of packing, by the end of its file names."""

LONGEST = 20_000_000
"""Characters of one line, and of one document, which are held in memory as a whole."""

MOST_UNPACKED = 300
"""Bytes that a byte of a packed file may become; text repeated without end comes to 1,000 and more."""

_ALWAYS_UNPACKED = 100_000_000  # bytes that any packed file may become
_XZ_MEMORY = 1 << 28  # bytes that unpacking xz may take; xz -9 takes a quarter of them
_BLOCK = 1 << 16
_BZ2 = re.compile(rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)")  # a block follows, or an empty stream's end
_UNDECODED = re.compile("[\udc80-\udcff]")  # what bytes that are no UTF-8 are read as


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading what is packed in it; InputError where it cannot be opened.

    Reading raises InputError where the file unpacks to far more than text ever does.
    """
    try:
        with path.open("rb") as stream:
            begin = stream.read(10)
        kind = path.suffix.lower()
        if kind not in MAGIC:
            kind = next((name for name, magic in MAGIC.items() if begin.startswith(magic)), "")
            if kind == ".bz2" and not _BZ2.match(begin):  # a text may begin with these three letters
                kind = ""
        if not kind:
            return path.open("rb")
        if not begin:
            raise _broken(path, 0, EOFError("it is empty"))
        most = max(_ALWAYS_UNPACKED, MOST_UNPACKED * path.stat().st_size)
        return cast(BinaryIO, io.BufferedReader(_Bounded(path, _unpacked(path, kind), most), _BLOCK))
    except OSError as error:
        raise InputError(f"{path}: cannot be opened: {error.strerror or error}") from None


def read_lines(path: Path) -> Generator[tuple[int, str], None, None]:
    """Yield (line number from 1, line); any of the three usual line ends, a leading byte order mark dropped.

    A line that is not UTF-8 is given too: `decoded_lines` refuses it, `is_undecoded` tells it.
    """
    number = 0
    binary = open_bytes(path)
    kind: Any = {"encoding": "utf-8-sig", "errors": "surrogateescape", "newline": None}
    with reading(path, lambda: number), io.TextIOWrapper(binary, **kind) as text:
        while line := text.readline(LONGEST + 1):
            number += 1
            if len(line) > LONGEST:
                raise InputError(f"{path}:{number}: a line of over {LONGEST // 10**6} million characters")
            if "\0" in line and 3 * line.count("\0") > len(line):
                raise InputError(
                    f"{path}:{number}: a third of this line are NUL bytes: UTF-16 is to be UTF-8, a tar unpacked"
                )
            yield number, line


def decoded_lines(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The numbered lines of a text, in which one that is not UTF-8 ends the file with InputError."""
    for number, line in lines:
        if is_undecoded(line):
            raise _not_utf8(path, number)
        yield number, line


def is_undecoded(line: str) -> bool:
    """Whether a line holds bytes that are not UTF-8."""
    return not line.isascii() and _UNDECODED.search(line) is not None


@contextmanager
def reading(path: Path, line: Callable[[], int]) -> Iterator[None]:
    """Turn what goes wrong while reading into errors that name the file and the last whole line."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise _broken(path, line(), error) from None
    except OSError as error:
        # the decompressors raise OSError without a number for bad data; a number means the disk or the system failed
        if error.errno is None:
            raise _broken(path, line(), error) from None
        raise RunFailed(f"{path}: reading failed after line {line()}: {error.strerror}") from error


def _unpacked(path: Path, kind: str) -> BinaryIO:
    if kind == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if kind == ".bz2":
        return cast(BinaryIO, io.BufferedReader(_Streams(path.open("rb"), bz2.BZ2Decompressor), _BLOCK))
    if kind == ".xz":
        # lzma.open takes as much memory as a file asks for, up to 4 GB
        bounded = partial(lzma.LZMADecompressor, memlimit=_XZ_MEMORY)
        return cast(BinaryIO, io.BufferedReader(_Streams(path.open("rb"), bounded), _BLOCK))
    import pyarrow as pa

    return cast(BinaryIO, pa.input_stream(str(path), compression="zstd"))


class _Streams(io.RawIOBase):
    """What the streams in a file unpack to, one behind the other. bz2.open takes a damaged one for the file's end."""

    def __init__(self, packed: BinaryIO, begin: Callable[[], Any]) -> None:
        self._packed, self._begin = packed, begin
        self._unpacker = begin()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data:
            if self._unpacker.eof:
                behind = self._unpacker.unused_data.lstrip(b"\0")
                while not behind:
                    block = self._packed.read(_BLOCK)
                    if not block:
                        return 0
                    behind = block.lstrip(b"\0")
                self._unpacker = self._begin()
                data = self._unpacker.decompress(behind, len(buffer))
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
    """A stream that ends with an error after `most` bytes."""

    def __init__(self, path: Path, stream: Any, most: int) -> None:
        self._path, self._stream, self._left = path, stream, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read1(len(buffer))  # what came before a fault is given before the fault is told
        self._left -= len(data)
        if self._left < 0:
            raise InputError(
                f"{self._path}: unpacks to more than {MOST_UNPACKED} times its size, which text does not; refused"
            )
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _broken(path: Path, number: int, error: Exception) -> InputError:
    return InputError(f"{path}:{number + 1}: the compressed file is broken or cut short: {error}")


def _not_utf8(path: Path, number: int) -> InputError:
    """Find the byte, which is in that line, by reading again in bytes.

    The whole file is read: an archive that breaks also gives wrong bytes, and its end tells which it was.
    """
    offset = lines = 0
    found = ""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with open_bytes(path) as binary:
            while block := binary.read(_BLOCK):
                held = len(decoder.getstate()[0])  # bytes of a letter that the last block began
                try:
                    decoder.decode(block)
                except UnicodeDecodeError as error:
                    where = f"byte 0x{error.object[error.start]:02x} at byte {offset - held + error.start} of the text"
                    found = found or f"{path}:{number}: not UTF-8 text: {where} ({error.reason}); convert it to UTF-8"
                    decoder.reset()
                offset += len(block)
                lines += block.count(b"\n")
        if not found and decoder.getstate()[0]:
            found = f"{path}:{number}: not UTF-8 text: it ends in the middle of a character; was the file cut short?"
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        return _broken(path, lines, error)
    return InputError(found or f"{path}:{number}: not UTF-8 text; convert it to UTF-8")
