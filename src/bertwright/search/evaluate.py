"""model + labelled data → metrics of its sentence vectors: the command `evaluate embed`."""

from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from bertwright.console import say
from bertwright.errors import InputError, MissingExtra
from bertwright.search.beir import RetrievalData, is_retrieval, open_retrieval
from bertwright.search.bm25 import rank_by_bm25
from bertwright.search.exact import BestDocuments
from bertwright.search.metrics import DEPTH, RETRIEVAL_METRICS, retrieval_metrics
from bertwright.tables.bad_rows import is_blank
from bertwright.tables.files import InputFormat, table_stem
from bertwright.tasks.classification.examples import TextExamples, read_examples
from bertwright.tasks.classification.spec import STSB, with_columns
from bertwright.tasks.embedding.metrics import rounded_cosines, unit
from bertwright.tasks.metrics import measure
from bertwright.tasks.spec import with_reading
from bertwright.tasks.static_vectors import TextVectors, open_vectors
from bertwright.training.hardware import prepare_processor
from bertwright.training.settings import Device

_DOCUMENTS: Final = 4096
"""Number of documents whose texts and vectors are in memory at a time."""


def evaluate_embed(
    model: str,
    data: Path,
    *,
    text: tuple[str, ...] = (),
    label: str | None = None,
    width: int | None = None,
    input_format: InputFormat = "auto",
    on_error: Literal["stop", "skip"] = "stop",
    precision: str | None = None,
    device: Device = "cpu",
) -> dict[str, Any]:
    """Return metrics of a model's sentence vectors on pairs with a similarity, or on a search in BEIR's layout.

    data: a table, a folder of tables, a folder of BEIR, or one of its files qrels/NAME.tsv. width: number of first
    components of the vectors that are compared; None: those of the folder. Raises InputError for other data.
    """
    prepare_processor()
    if not data.exists():
        raise InputError(f"--data {data}: there is no such file or folder")
    is_search = is_retrieval(data)
    if is_search and (text or label or (input_format, on_error) != ("auto", "stop")):
        raise InputError(
            f"--data {data}: is in BEIR's layout, whose columns are fixed; leave --text-column, --label-column, "
            "--input-format and --on-error out"
        )
    encoder = open_vectors(model, precision, device)
    encoder.check_width(width, "--width")
    described = {"model": model, "size": width or encoder.size}
    if is_search:
        return {**described, **_search(encoder, open_retrieval(data), width)}
    task = with_columns(STSB, text=text, label=label)
    if len(task.text) != 2:
        raise InputError("evaluate embed: expected two text columns: --text-column A --text-column B")
    task = with_reading(task, input_format=input_format, on_error=on_error)
    pairs = {name: read_examples(task, path) for name, path in _tables(data).items()}
    return {**described, **_similarity(encoder, pairs, width)}


def _tables(data: Path) -> dict[str, Path]:
    """Return the tables by the names under which they are shown."""
    if not data.is_dir():
        return {data.name: data}
    tables = {path.name: path for path in sorted(data.iterdir()) if table_stem(path) is not None}
    if not tables:
        raise InputError(
            f"{data}: expected tables with two texts and a score, or corpus.jsonl, queries.jsonl and qrels"
        )
    return tables


def _similarity(encoder: TextVectors, pairs: dict[str, TextExamples], width: int | None) -> dict[str, Any]:
    """Return the correlations of cosines and scores, by file and for all pairs together."""
    files, all_cosines, all_scores = {}, [], []
    for name, examples in pairs.items():
        cosines, scores = _cosines(encoder, examples, width), examples.targets
        assert scores is not None
        files[name] = {"pairs": len(examples), **measure(("spearman", "pearson"), cosines, scores)}
        all_cosines.append(cosines)
        all_scores.append(scores)
    cosines, scores = np.concatenate(all_cosines), np.concatenate(all_scores)
    pooled = {"pairs": len(cosines), **measure(("spearman", "pearson"), cosines, scores)}
    left_out = {name: dict(examples.left_out) for name, examples in pairs.items() if examples.left_out}
    rows = {**files, **({"all pairs": pooled} if len(files) > 1 else {})}
    lines = [f"{'':24}{'pairs':>8}{'spearman':>10}{'pearson':>10}"]
    for name, row in rows.items():
        lines.append(f"{name:24}{row['pairs']:8,}{row['spearman']:10.4f}{row['pearson']:10.4f}")
    return {"files": files, **pooled, **({"left_out": left_out} if left_out else {}), "text": "\n".join(lines)}


def _cosines(encoder: TextVectors, examples: TextExamples, width: int | None) -> NDArray[np.float64]:
    """Return the cosine [N] of each pair. Raises InputError for a table without rows, and for an empty text."""
    assert examples.texts_b is not None
    if not len(examples):
        raise InputError(f"{examples.source}: expected pairs of texts with a score, found none")
    for row, texts in enumerate(zip(examples.texts_a, examples.texts_b, strict=True)):
        if any(map(is_blank, texts)):
            raise InputError(
                f"{examples.location(row)}: expected two texts, got an empty one; correct or remove the row"
            )
    vectors = unit(encoder.vectors([*examples.texts_a, *examples.texts_b], width=width))
    return rounded_cosines(vectors[: len(examples)], vectors[len(examples) :])


def _search(encoder: TextVectors, data: RetrievalData, width: int | None) -> dict[str, Any]:
    """Return the metrics of an exact search, and those of BM25 where it is installed."""
    similarity = encoder.similarity
    if similarity not in ("cosine", "dot"):
        raise InputError(f"the model's similarity is {similarity}; a search computes cosine or dot")
    as_compared = unit if similarity == "cosine" else np.asarray
    numbers = {id: number for number, id in enumerate(data.ids)}
    left_out = np.array([numbers.get(id, -1) for id in data.queries], dtype=np.int64)
    queries = as_compared(encoder.vectors(list(data.queries.values()), "query", width=width))
    best, done = BestDocuments(len(queries), min(DEPTH, len(data.ids))), 0
    for ids, texts in data.documents(_DOCUMENTS):
        vectors = as_compared(encoder.vectors(texts, "document", width=width, first=done))
        best.add_vectors(queries, vectors, np.array([numbers[id] for id in ids], dtype=np.int64), left_out)
        done += len(ids)
    rows = {"model": _metrics(best.best(), data)}
    try:
        rows["bm25"] = _metrics(rank_by_bm25(data, list(data.queries.values()), left_out), data)
    except MissingExtra as error:
        say(f"the baseline BM25 is left out: {error}")
    lines = [f"{data.qrels}: {len(data.ids):,} documents, {len(data.queries):,} queries, similarity {similarity}"]
    lines.append(f"{'':8}" + "".join(f"{name:>12}" for name in RETRIEVAL_METRICS))
    lines += [f"{row:8}" + "".join(f"{value:12.4f}" for value in metrics.values()) for row, metrics in rows.items()]
    counts = {"documents": len(data.ids), "queries": len(data.queries), "similarity": similarity}
    baselines = {f"baseline_{name}": metrics for name, metrics in rows.items() if name != "model"}
    return {**counts, **rows["model"], **baselines, "text": "\n".join(lines)}


def _metrics(best: list[tuple[NDArray[np.int64], NDArray[np.float32]]], data: RetrievalData) -> dict[str, float]:
    ranked = {
        query: [data.ids[number] for number in documents]
        for query, (documents, _) in zip(data.queries, best, strict=True)
    }
    return retrieval_metrics(ranked, data.judgements)
