"""score, number of validation rows → variance from the choice of the rows, computed from the score alone.

If the records have no predictions of single rows, the variances of two models are added as if their answers were
independent. If both models give similar answers, this sum is too large: it is an upper bound and no estimate.
"""

from typing import Final

_PROPORTIONS: Final = ("accuracy", "em")
"""Metrics that are means of 0 and 1 over the rows."""
_MEANS: Final = ("f1",)
"""Metrics of questions that are means of numbers between 0 and 1 over the rows."""
_CORRELATIONS: Final = ("matthews", "spearman", "pearson")
_POINTS: Final = 100.0
"""Points of a perfect score."""


def item_variance(metric: str, score: float, rows: int | None, *, factor: float) -> float | None:
    """Return the variance of a score, in points², over other validation rows; None where the score does not tell it.

    metric: name of the metric, with the validation file before a dot. score: in points. factor: points of one unit of
    the metric. A mean of numbers between 0 and 1 varies at most as p (1 - p) / n. A correlation varies about as
    (1 - r²)² / (n - 1). The F1 of entities and of labels is not a mean over rows, and has no variance here.
    """
    if rows is None or rows < 2:
        return None
    name, value = metric.rpartition(".")[2], score / _POINTS
    if name in _PROPORTIONS or (name in _MEANS and factor == 1.0):
        return max(0.0, value * (1 - value)) / rows * _POINTS**2
    if name in _CORRELATIONS:
        return (1 - value**2) ** 2 / (rows - 1) * _POINTS**2
    return None
