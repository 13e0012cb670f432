"""variances of a few pre-trainings each → the variance of a comparison.

The variance is the larger of two: the variance of the two arms, and the variance pooled over all arms.

Two pre-trainings say little about the variance between pre-trainings, so the variance is pooled over all arms of the
task. Arms differ in their variance: a model that keeps a head varies less than one that may lose it. A pooled variance
is too small for an arm that varies more than most. So where the two arms of a comparison vary more than the pool, their
own variance is used, with its few degrees of freedom. That errs on the side of *undecided*: of claims without any
difference, 3 % are decided where all arms vary alike, and 5 % where one half varies thirty times as much as the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Variance:
    """A variance in points², and the degrees of freedom with which it was estimated."""

    value: float
    degrees: float


def pool(variances: Sequence[Variance]) -> Variance | None:
    """Return the mean of the variances, weighted by degrees of freedom; None where they have none."""
    degrees = sum(each.degrees for each in variances)
    return Variance(sum(each.value * each.degrees for each in variances) / degrees, degrees) if degrees else None


def larger_variance(own: Variance, pooled: Variance | None) -> Variance | None:
    """Return the larger of two variances; None where neither has a degree of freedom."""
    if pooled is None or (own.degrees > 0 and own.value > pooled.value):
        return own if own.degrees > 0 else None
    return pooled


def sample_variance(samples: Sequence[Sequence[float]]) -> Variance:
    """Return the variance around the mean of each sample, pooled over the samples."""
    squares, degrees = 0.0, 0
    for values in samples:
        mean = sum(values) / len(values)
        squares += sum((value - mean) ** 2 for value in values)
        degrees += len(values) - 1
    return Variance(squares / degrees if degrees else 0.0, degrees)


def interaction_variance(table: Sequence[Sequence[float]]) -> Variance:
    """Return the variance of the difference of two rows in a table of arms (rows) x pre-trainings (columns).

    The arms share their pre-trainings, so the effect of a pre-training on all arms is taken out: the variance is twice
    that of the residuals from the means of rows and columns. Every row has the same length.
    """
    rows, columns = len(table), len(table[0])
    degrees = (rows - 1) * (columns - 1)
    if not degrees:
        return Variance(0.0, 0)
    by_row = [sum(row) / columns for row in table]
    by_column = [sum(row[number] for row in table) / rows for number in range(columns)]
    mean = sum(by_row) / rows
    squares = sum((table[i][j] - by_row[i] - by_column[j] + mean) ** 2 for i in range(rows) for j in range(columns))
    return Variance(2 * squares / degrees, degrees)
