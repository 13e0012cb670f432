"""The comparison of teacher and student as text and as lines of the model card."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bertwright.distillation.compare import card_numbers, comparison_lines, comparison_result, milliseconds_per_text
from bertwright.model.folder import WEIGHTS


def result(tmp_path: Path, *scores: float, agreement: float | None = 0.9) -> dict[str, Any]:
    """The comparison of models of two million and of half a million parameters."""
    folders, models = [tmp_path / "teacher", tmp_path / "student"], []
    for folder, parameters in zip(folders, (2_000_000, 500_000), strict=True):
        folder.mkdir()
        with (folder / WEIGHTS).open("wb") as file:
            file.truncate(4 * parameters)
        models.append(nn.ParameterList([nn.Parameter(torch.zeros(parameters))]))
    metrics = [{"accuracy": score, "macro_f1": score - 0.1} for score in scores]
    shared: Any = {"metric": "accuracy", "agreement": agreement, "texts": 1200}
    return comparison_result(folders, models, (2.0, 0.5), metrics, **shared)


def test_lines(tmp_path: Path) -> None:
    assert comparison_lines(result(tmp_path, 0.8, 0.6)) == [
        "                  teacher  student",
        "parameters      2,000,000  500,000  25.0% of the teacher's",
        "size on disk       8.0 MB   2.0 MB  25.0% of the teacher's",
        "time of a text    2.00 ms  0.50 ms  25.0% of the teacher's",
        "accuracy           0.8000   0.6000  75.0% of the teacher's",
        "macro_f1           0.7000   0.5000",
        "same answer as the teacher: 90.0% of 1,200 validation rows",
    ]


def test_the_card_has_no_time_and_a_metric_of_zero_no_share(tmp_path: Path) -> None:
    assert card_numbers(result(tmp_path, 0.0, 0.6, agreement=None)) == (
        "accuracy: 0.0000, of the teacher; 0.6000 of this model on the same rows in fp32",
        "macro_f1: -0.1000, of the teacher; 0.5000 of this model on the same rows in fp32",
        "parameters: 500,000, of the teacher 2,000,000",
        "size on disk: 2,000,000 bytes, of the teacher 8,000,000",
    )


def test_each_function_is_called_equally_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = iter(range(1000)), [0, 0]
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))

    def call(index: int) -> None:
        calls[index] += 1

    times = milliseconds_per_text([lambda: call(0), lambda: call(1)], 10)
    assert calls == [6, 6]
    assert times == [100.0, 100.0]  # a second for ten texts
