"""folder of text files → rows to index, one for each file."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.search.index import IndexedText
from bertwright.search.index_files import IndexRow
from bertwright.tables.bad_rows import BadRow, is_blank
from bertwright.tables.files import FORMATS, table_ending
from bertwright.text.decompress import decoded_lines, read_lines
from bertwright.text.document import OnError, checked_size
from bertwright.text.documents import find_inputs

TEXT_ENDINGS: Final = (".txt", ".md", ".rst")
"""Endings of the files that are read, each also of a packed file."""
_BLOCK: Final = 256
"""Largest number of files in a block."""


def text_files(folder: str) -> list[Path]:
    """Return the text files below a folder, sorted; tell how many other files there are, by their endings.

    Raises InputError where there is no text file.
    """
    paths = [path for path in find_inputs([folder]) if isinstance(path, Path)]
    files = [path for path in paths if table_ending(path) in TEXT_ENDINGS]
    others = Counter(table_ending(path) or "without an ending" for path in paths if path not in set(files))
    expected = ", ".join(TEXT_ENDINGS)
    by_ending = ", ".join(f"{count:,} {ending}" for ending, count in sorted(others.items()))
    if not files:
        advice = "; name a table itself, not its folder" if any(ending in FORMATS for ending in others) else ""
        raise InputError(f"{folder}: expected a folder with text files ({expected}), found {by_ending}{advice}")
    if others:
        say(f"{folder}: the files with other endings than {expected} are not read: {by_ending}")
    return files


def read_text_folder(folder: str, before: int, on_error: OnError) -> Iterator[list[IndexedText]]:
    """Yield blocks of the files of a folder; the id of a file is its path within the folder.

    before: number of rows of the sources before. `on_error` is called with the BadRow of each file without a text, or
    that cannot be read.
    """
    block: list[IndexedText] = []
    for number, path in enumerate(text_files(folder), before + 1):
        try:
            text = _text_of(path)
        except BadRow as error:
            on_error(error)
            continue
        row = IndexRow(path.relative_to(folder).as_posix(), text, {})
        block.append(IndexedText(row, str(path), number, passage=1))
        if len(block) == _BLOCK:
            yield block
            block = []
    if block:
        yield block


def _text_of(path: Path) -> str:
    """Return the text of a file. Raises BadRow where it has none, or cannot be read."""
    size, lines = 0, []
    try:
        for _, line in decoded_lines(path, read_lines(path)):
            size = checked_size(size + len(line), str(path))
            lines.append(line)
    except InputError as error:
        raise BadRow("that cannot be read", str(error)) from None
    text = "".join(lines)
    if is_blank(text):
        raise BadRow("without a text", f"{path}: expected a text, got an empty file")
    return text
