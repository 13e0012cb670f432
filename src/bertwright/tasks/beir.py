"""a folder in BEIR's layout → documents, queries and judgements, for training and for a search.

    corpus.jsonl     {"_id": …, "title": …, "text": …}, one document a line
    queries.jsonl    {"_id": …, "text": …}
    qrels/test.tsv   query-id, corpus-id, score, with or without a header line; a score above 0 stands for relevant

The files may be packed. An id is a text or a whole number; a title or text that is null or absent is empty. Documents
are read as a stream, and twice: first their ids, then their texts.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final

from bertwright.errors import InputError, shown
from bertwright.files import file_digest
from bertwright.tables.bad_rows import BadRow, is_blank
from bertwright.tables.files import OPENERS
from bertwright.tables.json_objects import json_object
from bertwright.tables.reader import Table, read_table
from bertwright.tasks.classification.examples import cell_number
from bertwright.text.decompress import decoded_lines, read_lines
from bertwright.text.document import OnError, raise_error

QRELS: Final = "qrels"
"""Folder of the judgements."""
CORPUS: Final = "corpus.jsonl"
"""File of the documents."""
_QUERIES: Final = "queries.jsonl"
_COLUMNS: Final = ("query-id", "corpus-id", "score")


@dataclass(frozen=True)
class Judgement:
    """The relevance of a document for a query, and its line; 0 and less stand for not relevant."""

    query: str
    document: str
    relevance: int
    line: int


@dataclass(frozen=True)
class RetrievalData:
    """Queries with their judged documents. The documents are in the file `corpus`.

    ids      ids of the documents, in reverse order of their texts: this order breaks ties, as in trec_eval
    queries  id of each judged query → its text
    judged   the judgements in the order of the file `qrels`
    """

    corpus: Path
    qrels: Path
    ids: tuple[str, ...]
    queries: dict[str, str]
    judged: tuple[Judgement, ...]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Return id of each document → its number among the ids."""
        return {id: number for number, id in enumerate(self.ids)}

    @cached_property
    def judgements(self) -> dict[str, dict[str, int]]:
        """Return id of each judged query → id of a document → relevance."""
        relevances: dict[str, dict[str, int]] = {}
        for each in self.judged:
            relevances.setdefault(each.query, {})[each.document] = each.relevance
        return relevances

    def documents(self, block: int) -> Iterator[tuple[list[str], list[str]]]:
        """Return `documents_in_blocks` of the corpus."""
        return documents_in_blocks(self.corpus, block)


def corpus_file(folder: Path) -> Path:
    """Return the file of the documents, plain or packed. Raises InputError where there is none."""
    return _existing(folder / CORPUS)


def documents_in_blocks(corpus: Path, block: int) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the ids and the texts of at most `block` documents at a time, in the order of the file."""
    remaining = _records(corpus)
    while pairs := [(id, _joined(fields, location)) for location, id, fields in islice(remaining, block)]:
        yield [id for id, _ in pairs], [text for _, text in pairs]


def is_retrieval(data: Path) -> bool:
    """Return True for a folder in BEIR's layout, or a file in its folder `qrels`."""
    if not data.is_dir():
        return data.parent.name == QRELS and _packed_or_not(data.parent.parent / CORPUS) is not None
    return (data / QRELS).is_dir() or _packed_or_not(data / CORPUS) is not None


def qrels_file(folder: Path, split: str) -> Path | None:
    """Return the judgements of a split (train, dev or test); None where there are none."""
    return _packed_or_not(folder / QRELS / f"{split}.tsv")


def texts_digest(folder: Path) -> str:
    """Return the sha256 of the files of queries and documents, which the judgements name by their ids."""
    files = [file for name in (_QUERIES, CORPUS) if (file := _packed_or_not(folder / name))]
    return hashlib.sha256(" ".join(map(file_digest, files)).encode()).hexdigest()


def open_retrieval(data: Path, *, on_error: OnError = raise_error) -> RetrievalData:
    """Open a folder, with the judgements of qrels/test.tsv; or one file qrels/NAME.tsv of such a folder.

    `on_error` is called with the BadRow of each judgement that cannot be used: one that is there twice, that names no
    document or no query with a text, or whose score is no whole number. If it returns, the judgement is left out.
    Raises InputError, with file and line, for a missing file, and for a document or query that cannot be read.
    """
    folder = data if data.is_dir() else data.parent.parent
    qrels = judgements_file(data)
    corpus, queries_file = corpus_file(folder), _existing(folder / _QUERIES)
    ids = tuple(sorted((id for _, id, _ in _unique(corpus)), reverse=True))
    if not ids:
        raise InputError(f"{corpus}: expected documents, one JSON object a line, found none")
    table = read_table(qrels, columns=_COLUMNS, headerless=_COLUMNS, format="tsv", on_error=on_error)
    named = {str(cell).strip() for cell in table.column(_COLUMNS[0])}
    queries = {id: _joined(fields, location) for location, id, fields in _unique(queries_file) if id in named}
    known = frozenset(ids)
    judged: dict[tuple[str, str], Judgement] = {}
    for row, cells in enumerate(zip(*map(table.column, _COLUMNS), strict=True)):
        location, (query, document) = table.location(row), (str(cell).strip() for cell in cells[:2])
        try:
            if query not in queries:
                raise BadRow("with an unknown id", f"{location}: there is no query '{shown(query)}' in {queries_file}")
            if document not in known:
                raise BadRow("with an unknown id", f"{location}: there is no document '{shown(document)}' in {corpus}")
            if is_blank(queries[query]):
                raise without_text(location, _COLUMNS[0], query)
            if first := judged.get((query, document)):
                message = f"{location}: query '{shown(query)}' and document '{shown(document)}' are judged twice"
                raise BadRow("judged twice", f"{message}; the first time in line {first.line}")
            relevance = _relevance(cells[2], table, row)
            judged[query, document] = Judgement(query, document, relevance, table.lines[row])
        except BadRow as error:
            on_error(error)
    if not judged:
        raise InputError(f"{qrels}: expected judgements, found none")
    texts = {query: queries[query] for query, _ in judged}
    return RetrievalData(corpus, qrels, ids, texts, tuple(judged.values()))


def without_text(location: str, column: str, id: str) -> BadRow:
    """Return the error of a judgement at `location` that names a query or document whose text is empty."""
    message = f"{location}: expected an id with a text in '{column}', got '{shown(id)}', whose text is empty"
    return BadRow("without a text", message)


def _relevance(cell: object, table: Table, row: int) -> int:
    """Return a score, such as 1 or 1.0. Raises BadRow for one that is no whole number."""
    score = cell_number(cell, _COLUMNS[2], table, row)
    if not score.is_integer():
        message = f"{table.location(row)}: expected a whole number in '{_COLUMNS[2]}', got {score:g}"
        raise BadRow("with a score that is no whole number", message)
    return int(score)


def _packed_or_not(path: Path) -> Path | None:
    """Return the path of a file, or of the same file with the ending of a packed one; None where there is neither."""
    paths = (path.with_name(path.name + ending) for ending in ("", *OPENERS))
    return next((file for file in paths if file.is_file()), None)


def _existing(path: Path) -> Path:
    """Return the file, plain or packed. Raises InputError where there is none."""
    file = _packed_or_not(path)
    if file is None:
        raise InputError(f"{path.parent}: expected {path.name} (or packed as {', '.join(OPENERS)}), as BEIR names it")
    return file


def judgements_file(data: Path) -> Path:
    """Return the judgements that a search measures: `data` itself, or of a folder those of test, or its only ones."""
    if not data.is_dir():
        return data
    if tests := qrels_file(data, "test"):
        return tests
    files = sorted(file for ending in ("", *OPENERS) for file in (data / QRELS).glob(f"*.tsv{ending}"))
    if len(files) != 1:
        names = ", ".join(path.name for path in files) or "no table"
        raise InputError(
            f"{data / QRELS}: expected test.tsv or a single table, found {names}; give one in place of the folder, as "
            f"{data / QRELS / 'NAME.tsv'}"
        )
    return files[0]


def _records(path: Path) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Yield the location, the id and the fields of each line that is not empty."""
    for number, line in decoded_lines(path, read_lines(path)):
        if not line.strip():
            continue
        location = f"{path}:{number}"
        fields = json_object(line, location)
        value = fields.get("_id")
        is_id = isinstance(value, str | int) and not isinstance(value, bool)
        id = str(value).strip() if is_id else ""
        if not id:
            raise InputError(f"{location}: expected a text or a whole number in '_id', got {shown(value)}")
        yield location, id, fields


def _unique(path: Path) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Yield what `_records` does. Raises InputError for an id that is there twice."""
    seen: set[str] = set()
    for location, id, fields in _records(path):
        if id in seen:
            raise InputError(f"{location}: the id '{shown(id)}' is there twice; ids must differ")
        seen.add(id)
        yield location, id, fields


def _joined(fields: Mapping[str, object], location: str) -> str:
    """Return title and text, joined by a blank; published collections have documents in which both are empty.

    Raises InputError where one is no text.
    """
    parts = []
    for name in ("title", "text"):
        part = fields.get(name)
        if part is not None and not isinstance(part, str):
            raise InputError(f"{location}: expected a text in '{name}', got {shown(part)}")
        parts.append(part or "")
    return " ".join(parts).strip()
