"""results of pairs of a query and its documents → the documents by relevance, for Python and over HTTP."""

from collections.abc import Sequence
from typing import Any

from bertwright.errors import InputError, shown
from bertwright.search.rerank import most_relevant
from bertwright.serving.pipeline import Pipeline
from bertwright.serving.results import Label, RankedText, Score
from bertwright.serving.task_pipelines import ClassificationPipeline
from bertwright.tables.bad_rows import is_blank
from bertwright.tables.reader import refuse_halves
from bertwright.tasks.classification.relevance import NoReranker, relevant_label


def can_rerank(pipeline: Pipeline[Any, Any]) -> bool:
    """Return True where a model scores pairs: by a number, or by two labels one of which is known as relevant."""
    try:
        relevance(pipeline, "")
    except InputError:
        return False
    return True


def relevance(pipeline: Pipeline[Any, Any], source: str, *, relevant: str | None = None) -> str | None:
    """Return the label whose probability is the score, None for a number; `relevant` is as in `relevant_label`.

    Raises NoReranker, with `source`, for a model that is no reranker, and InputError as `relevant_label`.
    """
    if not isinstance(pipeline, ClassificationPipeline):
        raise NoReranker(source, f"one for {pipeline.kind}")
    return relevant_label(pipeline.task, source, relevant=relevant)


def reads_windows(pipeline: Pipeline[Any, Any]) -> bool:
    """Return True for a model that reads the whole of a long text, in windows."""
    return isinstance(pipeline, ClassificationPipeline) and pipeline.task.long == "windows"


def check_query(query: object) -> None:
    """Raise InputError for a query that is no text, or an empty one."""
    if not isinstance(query, str):
        raise InputError(f"query: expected a text, got {type(query).__name__} {shown(query)}")
    refuse_halves([query], "query ")
    if is_blank(query):
        raise InputError("query: expected a text, got an empty one")


def ranked_texts(
    results: Sequence[Label | Score], texts: Sequence[str], *, label: str | None, top_k: int | None = None
) -> list[RankedText]:
    """Return the `top_k` most relevant texts in the order of `most_relevant`; None: all.

    results: those of the pairs of the query and each text. label: the label of `relevance`.
    """
    scores = [each.score if isinstance(each, Score) else each.probabilities[str(label)] for each in results]
    return [
        RankedText(index, score, texts[index], results[index].truncated)
        for index, score in most_relevant(scores, top_k)
    ]
