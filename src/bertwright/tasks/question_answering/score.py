"""answers → exact match and F1 of SQuAD 1.1 and 2.0, as the official scripts compute them (paper §4.2, §4.3).

Both are means over questions, in percent; each question counts with its best gold answer.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.tasks.question_answering.data import Questions

PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
ARTICLES: Final = re.compile(r"\b(?:a|an|the)\b")


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


def flat_metrics(scores: Scores, *, null: bool) -> dict[str, float]:
    """Return `squad_metrics` by one name each, such as has_answer.f1, without the numbers of questions."""
    metrics = squad_metrics(scores, null=null)
    inner = [(name, value if isinstance(value, dict) else {"": value}) for name, value in metrics.items()]
    flat = {f"{name}.{key}".rstrip("."): value for name, part in inner for key, value in part.items()}
    return {name: float(value) for name, value in flat.items() if not name.endswith("questions")}


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
