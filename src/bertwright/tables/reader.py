"""file of a table → rows, each with the line on which it begins (the files of paper §4.1).

The formats: tsv as GLUE writes it (no quoting: a quotation mark is text), csv with the usual quoting and commas or
semicolons, JSON lines, one text a line, and Parquet. Text is UTF-8, and its file may be packed. A row of the wrong
width is an error that names its line; no row is left out without a message. A table is read at once, or in blocks where
it may not fit into memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, cast

from bertwright.errors import InputError, shown
from bertwright.tables.bad_rows import BadRow
from bertwright.tables.cells import Row, csv_cells, decoded_cells, read_cells, separator_hint, tsv_cells, without_gaps
from bertwright.tables.decoding import decode_lines, undecoded
from bertwright.tables.files import Format, InputFormat, open_file, source_name
from bertwright.tables.json_objects import json_object
from bertwright.tables.parquet import ArrowRows, read_arrow_rows
from bertwright.text.decompress import is_undecoded
from bertwright.text.document import OnError, raise_error

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
    numbers     number of each row of the file, from 1; rows that `on_error` left out count
    available   names of all columns of the file
    between     text between the file's name and the number of a row, in messages
    separator   character between the cells of a csv file
    """

    source: str
    format: Format
    columns: tuple[str, ...]
    header: bool
    rows: tuple[tuple[object, ...], ...] | ArrowRows
    lines: Sequence[int]
    numbers: Sequence[int]
    available: tuple[str, ...]
    between: str = ":"
    separator: str = ","

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
                raise BadRow("without a text", f"{self.location(row)}: expected a text in '{name}', got {value}")
        return cast(tuple[str, ...], tuple(cells))

    def part(self, begin: int, end: int) -> "Table":
        """Return the rows from `begin` to before `end`."""
        lines, numbers = self.lines[begin:end], self.numbers[begin:end]
        return replace(self, rows=self.rows[begin:end], lines=lines, numbers=numbers)

    def select(self, rows: Sequence[int]) -> "Table":
        """Return these rows, in their order."""
        chosen = self.rows.select(rows) if isinstance(self.rows, ArrowRows) else tuple(self.rows[row] for row in rows)
        lines, numbers = ([values[row] for row in rows] for values in (self.lines, self.numbers))
        return replace(self, rows=chosen, lines=lines, numbers=numbers)

    def check_columns(self, names: Iterable[str]) -> None:
        """Raise InputError where the table lacks columns; the message names all of them."""
        missing = [f"'{name}'" for name in names if name not in self.columns]
        if missing:
            problem = f"there {'is no column' if len(missing) == 1 else 'are no columns'} {' and '.join(missing)}"
            columns = f"{', '.join(self.available)}{separator_hint(self.format, self.available)}"
            raise InputError(f"{self.source}: {problem}; the columns are: {columns}")

    def _index(self, name: str) -> int:
        self.check_columns([name])
        if self.columns.count(name) > 1:
            columns = ", ".join(self.available)
            raise InputError(f"{self.source}: there are several columns '{name}'; the columns are: {columns}")
        return self.columns.index(name)


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
    on_error: OnError = raise_error,
) -> Table:
    """Read a whole table; the parameters and errors are those of `open_table`."""
    options: Any = {"headerless": headerless, "broken_rows": broken_rows, "format": format, "on_error": on_error}
    with open_table(path, columns=columns, **options) as opened:
        return next(opened.blocks(None))


@contextmanager
def open_table(
    path: Path | str,
    *,
    columns: Iterable[str] | None = None,
    headerless: Sequence[str] = (),
    broken_rows: int = 0,
    format: InputFormat = "auto",
    on_error: OnError = raise_error,
) -> Iterator[OpenTable]:
    """Open a table; "-" is standard input. Its first bytes say that it is Parquet or JSON lines; else it is tsv.

    columns      names of the columns to keep, if they exist; None keeps all
    headerless   names of the columns where the file has no header line. A first row with a cell that equals one of
                 these names is read as a header line.
    broken_rows  number of rows of the wrong width that may be left out, each with a message: published files have some
    format       format of the file; "auto" goes by the name's ending. With "lines", each line is a cell of the only
                 column in `headerless`.
    on_error     function that is called with the BadRow of each row that cannot be read; if it returns, the row is left
                 out

    Raises InputError, with file and line, for a missing file, an unknown ending, text that is not UTF-8, broken
    compression, quoting or JSON, a row of the wrong width, and a table without rows.
    """
    keep = None if columns is None else frozenset(columns)
    source = source_name(path)
    with open_file(path, format) as (stream, table_format):

        def blocks(most: int | None) -> Iterator[Table]:
            table = None
            names: Sequence[str] = ()
            separator = ","
            cells: Iterator[tuple[int, list[str]]]
            if table_format == "parquet":
                tables = _tables_of_arrow(cast(IO[bytes], stream), source, keep, most)
            else:
                meter = _Meter(decode_lines(stream, source, strict=False), on_error)
                if format == "lines":
                    cells = ((number, [line.rstrip("\r\n")]) for number, line in enumerate(meter, 1))
                    cells = decoded_cells(cells, source, meter.leave_out)
                    tables = _tables_of_cells((True, list(headerless), cells), source, table_format, keep, meter, most)
                elif table_format == "jsonl":
                    tables = _tables_of_objects(meter, source, keep, most)
                else:
                    cells = tsv_cells(meter)
                    if table_format == "csv":
                        separator, cells = csv_cells(meter, source, meter.leave_out, headerless)
                    options: Any = {"headerless": headerless, "broken_rows": broken_rows, "on_error": meter.leave_out}
                    parts = read_cells(cells, source=source, format=table_format, **options)
                    names = parts[1]
                    tables = _tables_of_cells(parts, source, table_format, keep, meter, most)
            for table in tables:
                yield replace(table, separator=separator)
            if table is None:
                is_one_line = str(path) == "-" and format == "auto" and len(names) == 1
                hint = separator_hint(table_format, names)
                if is_one_line:
                    hint = "; its line was read as the name of a column: for one text a line give --input-format lines"
                raise InputError(f"{source}: holds no rows{hint}")

        yield OpenTable(table_format, blocks)


def refuse_guessed_header(table: Table, source: str, format: InputFormat, *, columns: str, unit: str) -> None:
    """Raise InputError for a pipe of lines, whose first one was taken for the names of columns.

    columns: the names that were expected, in words. unit: what a line of such a pipe is.
    """
    if source == "-" and format == "auto" and table.format == "tsv":
        raise InputError(
            f"{table.source}: expected a column {columns} in the first line of a pipe, got "
            f"{', '.join(map(shown, table.available))}; name the column with --text-column, or give --input-format "
            f"lines for one {unit} a line, or csv for columns with commas between them"
        )


def usable_rows(table: Table, check: Callable[[Table], object], on_error: OnError) -> Table:
    """Return the table without the rows for which `check` raises BadRow; `on_error` is called with the error of each.

    Rows are checked together. Where the check fails, each half is checked by itself.
    """
    kept: list[int] = []

    def search(begin: int, end: int) -> None:
        part = table.part(begin, end)
        try:
            check(part)
        except BadRow as error:
            if end - begin == 1:
                on_error(error)
                return
            middle = (begin + end) // 2
            search(begin, middle)
            search(middle, end)
        else:
            kept.extend(range(begin, end))

    search(0, len(table))
    if not kept:
        raise InputError(f"{table.source}: holds no rows that can be used")
    return table if len(kept) == len(table) else table.select(kept)


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
    """Iterator over lines that counts their characters, and the rows that are left out."""

    def __init__(self, lines: Iterator[str], on_error: OnError) -> None:
        self._lines, self._on_error = lines, on_error
        self.taken = self.left_out = 0

    def __iter__(self) -> "_Meter":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.taken += len(line)
        return line

    def leave_out(self, error: InputError) -> None:
        """Report the error of a row and count the row, unless the report raises the error."""
        self._on_error(error)
        self.left_out += 1


def _blocks(
    rows: Iterable[tuple[int, Row]], meter: _Meter, most: int | None
) -> Iterator[tuple[list[Row], Sequence[int], Sequence[int]]]:
    """Yield rows in blocks, with the line and the number of each row."""
    block: list[Row] = []
    lines: list[int] = []
    numbers: list[int] = []
    begin = meter.taken
    for read, (line, row) in enumerate(rows, 1):
        block.append(row)
        lines.append(line)
        numbers.append(read + meter.left_out)
        if most is not None and (len(block) >= most or meter.taken - begin >= BLOCK_CHARACTERS):
            yield block, tuple(lines), _as_range(numbers)
            block, lines, numbers, begin = [], [], [], meter.taken
    if block:
        yield block, tuple(lines), _as_range(numbers)


def _as_range(numbers: Sequence[int]) -> Sequence[int]:
    """Return increasing numbers as a range, which takes no memory for each of them, if none is left out."""
    whole = range(numbers[0], numbers[-1] + 1)
    return whole if len(whole) == len(numbers) else numbers


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
    picked = ((line, tuple(row[index] for index in chosen)) for line, row in rows)
    for block, lines, numbers in _blocks(picked, meter, most):
        yield Table(
            source=source,
            format=format,
            columns=tuple(names[index] for index in chosen),
            header=header,
            rows=tuple(block),
            lines=lines,
            numbers=numbers,
            available=tuple(names),
        )


def _objects(lines: Iterable[str], source: str, on_error: OnError) -> Iterator[tuple[int, dict[str, object]]]:
    numbered = ((number, line.strip()) for number, line in enumerate(lines, 1))
    for number, line in without_gaps(numbered, source, on_error):
        location = f"{source}:{number}"
        try:
            if is_undecoded(line):
                raise undecoded(line, location)
            yield number, json_object(line, location)
        except BadRow as error:
            on_error(error)


def _tables_of_objects(meter: _Meter, source: str, keep: frozenset[str] | None, most: int | None) -> Iterator[Table]:
    available: dict[str, None] = {}  # all fields so far, in the order of the file
    for block, lines, numbers in _blocks(_objects(meter, source, meter.leave_out), meter, most):
        for fields in block:
            available.update(dict.fromkeys(fields))
        columns = tuple(name for name in available if keep is None or name in keep)
        yield Table(
            source=source,
            format="jsonl",
            columns=columns,
            header=True,
            rows=tuple(tuple(fields.get(name, ABSENT) for name in columns) for fields in block),
            lines=lines,
            numbers=numbers,
            available=tuple(available),
        )


def _tables_of_arrow(stream: IO[bytes], source: str, keep: frozenset[str] | None, most: int | None) -> Iterator[Table]:
    for names, rows in read_arrow_rows(stream, source, columns=keep, most=most):
        if len(rows):
            numbers = range(rows.begin, rows.begin + len(rows))
            yield Table(
                source=source,
                format="parquet",
                columns=tuple(rows.table.column_names),
                header=True,
                rows=rows,
                lines=numbers,
                numbers=numbers,
                available=names,
                between=": row ",
            )


def refuse_halves(texts: Iterable[str], what: str = "") -> None:
    """Raise InputError, which begins with `what`, for a text with half of a surrogate pair, as JSON may escape it."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{what}holds half of a character (position {error.start}), which is no text") from None
