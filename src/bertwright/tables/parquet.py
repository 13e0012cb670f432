"""… → task: rows of Parquet files, in and out, a bounded part at a time; columns that nobody asks for keep their types.

What is read is held as Arrow holds it, and becomes values of Python only where it is looked at.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, Final

from bertwright.errors import InputError, shown

MAGIC: Final = b"PAR1"
ROWS: Final = 8192
"""Rows of a row group that is written, and at most those that are decoded at a time."""

_BYTES: Final = 64 << 20  # of the rows that are decoded at a time, as far as the file tells how long they are


@dataclass(frozen=True, eq=False)
class ArrowRows:
    """Rows of a Parquet file.

    table    a pyarrow.Table
    source   the file
    begin    the number of the first row in it, from 1
    """

    table: Any
    source: str
    begin: int = 1

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        return zip(*(self.column(index) for index in range(self.table.num_columns)), strict=True)

    def column(self, index: int) -> tuple[object, ...]:
        """The values of a column; InputError, with the row, where a text is not UTF-8."""
        column = self.table.column(index)
        try:
            return tuple(column.to_pylist())
        except UnicodeDecodeError:
            for row, value in enumerate(column, self.begin):
                try:
                    value.as_py()
                except UnicodeDecodeError as error:
                    name = self.table.column_names[index]
                    raise InputError(f"{self.source}: row {row}: '{name}' is not UTF-8 text: {error}") from None
            raise

    def check_text(self, index: int) -> None:
        """InputError where the column holds something else than text."""
        kind = self.table.schema.field(index).type
        if not _is_text(kind):
            texts = [field.name for field in self.table.schema if _is_text(field.type)]
            raise InputError(
                f"{self.source}: column '{self.table.column_names[index]}' holds {kind}; a text is due "
                f"(columns of text: {', '.join(texts) or 'none'})"
            )

    def with_columns(self, columns: Mapping[str, Sequence[object]]) -> "ArrowRows":
        """The same rows with columns added on the right."""
        table = self.table
        for name, values in columns.items():
            table = table.append_column(name, _array(name, values, self.source))
        return replace(self, table=table)

    def plain(self) -> tuple[tuple[object, ...], ...]:
        """The rows as JSON can hold them: dates and decimals as text, null for what is no number; no bytes."""
        import pyarrow as pa

        found = []
        for index, field in enumerate(self.table.schema):
            where = f"{self.source}: column '{field.name}' holds {field.type}"
            values: Sequence[object]
            try:
                if pa.types.is_temporal(field.type) or pa.types.is_decimal(field.type):
                    values = self.table.column(index).cast(pa.string()).to_pylist()
                else:
                    values = self.column(index)
            except (pa.ArrowException, ValueError) as error:
                raise InputError(f"{where}, which cannot be written as text: {_first_line(error)}") from None
            found.append([_plain(value, where) for value in values])
        return tuple(zip(*found, strict=True))


def read_parquet(
    file: IO[bytes], source: str, *, columns: frozenset[str] | None = None, most: int | None = ROWS
) -> Iterator[tuple[tuple[str, ...], ArrowRows]]:
    """The names of all columns, and rows: at most so many at a time, or all at once; only `columns` are decoded."""
    import pyarrow as pa
    from pyarrow import parquet

    row = 0
    try:
        with parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20) as opened:
            names = tuple(opened.schema_arrow.names)
            chosen = None if columns is None else [name for name in names if name in columns] or None
            size = _rows_at_a_time(opened.metadata)
            batches: Iterator[Any] = (
                pa.Table.from_batches([batch])
                for batch in opened.iter_batches(batch_size=min(size, most or size), columns=chosen)
            )
            if most is None:
                tables = list(batches)
                batches = iter([pa.concat_tables(tables)] if tables else [])
            for table in batches:
                yield names, ArrowRows(table, source, row + 1)
                row += table.num_rows
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{source}: after row {row}: not a readable Parquet file: {_first_line(error)}") from None


class ParquetOut:
    """Tables, one after another, into one Parquet file; the first decides the types."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._writer: Any = None

    def write(self, source: str, names: Sequence[str], rows: ArrowRows | Sequence[tuple[object, ...]]) -> None:
        """Write rows as row groups of at most ROWS."""
        import pyarrow as pa
        from pyarrow import parquet

        if isinstance(rows, ArrowRows):
            table = rows.table
        else:
            cells = zip(*rows, strict=True)
            arrays = {name: _array(name, column, source) for name, column in zip(names, cells, strict=True)}
            table = pa.table(arrays)
        # The features that `datasets` notes are of the columns before the answers: it would refuse the file for them.
        notes = {key: note for key, note in (table.schema.metadata or {}).items() if key != b"huggingface"}
        table = table.replace_schema_metadata(notes or None)
        try:
            if self._writer is None:
                self._writer = parquet.ParquetWriter(self._stream, table.schema)
            self._writer.write_table(table, row_group_size=ROWS)
        except (pa.ArrowException, ValueError) as error:
            raise InputError(f"{source}: cannot be written as Parquet: {_first_line(error)}") from None

    def close(self) -> None:
        """Write the file's end."""
        if self._writer is not None:
            self._writer.close()


def _array(name: str, values: Sequence[object], source: str) -> Any:
    """A column of values of JSON; lists that are all empty are taken for lists of text."""
    import pyarrow as pa

    lists = [value for value in values if isinstance(value, list)]
    kind = pa.list_(pa.string()) if lists and not any(lists) else None
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise InputError(
            f"{source}: '{name}' cannot be a column of Parquet, whose cells are all of one kind: "
            f"{shown(_first_line(error))}; write JSON lines"
        ) from None


def _plain(value: Any, where: str) -> object:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, bytes):
        raise InputError(f"{where}, which is no text; write .parquet, or leave the column out")
    if isinstance(value, list | tuple):
        return [_plain(part, where) for part in value]
    if isinstance(value, dict):
        return {str(key): _plain(part, where) for key, part in value.items()}
    if hasattr(value, "isoformat"):
        return value.isoformat()
    try:
        number = float(value) if "float" in type(value).__name__ else None
    except (TypeError, ValueError):
        number = None
    return str(value) if number is None else number if math.isfinite(number) else None


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain))


def _rows_at_a_time(metadata: Any) -> int:
    """So many that they take about _BYTES: a file may hold pictures beside its texts."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    longest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=1)
    return max(1, min(ROWS, _BYTES // max(1, longest)))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
