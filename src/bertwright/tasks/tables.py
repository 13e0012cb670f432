"""… → task: the rows of a table, each with the line on which it begins (the files of paper §4.1).

Tab separated in GLUE's way (no quoting: a quotation mark is text), comma separated with the usual quoting, or JSON
lines; plain or compressed, always UTF-8. A row that does not fit is an error that names its line; none is left out in
silence.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeVar

from bertwright.console import say
from bertwright.errors import InputError

Row = TypeVar("Row")
Format = Literal["tsv", "csv", "jsonl"]
FORMATS: Final[dict[str, Format]] = {
    ".tsv": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
OPENERS: Final[dict[str, Callable[..., Any]]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


class Absent:
    """What stands where a JSON object lacks a field that other objects of the file have."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT: Final = Absent()


@dataclass(frozen=True)
class Table:
    """Rows of cells: text in tsv and csv, any JSON value in JSON lines."""

    source: str
    format: Format
    columns: tuple[str, ...]
    header: bool  # whether the file names its columns
    rows: tuple[tuple[object, ...], ...]
    lines: tuple[int, ...]  # the line on which each row begins, from 1
    available: tuple[str, ...]  # all columns of the file, those that were not kept included

    def __len__(self) -> int:
        return len(self.rows)

    def place(self, row: int) -> str:
        """Where a row begins, as "file:line"."""
        return f"{self.source}:{self.lines[row]}"

    def column(self, name: str) -> tuple[object, ...]:
        """The cells of one column; InputError lists the columns that exist."""
        found = [index for index, column in enumerate(self.columns) if column == name]
        if len(found) != 1:
            trouble = "there are several columns" if found else "there is no column"
            raise InputError(f"{self.source}: {trouble} '{name}'; the columns are: {', '.join(self.available)}")
        return tuple(row[found[0]] for row in self.rows)


def table_stem(path: Path) -> str | None:
    """A table's file name without its endings ("train" of train.tsv.gz); None where the name is not a table's."""
    bare = path.with_suffix("") if path.suffix in OPENERS else path
    return bare.stem if bare.suffix in FORMATS else None


def read_table(
    path: Path | str, *, columns: Iterable[str] | None = None, headerless: Sequence[str] = (), broken_rows: int = 0
) -> Table:
    """Read a table; "-" is standard input (JSON lines where it begins with "{", else tab separated).

    columns      the ones to keep (those that exist); None keeps all
    headerless   the columns' names where the file has no header line. A first row with one of them as a whole cell is
                 taken for a header line all the same.
    broken_rows  how many rows of the wrong width may be left out, each said with its line: published files have some

    Raises InputError with file and line: no such file, unknown ending, not UTF-8, broken compression, quoting or JSON,
    a row of the wrong width, no rows at all.
    """
    keep = None if columns is None else frozenset(columns)
    with _open(path) as (stream, format):
        source = "standard input" if str(path) == "-" else str(path)
        lines = decode_lines(stream, source)
        if format == "jsonl":
            table = _table_of_objects(lines, source, keep)
        else:
            cells = _tsv_cells(lines) if format == "tsv" else _csv_cells(lines, source)
            table = _table_of_cells(cells, source, format, keep, headerless, broken_rows)
    if not table.rows:
        raise InputError(f"{source}: holds no rows")
    return table


def add_columns(table: Table, columns: Mapping[str, Sequence[object]]) -> Table:
    """The same table with columns added on the right; InputError where one of them exists already."""
    for name in columns:
        if name in table.available:
            raise InputError(f"{table.source}: already has a column '{name}'; rename it first")
    added = zip(*columns.values(), strict=True)
    rows = tuple(row + tuple(more) for row, more in zip(table.rows, added, strict=True))
    names = tuple(columns)
    return replace(table, columns=table.columns + names, rows=rows, available=table.available + names)


def write_table(table: Table, stream: IO[bytes]) -> None:
    """Write a table in its own format, in its own order, with a header line where it had one."""
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    try:
        if table.format == "jsonl":
            for row in table.rows:
                pairs = zip(table.columns, row, strict=True)
                fields = {name: cell for name, cell in pairs if cell is not ABSENT}
                text.write(json.dumps(fields, ensure_ascii=False) + "\n")
            return
        rows: list[tuple[object, ...]] = [table.columns, *table.rows] if table.header else list(table.rows)
        line_of = _csv_line if table.format == "csv" else _tsv_line
        text.writelines(line_of(row, table) for row in rows)
    finally:
        text.flush()
        text.detach()


def _csv_line(row: Sequence[object], table: Table) -> str:
    line = io.StringIO()
    # A carriage return within a cell is quoted only where it is part of the line's end.
    csv.writer(line, lineterminator="\r\n").writerow(row)
    return line.getvalue().removesuffix("\r\n") + "\n"


def _tsv_line(row: Sequence[object], table: Table) -> str:
    cells = [str(cell) for cell in row]
    for cell in cells:
        if "\t" in cell or "\n" in cell:
            raise InputError(f"{table.source}: {cell!r} holds a tab or a line break, which a tsv file cannot")
    return "\t".join(cells) + "\n"


@contextmanager
def _open(path: Path | str) -> Iterator[tuple[Iterable[bytes], Format]]:
    if str(path) == "-":
        stream = sys.stdin.buffer
        first = stream.readline()
        is_json = first.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
        yield chain([first] if first else [], stream), "jsonl" if is_json else "tsv"
        return
    path = Path(path)
    bare = path.with_suffix("") if path.suffix in OPENERS else path
    if bare.suffix not in FORMATS:
        allowed = f"{', '.join(FORMATS)}, each also with {', '.join(OPENERS)}"
        raise InputError(f"{path}: not a table's name; allowed endings: {allowed}")
    with open_bytes(path) as stream:
        yield stream, FORMATS[bare.suffix]


@contextmanager
def open_bytes(path: Path) -> Iterator[Iterable[bytes]]:
    """The lines of a file, plain or compressed, as bytes; InputError where it is absent or broken."""
    opener = OPENERS.get(path.suffix, open)
    try:
        with opener(path, "rb") as stream:
            yield stream
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def decode_lines(stream: Iterable[bytes], source: str) -> Iterator[str]:
    """Lines as text with their ends, without a byte order mark; InputError names the line that is not UTF-8."""
    for number, raw in enumerate(stream, 1):
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{source}:{number}: not UTF-8 text (byte {error.start + 1} of the line)") from None
        # MRPC's files, among others, begin with a byte order mark, which is no part of the first column's name.
        yield line.removeprefix("\ufeff") if number == 1 else line


def _tsv_cells(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, 1):
        yield number, line.removesuffix("\n").removesuffix("\r").split("\t")


def _csv_cells(lines: Iterator[str], source: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(sys.maxsize)  # its own limit, for the whole process, is 131,072 characters a cell
    reader = csv.reader(lines, strict=True)
    while True:
        begin = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"{source}:{begin}: not valid csv: {error}") from None
        yield begin, cells or [""]


def _read_cells(
    cells: Iterator[tuple[int, list[str]]], *, source: str, headerless: Sequence[str], broken_rows: int
) -> tuple[bool, list[str], Iterator[tuple[int, list[str]]]]:
    """Whether there is a header line, the columns' names, and the rows of the right width with their lines."""
    first = next(cells, None)
    if first is None:
        raise InputError(f"{source}: is empty")
    header = not headerless or any(cell in headerless for cell in first[1])
    names = first[1] if header else list(headerless)
    rest = cells if header else chain([first], cells)
    if len(names) > 1:
        rest = _no_gaps(rest, source)
    return header, names, _right_width(rest, names, source=source, broken_rows=broken_rows)


def _right_width(
    cells: Iterable[tuple[int, list[str]]], names: Sequence[str], *, source: str, broken_rows: int
) -> Iterator[tuple[int, list[str]]]:
    for number, row in cells:
        if len(row) == len(names):
            yield number, row
            continue
        trouble = f"{source}:{number}: a row of {len(row)} columns where {len(names)} are due"
        if not broken_rows:
            raise InputError(f"{trouble} ({', '.join(names)})")
        broken_rows -= 1
        say(f"{trouble}: left out, as the published file is broken here")


def _no_gaps(rows: Iterable[tuple[int, Row]], source: str) -> Iterator[tuple[int, Row]]:
    """Empty lines after the last row are no rows; an empty line between rows is an error."""
    empty = 0
    for number, row in rows:
        if row in ([""], ""):
            empty = empty or number
        elif empty:
            raise InputError(f"{source}:{empty}: an empty line where a row is due")
        else:
            yield number, row


def _table_of_cells(
    cells: Iterator[tuple[int, list[str]]],
    source: str,
    format: Format,
    keep: frozenset[str] | None,
    headerless: Sequence[str],
    broken_rows: int,
) -> Table:
    header, names, rows = _read_cells(cells, source=source, headerless=headerless, broken_rows=broken_rows)
    chosen = [index for index, name in enumerate(names) if keep is None or name in keep]
    picked = [(number, tuple(row[index] for index in chosen)) for number, row in rows]
    return Table(
        source=source,
        format=format,
        columns=tuple(names[index] for index in chosen),
        header=header,
        rows=tuple(row for _, row in picked),
        lines=tuple(number for number, _ in picked),
        available=tuple(names),
    )


def _table_of_objects(lines: Iterable[str], source: str, keep: frozenset[str] | None) -> Table:
    numbers: list[int] = []
    objects: list[dict[str, object]] = []
    available: dict[str, None] = {}
    for number, line in _no_gaps(((number, line.strip()) for number, line in enumerate(lines, 1)), source):
        fields = json_object(line, f"{source}:{number}")
        available.update(dict.fromkeys(fields))
        numbers.append(number)
        objects.append({name: cell for name, cell in fields.items() if keep is None or name in keep})
    columns = tuple(name for name in available if keep is None or name in keep)
    return Table(
        source=source,
        format="jsonl",
        columns=columns,
        header=True,
        rows=tuple(tuple(fields.get(name, ABSENT) for name in columns) for fields in objects),
        lines=tuple(numbers),
        available=tuple(available),
    )


def json_object(line: str, place: str) -> dict[str, object]:
    """The object of one line of JSON; InputError, beginning with `place`, for anything else."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InputError(f"{place}: a JSON {type(fields).__name__} where one object {{...}} per line is due")
    # An escaped half of a surrogate pair is valid JSON, but no text that could be tokenised or written again.
    if "\\ud" in line.lower():
        try:
            json.dumps(fields, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{place}: holds half of a surrogate pair (\\ud800 to \\udfff), which is no text"
            ) from None
    return fields
