"""Parquet file → rows → Parquet file, a limited number of rows at a time; columns that are not used keep their types.

Rows stay Arrow tables. Their values become Python objects only where they are used. pyarrow is imported inside the
functions, because commands that read no Parquet start faster without it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, Final

from bertwright.errors import InputError, shown
from bertwright.tables.bad_rows import BadRow
from bertwright.text.parquet import check_text_column, first_line, open_parquet

ROWS: Final = 8192
"""Number of rows in a row group that is written, and largest number of rows that are decoded at a time."""

_BYTES: Final = 64 << 20
"""Number of bytes, by the sizes in the file, that are decoded at a time."""


@dataclass(frozen=True, eq=False)
class ArrowRows:
    """Rows of a Parquet file.

    table    a pyarrow.Table
    source   the file's name
    begin    number of the first of these rows in the file, from 1
    """

    table: Any
    source: str
    begin: int = 1

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        return zip(*(self.column(index) for index in range(self.table.num_columns)), strict=True)

    def __getitem__(self, rows: slice) -> "ArrowRows":
        begin, end, _ = rows.indices(len(self))
        return replace(self, table=self.table.slice(begin, end - begin), begin=self.begin + begin)

    def select(self, rows: Sequence[int]) -> "ArrowRows":
        """Return these rows, in their order."""
        return replace(self, table=self.table.take(rows))

    def column(self, index: int) -> tuple[object, ...]:
        """Return the values of a column. Raises BadRow where a text is not UTF-8."""
        column = self.table.column(index)
        try:
            return tuple(column.to_pylist())
        except UnicodeDecodeError:
            for row, value in enumerate(column, self.begin):
                try:
                    value.as_py()
                except UnicodeDecodeError as error:
                    name = self.table.column_names[index]
                    message = f"{self.source}: row {row}: '{name}' is not UTF-8 text: {error}"
                    raise BadRow("not UTF-8 text", message) from None
            raise

    def check_text(self, index: int) -> None:
        """Raise InputError where the column holds something else than text."""
        check_text_column(self.table.schema, index, self.source)

    def with_columns(self, columns: Mapping[str, Sequence[object]]) -> "ArrowRows":
        """Return the rows with columns added on the right."""
        table = self.table
        for name, values in columns.items():
            table = table.append_column(name, _array(name, values, self.source))
        return replace(self, table=table)

    def plain(self) -> tuple[tuple[object, ...], ...]:
        """Return the rows with text, truth values, numbers, lists and objects: dates and decimals as text.

        Raises InputError for bytes and other values that cannot be text.
        """
        import pyarrow as pa

        columns = []
        for index, field in enumerate(self.table.schema):
            location = f"{self.source}: column '{field.name}' holds {field.type}"
            values: Sequence[object]
            try:
                if pa.types.is_temporal(field.type) or pa.types.is_decimal(field.type):
                    values = self.table.column(index).cast(pa.string()).to_pylist()
                else:
                    values = self.column(index)
            except (pa.ArrowException, ValueError) as error:
                raise InputError(f"{location}, which cannot be written as text: {first_line(error)}") from None
            columns.append([_plain(value, location) for value in values])
        return tuple(zip(*columns, strict=True))


def read_arrow_rows(
    file: IO[bytes], source: str, *, columns: frozenset[str] | None = None, most: int | None = ROWS
) -> Iterator[tuple[tuple[str, ...], ArrowRows]]:
    """Yield (names of all columns, rows), with at most `most` rows at a time, or all at once for None.

    Only `columns` are decoded; None decodes all. Raises InputError where the file is no readable Parquet file.
    """
    import pyarrow as pa

    row = 0
    with open_parquet(file, source, lambda: row) as opened:
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


class ParquetOut:
    """Writer of one Parquet file from several tables; the first table decides the types."""

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
            cells = zip(*rows, strict=True) if len(rows) else [()] * len(names)
            arrays = {name: _array(name, column, source) for name, column in zip(names, cells, strict=True)}
            table = pa.table(arrays)
        # Hugging Face's `datasets` stores a list of columns here, which lacks the answers; it would refuse the file.
        metadata = {key: value for key, value in (table.schema.metadata or {}).items() if key != b"huggingface"}
        table = table.replace_schema_metadata(metadata or None)
        try:
            if self._writer is None:
                self._writer = parquet.ParquetWriter(self._stream, table.schema)
            self._writer.write_table(table, row_group_size=ROWS)
        except (pa.ArrowException, ValueError) as error:
            raise InputError(f"{source}: cannot be written as Parquet: {first_line(error)}") from None

    def close(self) -> None:
        """Write the footer of the file."""
        if self._writer is not None:
            self._writer.close()


def _array(name: str, values: Sequence[object], source: str) -> Any:
    """Return an Arrow array of JSON values; lists that are all empty become lists of text.

    Raises InputError where the values are of several types.
    """
    import pyarrow as pa

    lists = [value for value in values if isinstance(value, list)]
    kind = pa.list_(pa.string()) if lists and not any(lists) else None
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise InputError(
            f"{source}: '{name}' cannot be a column of Parquet, whose cells have one type: "
            f"{shown(first_line(error))}; write JSON lines"
        ) from None


def _plain(value: Any, location: str) -> object:
    """Return a value as `ArrowRows.plain` does; InputError for bytes, beginning with `location`."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, bytes):
        raise InputError(f"{location}, which is no text; take it out of the file, or, for predictions, write .parquet")
    if isinstance(value, list | tuple):
        return [_plain(part, location) for part in value]
    if isinstance(value, dict):
        return {str(key): _plain(part, location) for key, part in value.items()}
    if hasattr(value, "isoformat"):
        return value.isoformat()
    try:
        number = float(value) if "float" in type(value).__name__ else None
    except (TypeError, ValueError):
        number = None
    return str(value) if number is None else number


def _rows_at_a_time(metadata: Any) -> int:
    """Return the number of rows with about _BYTES: a file may have pictures beside its texts."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    longest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=1)
    return max(1, min(ROWS, _BYTES // max(1, longest)))
