"""files of words with tags → sentences; the format is CoNLL's columns or JSON lines (paper §5.3).

Columns: one word per line with its tag, an empty line after each sentence, `-DOCSTART-` lines between documents.
Columns are separated by tabs where most rows have one, else by spaces. All rows have the same number of columns.
A line before a sentence that begins with "#" is a comment where it has another number of columns than the rows, or an
address (https://…) after its first column.

A .conllu file has the words in its second column and the parts of speech in its fourth. Its rows for several words
("2-3") and for no word ("4.1") are skipped.

JSON lines: {"tokens": [...], "tags": [...]}, and optionally `document`, equal for the sentences of a document.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError
from bertwright.tables.bad_rows import BadRow
from bertwright.tables.decoding import decode_lines, undecoded
from bertwright.tables.files import InputFormat, open_lines, source_name, table_ending
from bertwright.tables.json_objects import json_object
from bertwright.tasks.labels import checked_label
from bertwright.text.decompress import is_undecoded
from bertwright.text.document import OnError, raise_error

_NUMBERED: Final = 0.9  # fraction of sentences with numbers for words, from which a column has no words
DOCUMENT_START: Final = "-DOCSTART-"
JSON_ENDINGS: Final = (".jsonl", ".ndjson", ".json")
CONLLU: Final = ".conllu"
CONLLU_COLUMNS: Final = ("2", "4")
BLANK: Final = " \t\r\n"
"""Characters of an empty line; other kinds of space may be words."""


@dataclass(frozen=True)
class Lines:
    """The lines of a file of sentences, with their line ends. Predictions are written by adding tags to them."""

    source: str
    format: Literal["columns", "conllu", "jsonl"]
    lines: tuple[str, ...]

    @cached_property
    def _rows(self) -> dict[int, str]:
        """Rows by their line numbers, without lines that may be comments unless there is nothing else."""
        filled = {number: line for number, line in enumerate(self.lines, 1) if line.strip(BLANK)}
        rows = {number: line for number, line in filled.items() if not line.startswith(("#", DOCUMENT_START))}
        return rows or filled

    @cached_property
    def separator(self) -> str:
        """Separator of the columns: a tab or a space."""
        num_tabbed = sum("\t" in line.strip(BLANK) for line in self._rows.values())
        return "\t" if num_tabbed and 2 * num_tabbed >= len(self._rows) else " "

    @cached_property
    def width(self) -> tuple[int, int]:
        """Number of columns of most rows, and the line number of the first of these rows."""
        widths = {number: len(self.cells(line)) for number, line in self._rows.items()}
        usual = Counter(widths.values()).most_common(1)[0][0]
        return usual, next(number for number, width in widths.items() if width == usual)

    def cells(self, line: str) -> list[str]:
        """Return the cells of a row. Where spaces separate columns, a tab does so too."""
        if self.separator == "\t":
            return [cell.strip(" ") for cell in line.rstrip("\r\n").split("\t")]
        return [cell for cell in line.rstrip("\r\n").replace("\t", " ").split(" ") if cell]

    def is_comment(self, line: str) -> bool:
        """Return whether a line before a sentence is a comment."""
        if not line.startswith("#"):
            return False
        cells = self.cells(line)
        return len(cells) != self.width[0] or any("://" in cell for cell in cells[1:])


@dataclass(frozen=True)
class Columns:
    """Columns to read, by number from 1 on, or fields of JSON lines.

    None: the word is in the first column and the tag in the last one (the second and the fourth of a .conllu file), or
    in the fields `tokens` and `tags`.
    """

    word: str | None = None
    tag: str | None = None


@dataclass(frozen=True)
class Sentences:
    """N sentences.

    lines      line number of each word
    documents  [N] number of each sentence's document; None where the file marks no documents
    left_out   numbers of the sentences that were left out, by reason

    A sentence of JSON lines may have no words; `lines` then has the number of its line.
    """

    source: str
    words: tuple[tuple[str, ...], ...]
    tags: tuple[tuple[str, ...], ...] | None
    lines: tuple[tuple[int, ...], ...]
    documents: tuple[int, ...] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def num_words(self) -> int:
        """Return the number of words of all sentences."""
        return sum(map(len, self.words))

    def location(self, row: int, word: int = 0) -> str:
        """Return the position of a word as "file:line"."""
        return f"{self.source}:{self.lines[row][word]}"

    def line_of_word(self, row: int, word: int = 0) -> str:
        """Return the position of a word for a message that names the file already."""
        return f"on line {self.lines[row][word]}"

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> "Sentences":
        """Return the sentences of these rows, in their order."""
        return replace(
            self,
            words=tuple(self.words[row] for row in rows),
            tags=None if self.tags is None else tuple(self.tags[row] for row in rows),
            lines=tuple(self.lines[row] for row in rows),
            documents=None if self.documents is None else tuple(self.documents[row] for row in rows),
        )


def read_tag_lines(path: Path | str, input_format: InputFormat = "auto", *, strict: bool = True) -> Lines:
    """Return the lines of a plain or compressed file; "-" is standard input, JSON lines where it begins with "{".

    input_format   "jsonl": JSON lines, whatever the name is
    strict         False: lines that are not UTF-8 are kept; `sentences_of` leaves their sentences out

    Raises InputError for a missing or empty file, and with the line number where the file is not UTF-8.
    """
    source, ending = source_name(path), table_ending(path)
    if str(path) == "-":
        lines = tuple(decode_lines(sys.stdin.buffer, source, strict=strict))
        is_json = bool(lines) and lines[0].lstrip().startswith("{")
    else:
        is_json = ending in JSON_ENDINGS
        with open_lines(Path(path)) as stream:
            lines = tuple(decode_lines(stream, source, strict=strict))
    if not any(line.strip(BLANK) for line in lines):
        raise InputError(f"{source}: the file is empty")
    is_json = is_json or input_format == "jsonl"
    return Lines(source, "jsonl" if is_json else "conllu" if ending == CONLLU else "columns", lines)


def sentences_of(lines: Lines, columns: Columns, *, with_tags: bool, on_error: OnError = raise_error) -> Sentences:
    """Return the sentences of a file.

    on_error   function that is called with the BadRow of each sentence that cannot be used; if it returns, the sentence
               is left out

    Raises InputError with file and line for an invalid row.
    """
    read = _of_objects if lines.format == "jsonl" else _of_columns
    sentences = read(lines, columns, with_tags, on_error)
    if not len(sentences):
        raise InputError(f"{lines.source}: expected sentences, found none")
    return sentences


def cells_of(lines: Lines) -> Iterator[tuple[int, list[str] | None]]:
    """Yield each line's number and cells: [] for an empty line, None for a comment."""
    within = False
    for number, line in enumerate(lines.lines, 1):
        if not within and lines.is_comment(line):
            yield number, None
            continue
        within = bool(line.strip(BLANK))
        yield number, lines.cells(line) if within else []


def starts_document(cells: Sequence[str]) -> bool:
    """Return whether a row of columns separates two documents."""
    return cells[0].startswith(DOCUMENT_START)


def is_no_word(lines: Lines, cells: Sequence[str]) -> bool:
    """Return whether a row is one of a .conllu file for several words or for no word; these rows are skipped."""
    return lines.format == "conllu" and not cells[0].isdecimal()


def _of_columns(lines: Lines, columns: Columns, with_tags: bool, on_error: OnError) -> Sentences:
    if lines.format == "conllu":
        columns = Columns(columns.word or CONLLU_COLUMNS[0], columns.tag or CONLLU_COLUMNS[1])
    words: list[_Word] = []
    bad: set[int] = set()  # numbers of the sentences that are left out
    sentence = document = 0
    width, first = lines.width
    row: _Row | None = None
    for number, cells in cells_of(lines):
        if cells is None:
            continue
        if not cells or starts_document(cells):
            sentence += 1
            document += bool(cells)
            continue
        row = row or _Row.of(columns, width, position=f"{lines.source}:{first}", with_tags=with_tags)
        try:
            if cell := row.read(lines, number, cells):
                words.append(_Word(sentence, document, *cell, number))
        except BadRow as error:
            if sentence not in bad:
                on_error(error)
            bad.add(sentence)
    words = [word for word in words if word.sentence not in bad]
    if width > 1 and lines.format != "conllu" and not columns.word:
        _refuse_numbers(words, f"{lines.source}:{first}", width, with_tags=with_tags)
    groups = [tuple(group) for _, group in groupby(words, key=lambda word: word.sentence)]
    return Sentences(
        lines.source,
        words=tuple(tuple(word.text for word in group) for group in groups),
        tags=tuple(tuple(word.tag for word in group) for group in groups) if with_tags else None,
        lines=tuple(tuple(word.line for word in group) for group in groups),
        documents=tuple(group[0].document for group in groups) if document else None,
    )


def _refuse_numbers(words: Sequence["_Word"], position: str, width: int, *, with_tags: bool) -> None:
    """Raise InputError where the first column has the numbers of the words of nearly each sentence, from 0 or 1 on."""
    grouped = ([word.text for word in group] for _, group in groupby(words, key=lambda word: word.sentence))
    sentences = [texts for texts in grouped if len(texts) > 1]
    begun = [texts for texts in sentences if texts[0] in ("0", "1")]
    numbered = sum(texts == [str(int(texts[0]) + at) for at in range(len(texts))] for texts in begun)
    if numbered and numbered >= _NUMBERED * len(sentences):
        label = f" --label-column {width}" if with_tags else ""
        raise InputError(
            f"{position}: expected words in the first of {width} columns, got the numbers of the words in each "
            f"sentence; name the columns, such as --text-column 2{label}"
        )


class _Word(NamedTuple):
    """A word of a row of columns, with the numbers of its sentence, its document and its line."""

    sentence: int
    document: int
    text: str
    tag: str
    line: int


@dataclass(frozen=True)
class _Row:
    """The columns of word and tag in rows, counted from 0; with_tags: True where a row needs a tag."""

    word: int
    tag: int
    with_tags: bool

    @classmethod
    def of(cls, columns: Columns, width: int, *, position: str, with_tags: bool) -> "_Row":
        word = _column(columns.word, width, position) if columns.word else 0
        tag = _column(columns.tag, width, position) if with_tags and columns.tag else width - 1
        if with_tags and word == tag:
            advice = "set --text-column and --label-column to column numbers"
            if width == 1:
                advice = "expected a word and its tag, with a tab or spaces between them"
            raise InputError(f"{position}: column {word + 1} of {width} cannot be both word and tag; {advice}")
        return cls(word, tag, with_tags)

    def read(self, lines: Lines, number: int, cells: Sequence[str]) -> tuple[str, str] | None:
        """Return word and tag of a row; None for a row that is no word. Raises BadRow for an invalid row."""
        position = f"{lines.source}:{number}"
        if is_undecoded(lines.lines[number - 1]):
            raise undecoded(lines.lines[number - 1], position)
        width, first = lines.width
        if len(cells) != width:
            columns_of_row = "1 column" if width == 1 else f"{width} columns"
            message = f"{position}: expected {columns_of_row}, as on line {first}, got {len(cells)}"
            raise BadRow("with another number of columns", message)
        if is_no_word(lines, cells):
            return None
        word, tag = cells[self.word], cells[self.tag]
        if word and (tag or not self.with_tags):
            return word, checked_label(tag, position) if self.with_tags else tag
        what = "tag" if word else "word"
        raise BadRow(f"without a {what}", f"{position}: expected a {what}, got an empty cell in {list(cells)}")


def _column(name: str, width: int, position: str) -> int:
    if not name.isdecimal() or not 1 <= int(name) <= width:
        raise InputError(f"{position}: expected a column number from 1 to {width}, got '{name}'")
    return int(name) - 1


def _of_objects(lines: Lines, columns: Columns, with_tags: bool, on_error: OnError) -> Sentences:
    rows: list[_Object] = []
    word, tag = columns.word or "tokens", columns.tag or "tags"
    if with_tags and word == tag:
        raise InputError(
            f"{lines.source}: field '{word}' cannot be both words and tags; set --text-column and --label-column"
        )
    for number, fields in objects_of(lines, on_error):
        try:
            rows.append(_Object.of(fields, word, tag if with_tags else None, number, f"{lines.source}:{number}"))
        except BadRow as error:
            on_error(error)
    return Sentences(
        lines.source,
        words=tuple(row.words for row in rows),
        tags=tuple(row.tags for row in rows) if with_tags else None,
        lines=tuple((row.line,) * max(1, len(row.words)) for row in rows),
        documents=_documents({row.line: row.document for row in rows}, lines.source),
    )


class _Object(NamedTuple):
    """A sentence of JSON lines with the number of its line, and the value of its field `document`."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    document: object
    line: int

    @classmethod
    def of(cls, fields: dict[str, object], word: str, tag: str | None, line: int, position: str) -> "_Object":
        """Return the sentence of an object, without tags where `tag` is None. Raises BadRow for an invalid one."""
        words = _texts(fields, word, position, "words")
        if tag is None:
            return cls(words, (), fields.get("document"), line)
        tags = tuple(checked_label(text, position) for text in _texts(fields, tag, position, "tags"))
        if len(words) != len(tags):
            message = f"{position}: expected one tag per word, got {len(words)} words and {len(tags)} tags"
            raise BadRow("with another number of tags than words", message)
        if not words:
            raise BadRow("without words", f"{position}: expected a sentence with words, got none")
        return cls(words, tags, fields.get("document"), line)


def objects_of(lines: Lines, on_error: OnError = raise_error) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the objects of JSON lines with their line numbers; empty lines at the end are skipped.

    on_error   function that is called with the BadRow of each line that is no object
    """
    last = max(number for number, line in enumerate(lines.lines, 1) if line.strip(BLANK))
    for number, line in enumerate(lines.lines[:last], 1):
        position = f"{lines.source}:{number}"
        try:
            if is_undecoded(line):
                raise undecoded(line, position)
            yield number, json_object(line, position)
        except BadRow as error:
            on_error(error)


def _texts(fields: dict[str, object], name: str, position: str, what: str) -> tuple[str, ...]:
    cell = fields.get(name)
    problem = ""
    if name not in fields:
        problem = f"expected a field '{name}' with {what}; the fields are: {', '.join(fields)}"
    elif not isinstance(cell, list):
        problem = f"expected a list of {what} in '{name}', got {cell!r}"
    elif wrong := [text for text in cell if not isinstance(text, str) or (what == "tags" and not text)]:
        problem = f"expected {what} as text in '{name}', got {wrong[0]!r}"
    else:
        return tuple(cell)
    raise BadRow(f"without a list of {what}", f"{position}: {problem}")


def _documents(marks: Mapping[int, object], source: str) -> tuple[int, ...] | None:
    """Return each sentence's document number; None where no sentence has a document. Neighbours share a document.

    marks   line number → value of the field `document`, of each sentence
    """
    if all(mark is None for mark in marks.values()):
        return None
    numbers: dict[object, int] = {}
    before: object = None
    for line, mark in marks.items():
        if isinstance(mark, bool) or not isinstance(mark, str | int):
            raise InputError(
                f"{source}:{line}: expected a text or number in 'document', in every line or in none, got {mark!r}"
            )
        if mark in numbers and mark != before:
            raise InputError(
                f"{source}:{line}: document {mark!r} continues after another document; put its sentences together"
            )
        numbers.setdefault(mark, len(numbers))
        before = mark
    return tuple(numbers[mark] for mark in marks.values())
