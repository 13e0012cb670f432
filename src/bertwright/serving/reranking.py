"""results of pairs of a query and its documents → the documents by relevance, for Python and over HTTP."""

from collections.abc import Sequence
from typing import Any

from bertwright.errors import InputError, shown
from bertwright.serving.pipeline import Pipeline
from bertwright.serving.results import Label, RankedText, Score
from bertwright.serving.task_pipelines import ClassificationPipeline
from bertwright.tables.bad_rows import is_blank
from bertwright.tables.reader import refuse_halves
from bertwright.tasks.classification.relevance import no_reranker, relevant_label


def can_rerank(pipeline: Pipeline[Any, Any]) -> bool:
    """Return whether a model scores pairs: by a number, or by two labels."""
    try:
        relevance(pipeline, "")
    except InputError:
        return False
    return True


def relevance(pipeline: Pipeline[Any, Any], source: str) -> str | None:
    """Return the label whose probability is the score, None for a number; see `relevant_label`.

    Raises InputError, with `source`, for a model that is no reranker.
    """
    if not isinstance(pipeline, ClassificationPipeline):
        raise no_reranker(source, f"one for {pipeline.kind}")
    return relevant_label(pipeline.task, source)


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
    """Return the `top_k` most relevant texts, the best first; None: all. Of equal scores the earlier text comes first.

    results: those of the pairs of the query and each text. label: the label of `relevance`.
    """
    ranked = []
    for index, (result, text) in enumerate(zip(results, texts, strict=True)):
        score = result.score if isinstance(result, Score) else result.probabilities[str(label)]
        ranked.append(RankedText(index, score, text, result.truncated))
    return sorted(ranked, key=lambda document: -document.score)[:top_k]
