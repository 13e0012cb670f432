"""a folder in the layout of BEIR → pairs: queries and the documents that its relevance judgements name for them.

The folder holds queries.jsonl and corpus.jsonl (_id, text, and for documents perhaps title), and qrels/train.tsv with
the columns query-id, corpus-id, score. Each file may be packed. A score above 0 makes a pair.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertwright.console import say
from bertwright.errors import InputError, shown
from bertwright.files import file_digest
from bertwright.tables.bad_rows import BadRow, bad_rows_of, is_blank
from bertwright.tables.files import OPENERS
from bertwright.tables.reader import BLOCK_ROWS, Table, open_table, read_table
from bertwright.tasks.classification.examples import cell_number
from bertwright.tasks.embedding.pairs import PairOfTable, TextPairs, counted, pairs_of
from bertwright.tasks.embedding.spec import VectorTask

QRELS = "qrels"
"""Folder of the relevance judgements; a folder that holds it has this layout."""
_QUERY, _DOCUMENT, _SCORE = "query-id", "corpus-id", "score"


def qrels_file(folder: Path, split: str) -> Path | None:
    """Return the judgements of a split (train, dev or test); None where there are none."""
    return _packed_or_not(folder / QRELS / f"{split}.tsv")


def texts_digest(folder: Path) -> str:
    """Return the sha256 of the files of queries and documents, which the judgements name by their ids."""
    files = [file for stem in ("queries", "corpus") if (file := _packed_or_not(folder / f"{stem}.jsonl"))]
    return hashlib.sha256(" ".join(map(file_digest, files)).encode()).hexdigest()


def read_judged(task: VectorTask, folder: Path, qrels: Path) -> TextPairs:
    """Read the judgements of a split with their queries and documents; print their number.

    Raises InputError with file and line for an id without a text, and for a score that is no number.
    """
    with bad_rows_of(qrels, task.on_error) as bad_rows:
        table = read_table(qrels, columns=[_QUERY, _DOCUMENT, _SCORE], on_error=bad_rows.add)
        ids = [[str(cell).strip() for cell in table.column(name)] for name in (_QUERY, _DOCUMENT)]
        queries = _texts(folder, "queries", set(ids[0]))
        documents = _texts(folder, "corpus", set(ids[1]))
        rows = []
        for row, (cell, query, document) in enumerate(zip(table.column(_SCORE), *ids, strict=True)):
            try:
                if cell_number(cell, _SCORE, table, row) > 0:
                    texts = _text(queries, query, _QUERY, table, row), _text(documents, document, _DOCUMENT, table, row)
                    rows.append(PairOfTable(*texts, line=table.lines[row]))
            except BadRow as error:
                bad_rows.add(error)
    if not rows:
        raise InputError(f"{qrels}: expected a row with a score above 0, found none")
    pairs = replace(pairs_of(rows, table.source), left_out=dict(bad_rows.counts))
    say(f"{qrels}: queries and documents in the layout of BEIR: {counted(pairs)}")
    return pairs


def _packed_or_not(path: Path) -> Path | None:
    """Return the path of a file, or of the same file with the ending of a packed one; None where there is neither."""
    paths = (path.with_name(path.name + ending) for ending in ("", *OPENERS))
    return next((file for file in paths if file.is_file()), None)


def _texts(folder: Path, stem: str, wanted: set[str]) -> dict[str, str]:
    """Return the texts of the wanted ids; the title of a document precedes its text."""
    path = _packed_or_not(folder / f"{stem}.jsonl")
    if path is None:
        raise InputError(f"{folder}: expected {stem}.jsonl (or {', '.join(OPENERS)} after it) beside {QRELS}/")
    texts: dict[str, str] = {}
    with open_table(path, columns=["_id", "title", "text"]) as opened:
        for block in opened.blocks(BLOCK_ROWS):
            titles: Any = block.column("title") if "title" in block.columns else [""] * len(block)
            for id, title, text in zip(block.column("_id"), titles, block.texts("text"), strict=True):
                if str(id) in wanted:
                    texts[str(id)] = f"{title} {text}".strip() if isinstance(title, str) else text
    return texts


def _text(texts: dict[str, str], id: str, column: str, table: Table, row: int) -> str:
    """Return the text of an id; BadRow where it is unknown, and where its text is blank."""
    if id not in texts:
        message = f"{table.location(row)}: expected an id with a text in '{column}', got {shown(id)}"
        raise BadRow("with an unknown id", message)
    if is_blank(texts[id]):
        message = (
            f"{table.location(row)}: expected an id with a text in '{column}', got {shown(id)}, whose text is empty"
        )
        raise BadRow("without a text", message)
    return texts[id]
