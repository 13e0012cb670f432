"""model + labelled data → metrics of its sentence vectors: the command `evaluate embed`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from bertwright.console import say
from bertwright.errors import InputError, MissingExtra
from bertwright.model.vector_settings import Similarity
from bertwright.search.bm25 import rank_by_bm25
from bertwright.search.exact import BestDocuments, as_compared, check_similarity
from bertwright.search.metrics import DEPTH, RETRIEVAL_METRICS, retrieval_metrics
from bertwright.tables.bad_rows import bad_rows_of
from bertwright.tables.files import InputFormat
from bertwright.tasks.beir import RetrievalData, open_retrieval
from bertwright.tasks.embedding.beir import judged_pairs
from bertwright.tasks.embedding.measure import measure_tables
from bertwright.tasks.embedding.pairs import TextPairs
from bertwright.tasks.embedding.read import (
    folder_layout,
    read_measured,
    refuse_table_options,
    refuse_unused_scores,
)
from bertwright.tasks.embedding.spec import EMBED, VectorTask, with_pair_columns
from bertwright.tasks.sentence_vectors import TextRole
from bertwright.tasks.spec import with_reading, with_settings
from bertwright.tasks.static_vectors import TextVectors, open_vectors
from bertwright.training.hardware import prepare_processor
from bertwright.training.settings import Device

_READING: Final = ("layout", "scores")
"""Settings of the task that say how data are read."""
_DOCUMENTS: Final = 4096
"""Number of documents whose texts and vectors are in memory at a time."""


class VectorSource(Protocol):
    """Source of the vectors of texts, such as an encoder; the methods are those of `SentenceEncoder`."""

    @property
    def similarity(self) -> Similarity:
        """Return the similarity of two vectors."""

    def vectors(
        self, texts: Sequence[str], role: TextRole = "text", *, width: int | None = None, first: int = 0
    ) -> NDArray[np.float32]:
        """Return the vectors [N, W] of N texts."""


def evaluate_embed(
    model: str,
    data: Path,
    *,
    text: tuple[str, ...] = (),
    label: str | None = None,
    settings: tuple[str, ...] = (),
    width: int | None = None,
    input_format: InputFormat = "auto",
    on_error: Literal["stop", "skip"] = "stop",
    precision: str | None = None,
    device: Device = "cpu",
    part_of: Callable[[VectorTask], TextPairs | None] = lambda task: None,
) -> dict[str, Any]:
    """Return metrics of a model's sentence vectors on pairs of texts, or on a search in BEIR's layout.

    data: what `read_measured` reads. settings: NAME=VALUE for the reading, as for training. width: number of first
    components of the vectors that are compared; None: those of the folder. part_of: returns the pairs to measure where
    they are only a part of `data`, else None. Raises InputError for other data.
    """
    prepare_processor()
    if not data.exists():
        raise InputError(f"--data {data}: there is no such file or folder")
    task = with_reading(_with_reading_settings(settings), input_format=input_format, on_error=on_error)
    task = with_pair_columns(task, text=text, label=label)
    layout = folder_layout(task, data)
    refuse_table_options(task, data, layout)
    encoder = open_vectors(model, precision, device)
    encoder.check_width(width, "--width")
    described = {"model": model, "size": width or encoder.size}
    if layout != "beir":
        part = part_of(task)
        tables = read_measured(task, data) if part is None else {data.name: part}
        refuse_unused_scores(task, tables.values(), data)
        return {**described, **measure_tables(encoder, tables, width=width)}
    with bad_rows_of(data, on_error) as bad_rows:
        retrieval = open_retrieval(data, on_error=bad_rows.add)
    left_out = {"left_out": dict(bad_rows.counts)} if bad_rows.counts else {}
    return {**described, **left_out, **_search(encoder, retrieval, width)}


def _with_reading_settings(assignments: tuple[str, ...]) -> VectorTask:
    """Return the task with settings that say how data are read. Raises InputError for settings of the training."""
    for text in assignments:
        if text.partition("=")[0] not in _READING:
            raise InputError(
                f"--task-setting {text}: evaluate embed takes {' and '.join(_READING)}; the model folder has the "
                "settings of the vectors"
            )
    return with_settings(EMBED, assignments)


def ranked_documents(
    encoder: VectorSource, data: RetrievalData, *, width: int | None = None
) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Return the numbers and scores of the best documents of each query, the best first: an exact search.

    width: number of first components that are compared; None: all. Raises InputError for a similarity that is no
    product of vectors.
    """
    similarity = encoder.similarity
    check_similarity(similarity)
    left_out = _own_numbers(data)
    queries = as_compared(encoder.vectors(list(data.queries.values()), "query", width=width), similarity)
    best, done = BestDocuments(len(queries), min(DEPTH, len(data.ids))), 0
    for ids, texts in data.documents(_DOCUMENTS):
        vectors = as_compared(encoder.vectors(texts, "document", width=width, first=done), similarity)
        best.add_vectors(queries, vectors, np.array([data.numbers[id] for id in ids], dtype=np.int64), left_out)
        done += len(ids)
    return best.best()


def _own_numbers(data: RetrievalData) -> NDArray[np.int64]:
    """Return the number of the document that is the query itself, which is left out; -1 where there is none.

    It has the id of the query. One that is judged as relevant to it is another text with an equal id.
    """
    others = {id for id in data.queries if data.judgements.get(id, {}).get(id, 0) > 0}
    return np.array([-1 if id in others else data.numbers.get(id, -1) for id in data.queries], dtype=np.int64)


def _search(encoder: TextVectors, data: RetrievalData, width: int | None) -> dict[str, Any]:
    """Return the metrics of an exact search, and those of BM25 where it is installed."""
    similarity = encoder.similarity
    rows = {"model": ranking_metrics(ranked_documents(encoder, data, width=width), data)}
    try:
        rows["bm25"] = ranking_metrics(rank_by_bm25(data, list(data.queries.values()), _own_numbers(data)), data)
    except MissingExtra as error:
        say(f"the baseline BM25 is left out: {error}")
    lines = [f"{data.qrels}: {len(data.ids):,} documents, {len(data.queries):,} queries, similarity {similarity}"]
    lines.append(f"{'':8}" + "".join(f"{name:>12}" for name in RETRIEVAL_METRICS))
    lines += [f"{row:8}" + "".join(f"{value:12.4f}" for value in metrics.values()) for row, metrics in rows.items()]
    in_pool = _in_pool(encoder, data, width)
    if in_pool:
        lines.append(f"as in the validation of a training, among the relevant documents alone:\n{in_pool.pop('text')}")
    counts = {"documents": len(data.ids), "queries": len(data.queries), "similarity": similarity}
    baselines = {f"baseline_{name}": metrics for name, metrics in rows.items() if name != "model"}
    return {**counts, **rows["model"], **baselines, "in_pool": in_pool, "text": "\n".join(lines)}


def _in_pool(encoder: TextVectors, data: RetrievalData, width: int | None) -> dict[str, Any]:
    """Return the metrics of the pairs of queries and relevant documents; empty where no document is relevant."""
    with bad_rows_of(data.qrels, "skip") as bad_rows:  # the search reads empty documents, which match nothing
        pairs = judged_pairs(data, bad_rows.add)
    if not len(pairs):
        return {}
    measured = measure_tables(encoder, {data.qrels.name: pairs}, width=width)
    del measured["files"]
    return measured


def ranking_metrics(best: list[tuple[NDArray[np.int64], NDArray[np.float32]]], data: RetrievalData) -> dict[str, float]:
    """Return the metrics of the rankings of all queries, as `ranked_documents` gives them."""
    ranked = {
        query: [data.ids[number] for number in documents]
        for query, (documents, _) in zip(data.queries, best, strict=True)
    }
    return retrieval_metrics(ranked, data.judgements)
