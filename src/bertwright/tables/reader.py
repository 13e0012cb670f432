"""file of a table → rows, each with the line on which it begins (the files of paper §4.1).

The formats: tsv as GLUE writes it (no quoting: a quotation mark is text), csv with the usual quoting, JSON lines, one
text a line, and Parquet. Text is UTF-8, and its file may be packed. A row of the wrong width is an error that names its
line; no row is left out without a message. A table is read at once, or in blocks where it may not fit into memory.

`column_names` and `column_values` read the columns of a table in memory, of pandas, Arrow or a library like them.
"""

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final, TypeVar, cast

import numpy as np

from bertwright.console import say
from bertwright.errors import InputError, shown
from bertwright.tables.files import Format, InputFormat, decode_lines, open_file, source_name
from bertwright.tables.json_values import float_of_json
from bertwright.tables.parquet import ArrowRows, read_arrow_rows

Row = TypeVar("Row")
BLOCK_ROWS: Final = 16_384
"""Largest number of rows in a block."""

BLOCK_CHARACTERS: Final = 1 << 25
"""Number of characters after which a block ends."""


class Absent:
    """Cell of a JSON object that lacks a field of other objects in the file."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT: Final = Absent()


@dataclass(frozen=True)
class Table:
    """Rows of cells: text in tsv and csv, a JSON value in JSON lines, an Arrow value in Parquet.

    source      the file's name
    columns     names of the columns that were kept
    header      True where the file names its columns
    lines       line on which each row begins, from 1; the row's number in Parquet
    available   names of all columns of the file
    between     text between the file's name and the number of a row, in messages
    """

    source: str
    format: Format
    columns: tuple[str, ...]
    header: bool
    rows: tuple[tuple[object, ...], ...] | ArrowRows
    lines: Sequence[int]
    available: tuple[str, ...]
    between: str = ":"

    def __len__(self) -> int:
        return len(self.rows)

    def location(self, row: int) -> str:
        """Return the location of a row for messages, as "file:line" or "file: row 3"."""
        return f"{self.source}{self.between}{self.lines[row]}"

    def column(self, name: str) -> tuple[object, ...]:
        """Return the cells of a column. Raises InputError, which lists the columns, where there is none or several."""
        index = self._index(name)
        return self.rows.column(index) if isinstance(self.rows, ArrowRows) else tuple(row[index] for row in self.rows)

    def texts(self, name: str, *, null: str | None = None) -> tuple[str, ...]:
        """Return the cells of a column of texts, with `null` for null. Raises InputError where a cell is no text."""
        if isinstance(self.rows, ArrowRows):
            self.rows.check_text(self._index(name))
        cells = [null if cell is None else cell for cell in self.column(name)]
        for row, cell in enumerate(cells):
            if not isinstance(cell, str):
                value = "null" if cell is None and self.format == "parquet" else repr(cell)
                raise InputError(f"{self.location(row)}: expected a text in '{name}', got {value}")
        return cast(tuple[str, ...], tuple(cells))

    def _index(self, name: str) -> int:
        indices = [index for index, column in enumerate(self.columns) if column == name]
        if len(indices) != 1:
            problem = "there are several columns" if indices else "there is no column"
            # A csv file from a pipe is read as a tsv file of one column.
            is_csv = self.format == "tsv" and len(self.available) == 1 and "," in self.available[0]
            hint = " (with commas between them? add --input-format csv)" if is_csv else ""
            raise InputError(f"{self.source}: {problem} '{name}'; the columns are: {', '.join(self.available)}{hint}")
        return indices[0]


@dataclass(frozen=True)
class OpenTable:
    """An open table: its format, and a function that yields blocks of at most so many rows; None: all rows at once."""

    format: Format
    blocks: Callable[[int | None], Iterator[Table]]


def read_table(
    path: Path | str,
    *,
    columns: Iterable[str] | None = None,
    headerless: Sequence[str] = (),
    broken_rows: int = 0,
    format: InputFormat = "auto",
) -> Table:
    """Read a whole table; the parameters and errors are those of `open_table`."""
    with open_table(path, columns=columns, headerless=headerless, broken_rows=broken_rows, format=format) as opened:
        return next(opened.blocks(None))


@contextmanager
def open_table(
    path: Path | str,
    *,
    columns: Iterable[str] | None = None,
    headerless: Sequence[str] = (),
    broken_rows: int = 0,
    format: InputFormat = "auto",
) -> Iterator[OpenTable]:
    """Open a table; "-" is standard input. Its first bytes say that it is Parquet or JSON lines; else it is tsv.

    columns      names of the columns to keep, if they exist; None keeps all
    headerless   names of the columns where the file has no header line. A first row with a cell that equals one of
                 these names is read as a header line.
    broken_rows  number of rows of the wrong width that may be left out, each with a message: published files have some
    format       format of the file; "auto" goes by the name's ending. With "lines", each line is a cell of the only
                 column in `headerless`.

    Raises InputError, with file and line, for a missing file, an unknown ending, text that is not UTF-8, broken
    compression, quoting or JSON, a row of the wrong width, and a table without rows.
    """
    keep = None if columns is None else frozenset(columns)
    source = source_name(path)
    with open_file(path, format) as (stream, table_format):

        def blocks(most: int | None) -> Iterator[Table]:
            table = None
            cells: Iterator[tuple[int, list[str]]]
            if table_format == "parquet":
                tables = _tables_of_arrow(cast(IO[bytes], stream), source, keep, most)
            else:
                meter = _Meter(decode_lines(stream, source))
                if format == "lines":
                    cells = ((number, [line.rstrip("\r\n")]) for number, line in enumerate(meter, 1))
                    tables = _tables_of_cells((True, list(headerless), cells), source, table_format, keep, meter, most)
                elif table_format == "jsonl":
                    tables = _tables_of_objects(meter, source, keep, most)
                else:
                    cells = _tsv_cells(meter) if table_format == "tsv" else _csv_cells(meter, source)
                    parts = _read_cells(cells, source=source, headerless=headerless, broken_rows=broken_rows)
                    tables = _tables_of_cells(parts, source, table_format, keep, meter, most)
            for table in tables:
                yield table
            if table is None:
                raise InputError(f"{source}: holds no rows")

        yield OpenTable(table_format, blocks)


def add_columns(table: Table, columns: Mapping[str, Sequence[object]]) -> Table:
    """Return the table with columns added on the right. Raises InputError where one of them exists already."""
    for name in columns:
        if name in table.available:
            raise InputError(f"{table.source}: already has a column '{name}'; rename it first")
    rows: tuple[tuple[object, ...], ...] | ArrowRows
    if isinstance(table.rows, ArrowRows):
        rows = table.rows.with_columns(columns)
    else:
        added = zip(*columns.values(), strict=True)
        rows = tuple(row + tuple(more) for row, more in zip(table.rows, added, strict=True))
    names = tuple(columns)
    return replace(table, columns=table.columns + names, rows=rows, available=table.available + names)


class _Meter:
    """Iterator over lines that counts their characters."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines, self.taken = lines, 0

    def __iter__(self) -> "_Meter":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.taken += len(line)
        return line


def _blocks(rows: Iterable[Row], meter: _Meter, most: int | None) -> Iterator[list[Row]]:
    block: list[Row] = []
    begin = meter.taken
    for row in rows:
        block.append(row)
        if most is not None and (len(block) >= most or meter.taken - begin >= BLOCK_CHARACTERS):
            yield block
            block, begin = [], meter.taken
    if block:
        yield block


def _tsv_cells(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, 1):
        yield number, line.removesuffix("\n").removesuffix("\r").split("\t")


def _csv_cells(lines: Iterator[str], source: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(sys.maxsize)  # the default, for the whole process, is 131,072 characters a cell
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
    """Return (has a header line, names of the columns, numbered rows of the right width)."""
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
        problem = f"{source}:{number}: expected a row of {len(names)} columns, got {len(row)}"
        if not broken_rows:
            semicolons = "; a csv file has commas between its columns" if len(names) == 1 and ";" in names[0] else ""
            raise InputError(f"{problem} (columns: {', '.join(names)}){semicolons}")
        broken_rows -= 1
        say(f"{problem}; left out, because the published file is broken here")


def _no_gaps(rows: Iterable[tuple[int, Row]], source: str) -> Iterator[tuple[int, Row]]:
    """Yield rows without the empty lines after the last one. Raises InputError for an empty line between rows."""
    empty = 0
    for number, row in rows:
        if row in ([""], ""):
            empty = empty or number
        elif empty:
            raise InputError(f"{source}:{empty}: expected a row, got an empty line")
        else:
            yield number, row


def _tables_of_cells(
    parts: tuple[bool, list[str], Iterator[tuple[int, list[str]]]],
    source: str,
    format: Format,
    keep: frozenset[str] | None,
    meter: _Meter,
    most: int | None,
) -> Iterator[Table]:
    header, names, rows = parts
    chosen = [index for index, name in enumerate(names) if keep is None or name in keep]
    picked = ((number, tuple(row[index] for index in chosen)) for number, row in rows)
    for block in _blocks(picked, meter, most):
        yield Table(
            source=source,
            format=format,
            columns=tuple(names[index] for index in chosen),
            header=header,
            rows=tuple(row for _, row in block),
            lines=tuple(number for number, _ in block),
            available=tuple(names),
        )


def _tables_of_objects(meter: _Meter, source: str, keep: frozenset[str] | None, most: int | None) -> Iterator[Table]:
    available: dict[str, None] = {}  # all fields so far, in the order of the file
    numbered = _no_gaps(((number, line.strip()) for number, line in enumerate(meter, 1)), source)
    objects = ((number, json_object(line, f"{source}:{number}")) for number, line in numbered)
    for block in _blocks(objects, meter, most):
        for _, fields in block:
            available.update(dict.fromkeys(fields))
        columns = tuple(name for name in available if keep is None or name in keep)
        yield Table(
            source=source,
            format="jsonl",
            columns=columns,
            header=True,
            rows=tuple(tuple(fields.get(name, ABSENT) for name in columns) for _, fields in block),
            lines=tuple(number for number, _ in block),
            available=tuple(available),
        )


def _tables_of_arrow(stream: IO[bytes], source: str, keep: frozenset[str] | None, most: int | None) -> Iterator[Table]:
    for names, rows in read_arrow_rows(stream, source, columns=keep, most=most):
        if len(rows):
            yield Table(
                source=source,
                format="parquet",
                columns=tuple(rows.table.column_names),
                header=True,
                rows=rows,
                lines=range(rows.begin, rows.begin + len(rows)),
                available=names,
                between=": row ",
            )


def names_once(location: str) -> Callable[[list[tuple[str, object]]], dict[str, object]]:
    """Return a function that makes an object of (name, value) pairs and raises InputError for a name that is repeated.

    The parser of the standard library would keep the last of the values.
    """

    def to_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise InputError(f"{location}: '{shown(twice)}' is there twice in one object; names must differ")
        return fields

    return to_object


def json_object(line: str, location: str) -> dict[str, object]:
    """Return the object in a line of JSON. Raises InputError, which begins with `location`, for anything else."""
    try:
        fields = json.loads(line, object_pairs_hook=names_once(location), parse_float=float_of_json(location))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{location}: not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InputError(f"{location}: expected one object {{…}} a line, got a JSON {type(fields).__name__}")
    # Half of a surrogate pair is valid in JSON as an escape, but cannot be tokenised or written as UTF-8.
    if "\\ud" in line.lower():
        try:
            json.dumps(fields, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{location}: holds half of a surrogate pair (\\ud800 to \\udfff), which is no text"
            ) from None
    return fields


def column_names(table: Any) -> list[Any] | None:
    """Return the names of the columns of a table in memory, in order; None where `table` is no table."""
    names = table.column_names if hasattr(table, "column_names") else getattr(table, "columns", None)
    return None if names is None or callable(names) else list(names)


def column_values(table: Any, index: int) -> list[Any]:
    """Return the values of column `index`, from 0 on, of a table in memory."""
    values: list[Any]
    if hasattr(table, "iloc"):
        values = table.iloc[:, index].tolist()
    elif hasattr(table, "column_names"):
        values = table.column(index).to_pylist()
    else:  # a table of another library, which numpy can read
        values = np.asarray(table, dtype=object)[:, index].tolist()
    return values


def refuse_halves(texts: Iterable[str], what: str = "") -> None:
    """Raise InputError, which begins with `what`, for a text with half of a surrogate pair, as JSON may escape it."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{what}holds half of a character (position {error.start}), which is no text") from None
