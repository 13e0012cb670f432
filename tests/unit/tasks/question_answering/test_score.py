"""Exact match and F1 of SQuAD: the rules one by one, and thresholds."""

import random
from typing import Any

import numpy as np
import pytest

from bertwright.tasks.question_answering.data import questions_of
from bertwright.tasks.question_answering.score import (
    best_threshold,
    normalised,
    score_answers,
    squad_metrics,
    with_threshold,
)
from tests.support.squad_gold import gold


def scored(prediction: str, *answers: str, version: str = "1.1") -> tuple[float, float]:
    questions = questions_of(gold(list(answers), version=version), "made up", answers="texts")
    scores = score_answers(questions, [prediction])
    return float(scores.em[0]), float(scores.f1[0])


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("The Lake", "lake"),
        ("  a   wide\tlake\n", "wide lake"),
        ("An apple, the pear; a plum!", "apple pear plum"),
        ("U.S.A.", "usa"),  # punctuation goes before articles do, so that no letter of it is one
        ("a.m.", "am"),
        ("well-known", "wellknown"),
        ("$12.50", "1250"),
        ("theatre", "theatre"),
        ("the", ""),
        ("“quoted” – 3€", "“quoted” – 3€"),  # only ASCII punctuation goes
        ("Ä the\u00a0É", "ä é"),
    ],
)
def test_texts_are_normalised(text: str, plain: str) -> None:
    assert normalised(text) == plain


@pytest.mark.parametrize(
    ("prediction", "answers", "em", "f1"),
    [
        ("the Wide Lake!", ["wide lake"], 1, 1),
        ("wide", ["wide lake"], 0, 2 / 3),
        ("wide wide lake", ["wide lake"], 0, 0.8),  # a word counts as often as both have it
        ("lake wide", ["wide lake"], 0, 1),  # as bags
        ("dawn", ["wide lake", "at dawn", "dawn, and nobody"], 0, 2 / 3),  # the best gold answer
        ("nobody", ["lake"], 0, 0),
        ("", ["lake"], 0, 0),
        ("the", ["a"], 1, 0),  # both are nothing once normalised: an exact match without a shared word
    ],
)
def test_answers_are_scored_as_in_1_1(prediction: str, answers: list[str], em: float, f1: float) -> None:
    assert scored(prediction, *answers) == (em, pytest.approx(f1))


@pytest.mark.parametrize(
    ("prediction", "answers", "em", "f1"),
    [
        ("", [], 1, 1),
        ("lake", [], 0, 0),
        ("the", [], 1, 1),  # nothing once normalised
        ("", ["lake"], 0, 0),
        ("wide", ["wide lake"], 0, 2 / 3),
        ("", ["the", "lake"], 0, 0),  # a gold answer that is nothing does not count where there is another
        ("", ["the"], 1, 1),
    ],
)
def test_answers_are_scored_as_in_2_0(prediction: str, answers: list[str], em: float, f1: float) -> None:
    assert scored(prediction, *answers, version="2.0") == (em, pytest.approx(f1))


def test_thresholds_are_the_best_of_all_there_are() -> None:
    """Against every cut there is, one after the other; equal odds, and odds that are better not cut at all, too."""
    dice = random.Random(7)
    for _ in range(300):
        count = dice.randint(1, 12)
        odds = np.array([dice.choice([-1.5, 0.0, 0.5, 2.0, dice.uniform(-3, 3)]) for _ in range(count)])
        null = np.array([float(dice.random() < 0.5) for _ in range(count)])
        answered = np.array([0.0 if none else dice.choice([0.0, 0.25, 1.0]) for none in null])
        threshold = best_threshold(answered, null, odds)

        def mean(cut: float, odds: Any = odds, null: Any = null, answered: Any = answered) -> float:
            return sum(
                none if odd > cut else right for odd, none, right in zip(odds, null, answered, strict=True)
            ) / len(odds)

        every = [mean(cut) for cut in [odds.min() - 1, *odds]]
        assert threshold.score == pytest.approx(max(every), abs=1e-12)
        assert mean(threshold.middle) == mean(threshold.low) == pytest.approx(threshold.score, abs=1e-12)
        assert threshold.low <= threshold.middle < threshold.high
        if np.isfinite(threshold.low) and np.isfinite(threshold.high):
            assert threshold.low < threshold.middle


def test_a_threshold_takes_answers_back() -> None:
    questions = questions_of(gold(["lake"], [], ["dawn"], version="2.0"), "made up", answers="texts")
    scores = score_answers(questions, ["lake", "x", "wide"])
    cut = with_threshold(scores, np.array([1.0, 2.0, 3.0]), 1.0)
    assert cut.em.tolist() == [1.0, 1.0, 0.0]
    assert squad_metrics(cut, null=True)["no_answer"] == {"em": 100.0, "f1": 100.0, "questions": 1}
