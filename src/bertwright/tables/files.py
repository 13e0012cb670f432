"""file of a table → bytes and format: endings of names, packed files, pipes (the files of paper §4.1)."""

import lzma
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Final, Literal

from bertwright.errors import InputError
from bertwright.tables.decoding import is_binary
from bertwright.text.decompress import MAGIC, open_bytes
from bertwright.text.parquet import PARQUET_MAGIC

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
"""Format of a table by the ending of its name."""
OPENERS: Final = tuple(MAGIC)
"""Endings of packed files."""
_SPREADSHEETS: Final = (".xlsx", ".xls", ".ods")
ALLOWED: Final = f"{', '.join(FORMATS)}, each but .parquet also with {', '.join(OPENERS)}"
"""Endings of a table's name, for messages."""


def table_stem(path: Path) -> str | None:
    """Return a table's file name without its endings: "train" of train.tsv.gz, None where the ending is no table's."""
    return without_packing(path).stem if table_ending(path) in FORMATS else None


def table_ending(path: Path | str) -> str:
    """Return the ending of a file's name in lower case, without that of a packed file: ".tsv" of Train.TSV.gz."""
    return without_packing(Path(path)).suffix.lower()


def without_packing(path: Path) -> Path:
    """Return a path without the ending of a packed file."""
    return path.with_suffix("") if path.suffix.lower() in OPENERS else path


def source_name(path: Path | str) -> str:
    """Return the name of an input for messages; "-" is standard input."""
    return "standard input" if str(path) == "-" else str(path)


def only_file(folder: Path, paths: Sequence[Path], kind: str = "table") -> Path | None:
    """Return the only one of these files of a folder; None where there is none. Raises InputError for several."""
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise InputError(f"{folder}: expected one {kind}, found {names}; keep one or give the path of the file")
    return paths[0] if paths else None


@contextmanager
def open_file(path: Path | str, input_format: InputFormat) -> Iterator[tuple[Iterable[bytes], Format]]:
    """Open a table as (bytes, format). The format comes from `input_format`, the name's ending or a pipe's first bytes.

    path   a file, or "-" for standard input
    """
    format: Format | None = None if input_format == "auto" else "tsv" if input_format == "lines" else input_format
    if str(path) == "-":
        first = b"" if format else sys.stdin.buffer.readline()
        format = format or _format_of_line(first)
        if format == "parquet":
            with _spooled(sys.stdin.buffer, first) as stream:
                yield stream, format
        else:
            yield chain([first] if first else [], sys.stdin.buffer), format
        return
    path = Path(path)
    if table_ending(path) not in FORMATS and format is None:
        if not os.path.exists(path):  # false for an impossible name too
            raise InputError(f"{path}: there is no such file or folder")
        advice = "save it as .csv in UTF-8" if table_ending(path) in _SPREADSHEETS else "or add --input-format"
        raise InputError(f"{path}: not a table's name; allowed endings: {ALLOWED}; {advice}")
    format = format or FORMATS[table_ending(path)]
    if format != "parquet":
        with open_lines(path) as lines:
            yield lines, format
        return
    if without_packing(path) != path:
        raise InputError(
            f"{path}: expected plain Parquet, which is compressed inside, got {path.suffix}; unpack the file"
        )
    if path.is_dir() or not path.exists():
        raise InputError(f"{path}: there is no such file")
    with path.open("rb") as file:
        if path.is_file():
            yield file, format
        else:
            with _spooled(file) as stream:
                yield stream, format


def _format_of_line(first: bytes) -> Format:
    """Return the format of a pipe with this first line."""
    if first.startswith(PARQUET_MAGIC) and is_binary(first):
        return "parquet"
    return "jsonl" if first.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{") else "tsv"


@contextmanager
def _spooled(pipe: IO[bytes], first: bytes = b"") -> Iterator[IO[bytes]]:
    """Copy a pipe, `first` before the rest, to a temporary file: Parquet is read from its end."""
    with tempfile.TemporaryFile() as stream:
        stream.write(first)
        shutil.copyfileobj(pipe, stream)
        stream.seek(0)
        yield stream


@contextmanager
def open_lines(path: Path) -> Iterator[Iterable[bytes]]:
    """Open a file, packed or not by its name, as lines of bytes. Raises InputError where it is absent or broken."""
    try:
        opened = path.open("rb") if path.suffix.lower() not in OPENERS or not path.exists() else open_bytes(path)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    with opened as stream:
        yield _lines(stream, path)


def _lines(stream: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield lines. Raises InputError for errors of reading; errors of the caller pass through unchanged."""
    try:
        yield from stream
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
