"""… → task: sentences of words with their tags, as CoNLL's columns or JSON lines hold them (paper §5.3).

Columns: one word a line with its tag, an empty line after each sentence, `-DOCSTART-` lines between documents. They are
parted by tabs where the first row holds one, else by spaces, and every row has as many as the first. In a file with
tabs, lines without one that begin with "#" before a sentence are comments; a row of "#" and a tag is a word.

A .conllu file has its words in the second column and their parts of speech in the fourth; its rows of several words
("2-3") and of none ("4.1") are left aside.

JSON lines: {"tokens": [...], "tags": [...]}, and `document` where neighbours belong together.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError
from bertwright.tables.files import OPENERS, decode_lines, open_lines
from bertwright.tables.reader import json_object

DOCUMENT_START: Final = "-DOCSTART-"
JSON_ENDINGS: Final = (".jsonl", ".ndjson", ".json")
CONLLU: Final = ".conllu"
CONLLU_COLUMNS: Final = ("2", "4")
BLANK: Final = " \t\r\n"
"""A line of nothing else is empty; other kinds of space may be words."""


@dataclass(frozen=True)
class Lines:
    """A file of sentences, line by line with the lines' ends; what is written back adds tags to it."""

    source: str
    format: Literal["columns", "conllu", "jsonl"]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Columns:
    """Which columns are read, by their numbers from 1 on, or which fields of JSON lines.

    None: the first column has the word and the last one the tag (the second and the fourth of a .conllu file); the
    fields are `tokens` and `tags`.
    """

    word: str | None = None
    tag: str | None = None


@dataclass(frozen=True)
class Sentences:
    """N sentences.

    lines      the line of each word
    documents  [N] the document of each sentence, by number; None where the file marks none

    A sentence of a JSON line may have no words; it then has its own line in `lines`.
    """

    source: str
    words: tuple[tuple[str, ...], ...]
    tags: tuple[tuple[str, ...], ...] | None
    lines: tuple[tuple[int, ...], ...]
    documents: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.words)

    @property
    def num_words(self) -> int:
        """Words of all sentences."""
        return sum(map(len, self.words))

    def place(self, row: int, word: int = 0) -> str:
        """Where a word stands, as "file:line"."""
        return f"{self.source}:{self.lines[row][word]}"

    def where(self, row: int, word: int = 0) -> str:
        """The same within a message about the file."""
        return f"on line {self.lines[row][word]}"

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> "Sentences":
        """The sentences of the given rows, in their order."""
        return replace(
            self,
            words=tuple(self.words[row] for row in rows),
            tags=None if self.tags is None else tuple(self.tags[row] for row in rows),
            lines=tuple(self.lines[row] for row in rows),
            documents=None if self.documents is None else tuple(self.documents[row] for row in rows),
        )


def read_lines(path: Path | str) -> Lines:
    """The lines of a file, plain or compressed; "-" is standard input, JSON lines where it begins with "{".

    Raises InputError where there is no such file, with the line where it is not UTF-8, and where it is empty.
    """
    if str(path) == "-":
        source = "standard input"
        lines = tuple(decode_lines(sys.stdin.buffer, source))
        is_conllu = False
        is_json = bool(lines) and lines[0].lstrip().startswith("{")
    else:
        source, path = str(path), Path(path)
        bare = path.with_suffix("") if path.suffix in OPENERS else path
        is_json, is_conllu = bare.suffix in JSON_ENDINGS, bare.suffix == CONLLU
        with open_lines(path) as stream:
            lines = tuple(decode_lines(stream, source))
    if not any(line.strip(BLANK) for line in lines):
        raise InputError(f"{source}: is empty")
    return Lines(source, "jsonl" if is_json else "conllu" if is_conllu else "columns", lines)


def sentences_of(lines: Lines, columns: Columns, *, with_tags: bool) -> Sentences:
    """The sentences of a file; InputError, with file and line, for whatever does not fit."""
    found = (
        _of_objects(lines, columns, with_tags) if lines.format == "jsonl" else _of_columns(lines, columns, with_tags)
    )
    if not len(found):
        raise InputError(f"{lines.source}: holds no sentence")
    return found


def separator_of(lines: Lines) -> str:
    """What parts the columns of a file: a tab or a space."""
    return "\t" if any("\t" in line.strip(BLANK) for line in lines.lines) else " "


def cells_of(lines: Lines) -> Iterator[tuple[int, list[str] | None]]:
    """Each line of columns by its number: its cells, [] for an empty line, None for a comment."""
    separator = separator_of(lines)
    within = False
    for number, line in enumerate(lines.lines, 1):
        if separator == "\t" and not within and line.startswith("#") and "\t" not in line:
            yield number, None
            continue
        within = bool(line.strip(BLANK))
        cells = [cell.strip(" ") for cell in line.rstrip("\r\n").split(separator)] if within else []
        yield number, cells if separator == "\t" else [cell for cell in cells if cell]


def starts_document(cells: Sequence[str]) -> bool:
    """Whether a row of columns stands between documents."""
    return cells[0].startswith(DOCUMENT_START)


def is_aside(lines: Lines, cells: Sequence[str]) -> bool:
    """Whether a row of a .conllu file is not one word but several of the following ones, or none of the text."""
    return lines.format == "conllu" and not cells[0].isdecimal()


def _of_columns(lines: Lines, columns: Columns, with_tags: bool) -> Sentences:
    if lines.format == "conllu":
        columns = Columns(columns.word or CONLLU_COLUMNS[0], columns.tag or CONLLU_COLUMNS[1])
    found = _Collected()
    row: _Row | None = None
    for number, cells in cells_of(lines):
        if cells is None:
            continue
        if not cells or starts_document(cells):
            found.end_sentence()
            found.document += bool(cells)
            continue
        place = f"{lines.source}:{number}"
        row = row or _Row.of(columns, len(cells), number, place=place, with_tags=with_tags)
        if len(cells) != row.width:
            raise InputError(
                f"{place}: a row of {_columns(len(cells))} where {row.width} are due, as on line {row.number}"
            )
        if is_aside(lines, cells):
            continue
        word, tag = cells[row.word], cells[row.tag]
        if not word or (with_tags and not tag):
            raise InputError(f"{place}: the {'tag' if word else 'word'} is empty in {cells}")
        found.add(word, tag, number)
    found.end_sentence()
    return found.sentences(lines.source, with_tags=with_tags)


@dataclass(frozen=True)
class _Row:
    """Where word and tag stand in every row of a file, as its first row decides."""

    width: int
    word: int
    tag: int
    number: int

    @classmethod
    def of(cls, columns: Columns, width: int, number: int, *, place: str, with_tags: bool) -> "_Row":
        word = _column(columns.word, width, place) if columns.word else 0
        tag = _column(columns.tag, width, place) if with_tags and columns.tag else width - 1
        if with_tags and word == tag:
            raise InputError(
                f"{place}: {_columns(width)}, and column {word + 1} cannot be both the word and its tag; "
                "--text-column and --label-column take their numbers"
            )
        return cls(width, word, tag, number)


class _Collected:
    """Sentences as they grow row by row."""

    def __init__(self) -> None:
        self.document = 0
        self._rows: list[tuple[str, str, int]] = []
        self._done: list[tuple[tuple[str, str, int], ...]] = []
        self._documents: list[int] = []

    def add(self, word: str, tag: str, number: int) -> None:
        """One more word of the sentence."""
        self._rows.append((word, tag, number))

    def end_sentence(self) -> None:
        """What follows is another sentence."""
        if self._rows:
            self._done.append(tuple(self._rows))
            self._documents.append(self.document)
            self._rows = []

    def sentences(self, source: str, *, with_tags: bool) -> Sentences:
        """All of them; `document` has grown where the file marks documents."""
        return Sentences(
            source,
            words=tuple(tuple(word for word, _, _ in rows) for rows in self._done),
            tags=tuple(tuple(tag for _, tag, _ in rows) for rows in self._done) if with_tags else None,
            lines=tuple(tuple(number for _, _, number in rows) for rows in self._done),
            documents=tuple(self._documents) if self.document else None,
        )


def _column(name: str, width: int, place: str) -> int:
    if not name.isdecimal() or not 1 <= int(name) <= width:
        raise InputError(f"{place}: there is no column '{name}'; they are numbered, 1 to {width}")
    return int(name) - 1


def _columns(width: int) -> str:
    return "1 column" if width == 1 else f"{width} columns"


def _of_objects(lines: Lines, columns: Columns, with_tags: bool) -> Sentences:
    words: list[tuple[str, ...]] = []
    tags: list[tuple[str, ...]] = []
    marks: list[object] = []
    word, tag = columns.word or "tokens", columns.tag or "tags"
    if with_tags and word == tag:
        raise InputError(
            f"{lines.source}: field '{word}' cannot be both the words and their tags; "
            "--text-column and --label-column name them"
        )
    for number, fields in objects_of(lines):
        place = f"{lines.source}:{number}"
        words.append(_texts(fields, word, place, "words"))
        marks.append(fields.get("document"))
        if not with_tags:
            continue
        tags.append(_texts(fields, tag, place, "tags"))
        if len(words[-1]) != len(tags[-1]):
            raise InputError(f"{place}: {len(words[-1])} words and {len(tags[-1])} tags; each word has one tag")
        if not words[-1]:
            raise InputError(f"{place}: a sentence without words")
    return Sentences(
        lines.source,
        words=tuple(words),
        tags=tuple(tags) if with_tags else None,
        lines=tuple((number,) * max(1, len(row)) for number, row in enumerate(words, 1)),
        documents=_documents(marks, lines.source),
    )


def objects_of(lines: Lines) -> Iterator[tuple[int, dict[str, object]]]:
    """The objects of JSON lines by their lines' numbers; empty lines at the end are none."""
    last = max(number for number, line in enumerate(lines.lines, 1) if line.strip(BLANK))
    for number, line in enumerate(lines.lines[:last], 1):
        yield number, json_object(line, f"{lines.source}:{number}")


def _texts(fields: dict[str, object], name: str, place: str, what: str) -> tuple[str, ...]:
    cell = fields.get(name)
    if name not in fields:
        raise InputError(f"{place}: there is no field '{name}' of {what}; the fields are: {', '.join(fields)}")
    if not isinstance(cell, list):
        raise InputError(f"{place}: '{name}' is {cell!r}; a list of {what} is due")
    for text in cell:
        if not isinstance(text, str) or (what == "tags" and not text):
            raise InputError(f"{place}: '{name}' holds {text!r}; {what} are text")
    return tuple(cell)


def _documents(marks: Sequence[object], source: str) -> tuple[int, ...] | None:
    """Documents by number: neighbours with the same mark; None where no sentence bears one."""
    if all(mark is None for mark in marks):
        return None
    numbers: dict[object, int] = {}
    for line, mark in enumerate(marks, 1):
        if isinstance(mark, bool) or not isinstance(mark, str | int):
            raise InputError(
                f"{source}:{line}: 'document' is {mark!r}; a name or number is due in every line or in none"
            )
        if mark in numbers and mark != marks[line - 2]:
            raise InputError(
                f"{source}:{line}: document {mark!r} goes on after another one; keep its sentences together"
            )
        numbers.setdefault(mark, len(numbers))
    return tuple(numbers[mark] for mark in marks)
