"""judgements in BEIR's layout → pairs: queries and the documents that are relevant for them."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.tables.bad_rows import bad_rows_of, is_blank
from bertwright.tasks.beir import RetrievalData, open_retrieval, without_text
from bertwright.tasks.embedding.pairs import PairOfTable, TextPairs, counted, pairs_of
from bertwright.tasks.embedding.spec import VectorTask
from bertwright.text.document import OnError

_DOCUMENTS: Final = 4096
"""Number of documents that are in memory at a time, beside those that are relevant."""


def read_judged(task: VectorTask, qrels: Path) -> TextPairs:
    """Read the judgements of a split with their queries and documents; print their number.

    Raises InputError with file and line where `open_retrieval` does, and for a relevant document without a text.
    """
    with bad_rows_of(qrels, task.on_error) as bad_rows:
        pairs = judged_pairs(open_retrieval(qrels, on_error=bad_rows.add), bad_rows.add)
    if not len(pairs):
        raise InputError(f"{qrels}: expected a row with a score above 0, found none")
    say(f"{qrels}: queries and documents in the layout of BEIR: {counted(pairs)}")
    return replace(pairs, left_out=dict(bad_rows.counts))


def judged_pairs(data: RetrievalData, on_error: OnError) -> TextPairs:
    """Return each query with each document that is relevant for it.

    `on_error` is called with the BadRow of a judgement whose document has no text; if it returns, it is left out.
    """
    relevant = [judgement for judgement in data.judged if judgement.relevance > 0]
    wanted = {judgement.document for judgement in relevant}
    blocks = (zip(*block, strict=True) for block in data.documents(_DOCUMENTS))
    documents = {id: text for block in blocks for id, text in block if id in wanted}
    rows = []
    for judgement in relevant:
        text = documents[judgement.document]
        if is_blank(text):
            on_error(without_text(f"{data.qrels}:{judgement.line}", "corpus-id", judgement.document))
        else:
            rows.append(PairOfTable(data.queries[judgement.query], text, line=judgement.line))
    return pairs_of(rows, str(data.qrels))
