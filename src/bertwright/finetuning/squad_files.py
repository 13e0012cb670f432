"""file of predictions + file of gold answers → exact match and F1 of SQuAD: the command score squad (§4.2, §4.3)."""

import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from bertwright.console import say
from bertwright.errors import InputError, shown
from bertwright.tasks.question_answering.data import Questions, load_json, read_questions, read_text
from bertwright.tasks.question_answering.score import (
    Scores,
    best_threshold,
    score_answers,
    squad_metrics,
    with_threshold,
)

IDS_SHOWN: Final = 3  # number of ids in an error message


def score_files(
    gold: Path,
    predictions: Path,
    *,
    null_odds: Path | None = None,
    threshold: float | None = None,
    allow_missing: bool = False,
) -> dict[str, Any]:
    """Return the metrics of a predictions file (an object: id → text) against a gold file of either version.

    null_odds: a file with an object id → number, higher for "no answer"; adds the best thresholds. threshold: answers
    with higher odds are removed first. Raises InputError with the first ids for missing and unknown ids; with
    `allow_missing`, a missing prediction counts as wrong, and a message says so.
    """
    questions = read_questions(gold, answers="texts")
    null = questions.version == "2.0"
    if (null_odds or threshold is not None) and not null:
        raise InputError(f"{gold}: null odds need SQuAD 2.0; this file is of SQuAD 1.1")
    if threshold is not None and math.isnan(threshold):
        raise InputError("--null-threshold: expected a number, got nan")
    if threshold is not None and null_odds is None:
        raise InputError("--null-threshold needs --null-odds FILE")
    answers = _values(predictions, questions, str, allow_missing=allow_missing)
    scores = score_answers(questions, [answers.get(question.id, "") for question in questions.items])
    is_answered = np.array([question.id in answers for question in questions.items])
    # A question without a prediction, not even "", counts as wrong.
    scores = Scores(scores.em * is_answered, scores.f1 * is_answered, scores.answerable)
    metrics: dict[str, Any] = {"version": questions.version}
    if null_odds is None:
        return metrics | squad_metrics(scores, null=null)
    by_id = _values(null_odds, questions, float, allow_missing=False)
    odds = np.array([by_id[question.id] for question in questions.items], dtype=np.float64)
    if threshold is not None:
        metrics["null_threshold"] = threshold
    metrics |= squad_metrics(scores if threshold is None else with_threshold(scores, odds, threshold), null=null)
    for name, values in (("f1", scores.f1), ("em", scores.em)):
        best = best_threshold(values, scores.null, odds)
        cut = best.low if math.isfinite(best.low) else float(np.nextafter(best.high, -math.inf))
        metrics[f"best_{name}"] = {name: 100.0 * best.score, "threshold": cut}
    return metrics


def _values(path: Path, questions: Questions, kind: type, *, allow_missing: bool) -> dict[str, Any]:
    """Return the JSON object id → text or finite number of a file. Raises InputError for other values or ids."""
    raw = load_json(read_text(path), str(path))
    what = "a text" if kind is str else "a finite number"
    if not isinstance(raw, dict):
        raise InputError(f"{path}: expected a JSON object of ids, each with {what}")
    for name, value in raw.items():
        if not (isinstance(value, str) if kind is str else _is_finite_number(value)):
            raise InputError(f"{path}: question {shown(name)}: expected {what}, got {shown(value)}")
    _compare(path, raw, questions, allow_missing=allow_missing)
    return raw


def _compare(path: Path, values: Mapping[str, Any], questions: Questions, *, allow_missing: bool) -> None:
    """Raise InputError where the ids of `values` are not those of the questions."""
    known = {question.id: None for question in questions.items}
    missing = [name for name in known if name not in values]
    extra = [name for name in values if name not in known]
    if extra:
        raise InputError(f"{path}: {len(extra)} of {len(values)} ids are not in {questions.source}: {_first(extra)}")
    if missing and not allow_missing:
        raise InputError(
            f"{path}: {len(missing)} of {len(known)} questions of {questions.source} have no entry: {_first(missing)}"
            "; --allow-missing counts missing predictions as wrong"
        )
    if missing:
        say(f"{path}: {len(missing)} of {len(known)} questions have no prediction and count as wrong")


def _is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _first(names: Iterable[str]) -> str:
    listed = [shown(name) for name in names]
    return ", ".join(listed[:IDS_SHOWN]) + (", …" if len(listed) > IDS_SHOWN else "")
