"""Variance of a score over other rows, against resampled rows."""

import math

import numpy as np
import pytest
from scipy import stats

from bertwright.experiments.sampling import item_variance

ROWS = 400


def test_an_accuracy_varies_as_resampled_rows_do() -> None:
    right = np.arange(ROWS) < 0.7 * ROWS
    random = np.random.default_rng(0)
    resampled = [100 * random.choice(right, ROWS).mean() for _ in range(4000)]
    variance = item_variance("dev_matched.accuracy", 70.0, ROWS, factor=100.0)
    assert variance == pytest.approx(np.var(resampled), rel=0.1)


def test_a_mean_of_f1_varies_no_more_than_said() -> None:
    random = np.random.default_rng(0)
    f1 = random.beta(0.5, 4.0, ROWS)
    resampled = [100 * random.choice(f1, ROWS).mean() for _ in range(2000)]
    variance = item_variance("f1", 100 * f1.mean(), ROWS, factor=1.0)
    assert variance is not None
    assert np.var(resampled) < variance


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_a_correlation_varies_about_as_resampled_rows_do(correlation: float) -> None:
    random = np.random.default_rng(0)
    covariance = [[1.0, correlation], [correlation, 1.0]]
    draws = [random.multivariate_normal([0.0, 0.0], covariance, ROWS).T for _ in range(800)]
    values = [100 * stats.spearmanr(*draw).statistic for draw in draws]
    variance = item_variance("spearman", float(np.mean(values)), ROWS, factor=100.0)
    assert variance is not None
    assert math.sqrt(variance) == pytest.approx(np.std(values), rel=0.2)


@pytest.mark.parametrize(
    ("metric", "rows", "factor"), [("f1", ROWS, 100.0), ("accuracy", None, 100.0), ("accuracy", 1, 100.0)]
)
def test_where_the_score_does_not_tell_it_there_is_none(metric: str, rows: int | None, factor: float) -> None:
    assert item_variance(metric, 50.0, rows, factor=factor) is None
