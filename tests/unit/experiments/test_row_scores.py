"""Standard error of a difference over other validation rows, from the predictions that fine-tunings keep."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bertwright.experiments.jobs import Finetuning
from bertwright.experiments.row_scores import paired_row_error
from bertwright.experiments.spec import Column
from bertwright.finetuning.settings import FinetuneSettings

RTE = Column(name="RTE", task="rte", metric="accuracy")
ROWS = 200
RANDOM = np.random.default_rng(0)
EASY = RANDOM.random(ROWS)
"""Chance of each row to be answered right."""


def right(seed: int) -> list[float]:
    """Return 0 or 1 for each row; easy rows are right in most models."""
    answers = np.random.default_rng(seed).random(ROWS) < EASY
    return [float(each) for each in answers]


def job(folder: Path, scores: list[float] | None) -> Finetuning:
    """Return a finished fine-tuning with one seed; `scores` None: of a version that kept no predictions."""
    settings = FinetuneSettings(seeds=1, first_seed=3)
    (folder / "seed-3").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"finished": True, "result": {"seeds": [{"epochs": [{}, {"a": 1}]}]}}))
    if scores is not None:
        (folder / "seed-3/predictions.json").write_text(json.dumps({"dev": {"line": [], "score": scores}}))
    nothing: Any = None
    return Finetuning((), 1.0, nothing, nothing, settings, folder)


def plan(folder: Path, arms: dict[str, list[list[float] | None]]) -> Any:
    """Return a plan of the fine-tunings of arms on one task, each with a pre-training of its own."""
    jobs = {
        (arm, "RTE"): {(seed, 0): job(folder / f"{arm}-{seed}", scores) for seed, scores in enumerate(by_seed)}
        for arm, by_seed in arms.items()
    }
    return SimpleNamespace(jobs=jobs, all_jobs=[each for by_seed in jobs.values() for each in by_seed.values()])


def resampled(arms: dict[str, list[list[float]]], signs: dict[str, float]) -> float:
    """Return the standard deviation of the difference in points over rows that are drawn anew."""
    by_row = sum(signs[arm] * np.mean(scores, axis=0) for arm, scores in arms.items())
    means = [100 * RANDOM.choice(by_row, ROWS).mean() for _ in range(4000)]
    return float(np.std(means))


def test_the_error_of_a_difference_is_that_of_rows_drawn_anew(tmp_path: Path) -> None:
    arms: dict[str, Any] = {"a": [right(1), right(2)], "b": [right(3), right(4), right(5)]}
    error = paired_row_error(plan(tmp_path, arms), RTE, ("a", "b"))
    assert error == pytest.approx(resampled(arms, {"a": 1.0, "b": -1.0}), rel=0.05)
    apart = 100 * np.sqrt(sum(np.var(np.mean(scores, axis=0)) for scores in arms.values()) / ROWS)
    assert error < apart  # both arms answer the easy rows


def test_the_error_of_an_interaction_is_that_of_four_arms(tmp_path: Path) -> None:
    arms: dict[str, Any] = {name: [right(number)] for number, name in enumerate("abcd")}
    error = paired_row_error(plan(tmp_path, arms), RTE, ("a", "b", "c", "d"))
    assert error == pytest.approx(resampled(arms, {"a": 1.0, "b": -1.0, "c": -1.0, "d": 1.0}), rel=0.05)


def test_without_the_predictions_of_every_model_there_is_none(tmp_path: Path) -> None:
    arms: dict[str, list[list[float] | None]] = {"a": [right(1), None], "b": [right(3)], "c": [right(1)[:-1]]}
    known = plan(tmp_path, arms)
    for pair in (("a", "b"), ("b", "c"), ("b", "absent")):
        assert paired_row_error(known, RTE, pair) is None
    correlation = Column(name="RTE", task="rte", metric="spearman")
    assert paired_row_error(known, correlation, ("b", "b")) is None
    assert paired_row_error(known, RTE, ("b", "b")) == 0.0
