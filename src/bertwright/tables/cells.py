"""lines of a csv or tsv table → cells; rows that are no rows, and what a table in another format seems to be."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, TypeVar

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.tables.bad_rows import BadRow
from bertwright.tables.decoding import CARRIAGE_RETURNS, undecoded
from bertwright.tables.files import Format
from bertwright.text.csv_separator import csv_separator
from bertwright.text.decompress import LONGEST_CELL, is_undecoded
from bertwright.text.document import OnError, raise_error

Row = TypeVar("Row")
_SEPARATORS: Final = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars"}


def tsv_cells(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each line and its cells; nothing is quoted."""
    for number, line in enumerate(lines, 1):
        yield number, line.removesuffix("\n").removesuffix("\r").split("\t")


def csv_cells(
    lines: Iterator[str], source: str, on_error: OnError, headerless: Sequence[str] = ()
) -> tuple[str, Iterator[tuple[int, list[str]]]]:
    """Return the separator of the cells, and the number of the first line of each row with its cells.

    Each line of a row that is not valid counts as a bad row: its quotation mark may have taken rows that are good.
    `headerless`: as in `read_cells`.
    """
    csv.field_size_limit(LONGEST_CELL)  # the default, for the whole process, is 131,072 characters a cell
    head = list(islice(lines, 1))
    separator = csv_separator("".join(head), headerless or None)
    return separator, _csv_rows(head, lines, separator, source, on_error)


def _csv_rows(
    head: Sequence[str], lines: Iterator[str], separator: str, source: str, on_error: OnError
) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(chain(head, lines), delimiter=separator, strict=True)
    while True:
        begin = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problem = f"{source}:{begin}: not valid csv: {error}"
            if "new-line character" in str(error):
                raise InputError(f"{problem}; {CARRIAGE_RETURNS}") from None
            if "unexpected end" in str(error):  # an open quotation mark took all further rows
                raise InputError(f"{problem}; the quotation mark that opens here is not closed") from None
            if begin == 1 and (hint := separator_hint("csv", head)):
                raise InputError(f"{problem}{hint}") from None
            if reader.line_num > begin:
                problem += f"; the quotation mark that opens here takes all lines up to {reader.line_num}"
            for _ in range(begin, reader.line_num + 1):
                on_error(BadRow("not valid csv", problem))
            continue
        yield begin, cells or [""]


def read_cells(
    cells: Iterator[tuple[int, list[str]]],
    *,
    source: str,
    format: Format,
    headerless: Sequence[str],
    broken_rows: int,
    on_error: OnError,
) -> tuple[bool, list[str], Iterator[tuple[int, list[str]]]]:
    """Return (has a header line, names of the columns, numbered rows of the right width)."""
    first = next(decoded_cells(cells, source, raise_error), None)
    if first is None:
        raise InputError(f"{source}: is empty")
    header = not headerless or any(cell in headerless for cell in first[1])
    names = first[1] if header else list(headerless)
    rest = cells if header else chain([first], cells)
    if len(names) > 1:
        rest = without_gaps(rest, source, on_error)
    rest = decoded_cells(rest, source, on_error)
    hint = separator_hint(format, first[1])
    return header, names, _right_width(rest, names, source, hint=hint, broken_rows=broken_rows, on_error=on_error)


def separator_hint(format: Format, cells: Sequence[str]) -> str:
    """Return what seems to separate the cells of a first line instead of the format's separator, and what to do."""
    if format not in ("csv", "tsv") or not cells:
        return ""
    if cells[0].lstrip().startswith(("{", "[")):
        return " (JSON lines? add --input-format jsonl, or name the file .jsonl)"
    line = "".join(cells)
    separator = max(_SEPARATORS, key=line.count)
    if line.count(separator) < len(cells) or (format, separator) == ("csv", ","):
        return ""
    other: Format = "csv" if separator in ",;" else "tsv"
    advice = f"add --input-format {other}, or name the file .{other}"
    if separator == "|":
        advice = "csv has commas and tsv has tabs: save the table again with one of them"
    if (format, separator) == ("csv", ";"):
        advice = "a table with semicolons needs a header line with the names of its columns, as expected: or use commas"
    return f" (with {_SEPARATORS[separator]} between them? {advice})"


def decoded_cells(
    rows: Iterable[tuple[int, list[str]]], source: str, on_error: OnError
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows whose cells are UTF-8 text."""
    for number, cells in rows:
        wrong = next(filter(is_undecoded, cells), None)
        if wrong is None:
            yield number, cells
        else:
            on_error(undecoded(wrong, f"{source}:{number}", "cell"))


def _right_width(
    cells: Iterable[tuple[int, list[str]]],
    names: Sequence[str],
    source: str,
    *,
    hint: str,
    broken_rows: int,
    on_error: OnError,
) -> Iterator[tuple[int, list[str]]]:
    for number, row in cells:
        if len(row) == len(names):
            yield number, row
            continue
        problem = f"{source}:{number}: expected a row of {len(names)} columns, got {len(row)}"
        if broken_rows:
            broken_rows -= 1
            say(f"{problem}; left out, because the published file is broken here")
        else:
            reason = "with another number of columns"
            on_error(BadRow(reason, f"{problem} (columns: {', '.join(names)}){hint}"))


def without_gaps(rows: Iterable[tuple[int, Row]], source: str, on_error: OnError) -> Iterator[tuple[int, Row]]:
    """Yield rows without the empty lines after the last one; an empty line between rows is a bad row."""
    empty: list[int] = []
    for number, row in rows:
        if row in ([""], ""):
            empty.append(number)
            continue
        for line in empty:
            on_error(BadRow("empty", f"{source}:{line}: expected a row, got an empty line"))
        empty.clear()
        yield number, row
