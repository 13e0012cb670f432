"""vectors of texts + tables of pairs → metrics of its vectors beside those of words: the measure of the validation."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.console import say
from bertwright.tasks.embedding.metrics import rounded_cosines, score_metrics, vector_metrics
from bertwright.tasks.embedding.pairs import TextPairs
from bertwright.tasks.embedding.words import word_cosines, word_metrics
from bertwright.tasks.sentence_vectors import TextRole
from bertwright.tasks.static_vectors import TextVectors

ALL_PAIRS = "all pairs"
"""Name of the row of the pairs of all tables together."""
_RATIO: Final = 2.0
"""Ratio of the ranges of scores from which they are two scales; a small table may lack the ends of its scale."""


def roles_of(pairs: TextPairs) -> tuple[TextRole, TextRole]:
    """Return the roles of first and second texts, by which they have their prompts."""
    return ("text", "text") if pairs.alike else ("query", "document")


def pair_vectors(
    encoder: TextVectors, pairs: TextPairs, *, width: int | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the vectors [A, W] of the first texts and [P, W] of the second texts and hard negatives."""
    first, second = roles_of(pairs)
    firsts = encoder.vectors(pairs.firsts, first, width=width)
    return firsts, encoder.vectors(pairs.seconds, second, width=width)


def measure_tables(
    encoder: TextVectors, tables: Mapping[str, TextPairs], *, width: int | None = None
) -> dict[str, Any]:
    """Return the metrics by table, beside those of the words; those of one table, or of all pairs with scores, on top.

    width: number of first components of the vectors that are compared; None: those of the folder.
    """
    files: dict[str, dict[str, Any]] = {}
    cosines: list[tuple[NDArray[np.float64], ...]] = []
    for name, pairs in tables.items():
        vectors = pair_vectors(encoder, pairs, width=width)
        metrics = vector_metrics(pairs, *vectors)
        del metrics["collapsed"]
        files[name] = {**metrics, "pairs": len(pairs), "baseline_words": word_metrics(pairs)}
        if pairs.scores is not None:
            cosine = rounded_cosines(vectors[0][pairs.anchors], vectors[1][pairs.positives])
            cosines.append((cosine, word_cosines(pairs), pairs.scores))
    rows = dict(files)
    have_scores = len(files) > 1 and len(cosines) == len(files)
    if have_scores and _have_one_scale({name: parts[2] for name, parts in zip(files, cosines, strict=True)}):
        cosine, words, scores = map(np.concatenate, zip(*cosines, strict=True))
        baseline = score_metrics(words, scores)
        rows[ALL_PAIRS] = {**score_metrics(cosine, scores), "pairs": len(scores), "baseline_words": baseline}
    total = {"pairs": sum(map(len, tables.values()))}
    on_top = rows.get(ALL_PAIRS, next(iter(files.values())) if len(files) == 1 else total)
    left_out = {name: dict(pairs.left_out) for name, pairs in tables.items() if pairs.left_out}
    return {**on_top, "files": files, **({"left_out": left_out} if left_out else {}), "text": _text(rows)}


def _have_one_scale(scores: Mapping[str, NDArray[np.float64]]) -> bool:
    """Return True where the scores of all tables have about the same range; print the ranges where they have not."""
    ranges = {name: (float(values.min()), float(values.max())) for name, values in scores.items()}
    widths = [high - low for low, high in ranges.values() if high > low]
    overlap = min(high for _, high in ranges.values()) - max(low for low, _ in ranges.values())
    if overlap >= 0 and max(widths, default=0.0) < _RATIO * min(widths, default=1.0):
        return True
    listed = ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in ranges.items())
    say(f"scores of different scales are not compared with each other, so there is no row '{ALL_PAIRS}': {listed}")
    return False


def _text(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the metrics as lines, with a header line above each group of rows that have the same metrics."""
    lines: list[str] = []
    header = ""
    for name, row in rows.items():
        names = list(row["baseline_words"])
        columns = f"{'':24}{'pairs':>8}" + "".join(f"{metric:>10}{'words':>10}" for metric in names)
        if columns != header:
            lines.append(header := columns)
        values = "".join(f"{row[metric]:10.4f}{row['baseline_words'][metric]:10.4f}" for metric in names)
        lines.append(f"{name:24}{row['pairs']:8,}{values}")
    return "\n".join(lines)
