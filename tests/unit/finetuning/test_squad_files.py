"""Exact match and F1 of a file of predictions: published predictions, thresholds, and files that are wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.finetuning.squad_files import score_files
from tests.support.squad_gold import gold


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
