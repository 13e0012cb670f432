"""scores of two arms by pre-training → outcome in each column: the unit of the test is a pre-training.

Claims are about objectives and sizes, so a pre-training is one observation: its score is the mean over its fine-tuning
seeds. With two or three pre-trainings an arm's own variance says little, so `spread` gives the larger of it and of the
variance pooled over all arms of the task. Each column is tested by itself, because accuracy, correlation and F1 have no
common unit. Within a claim the p-values of its columns are corrected by Holm's method.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from bertwright.errors import MissingExtra
from bertwright.experiments.sampling import item_variance
from bertwright.experiments.spec import Claim
from bertwright.experiments.spread import Variance, larger_variance, sample_variance

SIGNIFICANT = 0.05
POWER = 0.8
"""Probability with which the smallest visible difference would have been seen."""
LEAST_PRETRAININGS = 2
"""Pre-trainings that each arm needs at least, before anything but *undecided* is said."""
_FLOOR_ERRORS = 2.0
"""Standard errors by which a score must exceed the floor before a column tests anything."""
_OWN_DEGREES = 3
"""Degrees of freedom from which an arm's own variance says how far it is from the floor."""

ClaimOutcome = Literal["supported", "reversed", "no difference", "undecided", "cannot be tested"]
OUTCOME_WORDS: Final[Mapping[ClaimOutcome, str]] = {
    "supported": "supported",
    "reversed": "reversed",
    "no difference": "no difference",
    "undecided": "undecided",
    "cannot be tested": "cannot be tested here",
}
"""Outcomes in the words of the pages, in their order there."""
SeedPair = tuple[int, int]
"""(pre-training seed, fine-tuning seed)."""


@dataclass(frozen=True)
class ArmScores:
    """Scores of an arm in a column; a higher score is better.

    units         pre-training seed → mean score over its fine-tuning seeds
    is_constant   True for an arm without seeds, such as a bag of words: one score, without variance
    """

    units: Mapping[int, float]
    is_constant: bool = False

    @property
    def mean(self) -> float:
        """Mean over the pre-trainings."""
        return sum(self.units.values()) / len(self.units)

    @property
    def enough(self) -> bool:
        """True where the arm has as many pre-trainings as a verdict needs."""
        return self.is_constant or len(self.units) >= LEAST_PRETRAININGS


@dataclass(frozen=True)
class ColumnFacts:
    """Facts of a column beside the scores of the two arms.

    metric      name of the metric, for the error that comes from the choice of validation rows
    factor      number by which the metric was multiplied to get points
    rows        number of validation rows; None for a metric of the pre-training
    row_error   standard error of the difference over other rows, from predictions of single rows; None without them
    floor       score that needs no learning, in points; None where it is unknown
    pooled      variance between pre-trainings, pooled over all arms of the task
    share_pretrainings  True where the two arms of a lead are measurements of the same pre-trainings: they are
                        compared in pairs
    """

    metric: str = ""
    factor: float = 100.0
    rows: int | None = None
    row_error: float | None = None
    floor: ArmScores | None = None
    pooled: Variance | None = None
    share_pretrainings: bool = False


@dataclass(frozen=True)
class Comparison:
    """Difference of two arms in one column (first - second, in points; positive: the first arm is better).

    first, second   mean scores of the arms; of an interaction, the leads that it compares
    units           numbers of pre-trainings of the arms
    tests           number of columns of the claim that are tested together
    error           standard error over pre-trainings; None where no variance is known
    degrees         its degrees of freedom
    p               p of the null hypothesis that the difference is zero
    adjusted_p      p after Holm's correction over the columns of the claim
    row_error       standard error from the choice of validation rows; None where it cannot be estimated
    at_floor        True where all arms are within two standard errors of the floor
    enough          True where each arm has as many pre-trainings as a verdict needs
    outcome         one of the five outcomes
    """

    column: str
    first: float
    second: float
    units: tuple[int, ...]
    tests: int = 1
    error: float | None = None
    degrees: float = 0.0
    p: float | None = None
    adjusted_p: float | None = None
    row_error: float | None = None
    at_floor: bool = False
    enough: bool = True
    outcome: ClaimOutcome = "undecided"

    @property
    def difference(self) -> float:
        """Difference of the means in points."""
        return self.first - self.second

    def interval(self, level: float = 1 - SIGNIFICANT, *, with_rows: bool = False) -> tuple[float, float] | None:
        """Return the interval of the difference over pre-trainings, with the choice of rows too if `with_rows`.

        The degrees of freedom of both together are Satterthwaite's; the error of the rows has infinitely many. More of
        them never make the interval narrower than that over pre-trainings.
        """
        if self.error is None or (with_rows and self.row_error is None):
            return None
        probability = (1 + level) / 2
        reach = quantile(probability, self.degrees) * self.error
        if with_rows and self.row_error:
            error = math.hypot(self.error, self.row_error)
            degrees = self.degrees * (error / self.error) ** 4 if self.error else math.inf
            reach = max(reach, quantile(probability, degrees) * error)
        return self.difference - reach, self.difference + reach

    @property
    def smallest_visible(self) -> float | None:
        """Difference in points that the test would have seen with a probability of 80 %.

        Every other column of the claim may have a smaller p, so the correction is that of the smallest of all.
        """
        if self.error is None:
            return None
        strict = SIGNIFICANT / self.tests
        return (quantile(1 - strict / 2, self.degrees) + quantile(POWER, self.degrees)) * self.error

    @property
    def holds_for_other_rows(self) -> bool | None:
        """True where zero is outside of the interval with the choice of rows; None where that is unknown."""
        interval = self.interval(with_rows=True)
        return None if interval is None else not interval[0] <= 0 <= interval[1]


def leads(arms: Sequence[ArmScores]) -> list[tuple[ArmScores, ArmScores]]:
    """Return the two arms of each lead: one lead, or the two that an interaction compares."""
    return list(zip(arms[::2], arms[1::2], strict=True))


def with_common_units(arms: Sequence[ArmScores]) -> list[ArmScores]:
    """Return the arms with the pre-trainings that both arms of a lead have; their scores are compared in pairs."""
    common: list[ArmScores] = []
    for pair in leads(arms):
        seeds = set.intersection(*(set(arm.units) for arm in pair))
        common += [replace(arm, units={seed: arm.units[seed] for seed in sorted(seeds)}) for arm in pair]
    return common


def compare_column(name: str, arms: Sequence[ArmScores], facts: ColumnFacts) -> Comparison:
    """Return the comparison of two arms in a column, without an outcome yet; every arm has a score.

    Arms that share their pre-trainings are those of `with_common_units`.

    arms: two, or four of an interaction: the lead of the first over the second is compared with that of the third over
    the fourth.
    """
    units = tuple(len(arm.units) for arm in arms)
    at_floor = all(_is_at_floor(arm, facts) for arm in arms)
    if len(arms) == 2:
        one, other = (arm.mean for arm in arms)
    else:
        one, other = (first.mean - second.mean for first, second in leads(arms))
    comparison = Comparison(name, one, other, units, at_floor=at_floor, enough=all(arm.enough for arm in arms))
    variance = _variance_of_difference(arms, facts)
    if variance is None:
        return comparison
    error = math.sqrt(variance.value)
    p = two_sided_p(comparison.difference, error, variance.degrees)
    comparison = replace(comparison, error=error, degrees=variance.degrees, p=p, adjusted_p=p)
    if facts.row_error is not None:
        return replace(comparison, row_error=facts.row_error)
    variances = [item_variance(facts.metric, arm.mean, facts.rows, factor=facts.factor) for arm in arms]
    known = [each for each in variances if each is not None]
    if len(known) == len(variances):
        comparison = replace(comparison, row_error=math.sqrt(sum(known)))
    return comparison


def judge_claim(claim: Claim, comparisons: Sequence[Comparison], *, enough: bool = True) -> tuple[Comparison, ...]:
    """Return the comparisons of a claim's columns with their corrected p-values and outcomes.

    enough: False where an arm has too few pre-trainings for anything but *undecided*.
    """
    tested = [each for each in comparisons if each.p is not None and not each.at_floor]
    adjusted = dict(zip([each.column for each in tested], holm([each.p or 0.0 for each in tested]), strict=True))
    tests = max(1, len(tested))
    with_p = [replace(each, tests=tests, adjusted_p=adjusted.get(each.column, each.p)) for each in comparisons]
    return tuple(replace(each, outcome=_outcome(claim, each, enough=enough)) for each in with_p)


def claim_outcome(comparisons: Sequence[Comparison]) -> ClaimOutcome:
    """Return the outcome of a claim from those of its columns.

    The claim has the outcome of a supported or reversed column. If columns disagree, it is undecided.
    """
    outcomes = {each.outcome for each in comparisons}
    if outcomes >= {"supported", "reversed"}:
        return "undecided"
    if "supported" in outcomes:
        return "supported"
    if "reversed" in outcomes:
        return "reversed"
    testable = outcomes - {"cannot be tested"}
    if comparisons and not testable:
        return "cannot be tested"
    return "no difference" if testable == {"no difference"} else "undecided"


def holm(values: Sequence[float]) -> list[float]:
    """Return the p-values corrected by Holm's method, in their order."""
    order = sorted(range(len(values)), key=lambda number: values[number])
    corrected, largest = [0.0] * len(values), 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[number]))
        corrected[number] = largest
    return corrected


def p_text(p: float) -> str:
    """Return p as text: "p < 0.001", or with three decimals, and more if rounding would cross the threshold."""
    if p < 0.001:
        return "p < 0.001"
    decimals = 3
    while p < SIGNIFICANT <= round(p, decimals):
        decimals += 1
    return f"p = {p:.{decimals}f}"


def two_sided_p(difference: float, error: float, degrees: float) -> float:
    """Return p of Student's t for a difference and its standard error.

    If the error is 0, p is 0, or 1 if the difference is 0 too.
    """
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    return float(2 * _student().sf(abs(difference) / error, degrees))


def quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t."""
    return float(_student().ppf(probability, degrees))


def _outcome(claim: Claim, comparison: Comparison, *, enough: bool) -> ClaimOutcome:
    """Return the outcome of one column, after Holm's correction."""
    if comparison.at_floor:
        return "cannot be tested"
    outer, inner = comparison.interval(), comparison.interval(1 - 2 * SIGNIFICANT)
    if not enough or comparison.adjusted_p is None or outer is None or inner is None:
        return "undecided"
    is_within = -claim.delta <= inner[0] and inner[1] <= claim.delta
    is_significant = comparison.adjusted_p < SIGNIFICANT
    if claim.within is not None:
        is_outside = outer[1] < -claim.delta or outer[0] > claim.delta
        return "supported" if is_within else "reversed" if is_outside and is_significant else "undecided"
    if is_significant:
        return "supported" if comparison.difference > 0 else "reversed"
    return "no difference" if is_within else "undecided"


def _variance_of_difference(arms: Sequence[ArmScores], facts: ColumnFacts) -> Variance | None:
    """Return the variance of the difference of the means; None where it cannot be estimated."""
    if facts.share_pretrainings:
        pairs = [[score - second.units[seed] for seed, score in first.units.items()] for first, second in leads(arms)]
        variance = larger_variance(sample_variance(pairs), facts.pooled)
        weight = sum(1 / len(differences) for differences in pairs)
    else:
        random = [arm for arm in arms if not arm.is_constant]
        of_arms = sample_variance([list(arm.units.values()) for arm in random])
        variance = larger_variance(of_arms, facts.pooled) if random else None
        weight = sum(1 / len(arm.units) for arm in random)
    return None if variance is None else Variance(variance.value * weight, variance.degrees)


def _is_at_floor(arm: ArmScores, facts: ColumnFacts) -> bool:
    """Return whether a score exceeds the floor by less than two standard errors.

    The error is that of the arm over rows and pre-trainings, and that of the floor too where it is a trained model. An
    arm that varies more than others must not say of them that they are at the floor.
    """
    if facts.floor is None:
        return False
    pooled = None if facts.share_pretrainings else facts.pooled
    variance = 0.0
    for each in (arm, facts.floor):
        if each.is_constant and each is not arm:
            continue
        sample = sample_variance([list(each.units.values())])
        of_arm = sample if sample.degrees >= _OWN_DEGREES else larger_variance(sample, pooled)
        variance += of_arm.value / len(each.units) if of_arm and not each.is_constant else 0.0
        variance += item_variance(facts.metric, each.mean, facts.rows, factor=facts.factor) or 0.0
    return arm.mean - facts.floor.mean < _FLOOR_ERRORS * math.sqrt(variance)


def _student() -> Any:
    try:
        from scipy import stats  # belongs to an extra
    except ImportError:
        raise MissingExtra("tasks", "the test of a claim") from None
    return stats.t
