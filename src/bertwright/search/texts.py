"""tables with texts → blocks of rows to index: id, text and the other fields of each row, with its line."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bertwright.errors import InputError, shown
from bertwright.search.index import IndexedText
from bertwright.search.index_files import IndexRow
from bertwright.tables.bad_rows import BadRow, BadRowPolicy, bad_rows_of, is_blank
from bertwright.tables.files import InputFormat, without_packing
from bertwright.tables.json_values import json_value
from bertwright.tables.reader import ABSENT, Table, open_table
from bertwright.tables.writer import as_format

_BLOCK: Final = 4096
"""Number of texts whose rows and vectors are in memory at a time."""
_ID_COLUMNS: Final = ("id", "_id")
_TEXT_COLUMNS: Final = ("text", "sentence")


@dataclass(frozen=True)
class TextTables:
    """Tables with texts, and the columns to read.

    text        names of the text columns, whose texts are joined by a blank; empty: `text`, `sentence` or the only one
    id          name of the column of ids; None: `id` or `_id`, and where there is none the number of the row
    first       number of the first row that has no id
    format      "auto" reads a file .txt as one text a line
    """

    sources: tuple[str, ...]
    text: tuple[str, ...] = ()
    id: str | None = None
    first: int = 1
    format: InputFormat = "auto"
    on_error: BadRowPolicy = "stop"

    def blocks(self) -> Iterator[list[IndexedText]]:
        """Yield blocks of at most `_BLOCK` rows.

        Raises InputError, with file and line, for an empty text, an id that is empty or no text, and a missing column.
        """
        number = self.first
        for source in self.sources:
            with bad_rows_of(source, self.on_error) as bad_rows:
                for table in self._tables(source, bad_rows.add):
                    texts, ids = self._columns(table)
                    block = list(_rows(table, texts, ids, number, bad_rows.add))
                    number += len(block)
                    if block:
                        yield block

    def _tables(self, source: str, on_error: Callable[[InputError], None]) -> Iterator[Table]:
        format = self.format
        if format == "auto" and without_packing(Path(source)).suffix == ".txt":
            format = "lines"
        headerless = ("text",) if format == "lines" else ()
        with open_table(source, headerless=headerless, format=format, on_error=on_error) as opened:
            yield from opened.blocks(_BLOCK)

    def _columns(self, table: Table) -> tuple[tuple[str, ...], str | None]:
        """Return the names of the columns of texts and of ids in a table."""
        texts = self.text or tuple(name for name in _TEXT_COLUMNS if name in table.columns)[:1]
        if not texts and len(table.columns) != 1:
            raise InputError(
                f"{table.source}: expected a column 'text', got {', '.join(map(shown, table.available))}; name the "
                "column with --text-column"
            )
        texts = texts or table.columns
        ids = next((name for name in _ID_COLUMNS if name in table.columns), None) if self.id is None else self.id
        if ids in texts:
            raise InputError(f"{table.source}: '{ids}' is the column of the texts and of the ids; name another one")
        return texts, ids


def _rows(
    table: Table, texts: Sequence[str], ids: str | None, first: int, on_error: Callable[[InputError], None]
) -> Iterator[IndexedText]:
    """Yield the rows of a table that can be used; `on_error` is called with the BadRow of each other one."""
    columns = [table.column(name) for name in texts]
    id_cells = [None] * len(table) if ids is None else table.column(ids)
    others = as_format(table, "jsonl")
    kept = [index for index, name in enumerate(others.columns) if name not in (*texts, ids)]
    number = first
    for row, (cells, id, values) in enumerate(zip(zip(*columns, strict=True), id_cells, others.rows, strict=True)):
        location = table.location(row)
        try:
            text = _text(cells, texts, location)
            id_text = str(number) if ids is None else _id(id, ids, location)
        except BadRow as error:
            on_error(error)
            continue
        fields = {others.columns[index]: json_value(values[index]) for index in kept if values[index] is not ABSENT}
        number += 1
        yield IndexedText(IndexRow(id_text, text, fields), location)


def _text(cells: Sequence[object], names: Sequence[str], location: str) -> str:
    """Return the cells joined by a blank. Raises BadRow where one is no text, or all are empty."""
    for cell, name in zip(cells, names, strict=True):
        if not isinstance(cell, str):
            raise BadRow("without a text", f"{location}: expected a text in '{name}', got {shown(repr(cell))}")
    text = " ".join(str(cell) for cell in cells).strip()
    if is_blank(text):
        columns = " and ".join(f"'{name}'" for name in names)
        raise BadRow(
            "without a text",
            f"{location}: expected a text in {columns}, got an empty one; correct or remove the row, or add --on-error "
            "skip",
        )
    return text


def _id(cell: object, name: str, location: str) -> str:
    """Return an id as a text. Raises BadRow for an empty cell, and for one that is neither text nor whole number."""
    if isinstance(cell, int) and not isinstance(cell, bool):
        return str(cell)
    if not isinstance(cell, str) or is_blank(cell):
        raise BadRow("without an id", f"{location}: expected an id in '{name}', got {shown(repr(cell))}")
    return cell
