"""The advice beside a result: what to try, how exact the validation is, and when to calibrate."""

import re
from typing import Any

import pytest

from bertwright.finetuning.advice import baseline_advice, calibration_lines, validation_lines


def result(start: str = "small-wiki", epoch: int = 2, **more: Any) -> dict[str, Any]:
    seeds = [{"scores": {"accuracy": 0.5}, "epoch": 1, "epochs": [{}, {}]}]
    seeds += [{"scores": {"accuracy": 0.8}, "epoch": epoch, "epochs": [{}, {}]}]
    return {"metric": "accuracy", "mean": 0.65, "start": start, "seeds": seeds, **more}


def test_the_advice_depends_on_the_start_and_the_best_epoch() -> None:
    assert baseline_advice(result(epoch=1), is_cosine=False) == (
        "Try more rows, a published encoder (bertwright import), or another learning rate."
    )
    assert "or more epochs (--epochs)" in baseline_advice(result(), is_cosine=False)
    assert "small-wiki, which comes with" in baseline_advice(result("random:tiny"), is_cosine=False)
    assert "small-wiki" not in baseline_advice(result("some/published"), is_cosine=True)
    assert "bertwright finetune embed" in baseline_advice(result(), is_cosine=True)
    assert "bertwright finetune embed" not in baseline_advice({**result(), "task": "embed"}, is_cosine=True)


@pytest.mark.parametrize(
    ("metric", "rows", "line"),
    [
        ("accuracy", 60, "validation rows: 60; an accuracy of 0.6500 on them has a standard error of 0.0616, and the"),
        ("dev_matched.accuracy", 1000, "validation rows: 1,000; an accuracy of 0.6500 on them has a standard error"),
        ("f1", 60, "validation rows: 60; the best epoch was chosen on them"),
    ],
)
def test_the_number_of_validation_rows_stands_with_the_error_of_an_accuracy(metric: str, rows: int, line: str) -> None:
    (shown,) = validation_lines({"metric": metric, "mean": 0.65, "validation_rows": rows})
    assert shown.startswith(line)


def test_the_accuracy_of_words_or_pairs_has_no_error_of_rows() -> None:
    for unit in ("words", "pairs"):
        (shown,) = validation_lines({"metric": "accuracy", "mean": 0.65, "validation_rows": 60, "unit": unit})
        assert shown == "validation rows: 60; the best epoch was chosen on them"


def test_a_run_of_an_earlier_version_has_no_number_of_validation_rows() -> None:
    assert validation_lines({"metric": "accuracy", "mean": 0.65}) == []


def test_a_large_calibration_error_has_advice() -> None:
    metrics = {"accuracy": 0.9, "calibration_error": 0.41, "dev.calibration_error": 0.1, "reliability": []}
    (line,) = calibration_lines(metrics, model="tuned")
    assert re.match(r"calibration_error 0\.4100: the probabilities differ .* by 41 points .*--calibrate", line)
