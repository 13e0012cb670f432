"""The text at the end of a fine-tuning."""

from pathlib import Path
from typing import Any

import pytest

from bertwright.finetuning.result import finished_result
from bertwright.training.run_folder import RunFolder


@pytest.mark.parametrize(
    ("scores", "line"),
    [
        ([0.75], "rte dev accuracy: 0.7500 (one seed; --seeds 3 shows how much it varies)"),
        ([0.75, 0.25], "rte dev accuracy: 0.5000 ± 0.3536 (0.7500, 0.2500)"),
    ],
)
def test_only_several_seeds_have_a_deviation(scores: list[float], line: str, tmp_path: Path) -> None:
    result: dict[str, Any] = {
        "task": "rte",
        "metric": "accuracy",
        "mean": sum(scores) / len(scores),
        "sd": 0.3536 if len(scores) > 1 else 0.0,
        "scores": scores,
        "seeds": [],
    }
    run = RunFolder(tmp_path, {"result": result})
    assert finished_result(run)["text"].splitlines()[0] == line
