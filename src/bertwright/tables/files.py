"""… → task: the files of tables: which endings they have, how they are packed, what a pipe holds (paper §4.1)."""

import lzma
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Final, Literal

from bertwright.errors import InputError
from bertwright.tables.parquet import MAGIC
from bertwright.text.decompress import MAGIC as PACKED
from bertwright.text.decompress import open_bytes as open_packed

Format = Literal["tsv", "csv", "jsonl", "parquet"]
InputFormat = Literal["auto", "csv", "tsv", "jsonl", "parquet", "lines"]
FORMATS: Final[dict[str, Format]] = {
    ".tsv": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
OPENERS: Final = (".gz", ".bz2", ".xz", ".zst")
"""The endings of packed files."""

ALLOWED: Final = f"{', '.join(FORMATS)}, each but .parquet also with {', '.join(OPENERS)}"
"""The endings of a table's name, for messages."""


def table_stem(path: Path) -> str | None:
    """A table's file name without its endings ("train" of train.tsv.gz); None where the name is not a table's."""
    bare = path.with_suffix("") if path.suffix in OPENERS else path
    return bare.stem if bare.suffix in FORMATS else None


@contextmanager
def open_file(path: Path | str, asked: InputFormat) -> Iterator[tuple[Iterable[bytes], Format]]:
    """The bytes of a table and its format, which `asked`, the name's ending or the first bytes of a pipe say."""
    named: Format | None = None if asked == "auto" else "tsv" if asked == "lines" else asked
    if str(path) == "-":
        begin = b"" if named else sys.stdin.buffer.readline()
        if not named:
            is_json = begin.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
            named = "parquet" if begin.startswith(MAGIC) and _is_binary(begin) else "jsonl" if is_json else "tsv"
        if named == "parquet":
            with _spooled(sys.stdin.buffer, begin) as stream:
                yield stream, named
        else:
            yield chain([begin] if begin else [], sys.stdin.buffer), named
        return
    path = Path(path)
    bare = path.with_suffix("") if path.suffix in OPENERS else path
    if bare.suffix not in FORMATS and named is None:
        if not os.path.exists(path):  # which answers for an impossible name, too
            raise InputError(f"{path}: there is no such file or folder")
        raise InputError(f"{path}: not a table's name; allowed endings: {ALLOWED}; or say --input-format")
    named = named or FORMATS[bare.suffix]
    if named == "parquet" and bare != path:
        raise InputError(f"{path}: Parquet is packed within and cannot be read through {path.suffix}; unpack the file")
    if named == "parquet":
        if path.is_dir() or not path.exists():
            raise InputError(f"{path}: there is no such file")
        with path.open("rb") as file:
            if path.is_file():
                yield file, named
            else:
                with _spooled(file) as stream:
                    yield stream, named
        return
    with open_bytes(path) as lines:
        yield lines, named


@contextmanager
def _spooled(pipe: IO[bytes], begin: bytes = b"") -> Iterator[IO[bytes]]:
    """All of a pipe on disk: Parquet is read from its end."""
    with tempfile.TemporaryFile() as stream:
        stream.write(begin)
        shutil.copyfileobj(pipe, stream)
        stream.seek(0)
        yield stream


@contextmanager
def open_bytes(path: Path) -> Iterator[Iterable[bytes]]:
    """The lines of a file, plain or compressed, as bytes; InputError where it is absent or broken."""
    try:
        opened = path.open("rb") if path.suffix not in OPENERS or not path.exists() else open_packed(path)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    with opened as stream:
        yield _lines(stream, path)


def _lines(stream: IO[bytes], path: Path) -> Iterator[bytes]:
    """What is done with the lines may fail too, and that is no failure of reading."""
    try:
        yield from stream
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def decode_lines(stream: Iterable[bytes], source: str) -> Iterator[str]:
    """Lines as text with their ends, without a byte order mark; InputError names the line that is not UTF-8."""
    for number, raw in enumerate(stream, 1):
        if number == 1 and _is_binary(raw):
            kind = "Parquet" if raw.startswith(MAGIC) else next(name for name in PACKED if raw.startswith(PACKED[name]))
            raise InputError(
                f"{source}: holds {kind}, where text is due; name the file so, unpack it, or say --input-format"
            )
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{source}:{number}: not UTF-8 text (byte {error.start + 1} of the line)") from None
        # MRPC's files, among others, begin with a byte order mark, which is no part of the first column's name.
        yield line.removeprefix("\ufeff") if number == 1 else line


def _is_binary(raw: bytes) -> bool:
    """Whether a file that begins so is Parquet or packed: no text has such bytes behind such a beginning."""
    return raw.startswith((MAGIC, *PACKED.values())) and bool(re.search(rb"[\x00-\x08\x0e-\x1f\x80-\xff]", raw[:64]))
