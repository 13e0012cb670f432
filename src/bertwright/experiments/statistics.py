"""scores by seed → verdict: does a claim of the paper show here (paired Student's t over seeds)?

A pair is one pre-training seed and one fine-tuning seed: both arms then had the same rows in the same order, so what
the seeds share falls out of the difference. A pair's difference is the mean over the claim's columns. The test asks
whether the mean difference is other than zero. Few pairs and about normal differences: that is what Student's t is for,
and a rank test of six pairs or fewer can hardly reach 5 %.

Pairs of one pre-training are not independent of one another, and the test takes them as if they were. So a claim is
only supported where the differences of every single pre-training point the same way.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bertwright.errors import MissingExtra
from bertwright.experiments.spec import Claim

SIGNIFICANT = 0.05
_NOTHING = 1e-9
"""Points that come of rounding."""
Word = Literal["supported", "not supported", "not decided at this scale"]
Pair = tuple[int, int]
"""(pre-training seed, fine-tuning seed)."""


@dataclass(frozen=True)
class Verdict:
    """What the differences (first arm - second arm, in points; better is more) say. None: fewer than two pairs."""

    word: Word | None
    differences: Mapping[Pair, float]
    columns: tuple[str, ...]
    by_column: Mapping[str, float]
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None


def judge(
    claim: Claim, first: Mapping[str, Mapping[Pair, float]], second: Mapping[str, Mapping[Pair, float]]
) -> Verdict:
    """The verdict on the scores of two arms, column → pair → score, where higher is better.

    Only columns that both have count, and of them only pairs that are there in all.
    """
    columns = tuple(name for name in claim.columns if _common(first, second, name))
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
    agreed = _agreed(differences)
    if claim.within is not None:
        word = _as_good(low, high, claim.within)
    else:
        word = _better(mean, low, high, p, agreed=agreed, margin=claim.margin)
    return Verdict(word, differences, columns, by_column, mean, low, high, p)


def said(p: float) -> str:
    """A p in three places, or as many as show its side of the threshold; one below them is said to be less."""
    if p < 0.001:
        return "p < 0.001"
    places = 3
    while p < SIGNIFICANT <= round(p, places):
        places += 1
    return f"p = {p:.{places}f}"


def _better(mean: float, low: float, high: float, p: float, *, agreed: bool, margin: float) -> Word:
    if p < SIGNIFICANT and agreed:
        return "supported" if mean > 0 else "not supported"
    if -margin <= low and high <= margin:
        return "not supported"
    return "not decided at this scale"


def _as_good(low: float, high: float, within: float) -> Word:
    """Of a claim that two arms differ by `within` at most."""
    if -within <= low and high <= within:
        return "supported"
    if high < -within or low > within:
        return "not supported"
    return "not decided at this scale"


def _common(
    first: Mapping[str, Mapping[Pair, float]], second: Mapping[str, Mapping[Pair, float]], name: str
) -> set[Pair]:
    return set(first.get(name, ())) & set(second.get(name, ()))


def _agreed(differences: Mapping[Pair, float]) -> bool:
    """Whether the mean difference of every pre-training has the sign of the others'; one of zero has none."""
    by_pretraining: dict[int, list[float]] = {}
    for (pretraining, _), difference in differences.items():
        by_pretraining.setdefault(pretraining, []).append(difference)
    sums = [sum(values) for values in by_pretraining.values()]
    return all(one > _NOTHING for one in sums) or all(one < -_NOTHING for one in sums)


def _student(values: Sequence[float]) -> tuple[float, float, float, float]:
    """Mean, its 95 % interval, and p of a mean of zero.

    Where all values are equal, as few rows give them, Student's t is not defined. Then p is that of so many tosses of
    a coin that fell alike, and there is no interval before so many would be significant.
    """
    mean = sum(values) / len(values)
    if all(abs(value - mean) < _NOTHING for value in values):
        alike = 2.0 ** (1 - len(values))
        reach = 0.0 if alike < SIGNIFICANT else math.inf
        return mean, mean - reach, mean + reach, alike if abs(mean) > _NOTHING else 1.0
    try:
        from scipy import stats
    except ImportError:
        raise MissingExtra("tasks", "the test of a claim") from None
    found = stats.ttest_1samp(values, 0.0)
    interval = found.confidence_interval(1 - SIGNIFICANT)
    return mean, float(interval.low), float(interval.high), float(found.pvalue)
