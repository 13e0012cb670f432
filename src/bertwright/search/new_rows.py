"""texts to index → rows with ids; an id that is taken is refused.

A text that is cut into passages is a document: its id is that of no row, and its passages have the ids ID#1, ID#2 ….
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bertwright.errors import InputError, shown
from bertwright.search.index_files import PASSAGE, IndexRow, Segment
from bertwright.tables.json_values import json_text
from bertwright.tables.reader import refuse_halves

_NUMBERED: Final = re.compile(f"(.*){PASSAGE}[0-9]+", re.DOTALL)


@dataclass(frozen=True)
class IndexedText:
    """A row to index, and its location for messages, as "file:line". The id of a passage is still that of its document.

    number: number of the row in its tables, from 1 on; rows that are left out count. is_numbered: True where the id is
    only this number; the index then gives the row the next free number.
    """

    row: IndexRow
    location: str
    number: int = 0
    is_numbered: bool = False


@dataclass
class TakenIds:
    """Ids of the rows of an index, or of the texts before.

    rows        ids of rows
    documents   ids of texts whose passages are rows
    numbered    ID of each row or document ID#7: a document with this id could have a passage with the same one
    """

    rows: set[str] = field(default_factory=set)
    documents: set[str] = field(default_factory=set)
    numbered: set[str] = field(default_factory=set)

    @classmethod
    def of_index(cls, segments: Iterable[Segment]) -> "TakenIds":
        """Return the ids of the rows that are not removed."""
        taken = cls()
        for segment in segments:
            for id, row in segment.ids.items():
                taken.add(id, int(segment.passages[row]))
        return taken

    def add(self, id: str, passage: int) -> None:
        """Note the id of a row. passage: number of the passage; 0 for a row that is none."""
        self.rows.add(id)
        if passage:
            id = id.removesuffix(f"{PASSAGE}{passage}")
            self.documents.add(id)
        if (base := _before_number(id)) is not None:
            self.numbered.add(base)

    def has(self, id: str) -> bool:
        """Return True for the id of a row or of a document."""
        return id in self.rows or id in self.documents

    def clashes(self, id: str, *, is_document: bool) -> bool:
        """Return True where an id could be that of a passage and of another row too."""
        return id in self.numbered if is_document else _before_number(id) in self.documents


def _before_number(id: str) -> str | None:
    match = _NUMBERED.fullmatch(id) if PASSAGE in id else None
    return match[1] if match else None


def checked_rows(
    texts: Iterable[Sequence[IndexedText]], of_index: TakenIds, numbered: int
) -> Iterator[tuple[list[IndexRow], list[str], int]]:
    """Yield the rows of each block, their locations, and the last number that is an id so far.

    numbered: last number that is an id in the index. Raises InputError for a row that cannot be indexed, and where
    there is none.
    """
    before, offset = TakenIds(), numbered
    for block in filter(None, texts):
        rows = []
        for text in block:
            is_first = text.row.passage < 2  # the further passages of a document have its number and id
            if text.is_numbered and is_first:
                while any(_is_taken(str(offset + text.number), text, taken) for taken in (of_index, before)):
                    offset += 1
            numbered = offset + text.number
            id = str(numbered) if text.is_numbered else text.row.id
            if is_first:
                _refuse_taken(id, text, of_index, before)
            row = replace(text.row, id=f"{id}{PASSAGE}{text.row.passage}" if text.row.passage else id)
            _check_row(row, text.location)
            before.add(row.id, row.passage)
            rows.append(row)
        yield rows, [text.location for text in block], numbered
    if not before.rows:
        raise InputError("expected at least one text, got none")


def _is_taken(id: str, text: IndexedText, taken: TakenIds) -> bool:
    return taken.has(id) or taken.clashes(id, is_document=text.row.passage > 0)


def _refuse_taken(id: str, text: IndexedText, of_index: TakenIds, before: TakenIds) -> None:
    """Raise InputError where an id is in the index, or is that of an earlier text, or could be that of a passage."""
    begin = f"{text.location}: the id '{shown(id)}'"
    if of_index.has(id):
        raise InputError(
            f"{begin} is in the index already; expected a new one: remove it first with --remove, or give the text "
            "another id"
        )
    if before.has(id):
        advice = "; of two folders with files of one name index the folder that holds both" if text.row.passage else ""
        raise InputError(f"{begin} is there twice; ids must differ{advice}")
    is_document = text.row.passage > 0
    if any(taken.clashes(id, is_document=is_document) for taken in (of_index, before)):
        problem = (
            "and its passages would have ids such as that of another row" if is_document else "is that of a passage"
        )
        raise InputError(f"{begin} {problem}; give one of the two texts another id, without {PASSAGE} and a number")


def _check_row(row: IndexRow, location: str) -> None:
    """Raise InputError where the id, the text or the fields of a row cannot be written."""
    refuse_halves([row.id], f"{location}: the id ")
    refuse_halves([row.text], f"{location}: the text ")
    try:
        json_text(row.fields).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"{location}: expected fields that JSON can hold, got {shown(row.fields)} ({shown(str(error))}); leave "
            "them out, or write them as texts"
        ) from None
