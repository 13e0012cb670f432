"""folder of text files → rows to index, one for each file."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.search.index_files import IndexRow
from bertwright.search.new_rows import IndexedText
from bertwright.tables.bad_rows import BadRow, is_blank
from bertwright.tables.files import FORMATS, table_ending
from bertwright.text.decompress import LONGEST, decoded_lines, read_lines
from bertwright.text.document import OnError
from bertwright.text.documents import by_target, local_files

TEXT_ENDINGS: Final = (".txt", ".md", ".rst")
"""Endings of the files that are read, each also of a packed file."""


def text_files(folder: str, on_error: OnError) -> list[Path]:
    """Return the text files below a folder, sorted, each once; tell the numbers of other files by their endings.

    `on_error` is called with the BadRow of a pipe, and of a name that is not UTF-8. Raises InputError where there is no
    text file.
    """
    paths = local_files(Path(folder))
    files = [path for path in paths if table_ending(path) in TEXT_ENDINGS]
    endings = Counter(table_ending(path) or "without an ending" for path in paths)
    others = {ending: count for ending, count in endings.items() if ending not in TEXT_ENDINGS}
    expected = ", ".join(TEXT_ENDINGS)
    by_ending = ", ".join(f"{count:,} {ending}" for ending, count in sorted(others.items()))
    if not files:
        advice = "; name a table itself, not its folder" if any(ending in FORMATS for ending in others) else ""
        what = by_ending or "no file"
        raise InputError(f"{folder}: expected a folder with text files ({expected}), found {what}{advice}")
    if others:
        say(f"{folder}: the files with other endings than {expected} are not read: {by_ending}")
    targets: dict[Path, Path] = {}
    for file in files:
        try:
            [(target, path)] = by_target([file]).items()
            targets.setdefault(target, path)
        except InputError as error:
            on_error(BadRow("that cannot be read", str(error)))
    return list(targets.values())


def read_text_folder(folder: str, before: int, on_error: OnError) -> Iterator[list[IndexedText]]:
    """Yield a block for each file of a folder; the id of a file is its path within the folder.

    before: number of rows of the sources before. `on_error` is called with the BadRow of each file without a text, or
    that cannot be read.
    """
    for number, path in enumerate(text_files(folder, on_error), before + 1):
        try:
            text = _text_of(path)
        except BadRow as error:
            on_error(error)
            continue
        yield [IndexedText(IndexRow(path.relative_to(folder).as_posix(), text, {}, passage=1), str(path), number)]


def _text_of(path: Path) -> str:
    """Return the text of a file. Raises BadRow where it has none, or cannot be read."""
    size, lines = 0, []
    try:
        for _, line in decoded_lines(path, read_lines(path)):
            lines.append(line)
            size += len(line)
            if size > LONGEST:
                raise InputError(f"{path}: expected at most {LONGEST:,} characters in a file; divide the text")
    except InputError as error:
        raise BadRow("that cannot be read", str(error)) from None
    text = "".join(lines)
    if is_blank(text):
        raise BadRow("without a text", f"{path}: expected a text, got an empty file")
    return text
