"""answers → exact match and F1 of SQuAD 1.1 and 2.0, as the official scripts compute them (paper §4.2, §4.3).

Both are means over questions, in percent; each question counts with its best gold answer.
"""

import math
import re
import string
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.console import say
from bertwright.errors import InputError, shown
from bertwright.tasks.question_answering.data import Questions, load_json, read_questions, read_text

PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
ARTICLES: Final = re.compile(r"\b(?:a|an|the)\b")
IDS_SHOWN: Final = 3  # number of ids in an error message


@dataclass(frozen=True)
class Scores:
    """Scores of each answer [Q]: `em` 0 or 1, `f1` 0 to 1; `answerable` is True where the question has an answer."""

    em: NDArray[np.float64]
    f1: NDArray[np.float64]
    answerable: NDArray[np.bool_]

    @property
    def null(self) -> NDArray[np.float64]:
        """Return the score of "no answer" [Q], by either metric: 1 where the question has no answer."""
        return (~self.answerable).astype(np.float64)


@dataclass(frozen=True)
class Threshold:
    """The best mean score (0 to 1), and the thresholds [low, high) that have it; odds above them mean "no answer"."""

    score: float
    low: float
    high: float

    @property
    def middle(self) -> float:
        """Return the threshold halfway between low and high, so that small changes of the odds change no answer."""
        if math.isinf(self.low):
            return self.high - 1.0
        return self.low + 1.0 if math.isinf(self.high) else (self.low + self.high) / 2


def normalised(text: str) -> str:
    """Return a text as answers are compared: lower case, no ASCII punctuation, no articles, single blanks."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def score_answers(questions: Questions, predicted: Sequence[str]) -> Scores:
    """Return the scores of one text per question, "" for no answer, by the rules of the questions' version."""
    null = questions.version == "2.0"
    pairs = []
    for question, text in zip(questions.items, predicted, strict=True):
        golds = {normalised(gold) for gold, _ in question.answers}
        if null:
            golds = golds - {""} or {""}  # a gold answer of articles and punctuation alone does not count
        answer = normalised(text)
        pairs.append((float(answer in golds), max((_f1(answer, gold, null=null) for gold in golds), default=0.0)))
    em, f1 = np.array(pairs, dtype=np.float64).T
    return Scores(em, f1, np.array([bool(question.answers) for question in questions.items]))


def with_threshold(scores: Scores, odds: NDArray[np.float64], threshold: float) -> Scores:
    """Return the scores where questions with odds above the threshold have no answer."""
    null = odds > threshold
    return Scores(np.where(null, scores.null, scores.em), np.where(null, scores.null, scores.f1), scores.answerable)


def best_threshold(answered: NDArray[np.float64], null: NDArray[np.float64], odds: NDArray[np.float64]) -> Threshold:
    """Return the threshold of the null odds [Q] with the best mean score; on ties the one with the fewest answers.

    answered, null   [Q] score of each question with its answer, and with no answer
    """
    order = np.argsort(odds, kind="stable")
    ordered = odds[order]
    totals = null.sum() + np.concatenate(([0.0], np.cumsum((answered - null)[order])))
    # A threshold lies before the first odds, after the last, or between two different odds.
    cuts = np.flatnonzero(np.concatenate(([True], ordered[1:] > ordered[:-1], [True])))
    best = int(cuts[np.argmax(totals[cuts])])
    low = float(ordered[best - 1]) if best else -math.inf
    high = float(ordered[best]) if best < len(ordered) else math.inf
    return Threshold(float(totals[best]) / len(odds), low, high)


def squad_metrics(scores: Scores, *, null: bool) -> dict[str, Any]:
    """Return mean F1 and exact match in percent; for 2.0 also of questions with and without an answer."""
    metrics: dict[str, Any] = _means(scores, np.ones(len(scores.em), dtype=np.bool_))
    if null:
        for name, chosen in (("has_answer", scores.answerable), ("no_answer", ~scores.answerable)):
            if chosen.any():
                metrics[name] = _means(scores, chosen)
    return metrics


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


def _f1(answer: str, gold: str, *, null: bool) -> float:
    """Return the F1 of two normalised texts as bags of words; in 2.0 an empty text only matches an empty text."""
    answer_words, gold_words = answer.split(), gold.split()
    if null and not (answer_words and gold_words):
        return float(answer_words == gold_words)
    num_shared = (Counter(answer_words) & Counter(gold_words)).total()
    if not num_shared:
        return 0.0
    precision, recall = num_shared / len(answer_words), num_shared / len(gold_words)
    return 2 * precision * recall / (precision + recall)


def _means(scores: Scores, chosen: NDArray[np.bool_]) -> dict[str, Any]:
    return {
        "f1": 100.0 * float(scores.f1[chosen].mean()),
        "em": 100.0 * float(scores.em[chosen].mean()),
        "questions": int(chosen.sum()),
    }


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
