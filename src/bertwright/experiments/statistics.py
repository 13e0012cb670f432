"""scores by seed → verdict on a claim of the paper, by a paired Student's t test over the seeds.

A pair is one pre-training seed and one fine-tuning seed. With the same pair both arms have the same rows in the same
order, so the influence of the seeds cancels in the difference. The difference of a pair is the mean over the claim's
columns. The test asks whether the mean difference differs from zero. Student's t test suits few pairs whose differences
are roughly normal. A rank test cannot reach 5 % with five pairs or fewer: if all five differences have the same sign,
p is 0.0625. With six it is 0.031.

Pairs of one pre-training are not independent, but the test treats them as independent. A claim is therefore supported
only where the mean differences of all pre-trainings have the same sign.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bertwright.errors import MissingExtra
from bertwright.experiments.spec import MARGIN, Claim

SIGNIFICANT = 0.05
_ROUNDING = 1e-9
"""Difference in points that rounding may cause."""
Decision = Literal["supported", "not supported", "not decided at this scale"]
SeedPair = tuple[int, int]
"""(pre-training seed, fine-tuning seed)."""
ArmScores = Mapping[str, Mapping[SeedPair, float]]
"""Scores of an arm: column → pair of seeds → score; a higher score is better."""


@dataclass(frozen=True)
class Verdict:
    """Result of the test on the differences (first arm - second arm, in points; positive: the first arm is better).

    word           verdict; for fewer than two pairs it is None, and so are mean, low, high and p
    differences    difference of each pair of seeds, as a mean over the columns
    columns        columns that both arms have
    by_column      mean difference of each column
    mean           mean difference
    low, high      95 % interval of the mean difference
    p              p of the test
    """

    word: Decision | None
    differences: Mapping[SeedPair, float]
    columns: tuple[str, ...]
    by_column: Mapping[str, float]
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None


def judge_claim(claim: Claim, first: ArmScores, second: ArmScores, *, columns: Sequence[str]) -> Verdict:
    """Return the verdict on a claim from the scores of its two arms.

    columns: columns of the claim. Only the columns that both arms have are used, and only the pairs of seeds for which
    both arms have a score in each of these columns.
    """
    columns = tuple(name for name in columns if _common_pairs(first, second, name))
    pairs_by_column = [_common_pairs(first, second, name) for name in columns]
    pairs = sorted(set.intersection(*pairs_by_column)) if pairs_by_column else []
    by_column = {
        name: sum(first[name][pair] - second[name][pair] for pair in pairs) / len(pairs) for name in columns if pairs
    }
    differences = {
        pair: sum(first[name][pair] - second[name][pair] for name in columns) / len(columns) for pair in pairs
    }
    if len(pairs) < 2:
        return Verdict(None, differences, columns, by_column)
    mean, low, high, p = _student(list(differences.values()))
    if claim.within is not None:
        word = _judge_equal(low, high, claim.within)
    else:
        word = _judge_better(mean, low, high, p, same_sign=_have_same_sign(differences))
    return Verdict(word, differences, columns, by_column, mean, low, high, p)


def p_text(p: float) -> str:
    """Return p as text: "p < 0.001", or with three decimals, and more if rounding would cross the threshold."""
    if p < 0.001:
        return "p < 0.001"
    decimals = 3
    while p < SIGNIFICANT <= round(p, decimals):
        decimals += 1
    return f"p = {p:.{decimals}f}"


def _judge_better(mean: float, low: float, high: float, p: float, *, same_sign: bool) -> Decision:
    """Return the verdict on a claim that the first arm is better."""
    if p < SIGNIFICANT and same_sign:
        return "supported" if mean > 0 else "not supported"
    if low >= -MARGIN and high <= MARGIN:
        return "not supported"
    return "not decided at this scale"


def _judge_equal(low: float, high: float, within: float) -> Decision:
    """Return the verdict on a claim that two arms differ by at most `within` points."""
    if -within <= low and high <= within:
        return "supported"
    if high < -within or low > within:
        return "not supported"
    return "not decided at this scale"


def _common_pairs(first: ArmScores, second: ArmScores, column: str) -> set[SeedPair]:
    """Return the pairs of seeds for which both arms have a score in a column."""
    return set(first.get(column, ())) & set(second.get(column, ()))


def _have_same_sign(differences: Mapping[SeedPair, float]) -> bool:
    """Return whether the mean differences of all pre-trainings have the same sign; zero has no sign."""
    by_pretraining: dict[int, list[float]] = {}
    for (pretraining, _), difference in differences.items():
        by_pretraining.setdefault(pretraining, []).append(difference)
    sums = [sum(values) for values in by_pretraining.values()]
    return all(total > _ROUNDING for total in sums) or all(total < -_ROUNDING for total in sums)


def _student(values: Sequence[float]) -> tuple[float, float, float, float]:
    """Return the mean, the lower and upper end of its 95 % interval, and p (null hypothesis: the mean is zero).

    Student's t is not defined where all values are equal, which happens with few rows. Then p is that of a sign test:
    the probability that as many coin tosses all give the same side. The interval is infinite unless that p is
    significant.
    """
    mean = sum(values) / len(values)
    if all(abs(value - mean) < _ROUNDING for value in values):
        sign_test = 2.0 ** (1 - len(values))
        half_width = 0.0 if sign_test < SIGNIFICANT else math.inf
        return mean, mean - half_width, mean + half_width, sign_test if abs(mean) > _ROUNDING else 1.0
    try:
        from scipy import stats  # belongs to an extra
    except ImportError:
        raise MissingExtra("tasks", "the test of a claim") from None
    test = stats.ttest_1samp(values, 0.0)
    interval = test.confidence_interval(1 - SIGNIFICANT)
    return mean, float(interval.low), float(interval.high), float(test.pvalue)
