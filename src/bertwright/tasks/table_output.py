"""task → prediction: a table with its answers, written in the format it was read in or in another, block by block."""

import csv
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import IO

from bertwright.errors import InputError, shown
from bertwright.tasks.parquet_rows import ArrowRows, ParquetOut
from bertwright.tasks.table_files import Format
from bertwright.tasks.tables import ABSENT, Table


def as_format(table: Table, format: Format) -> Table:
    """The table as a file of another format holds it.

    Text stays text. Numbers, truth values, lists and objects become cells of csv and tsv as JSON writes them, and what
    is absent becomes an empty cell.
    """
    if format == table.format:
        return table
    if format in ("jsonl", "parquet") and len(set(table.columns)) < len(table.columns):
        twice = next(name for name in table.columns if table.columns.count(name) > 1)
        raise InputError(f"{table.source}: has several columns '{twice}', of which {format} holds one; rename them")
    rows = table.rows.plain() if isinstance(table.rows, ArrowRows) else table.rows
    if format == "parquet":
        rows = tuple(tuple(None if cell is ABSENT else cell for cell in row) for row in rows)
    elif format != "jsonl":
        rows = tuple(tuple(map(_cell, row)) for row in rows)
    return replace(table, format=format, rows=rows, header=table.header or format in ("jsonl", "parquet"))


def write_table(table: Table, stream: IO[bytes]) -> None:
    """Write a table in its own format, in its own order, with a header line where it had one."""
    with TableOut(stream) as out:
        out.write(table)


class TableOut:
    """Tables of one format and the same columns, one after another, into one file."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._begun = False
        self._parquet: ParquetOut | None = None
        self._spool: IO[bytes] | None = None

    def __enter__(self) -> "TableOut":
        return self

    def write(self, table: Table) -> None:
        """Write the rows of a table; of the first, the header line too."""
        if table.format == "parquet":
            if self._parquet is None:
                if self._stream is sys.stdout.buffer or not self._stream.seekable():
                    # The end of such a file names places within it, which a pipe cannot tell.
                    self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this
                self._parquet = ParquetOut(self._spool or self._stream)
            self._parquet.write(table.source, table.columns, table.rows)
            return
        text = io.TextIOWrapper(self._stream, encoding="utf-8", newline="", write_through=True)
        try:
            _write_text(table, text, header=not self._begun)
        finally:
            text.flush()
            text.detach()
        self._begun = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._parquet is not None:
                self._parquet.close()
            if self._spool is not None and error is None:
                self._spool.seek(0)
                shutil.copyfileobj(self._spool, self._stream)
        finally:
            if self._spool is not None:
                self._spool.close()


def _write_text(table: Table, text: io.TextIOWrapper, *, header: bool) -> None:
    if table.format == "jsonl":
        for row in table.rows:
            pairs = zip(table.columns, row, strict=True)
            fields = {name: cell for name, cell in pairs if cell is not ABSENT}
            text.write(json.dumps(fields, ensure_ascii=False) + "\n")
        return
    line_of = _csv_line if table.format == "csv" else _tsv_line
    if table.header and header:
        text.write(line_of(table.columns, table.source))
    for number, row in enumerate(table.rows):
        text.write(line_of(row, table.place(number)))


def _csv_line(row: Sequence[object], place: str) -> str:
    line = io.StringIO()
    # A carriage return within a cell is quoted only where it is part of the line's end.
    csv.writer(line, lineterminator="\r\n").writerow(row)
    return line.getvalue().removesuffix("\r\n") + "\n"


def _tsv_line(row: Sequence[object], place: str) -> str:
    cells = [str(cell) for cell in row]
    for cell in cells:
        if "\t" in cell or "\n" in cell:
            raise InputError(
                f"{place}: {shown(repr(cell))} holds a tab or a line break, which a tsv file cannot; "
                "csv and JSON lines can: --output-format"
            )
    return "\t".join(cells) + "\n"


def _cell(value: object) -> str:
    """A value of JSON as a cell of csv."""
    if value is None or value is ABSENT:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
