"""The loss of soft labels equals plain formulas."""

import math
from typing import Any

import pytest
import torch

from bertwright.distillation.soft_labels import soft_label_loss


def probabilities(logits: list[float], temperature: float) -> list[float]:
    powers = [math.exp(value / temperature) for value in logits]
    return [power / sum(powers) for power in powers]


def divergence(wanted: list[float], learned: list[float]) -> float:
    return sum(p * math.log(p / q) for p, q in zip(wanted, learned, strict=True))


LOGITS = [[0.3, -1.2, 2.0], [1.5, 0.2, -0.4]]
ANSWERS = [[1.0, 0.5, -2.0], [3.0, -1.0, 0.1]]
WEIGHTS = [1.0, 0.25]


def loss(kind: Any, temperature: float, columns: int = 3) -> float:
    sides = [torch.tensor(side, dtype=torch.float64)[:, :columns] for side in (LOGITS, ANSWERS)]
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    return float(soft_label_loss(*sides, kind=kind, temperature=temperature, weights=weights))


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_labels(temperature: float) -> None:
    rows = [
        divergence(probabilities(wanted, temperature), probabilities(learned, temperature))
        for learned, wanted in zip(LOGITS, ANSWERS, strict=True)
    ]
    expected = temperature**2 * sum(weight * row for weight, row in zip(WEIGHTS, rows, strict=True))
    assert loss("classification", temperature) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_labels_that_are_independent(temperature: float) -> None:
    expected = sum(
        temperature**2 * weight * divergence(*(probabilities([value, 0.0], temperature) for value in pair))
        for learned, wanted, weight in zip(LOGITS, ANSWERS, WEIGHTS, strict=True)
        for pair in zip(wanted, learned, strict=True)
    )
    assert loss("multilabel", temperature) == pytest.approx(expected, rel=1e-12)


def test_a_regression_has_the_squared_error_at_any_temperature() -> None:
    expected = sum(w * (x[0] - y[0]) ** 2 for w, x, y in zip(WEIGHTS, LOGITS, ANSWERS, strict=True))
    assert loss("regression", 1.0, columns=1) == loss("regression", 4.0, columns=1) == pytest.approx(expected)


def test_equal_logits_have_no_loss_and_bf16_is_computed_in_fp32() -> None:
    logits = torch.tensor(LOGITS, dtype=torch.bfloat16)
    for kind in ("classification", "multilabel"):
        assert soft_label_loss(logits, logits.clone(), kind=kind, temperature=2.0).dtype == torch.float32
        assert float(soft_label_loss(logits, logits.clone(), kind=kind, temperature=2.0)) == pytest.approx(0, abs=1e-6)
