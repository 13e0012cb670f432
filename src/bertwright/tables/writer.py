"""task → prediction: a table with its answers, written in the format it was read in or in another, block by block."""

import bz2
import csv
import gzip
import io
import json
import lzma
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, cast

from bertwright.errors import InputError, shown
from bertwright.files import atomic_file, is_stream
from bertwright.tables.files import ALLOWED, FORMATS, OPENERS, Format, InputFormat
from bertwright.tables.parquet import ArrowRows, ParquetOut
from bertwright.tables.reader import ABSENT, BLOCK_ROWS, Table, open_table


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


# task → prediction: the files that `predict` is asked to read and to write, and tables answered block by block.

OutputFormat = Literal["auto", "csv", "tsv", "jsonl", "parquet"]


@dataclass(frozen=True)
class PredictRequest:
    """What is read and where its answers go.

    source          a file, or - for standard input
    target          a file, a folder where there are questions, or - for standard output
    text            the columns of the text where they are called otherwise than in training
    input_format    auto: what the name's ending says, or the first bytes of standard input
    output_format   auto: what the name's ending says; the input's for standard output and for what is no regular file
    """

    source: str
    target: str
    text: tuple[str, ...] = ()
    input_format: InputFormat = "auto"
    output_format: OutputFormat = "auto"

    @property
    def table_format(self) -> Format | None:
        """The format of the table that is written; None for the input's. InputError for an ending of no table."""
        packed, bare = self.packing, self.bare
        named: Format | None = None if self.output_format == "auto" else self.output_format
        if named is None and self.is_file:
            if bare.suffix not in FORMATS:
                raise InputError(
                    f"--output {self.target}: not a table's name; allowed endings: {ALLOWED}; or say --output-format"
                )
            named = FORMATS[bare.suffix]
        if named == "parquet" and packed:
            raise InputError(f"--output {self.target}: Parquet is packed within; leave {packed} out")
        return named

    @property
    def is_file(self) -> bool:
        """Whether a regular file is written: no standard output, pipe or device."""
        path = Path(self.target)
        return self.target != "-" and not is_stream(path) and not path.is_dir()

    @property
    def packing(self) -> str:
        """The ending that says how the file is packed, if it does."""
        suffix = Path(self.target).suffix
        return suffix if self.is_file and suffix in OPENERS else ""

    @property
    def bare(self) -> Path:
        """The target without the ending that says how it is packed."""
        path = Path(self.target)
        return path.with_suffix("") if self.packing else path

    def refuse_formats(self, task: str, *, read: Sequence[str], write: Sequence[str]) -> None:
        """InputError where another format is asked for than auto and those that a task reads and writes."""
        for flag, given, known in (("input", self.input_format, read), ("output", self.output_format, write)):
            if given not in ("auto", *known):
                raise InputError(f"--{flag}-format {given}: for {task} it is one of auto, {', '.join(known)}")


@contextmanager
def opened_target(asked: PredictRequest) -> Iterator[IO[bytes]]:
    """Where answers are written: standard output, or a file, packed as its name says, that is whole or absent."""
    if asked.target == "-":
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    with atomic_file(Path(asked.target)) as stream:
        if not asked.packing:
            yield stream
            return
        with _packed(stream, asked.packing) as packed:
            yield packed


def answer_tables(
    asked: PredictRequest,
    answered: Callable[[Table, Table], Table],
    *,
    headerless: Sequence[str] = (),
    even: bool = True,
) -> int:
    """Answer a table block by block as its rows come, and say how many rows there were.

    answered    (the rows as they were read, the same as they will be written) → these with their answers
    headerless  as `open_table`'s
    even        whether the answers make the same columns in every block, whatever the format
    """
    wanted = asked.table_format
    if wanted == "parquet" and asked.target == "-" and sys.stdout.isatty():
        raise InputError("--output-format parquet: is no text for a terminal; name a file with --output")
    rows = 0
    with open_table(asked.source, headerless=headerless, format=asked.input_format) as table:
        format = wanted or table.format
        if wanted is None and format == "parquet" and asked.target == "-" and sys.stdout.isatty():
            raise InputError(f"{asked.source}: Parquet is no text for a terminal; name a file, or say --output-format")
        # The columns of JSON lines, and what their fields hold, are known at the end alone; so may the answers' be.
        whole = (table.format == "jsonl" != format) or not (even or format in ("jsonl", "parquet"))
        blocks = table.blocks(None if whole else BLOCK_ROWS)
        found = answered(first := next(blocks), as_format(first, format))  # before anything is written
        names = set(found.columns) - set(first.columns)
        with opened_target(asked) as stream, TableOut(stream) as out:
            out.write(found)
            rows += len(found)
            for block in blocks:
                stream.flush()
                found = answered(block, as_format(block, format))
                if taken := sorted(names & set(block.columns)):  # of JSON lines alone, whose fields may differ
                    raise InputError(
                        f"{block.source}: rows from line {block.lines[0]} on have a field '{taken[0]}' of their own, "
                        "and answers before them are called so; rename it, or give it to the first row too "
                        "(null will do)"
                    )
                out.write(found)
                rows += len(found)
    return rows


def _packed(stream: IO[bytes], ending: str) -> IO[bytes]:
    """The same bytes for the same content: no time and no name are noted."""
    if ending == ".gz":
        return cast(IO[bytes], gzip.GzipFile("", "wb", fileobj=stream, mtime=0))
    if ending == ".bz2":
        return cast(IO[bytes], bz2.BZ2File(stream, "wb"))
    if ending == ".xz":
        return cast(IO[bytes], lzma.LZMAFile(stream, "wb"))
    import pyarrow as pa

    # Closing it closes what it writes to, which is not its own.
    return cast(IO[bytes], pa.CompressedOutputStream(pa.PythonFile(_Kept(stream), "w"), "zstd"))


class _Kept:
    """A stream that others may close and that stays open."""

    closed = False

    def __init__(self, stream: IO[bytes]) -> None:
        self.write, self.flush, self.tell = stream.write, stream.flush, stream.tell

    def close(self) -> None:
        """Nothing: the owner closes it."""
