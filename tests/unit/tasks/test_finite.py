"""Probabilities from logits, against the formulas in exact arithmetic and where exponents would overflow."""

import math

import numpy as np
import pytest

from bertwright.tasks.finite import logistic, softmax


def test_softmax_is_the_formula_over_the_last_dimension() -> None:
    logits = np.array([[0.5, -1.0, 2.0], [3.0, 3.0, 3.0]], dtype=np.float32)
    for row, probabilities in zip(logits, softmax(logits), strict=True):
        powers = [math.exp(value) for value in row]
        assert probabilities.tolist() == pytest.approx([power / sum(powers) for power in powers], rel=1e-12)
    assert softmax(logits[0]).tolist() == softmax(logits)[0].tolist()
    assert softmax(np.array([1e4, 0.0, -1e4])).tolist() == [1.0, 0.0, 0.0]


def test_the_logistic_function_does_not_overflow() -> None:
    logits = np.array([0.0, 0.3, -2.0, 1e6, -1e6])
    expected = [0.5, 1 / (1 + math.exp(-0.3)), 1 / (1 + math.exp(2.0)), 1.0, 0.0]
    assert logistic(logits).tolist() == pytest.approx(expected, rel=1e-12)
