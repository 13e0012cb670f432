"""Variances of pre-trainings, against numpy and against a simulation."""

import numpy as np
import pytest

from bertwright.experiments.spread import Variance, interaction_variance, larger_variance, pool, sample_variance


def test_the_variance_of_several_samples_is_around_the_mean_of_each() -> None:
    samples = [[1.0, 3.0], [10.0, 11.0, 15.0], [7.0]]
    variance = sample_variance(samples)
    squares = sum(np.var(values) * len(values) for values in samples)
    assert (variance.value, variance.degrees) == (pytest.approx(squares / 3), 3)
    assert sample_variance([[1.0]]).degrees == 0


def test_variances_are_pooled_by_degrees_of_freedom() -> None:
    assert pool([Variance(4.0, 1), Variance(1.0, 3), Variance(9.0, 0)]) == Variance(7 / 4, 4)
    assert pool([Variance(9.0, 0)]) is None
    assert pool([]) is None


def test_the_larger_variance_is_used_and_one_without_degrees_of_freedom_never() -> None:
    assert larger_variance(Variance(5.0, 2), Variance(4.0, 10)) == Variance(5.0, 2)
    assert larger_variance(Variance(3.0, 2), Variance(4.0, 10)) == Variance(4.0, 10)
    assert larger_variance(Variance(0.0, 0), Variance(4.0, 10)) == Variance(4.0, 10)
    assert larger_variance(Variance(3.0, 2), None) == Variance(3.0, 2)
    assert larger_variance(Variance(0.0, 0), None) is None


def test_the_effect_of_a_shared_pre_training_is_taken_out() -> None:
    """Two arms: twice the variance of the residuals is the variance of the differences."""
    first, second = [60.0, 40.0, 55.0], [58.0, 39.0, 51.0]
    variance = interaction_variance([first, second])
    assert (variance.value, variance.degrees) == (pytest.approx(np.var(np.subtract(first, second), ddof=1)), 2)
    assert interaction_variance([first]).degrees == 0


def test_the_variance_of_a_difference_is_right_on_average() -> None:
    random = np.random.default_rng(0)
    bodies = 20 * random.normal(size=(4000, 1, 2))
    values = [interaction_variance(table).value for table in (bodies + random.normal(size=(4000, 4, 2))).tolist()]
    assert np.mean(values) == pytest.approx(2.0, rel=0.05)
