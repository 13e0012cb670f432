"""folder in BEIR's layout → documents, queries and judgements.

    corpus.jsonl     {"_id": …, "title": …, "text": …}, one document a line
    queries.jsonl    {"_id": …, "text": …}
    qrels/test.tsv   query-id, corpus-id, score, with a header line

The files may be packed. Documents are read as a stream, and twice: first their ids, then their texts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from bertwright.errors import InputError, shown
from bertwright.tables.bad_rows import is_blank
from bertwright.tables.json_objects import json_object
from bertwright.text.decompress import MAGIC, decoded_lines, read_lines


@dataclass(frozen=True)
class RetrievalData:
    """Queries with their judged documents. The documents are in the file `corpus`.

    ids         ids of the documents, in reverse order of their texts: this order breaks ties, as in trec_eval
    queries     id of each judged query → its text
    judgements  id of each judged query → id of a document → relevance; 0 and less stand for not relevant
    """

    corpus: Path
    qrels: Path
    ids: tuple[str, ...]
    queries: dict[str, str]
    judgements: dict[str, dict[str, int]]

    def documents(self, block: int) -> Iterator[tuple[list[str], list[str]]]:
        """Yield the ids and the texts of at most `block` documents at a time, in the order of the file."""
        remaining = _records(self.corpus)
        while pairs := [(id, _joined(fields, location)) for location, id, fields in islice(remaining, block)]:
            yield [id for id, _ in pairs], [text for _, text in pairs]


def open_retrieval(data: Path) -> RetrievalData:
    """Open a folder, with the judgements of qrels/test.tsv; or one file qrels/NAME.tsv of such a folder.

    Raises InputError, with file and line, for a missing file, a judged query without a text, an id that is there twice,
    and a judgement that names no document or no query.
    """
    folder = data if data.is_dir() else data.parent.parent
    qrels = _qrels_of(data)
    corpus = _packed_file(folder, "corpus.jsonl")
    ids = tuple(sorted((id for _, id in _unique(corpus)), reverse=True))
    if not ids:
        raise InputError(f"{corpus}: expected documents, one JSON object a line, found none")
    queries_file = _packed_file(folder, "queries.jsonl")
    queries = {id: (fields, location) for location, id, fields in _records(queries_file)}
    for _ in _unique(queries_file):
        pass
    judgements = _judgements(qrels, set(ids), set(queries), corpus=corpus, queries_file=queries_file)
    return RetrievalData(corpus, qrels, ids, {id: _query(*queries[id]) for id in judgements}, judgements)


def is_retrieval(data: Path) -> bool:
    """Return True for a folder in BEIR's layout, or a file in its folder `qrels`."""
    folder = data if data.is_dir() else data.parent.parent if data.parent.name == "qrels" else None
    return folder is not None and any((folder / name).is_file() for name in _names("corpus.jsonl"))


def _names(name: str) -> list[str]:
    return [name, *(name + ending for ending in MAGIC)]


def _packed_file(folder: Path, name: str) -> Path:
    """Return the file of this name, plain or packed. Raises InputError where there is none."""
    for each in _names(name):
        if (folder / each).is_file():
            return folder / each
    raise InputError(f"{folder}: expected {name} (or packed as {', '.join(MAGIC)}), as BEIR names it")


def _qrels_of(data: Path) -> Path:
    if not data.is_dir():
        return data
    packed = [f"*.tsv{ending}" for ending in MAGIC]
    files = sorted(path for pattern in ("*.tsv", *packed) for path in (data / "qrels").glob(pattern))
    tests = [path for path in files if path.name.split(".")[0] == "test"]
    if len(tests or files) != 1:
        names = ", ".join(path.name for path in files) or "no table"
        raise InputError(
            f"{data / 'qrels'}: expected test.tsv or a single table, found {names}; name one: --data "
            f"{data / 'qrels' / 'NAME.tsv'}"
        )
    return (tests or files)[0]


def _records(path: Path) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Yield the location, the id and the fields of each line that is not empty."""
    for number, line in decoded_lines(path, read_lines(path)):
        if not line.strip():
            continue
        fields = json_object(line, f"{path}:{number}")
        id = fields.get("_id")
        if not isinstance(id, str) or not id:
            raise InputError(f"{path}:{number}: expected a text in '_id', got {shown(id)}")
        yield f"{path}:{number}", id, fields


def _unique(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the location and the id of each line. Raises InputError for an id that is there twice."""
    seen: set[str] = set()
    for location, id, _ in _records(path):
        if id in seen:
            raise InputError(f"{location}: the id '{shown(id)}' is there twice; ids must differ")
        seen.add(id)
        yield location, id


def _query(fields: dict[str, object], location: str) -> str:
    """Return the text of a judged query. Raises InputError where it is empty, or no text."""
    text = _joined(fields, location)
    if is_blank(text):
        raise InputError(f"{location}: expected a text in 'text', got an empty one; a judgement names this query")
    return text


def _joined(fields: dict[str, object], location: str) -> str:
    """Return title and text, joined by a blank; published collections have documents in which both are empty.

    Raises InputError where one is no text.
    """
    parts = [fields.get(name, "") for name in ("title", "text")]
    for name, part in zip(("title", "text"), parts, strict=True):
        if not isinstance(part, str):
            raise InputError(f"{location}: expected a text in '{name}', got {shown(part)}")
    return " ".join(str(part) for part in parts).strip()


def _judgements(
    path: Path, documents: set[str], queries: set[str], *, corpus: Path, queries_file: Path
) -> dict[str, dict[str, int]]:
    judgements: dict[str, dict[str, int]] = {}
    for number, line in decoded_lines(path, read_lines(path)):
        cells = line.rstrip("\n").split("\t")
        if number == 1 and cells[-1] == "score":
            continue
        location = f"{path}:{number}"
        if len(cells) != 3:
            raise InputError(f"{location}: expected query-id, corpus-id and score, parted by tabs, got {shown(line)}")
        query, document, score = cells
        if query not in queries:
            raise InputError(f"{location}: there is no query '{shown(query)}' in {queries_file}")
        if document not in documents:
            raise InputError(f"{location}: there is no document '{shown(document)}' in {corpus}")
        try:
            relevance = int(score)
        except ValueError:
            raise InputError(f"{location}: expected a whole number as score, got {shown(score)!r}") from None
        if document in judgements.setdefault(query, {}):
            raise InputError(f"{location}: query '{shown(query)}' and document '{shown(document)}' are judged twice")
        judgements[query][document] = relevance
    if not judgements:
        raise InputError(f"{path}: expected judgements, found none")
    return judgements
