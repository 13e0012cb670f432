"""… → task: the rows of a table, each with the line on which it begins (the files of paper §4.1).

Tab separated in GLUE's way (no quoting: a quotation mark is text), comma separated with the usual quoting, JSON lines,
or one text a line; plain or compressed, always UTF-8; or Parquet. A row that does not fit is an error that names its
line; none is left out in silence. A table is read as a whole, or block by block where it may be longer than memory.
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
from bertwright.tables.files import Format, InputFormat, decode_lines, open_file
from bertwright.tables.parquet import ArrowRows, read_parquet

Row = TypeVar("Row")
BLOCK_ROWS: Final = 16_384
"""Rows of a table that is read block by block."""

BLOCK_CHARACTERS: Final = 1 << 25
"""Characters after which a block ends all the same."""


class Absent:
    """What stands where a JSON object lacks a field that other objects of the file have."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT: Final = Absent()


@dataclass(frozen=True)
class Table:
    """Rows of cells: text in tsv and csv, any JSON value in JSON lines, any value of Arrow's in Parquet."""

    source: str
    format: Format
    columns: tuple[str, ...]
    header: bool  # whether the file names its columns
    rows: tuple[tuple[object, ...], ...] | ArrowRows
    lines: Sequence[int]  # the line on which each row begins, from 1; the rows' numbers in Parquet
    available: tuple[str, ...]  # all columns of the file, those that were not kept included
    between: str = ":"  # what stands between the file and the number of a row

    def __len__(self) -> int:
        return len(self.rows)

    def place(self, row: int) -> str:
        """Where a row begins, as "file:line" or "file: row 3"."""
        return f"{self.source}{self.between}{self.lines[row]}"

    def column(self, name: str) -> tuple[object, ...]:
        """The cells of one column; InputError lists the columns that exist."""
        index = self._index(name)
        return self.rows.column(index) if isinstance(self.rows, ArrowRows) else tuple(row[index] for row in self.rows)

    def texts(self, name: str, *, null: str | None = None) -> tuple[str, ...]:
        """The cells of a column of texts, `null` in place of none; InputError where one is no text."""
        if isinstance(self.rows, ArrowRows):
            self.rows.check_text(self._index(name))
        cells = [null if cell is None else cell for cell in self.column(name)]
        for row, cell in enumerate(cells):
            if not isinstance(cell, str):
                shown = "null" if cell is None and self.format == "parquet" else repr(cell)
                raise InputError(f"{self.place(row)}: '{name}' is {shown}; a text is due")
        return cast(tuple[str, ...], tuple(cells))

    def _index(self, name: str) -> int:
        found = [index for index, column in enumerate(self.columns) if column == name]
        if len(found) != 1:
            trouble = "there are several columns" if found else "there is no column"
            # a csv file through a pipe looks like a tsv file of one column
            hint = " (are they parted by commas? --input-format csv)" if self._looks_like_csv else ""
            raise InputError(f"{self.source}: {trouble} '{name}'; the columns are: {', '.join(self.available)}{hint}")
        return found[0]

    @property
    def _looks_like_csv(self) -> bool:
        return self.format == "tsv" and len(self.available) == 1 and "," in self.available[0]


@dataclass(frozen=True)
class OpenTable:
    """A table that is about to be read: its format, and its blocks of at most so many rows (None: all in one)."""

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
    """Read a whole table, as `open_table` does."""
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
    """Open a table; "-" is standard input (Parquet where it begins so, JSON lines where with "{", else tab separated).

    columns      the ones to keep (those that exist); None keeps all
    headerless   the columns' names where the file has no header line. A first row with one of them as a whole cell is
                 taken for a header line all the same.
    broken_rows  how many rows of the wrong width may be left out, each said with its line: published files have some
    format       what the name's ending would say; of `lines`, each is one cell of the only column in `headerless`

    Raises InputError with file and line: no such file, unknown ending, not UTF-8, broken compression, quoting or JSON,
    a row of the wrong width, no rows at all.
    """
    keep = None if columns is None else frozenset(columns)
    source = "standard input" if str(path) == "-" else str(path)
    with open_file(path, format) as (stream, found):

        def blocks(most: int | None) -> Iterator[Table]:
            table = None
            cells: Iterator[tuple[int, list[str]]]
            if found == "parquet":
                tables = _tables_of_arrow(cast(IO[bytes], stream), source, keep, most)
            else:
                meter = _Meter(decode_lines(stream, source))
                if format == "lines":
                    cells = ((number, [line.rstrip("\r\n")]) for number, line in enumerate(meter, 1))
                    tables = _tables_of_cells((True, list(headerless), cells), source, found, keep, meter, most)
                elif found == "jsonl":
                    tables = _tables_of_objects(meter, source, keep, most)
                else:
                    cells = _tsv_cells(meter) if found == "tsv" else _csv_cells(meter, source)
                    read = _read_cells(cells, source=source, headerless=headerless, broken_rows=broken_rows)
                    tables = _tables_of_cells(read, source, found, keep, meter, most)
            for table in tables:
                yield table
            if table is None:
                raise InputError(f"{source}: holds no rows")

        yield OpenTable(found, blocks)


def add_columns(table: Table, columns: Mapping[str, Sequence[object]]) -> Table:
    """The same table with columns added on the right; InputError where one of them exists already."""
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
    """Lines, and how many characters of them were taken."""

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
            semicolons = "; columns are parted by commas here" if len(names) == 1 and ";" in names[0] else ""
            raise InputError(f"{trouble} ({', '.join(names)}){semicolons}")
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


def _tables_of_cells(
    read: tuple[bool, list[str], Iterator[tuple[int, list[str]]]],
    source: str,
    format: Format,
    keep: frozenset[str] | None,
    meter: _Meter,
    most: int | None,
) -> Iterator[Table]:
    header, names, rows = read
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
    available: dict[str, None] = {}  # in the order in which the file has them, whatever the blocks are
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
    for names, rows in read_parquet(stream, source, columns=keep, most=most):
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


def names_once(place: str) -> Callable[[list[tuple[str, object]]], dict[str, object]]:
    """What makes an object of its names and values; InputError where a name is there twice: one would be lost."""

    def made(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise InputError(f"{place}: '{shown(twice)}' is there twice in one object; names must differ")
        return fields

    return made


def json_object(line: str, place: str) -> dict[str, object]:
    """The object of one line of JSON; InputError, beginning with `place`, for anything else."""
    try:
        fields = json.loads(line, object_pairs_hook=names_once(place))
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


# values of a program → task: the columns of a table of pandas or Arrow, and texts without a broken character.


def column_names(given: Any) -> list[Any] | None:
    """What the columns of a table are called, in their order; None for what is no table."""
    names = given.column_names if hasattr(given, "column_names") else getattr(given, "columns", None)
    return None if names is None or callable(names) else list(names)


def column_values(table: Any, place: int) -> list[Any]:
    """The values of the column at `place`, from 0 on."""
    values: list[Any]
    if hasattr(table, "iloc"):
        values = table.iloc[:, place].tolist()
    elif hasattr(table, "column_names"):
        values = table.column(place).to_pylist()
    else:  # of another library, all of which numpy can read
        values = np.asarray(table, dtype=object)[:, place].tolist()
    return values


def refuse_halves(texts: Iterable[str], what: str = "") -> None:
    """InputError for a text that holds one of the two halves in which JSON may write a character; `what` begins it."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{what}holds half of a character (place {error.start}), which is no text") from None
