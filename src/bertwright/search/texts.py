"""tables and folders of texts → blocks of rows to index: id, text and other fields of each row, with its line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bertwright.errors import InputError, shown
from bertwright.files import is_stream
from bertwright.search.index_files import IndexRow
from bertwright.search.new_rows import IndexedText
from bertwright.search.text_folders import TEXT_ENDINGS, read_text_folder
from bertwright.tables.bad_rows import BadRow, BadRowPolicy, bad_rows_of, is_blank
from bertwright.tables.files import InputFormat, table_ending, without_packing
from bertwright.tables.json_values import json_value
from bertwright.tables.reader import ABSENT, Table, open_table, refuse_guessed_header
from bertwright.tables.writer import as_format
from bertwright.tasks.beir import CORPUS
from bertwright.text.document import OnError

_BLOCK: Final = 4096
"""Number of texts whose rows and vectors are in memory at a time."""
_NAMED: Final = 10
"""Number of files that are named for each reason why files are left out."""
_ID_COLUMNS: Final = ("id", "_id")
_TEXT_COLUMNS: Final = ("text", "sentence")


@dataclass(frozen=True)
class _Columns:
    """Names of the columns of texts, and of that of ids; None: rows have no ids."""

    texts: tuple[str, ...]
    ids: str | None


@dataclass(frozen=True)
class TextTables:
    """Tables and folders with texts, and the columns to read.

    text        names of the text columns, whose texts are joined by a blank; empty: `text`, `sentence` or the only one,
                and title and text in a corpus in BEIR's layout
    id          name of the column of ids; None: `id` or `_id`, and where there is none the number of the row, from 1 on
    format      "auto" reads a file .txt as one text a line
    passages    True where the rows of tables are to be cut into passages, as the files of a folder always are
    """

    sources: tuple[str, ...]
    text: tuple[str, ...] = ()
    id: str | None = None
    format: InputFormat = "auto"
    on_error: BadRowPolicy = "stop"
    passages: bool = False

    @property
    def has_passages(self) -> bool:
        """Return True where texts are cut into passages."""
        return self.passages or any(Path(source).is_dir() for source in self.sources)

    @property
    def can_be_read_again(self) -> bool:
        """Return True where no source is a pipe or a device."""
        return not any(source == "-" or is_stream(Path(source)) for source in self.sources)

    def blocks(self) -> Iterator[list[IndexedText]]:
        """Yield blocks of at most `_BLOCK` rows. The first block of a source decides which columns are read.

        Raises InputError, with file and line, for an empty text, an id that is empty or no text, and a missing column.
        """
        before = 0  # rows of the sources before
        for source in self.sources:
            kept = 0
            is_folder = Path(source).is_dir()
            named: Any = {"unit": "file", "shown": _NAMED} if is_folder else {}
            with bad_rows_of(source, self.on_error, **named) as bad_rows:
                blocks = self._folder_rows if is_folder else self._table_rows
                for block in filter(None, blocks(source, before, bad_rows.add)):
                    kept += len(block)
                    yield block
                before += kept + bad_rows.counts.total()

    def _folder_rows(self, folder: str, before: int, on_error: OnError) -> Iterator[list[IndexedText]]:
        options = {"--text-column": self.text, "--id-column": self.id, "--input-format": self.format != "auto"}
        for option in (option for option, value in options.items() if value):
            raise InputError(f"{option}: is for tables, but {folder} is a folder of text files; leave the option out")
        return read_text_folder(folder, before, on_error)

    def _table_rows(self, source: str, before: int, on_error: OnError) -> Iterator[list[IndexedText]]:
        columns: _Columns | None = None
        for table in self._tables(source, on_error):
            columns = columns or self._columns(table, source)
            yield list(_rows(table, columns, before, on_error, passage=int(self.passages)))

    def _tables(self, source: str, on_error: OnError) -> Iterator[Table]:
        format = self.format
        if format == "auto" and table_ending(source) in TEXT_ENDINGS[1:]:
            raise InputError(
                f"{source}: expected a table; text files are read by folder: name the folder, or for one text a line "
                "add --input-format lines"
            )
        if format == "auto" and table_ending(source) == ".txt":
            format = "lines"
        headerless = ("text",) if format == "lines" else ()
        with open_table(source, headerless=headerless, format=format, on_error=on_error) as opened:
            yield from opened.blocks(_BLOCK)

    def _columns(self, table: Table, source: str) -> _Columns:
        """Return the columns of texts and of ids in a table. Raises InputError where one of them is missing."""
        if len(set(self.text)) < len(self.text):
            raise InputError(f"--text-column {', '.join(self.text)}: a column is given twice")
        texts = self.text or tuple(name for name in _TEXT_COLUMNS if name in table.columns)[:1]
        if not texts:
            refuse_guessed_header(table, source, self.format, columns="'text'", unit="text")
        if not texts and len(table.columns) != 1:
            raise InputError(
                f"{table.source}: expected a column 'text', got {', '.join(map(shown, table.available))}; name the "
                "column with --text-column"
            )
        texts = texts or table.columns
        ids = next((name for name in _ID_COLUMNS if name in table.columns), None) if self.id is None else self.id
        if ids in texts:
            raise InputError(f"{table.source}: '{ids}' is the column of the texts and of the ids; name another one")
        for name in (*texts, *([] if ids is None else [ids])):
            table.column(name)
        is_beir = without_packing(Path(table.source)).name == CORPUS and (texts, ids) == (("text",), "_id")
        return _Columns(("title", "text") if is_beir and not self.text else texts, ids)


def _rows(table: Table, columns: _Columns, before: int, on_error: OnError, *, passage: int) -> Iterator[IndexedText]:
    """Yield the rows of a table that can be used; `on_error` is called with the BadRow of each other one.

    before: number of rows of the tables before. passage: 1 for rows that are to be cut, else 0.
    """
    others = as_format(table, "jsonl")
    kept = [index for index, name in enumerate(others.columns) if name not in (*columns.texts, columns.ids)]
    all_cells = zip(*(_cells(table, name) for name in columns.texts), strict=True)
    for row, (cells, id, values) in enumerate(zip(all_cells, _ids(table, columns), others.rows, strict=True)):
        location, number = table.location(row), before + table.numbers[row]
        try:
            text = _text(cells, columns.texts, location)
            id_text = _id(id, columns.ids, location) or str(number)
        except BadRow as error:
            on_error(error)
            continue
        fields = {others.columns[index]: json_value(values[index]) for index in kept if values[index] is not ABSENT}
        row_to_index = IndexRow(id_text, text, fields, passage)
        yield IndexedText(row_to_index, location, number, is_numbered=columns.ids is None)


def _cells(table: Table, name: str) -> Sequence[object]:
    """Return the cells of a column; those of one that the table does not have are absent."""
    return table.column(name) if name in table.columns else [ABSENT] * len(table)


def _ids(table: Table, columns: _Columns) -> Sequence[object]:
    """Return the cells of ids of a table. Where the rows have none, a later block of JSON lines may still have some."""
    names = _ID_COLUMNS if columns.ids is None else (columns.ids,)
    cells = [_cells(table, name) for name in names if name not in columns.texts]
    return [next((cell for cell in of_row if cell is not ABSENT), ABSENT) for of_row in zip(*cells, strict=True)]


def _text(cells: Sequence[object], names: Sequence[str], location: str) -> str:
    """Return the cells that are not empty, joined by a blank. Raises BadRow where one is no text, or all are empty."""
    texts = []
    for cell, name in zip(cells, names, strict=True):
        if cell is None or cell is ABSENT:
            continue
        if not isinstance(cell, str):
            raise BadRow("without a text", f"{location}: expected a text in '{name}', got {shown(repr(cell))}")
        texts.append(cell)
    text = " ".join(filter(None, texts)).strip()
    if is_blank(text):
        columns = " and ".join(f"'{name}'" for name in names)
        raise BadRow(
            "without a text",
            f"{location}: expected a text in {columns}, got an empty one; correct or remove the row",
        )
    return text


def _id(cell: object, name: str | None, location: str) -> str:
    """Return an id as a text without blanks at its ends; "" where the rows have no ids (`name` None).

    Raises BadRow for an empty cell, for one that is neither text nor whole number, and for an id after rows without.
    """
    if name is None:
        if cell is ABSENT:
            return ""
        message = f"{location}: expected no id, as in the first rows of the file, got {shown(repr(cell))}"
        raise BadRow("with an id", f"{message}; give all rows an id, or none")
    if isinstance(cell, int) and not isinstance(cell, bool):
        return str(cell)
    if not isinstance(cell, str) or is_blank(cell):
        raise BadRow("without an id", f"{location}: expected an id in '{name}', got {shown(repr(cell))}")
    return cell.strip()
