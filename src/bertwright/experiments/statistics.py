"""scores by seed → verdict on a claim of the paper, by a paired Student's t test over the seeds.

A pair is one pre-training seed and one fine-tuning seed. Both arms had the same rows in the same order with it, so the
influence of the seeds cancels in the difference. The difference of a pair is the mean over the claim's columns. The
test asks whether the mean difference differs from zero. Student's t suits few pairs with roughly normal differences; a
rank test of six pairs or fewer can hardly reach 5 %.

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
    """Result of the test on the differences (first arm - second arm, in points; positive is better).

    word           verdict, None for fewer than two pairs; then mean, low, high and p are None too
    columns        columns that both arms have; by_column: mean difference of each
    low, high      95 % interval of the mean difference
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

    columns: those of the claim. Only columns that both arms have count, and only pairs that all these columns have.
    """
    columns = tuple(name for name in columns if _common(first, second, name))
    shared = [_common(first, second, name) for name in columns]
    pairs = sorted(set.intersection(*shared)) if shared else []
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
    """Return p as text: three decimals, more where rounding would cross the threshold, "p < 0.001" below that."""
    if p < 0.001:
        return "p < 0.001"
    places = 3
    while p < SIGNIFICANT <= round(p, places):
        places += 1
    return f"p = {p:.{places}f}"


def _judge_better(mean: float, low: float, high: float, p: float, *, same_sign: bool) -> Decision:
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


def _common(first: ArmScores, second: ArmScores, name: str) -> set[SeedPair]:
    """Return the pairs of seeds for which both arms have a score in a column."""
    return set(first.get(name, ())) & set(second.get(name, ()))


def _have_same_sign(differences: Mapping[SeedPair, float]) -> bool:
    """Return whether the mean differences of all pre-trainings have the same sign; zero has no sign."""
    by_pretraining: dict[int, list[float]] = {}
    for (pretraining, _), difference in differences.items():
        by_pretraining.setdefault(pretraining, []).append(difference)
    sums = [sum(values) for values in by_pretraining.values()]
    return all(total > _ROUNDING for total in sums) or all(total < -_ROUNDING for total in sums)


def _student(values: Sequence[float]) -> tuple[float, float, float, float]:
    """Return mean, lower and upper end of its 95 % interval, and p of a mean of zero.

    Student's t is not defined where all values are equal, which happens with few rows. Then p is the probability that
    as many coin tosses all fall on the same side, and the interval is infinite until that is significant.
    """
    mean = sum(values) / len(values)
    if all(abs(value - mean) < _ROUNDING for value in values):
        alike = 2.0 ** (1 - len(values))
        reach = 0.0 if alike < SIGNIFICANT else math.inf
        return mean, mean - reach, mean + reach, alike if abs(mean) > _ROUNDING else 1.0
    try:
        from scipy import stats  # belongs to an extra
    except ImportError:
        raise MissingExtra("tasks", "the test of a claim") from None
    test = stats.ttest_1samp(values, 0.0)
    interval = test.confidence_interval(1 - SIGNIFICANT)
    return mean, float(interval.low), float(interval.high), float(test.pvalue)
