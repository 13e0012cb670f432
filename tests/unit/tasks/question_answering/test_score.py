"""Exact match and F1 of SQuAD: the rules one by one, published predictions, thresholds, and files that are wrong."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.tasks.question_answering.data import questions_of
from bertwright.tasks.question_answering.score import (
    best_threshold,
    normalised,
    score_answers,
    score_files,
    squad_metrics,
    with_threshold,
)

MANY = "Ada swam across the wide lake at dawn, and nobody saw her."


def gold(*answers: list[str], version: str = "1.1") -> dict[str, Any]:
    """A file with a question for each list of answers, q0, q1, …"""
    qas = [
        {"id": f"q{row}", "question": "Who?", "answers": [{"text": text, "answer_start": 0} for text in gold_answers]}
        | ({"is_impossible": not gold_answers} if version == "2.0" else {})
        for row, gold_answers in enumerate(answers)
    ]
    return {"version": version, "data": [{"title": "t", "paragraphs": [{"context": MANY, "qas": qas}]}]}


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


def test_published_predictions_have_their_published_metrics(
    shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shared_data / "squad"
    expected = {
        ("dev-v1.1.json", "bert-ensemble-v1.1.json"): ("1.1", 86.206, 92.196),
        ("dev-v2.0.json", "bert-single-v2.0.json"): ("2.0", 78.742, 81.775),
    }
    for (dev, predictions), (version, em, f1) in expected.items():
        files = ["--gold", str(folder / dev), "--predictions", str(folder / "predictions" / predictions)]
        assert main(["score", "squad", *files, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert (printed["version"], round(printed["em"], 3), round(printed["f1"], 3)) == (version, em, f1)
        parts = [printed[name] for name in ("has_answer", "no_answer") if name in printed] or [printed]
        assert sum(part["em"] * part["questions"] for part in parts) == pytest.approx(
            printed["em"] * printed["questions"]
        )


def test_the_command_scores_files_of_our_own(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The twin of the published files: one right, one half, one wrong of 1.1; of 2.0 with the parts."""
    answers = write("p.json", {"q0": "The lake", "q1": "wide", "q2": "x"})
    first = write("gold1.json", gold(["lake"], ["wide lake"], ["dawn"]))
    assert main(["score", "squad", "--gold", str(first), "--predictions", str(answers), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == pytest.approx({"version": "1.1", "em": 100 / 3, "f1": 500 / 9, "questions": 3})
    second = write("gold2.json", gold(["lake"], ["wide lake"], [], version="2.0"))
    printed = score_files(second, answers)
    assert printed["has_answer"] == pytest.approx({"em": 50, "f1": 250 / 3, "questions": 2})
    assert printed["no_answer"] == {"em": 0, "f1": 0, "questions": 1}
    odds = write("odds.json", {"q0": -3, "q1": 2.5, "q2": 4})
    printed = score_files(second, answers, null_odds=odds)
    assert printed["em"] == pytest.approx(100 / 3)  # the file's answers stand as they are
    assert printed["best_em"] == {"em": pytest.approx(200 / 3), "threshold": -3}
    assert printed["best_f1"] == {"f1": pytest.approx(800 / 9), "threshold": 2.5}
    assert score_files(second, answers, null_odds=odds, threshold=2.5)["f1"] == pytest.approx(800 / 9)
    assert score_files(second, answers, null_odds=odds, threshold=-4)["em"] == pytest.approx(100 / 3)


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


GOLD = gold(["lake"], ["dawn"], ["Ada"], ["nobody"], ["her"])
RIGHT = {f"q{row}": "lake" for row in range(5)}
BAD: dict[str, tuple[Any, str]] = {
    "no object": ([], r"p\.json: expected a JSON object of ids, each with a text"),
    "no JSON": ('{"q0": "lake",\n]', r"p\.json:2: not valid JSON"),
    "no text": ({**RIGHT, "q3": 5}, r"p\.json: question q3: expected a text, got 5"),
    "nothing": ({**RIGHT, "q3": None}, r"p\.json: question q3: expected a text, got None"),
    "twice": ('{"q0": "a", "q1": "b", "q0": "c"}', r"p\.json: 'q0' is there twice"),
    "missing": (
        {"q4": "her"},
        r"p\.json: 4 of 5 questions of .*gold\.json have no entry: q0, q1, q2, …; --allow-missing",
    ),
    "unknown": ({**RIGHT, "x1": "", "x2": ""}, r"p\.json: 2 of 7 ids are not in .*gold\.json: x1, x2$"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_predictions_file_that_is_wrong_is_refused(write: Any, name: str) -> None:
    content, words = BAD[name]
    with pytest.raises(InputError, match=words):
        score_files(write("gold.json", GOLD), write("p.json", content))


def test_missing_predictions_count_as_wrong_where_that_is_wanted(
    write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = score_files(write("gold.json", GOLD), write("p.json", {"q0": "lake"}), allow_missing=True)
    assert metrics["em"] == 20.0
    assert "4 of 5 questions have no prediction and count as wrong" in capsys.readouterr().err
    impossible = write("gold2.json", gold([], [], version="2.0"))
    assert score_files(impossible, write("p2.json", {"q0": ""}), allow_missing=True)["em"] == 50.0
    with pytest.raises(InputError, match="ids are not in"):
        score_files(impossible, write("p3.json", {"q0": "", "x": ""}), allow_missing=True)


@pytest.mark.parametrize(
    ("odds", "words"),
    [
        ({"q0": "high", "q1": 1}, r"o\.json: question q0: expected a finite number, got high"),
        ('{"q0": NaN, "q1": 1}', r"o\.json: question q0: expected a finite number, got nan"),
        ('{"q0": 1, "q1": 1' + "0" * 400 + "}", r"o\.json: question q1: expected a finite number, got"),
        ({"q0": True, "q1": 1}, r"o\.json: question q0: expected a finite number, got True"),
        ({"q0": 1}, r"o\.json: 1 of 2 questions of .* have no entry: q1"),
    ],
)
def test_null_odds_that_are_wrong_are_refused(write: Any, odds: Any, words: str) -> None:
    files = write("gold.json", gold(["lake"], [], version="2.0")), write("p.json", {"q0": "", "q1": ""})
    with pytest.raises(InputError, match=words):
        score_files(*files, null_odds=write("o.json", odds), allow_missing=True)


def test_null_odds_are_for_2_0(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--gold", str(write("gold.json", GOLD)), "--predictions", str(write("p.json", RIGHT))]
    assert main(["score", "squad", *files, "--null-odds", str(write("o.json", dict.fromkeys(RIGHT, 0)))]) == 2
    assert "null odds need SQuAD 2.0" in capsys.readouterr().err
    two = write("gold2.json", gold(["lake"], [], version="2.0"))
    with pytest.raises(InputError, match="--null-threshold: expected a number, got nan"):
        score_files(
            two,
            write("p2.json", {"q0": "", "q1": ""}),
            null_odds=write("o2.json", {"q0": 0, "q1": 0}),
            threshold=float("nan"),
        )
    with pytest.raises(InputError, match="--null-threshold needs --null-odds FILE"):
        score_files(two, write("p2.json", {"q0": "", "q1": ""}), threshold=1.0)
