"""table with answers → file, in the same format or another, block by block; the source and target of a prediction."""

import bz2
import csv
import gzip
import io
import lzma
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Literal, cast

from bertwright.console import redirect_messages
from bertwright.errors import InputError, shown
from bertwright.files import atomic_file, is_stream
from bertwright.tables.files import ALLOWED, FORMATS, OPENERS, Format, InputFormat, without_packing
from bertwright.tables.json_values import json_text, json_value
from bertwright.tables.parquet import ArrowRows, ParquetOut
from bertwright.tables.reader import ABSENT, BLOCK_ROWS, Table, add_columns, open_table

EXPLANATION: Final = "explanation"
"""Column, or field, of the explanation of an answer."""
OutputFormat = Literal["auto", "csv", "tsv", "jsonl", "parquet"]


def as_format(table: Table, format: Format) -> Table:
    """Return the table with the cells of another format.

    In csv and tsv, numbers, booleans, lists and objects become JSON text, and absent cells become empty. In all text
    formats, NaN and infinity become the texts NaN, Infinity and -Infinity.
    Raises InputError for JSON lines and Parquet where two columns have one name.
    """
    if format == table.format:
        return table
    if format in ("jsonl", "parquet") and len(set(table.columns)) < len(table.columns):
        twice = next(name for name in table.columns if table.columns.count(name) > 1)
        raise InputError(f"{table.source}: expected one column '{twice}', got several; {format} holds one; rename them")
    rows = table.rows.plain() if isinstance(table.rows, ArrowRows) else table.rows
    if format == "parquet":
        rows = tuple(tuple(None if cell is ABSENT else cell for cell in row) for row in rows)
    elif format != "jsonl":
        texts = [tuple(map(_cell, row)) for row in rows]
        for number, row in enumerate(texts if format == "tsv" else ()):
            _refuse_breaks(row, table.location(number), "\r")
        rows = tuple(texts)
    return replace(table, format=format, rows=rows, header=table.header or format in ("jsonl", "parquet"))


def write_table(table: Table, stream: IO[bytes]) -> None:
    """Write a table in its format and order, with a header line where it had one."""
    with TableOut(stream) as out:
        out.write(table)


class TableOut:
    """Writer of one file from several tables with the same format and columns. Use as a context manager."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._has_header = False
        self._parquet: ParquetOut | None = None
        self._spool: IO[bytes] | None = None  # the Parquet file for a pipe, until it is complete
        self._stack = ExitStack()

    def __enter__(self) -> "TableOut":
        return self

    def write(self, table: Table) -> None:
        """Write the rows of a table, after the header line for the first table."""
        if table.format == "parquet":
            if self._parquet is None:
                if self._stream is sys.stdout.buffer or not self._stream.seekable():
                    # The footer of a Parquet file holds positions in it, which a pipe does not have.
                    self._spool = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed with this
                self._parquet = ParquetOut(self._spool or self._stream)
            self._parquet.write(table.source, table.columns, table.rows)
            return
        text = io.TextIOWrapper(self._stream, encoding="utf-8", newline="", write_through=True)
        try:
            _write_text(table, text, header=not self._has_header)
        finally:
            text.flush()
            text.detach()
        self._has_header = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if self._parquet is not None:
                self._parquet.close()
            if self._spool is not None and error is None:
                self._spool.seek(0)
                shutil.copyfileobj(self._spool, self._stream)


def _write_text(table: Table, text: io.TextIOWrapper, *, header: bool) -> None:
    if table.format == "jsonl":
        for row in table.rows:
            pairs = zip(table.columns, row, strict=True)
            fields = {name: cell for name, cell in pairs if cell is not ABSENT}
            text.write(json_text(fields) + "\n")
        return
    line_of = partial(_csv_line, separator=table.separator) if table.format == "csv" else _tsv_line
    if table.header and header:
        text.write(line_of(table.columns, table.source))
    for number, row in enumerate(table.rows):
        text.write(line_of(row, table.location(number)))


def _csv_line(row: Sequence[object], location: str, separator: str) -> str:
    line = io.StringIO()
    # csv quotes a carriage return in a cell only where it is part of the line terminator.
    csv.writer(line, delimiter=separator, lineterminator="\r\n").writerow(row)
    return line.getvalue().removesuffix("\r\n") + "\n"


def _tsv_line(row: Sequence[object], location: str) -> str:
    cells = [str(cell) for cell in row]
    _refuse_breaks(cells, location, "\t\n")  # a row of a tsv file may have a carriage return, and stays as it is
    return "\t".join(cells) + "\n"


def _check_tsv(table: Table) -> None:
    """Raise InputError for a row that tsv cannot hold."""
    for number, row in enumerate(table.rows):
        _tsv_line(row, table.location(number))


def _refuse_breaks(cells: Sequence[str], location: str, breaks: str) -> None:
    """Raise InputError for the first cell with one of these characters."""
    for cell in cells:
        if any(character in cell for character in breaks):
            raise InputError(
                f"{location}: {shown(repr(cell))} holds a tab or a line break, which tsv cannot hold; choose csv or "
                "jsonl with --output-format"
            )


def _cell(value: object) -> str:
    """Return a JSON value as a cell of csv or tsv."""
    if value is None or value is ABSENT:
        return ""
    value = json_value(value)
    return value if isinstance(value, str) else json_text(value)


@dataclass(frozen=True)
class PredictRequest:
    """A request for predictions: the input to read and the file for the answers.

    source          a file, or - for standard input
    target          a file, a folder for answers to questions, or - for standard output
    text            names of the text columns where they differ from those of training
    input_format    auto: by the name's ending, or by the first bytes of standard input
    output_format   auto: by the name's ending; the input's format for standard output, pipes and devices
    option          name of the option that holds the target, for messages
    explain         function from inputs, in the form of the model, to an explanation of each answer; None without
    """

    source: str
    target: str
    text: tuple[str, ...] = ()
    input_format: InputFormat = "auto"
    output_format: OutputFormat = "auto"
    option: str = "--output"
    explain: Callable[[Sequence[object]], list[object]] | None = None

    def with_explanations(self, table: Table, inputs: Iterable[object]) -> Table:
        """Return the table with the column `explanation`: an object in JSON lines, else its JSON as text."""
        if self.explain is None:
            return table
        cells = self.explain(list(inputs))
        return add_columns(table, {EXPLANATION: cells if table.format == "jsonl" else [*map(json_text, cells)]})

    def explained(self, answers: list[dict[str, Any]], inputs: Iterable[object]) -> list[dict[str, Any]]:
        """Return answers that are written as JSON lines with the field `explanation`."""
        if self.explain is None:
            return answers
        cells = self.explain(list(inputs))
        return [{**answer, EXPLANATION: cell} for answer, cell in zip(answers, cells, strict=True)]

    def refuse_explanations(self, output: str, advice: str) -> None:
        """Raise InputError where explanations are asked for and `output` has no place for them."""
        if self.explain is not None:
            raise InputError(f"--explain: {output} has no place for explanations; {advice}")

    @property
    def table_format(self) -> Format | None:
        """Return the format to write; None for the input's. Raises InputError for an ending of no table."""
        format: Format | None = None if self.output_format == "auto" else self.output_format
        if format is None and self.is_file:
            if self.ending not in FORMATS:
                raise InputError(
                    f"--output {self.target}: not a table's name; allowed endings: {ALLOWED}; or add --output-format"
                )
            format = FORMATS[self.ending]
        if format == "parquet" and self.packing:
            raise InputError(
                f"{self.option} {self.target}: Parquet is compressed inside; leave {self.packing} out of the name"
            )
        return format

    @property
    def is_file(self) -> bool:
        """Return whether a regular file is written, not standard output, a pipe or a device."""
        path = Path(self.target)
        return self.target != "-" and not is_stream(path) and not path.is_dir()

    @property
    def packing(self) -> str:
        """Return the ending by which the file is packed, or ""."""
        suffix = Path(self.target).suffix
        return suffix if self.is_file and suffix.lower() in OPENERS else ""

    @property
    def ending(self) -> str:
        """Return the ending of the target's name in lower case, without that by which it is packed."""
        path = Path(self.target)
        return (without_packing(path) if self.packing else path).suffix.lower()

    def refuse_formats(self, task: str, *, read: Sequence[str], write: Sequence[str]) -> None:
        """Raise InputError for a format that the task does not read or write; auto is always allowed."""
        for option, format, allowed in (("input", self.input_format, read), ("output", self.output_format, write)):
            if format not in ("auto", *allowed):
                raise InputError(f"--{option}-format {format}: for {task} it is one of auto, {', '.join(allowed)}")


@contextmanager
def opened_target(request: PredictRequest) -> Iterator[IO[bytes]]:
    """Open the stream for the answers: standard output, or a file, packed by its ending, that is written atomically."""
    if request.target == "-":
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    with atomic_file(Path(request.target), keep_new=True) as stream:
        if not request.packing:
            yield stream
            return
        with _packed(stream, request.packing.lower()) as packed:
            yield packed


def answer_tables(
    request: PredictRequest,
    answered: Callable[[Table, Table], Table],
    *,
    check: Callable[[Table], object] = lambda _: None,
    headerless: Sequence[str] = (),
    even: bool = True,
) -> int:
    """Answer a table block by block, as its rows arrive, and return the number of rows.

    answered    function from (rows as read, the same rows as they will be written) to the latter with their answers
    check       function that raises InputError for rows that cannot be answered; with a file it reads all rows first
    headerless  names of the columns, as for `open_table`
    even        True where the answers have the same columns in every block
    """
    output_format = request.table_format
    if output_format == "parquet" and request.target == "-" and sys.stdout.isatty():
        raise InputError("--output-format parquet: a terminal shows text only; name a file with --output")
    rows = 0
    opened: Any = partial(open_table, request.source, headerless=headerless, format=request.input_format)
    if request.source != "-" and not is_stream(Path(request.source)):
        with redirect_messages(lambda _: None), opened() as table:  # a bad row near the end would cost all answers
            for block in table.blocks(BLOCK_ROWS):
                check(block)
                if (output_format or table.format) == "tsv":
                    _check_tsv(as_format(block, "tsv"))
    with opened() as table:
        format = output_format or table.format
        if output_format is None and format == "parquet" and request.target == "-" and sys.stdout.isatty():
            raise InputError(
                f"{request.source}: a terminal shows text only, not Parquet; name a file with --output, or add "
                "--output-format"
            )
        # Only at the end of the file are all columns of JSON lines known, the types of their fields, and the columns of
        # answers that differ between blocks.
        in_one_block = (table.format == "jsonl" != format) or not (even or format in ("jsonl", "parquet"))
        blocks = table.blocks(None if in_one_block else BLOCK_ROWS)
        answers = answered(first := next(blocks), as_format(first, format))  # before anything is written
        names = set(answers.columns) - set(first.columns)
        with opened_target(request) as stream, TableOut(stream) as out:
            out.write(answers)
            rows += len(answers)
            for block in blocks:
                stream.flush()
                answers = answered(block, as_format(block, format))
                if taken := sorted(names & set(block.columns)):  # only in JSON lines, whose fields may differ
                    raise InputError(
                        f"{block.source}: rows from line {block.lines[0]} on have a field '{taken[0]}', which is the "
                        "name of an answer; rename the field, or add it to the first row (null is enough)"
                    )
                out.write(answers)
                rows += len(answers)
    return rows


def _packed(stream: IO[bytes], ending: str) -> IO[bytes]:
    """Return a stream that packs what is written; the same content gives the same bytes, without time or name."""
    if ending == ".gz":
        return cast(IO[bytes], gzip.GzipFile("", "wb", fileobj=stream, mtime=0))
    if ending == ".bz2":
        return cast(IO[bytes], bz2.BZ2File(stream, "wb"))
    if ending == ".xz":
        return cast(IO[bytes], lzma.LZMAFile(stream, "wb"))
    import pyarrow as pa

    # Its `close` closes the underlying stream too, which belongs to the caller.
    return cast(IO[bytes], pa.CompressedOutputStream(pa.PythonFile(_Kept(stream), "w"), "zstd"))


class _Kept:
    """Stream that stays open when it is closed."""

    closed = False

    def __init__(self, stream: IO[bytes]) -> None:
        self.write, self.flush, self.tell = stream.write, stream.flush, stream.tell

    def close(self) -> None:
        """Leave the stream open; its owner closes it."""
