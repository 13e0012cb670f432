"""table of texts → documents as sets of shingles of words; and the list of duplicates as a table."""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from bertwright.errors import InputError
from bertwright.files import atomic_file
from bertwright.tables.files import FORMATS, InputFormat
from bertwright.tables.reader import BLOCK_ROWS, Table, open_table
from bertwright.tables.writer import TableOut, as_format
from bertwright.text.near_duplicates import DIGEST_BYTES, Shingles, text_shingles

LISTED: Final = ("document", "like", "similarity", "text", "like_text")
"""Columns of a list of duplicates."""
_CHARACTERS: Final = 200
"""Number of first characters of a text that a list shows."""


class TableDocuments:
    """The texts of a table's column, in their order. The table is read anew for each use, as a stream.

    path: a table; it must be a file, since it is read several times. Raises InputError for another path.
    """

    def __init__(self, path: Path, column: str, input_format: InputFormat = "auto") -> None:
        if not path.is_file():
            raise InputError(f"{path}: expected a corpus folder or a file, which is read several times")
        self._path, self._column, self._format = path, column, input_format
        self._lines = array("q")

    def __len__(self) -> int:
        """Return the number of documents, after the table was read once."""
        return len(self._lines)

    def number(self, document: int) -> int:
        """Return the line of a document in the table; its row, from 1, in Parquet."""
        return self._lines[document]

    def digests(self) -> Iterator[bytes]:
        """Yield a hash of DIGEST_BYTES bytes of each text."""
        for text in self._texts():
            yield hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()

    def shingles(self, size: int) -> Iterator[Shingles]:
        """Yield the shingles of `size` words of each text."""
        for text in self._texts():
            yield text_shingles(text, size)

    def texts(self, documents: Iterable[int]) -> dict[int, str]:
        """Return the beginning of each of these texts."""
        wanted = set(documents)
        return {number: text[:_CHARACTERS] for number, text in enumerate(self._texts()) if number in wanted}

    def _texts(self) -> Iterator[str]:
        self._lines = array("q")
        names = (self._column,) if self._format == "lines" else ()
        with open_table(self._path, columns=[self._column], headerless=names, format=self._format) as table:
            for block in table.blocks(BLOCK_ROWS):
                self._lines.extend(block.lines)
                yield from block.texts(self._column)


def refuse_list_name(path: Path) -> None:
    """Raise InputError where the ending of the name is not that of a table, before any work begins."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--out {path}: expected the name of a table; allowed endings: {', '.join(FORMATS)}")


def write_list(path: Path, blocks: Iterable[Sequence[tuple[object, ...]]]) -> None:
    """Write blocks of rows of LISTED as a table, in the format of the name's ending."""
    with atomic_file(path) as stream, TableOut(stream) as out:
        for rows in blocks:
            lines = range(1, len(rows) + 1)
            table = Table(str(path), "jsonl", LISTED, True, tuple(rows), lines=lines, numbers=lines, available=LISTED)
            out.write(as_format(table, FORMATS[path.suffix.lower()]))
