"""Outcomes of claims against Student's t by hand, and the rates of false positives of the old rule and of this one."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from bertwright.experiments.spec import Claim
from bertwright.experiments.spread import Variance, pool, sample_variance
from bertwright.experiments.statistics import (
    ArmScores,
    ColumnFacts,
    Comparison,
    claim_outcome,
    compare_column,
    holm,
    judge_claim,
    p_text,
    with_common_units,
)

CLAIM = Claim(statement="", paper="", arm="first", against="second")


def arm(*scores: float) -> ArmScores:
    """Return the scores of an arm by pre-training."""
    return ArmScores(dict(enumerate(scores)))


def outcome(first: ArmScores, second: ArmScores, *, claim: Claim = CLAIM, enough: bool = True, **facts: Any) -> str:
    (judged,) = judge_claim(claim, [compare_column("x", (first, second), ColumnFacts(**facts))], enough=enough)
    return judged.outcome


def test_two_arms_without_a_prior_are_compared_by_students_t_of_two_samples() -> None:
    first, second = (61.0, 63.0, 62.5, 60.0), (58.0, 57.0, 59.0)
    comparison = compare_column("x", (arm(*first), arm(*second)), ColumnFacts())
    test = stats.ttest_ind(first, second)
    interval = test.confidence_interval(0.95)
    assert comparison.p == pytest.approx(test.pvalue)
    assert comparison.interval() == pytest.approx((interval.low, interval.high))
    assert (comparison.units, comparison.degrees) == ((4, 3), 5)


def test_arms_that_share_their_pre_trainings_are_compared_in_pairs() -> None:
    first, second = (61.0, 50.0, 72.5), (60.0, 49.5, 71.0)
    comparison = compare_column("x", (arm(*first), arm(*second)), ColumnFacts(share_pretrainings=True))
    test = stats.ttest_rel(first, second)
    assert comparison.p == pytest.approx(test.pvalue)


def test_pre_trainings_that_one_arm_lacks_are_left_out_of_pairs() -> None:
    first, second = ArmScores({0: 60.0, 1: 62.0, 2: 40.0}), ArmScores({0: 61.0, 1: 63.0})
    arms = with_common_units([second, first])
    comparison = compare_column("x", arms, ColumnFacts(share_pretrainings=True))
    assert (comparison.difference, comparison.units) == (1.0, (2, 2))


def test_an_interaction_of_arms_that_share_their_pre_trainings_is_that_of_their_differences() -> None:
    samples = (78.0, 76.0, 80.0, 24.0), (22.0, 21.0, 22.5, 23.5), (21.0, 21.5, 22.0), (19.0, 22.0, 20.5)
    comparison = compare_column("x", [arm(*each) for each in samples], ColumnFacts(share_pretrainings=True))
    one, other = (np.subtract(*pair) for pair in (samples[:2], samples[2:]))
    test = stats.ttest_ind(one, other)
    assert comparison.p == pytest.approx(test.pvalue)
    assert comparison.difference == pytest.approx(one.mean() - other.mean())


def test_an_arm_that_varies_more_than_others_does_not_put_them_at_the_floor() -> None:
    pooled, floor = Variance(400.0, 6.0), arm(50.0)
    facts: dict[str, Any] = {"pooled": pooled, "floor": ArmScores(floor.units, is_constant=True)}
    assert outcome(arm(56.0, 56.4, 55.8, 56.2), arm(55.9, 56.1, 56.3, 55.6), **facts) == "undecided"
    assert outcome(arm(56.0, 56.4), arm(55.9, 56.1), **facts) == "cannot be tested"  # two of them say too little


def test_what_is_visible_reckons_with_the_other_columns_of_a_claim() -> None:
    columns = [compare_column(name, (arm(62.0, 63.0, 61.0), arm(58.0, 57.5, 59.5)), ColumnFacts()) for name in "abc"]
    alone, *_ = judge_claim(CLAIM, columns[:1])
    first, *_ = judge_claim(CLAIM, columns)
    assert alone.smallest_visible
    assert alone.error
    assert first.smallest_visible
    assert first.smallest_visible > alone.smallest_visible
    reach = stats.t.ppf(1 - 0.05 / 3 / 2, 4) + stats.t.ppf(0.8, 4)
    assert first.smallest_visible == pytest.approx(reach * alone.error)


def test_an_interaction_is_tested_as_in_a_table_of_two_by_two() -> None:
    samples = (61.0, 63.0, 62.5, 60.0), (58.0, 57.0, 59.0), (55.0, 56.5, 54.0), (55.5, 53.0, 54.5, 56.0)
    first, second, *beyond = (arm(*sample) for sample in samples)
    comparison = compare_column("x", (first, second, *beyond), ColumnFacts())
    rows = [
        (a, b, a * b, 1.0)
        for sample, (a, b) in zip(samples, ((0, 0), (1, 0), (0, 1), (1, 1)), strict=True)
        for _ in sample
    ]
    design, values = np.array(rows), np.concatenate(samples)
    weights, squares = np.linalg.lstsq(design, values)[:2]
    degrees = len(values) - 4
    error = float(np.sqrt(squares[0] / degrees * np.linalg.inv(design.T @ design)[2, 2]))
    assert comparison.difference == pytest.approx(weights[2])
    assert (comparison.units, comparison.degrees) == ((4, 3, 3, 4), degrees)
    assert comparison.error == pytest.approx(error)
    assert comparison.p == pytest.approx(2 * stats.t.sf(abs(weights[2]) / error, degrees))


def test_an_arm_without_seeds_has_no_variance() -> None:
    constant = ArmScores({0: 60.0}, is_constant=True)
    scores = (61.0, 63.0, 62.5)
    comparison = compare_column("x", (arm(*scores), constant), ColumnFacts())
    assert comparison.p == pytest.approx(stats.ttest_1samp(scores, 60.0).pvalue)


def test_a_pooled_variance_replaces_a_smaller_own_one() -> None:
    comparison = compare_column("x", (arm(60.0, 60.0), arm(58.0, 58.0)), ColumnFacts(pooled=Variance(4.0, 10.0)))
    assert comparison.error == pytest.approx(math.sqrt(4.0 * (1 / 2 + 1 / 2)))
    assert comparison.degrees == 10.0
    assert comparison.p == pytest.approx(2 * stats.t.sf(1.0, 10))


def test_a_larger_own_variance_is_kept_with_its_few_degrees_of_freedom() -> None:
    first, second = (60.0, 70.0), (58.0, 59.0)
    comparison = compare_column("x", (arm(*first), arm(*second)), ColumnFacts(pooled=Variance(4.0, 10.0)))
    assert comparison.p == pytest.approx(stats.ttest_ind(first, second).pvalue)
    assert comparison.degrees == 2


def test_one_pre_training_each_has_the_pooled_variance() -> None:
    comparison = compare_column("x", (arm(60.0), arm(58.0)), ColumnFacts(pooled=Variance(4.0, 10.0)))
    assert (comparison.error, comparison.degrees) == (pytest.approx(math.sqrt(8.0)), 10.0)
    assert compare_column("x", (arm(60.0), arm(58.0)), ColumnFacts()).p is None


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ((62.0, 62.5, 61.8), (60.0, 60.2, 60.1), "supported"),
        ((60.0, 60.2, 60.1), (62.0, 62.5, 61.8), "reversed"),
        ((60.0, 60.1, 60.2), (60.1, 60.0, 60.2), "no difference"),  # surely less than a point
        ((60.0, 64.0, 58.0), (61.0, 57.0, 63.0), "undecided"),
    ],
)
def test_an_arm_is_better_worse_alike_or_undecided(
    first: tuple[float, ...], second: tuple[float, ...], word: str
) -> None:
    assert outcome(arm(*first), arm(*second)) == word


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ((60.0, 60.1, 60.2), (60.1, 60.0, 60.2), "supported"),
        ((64.0, 64.1, 64.2), (60.1, 60.0, 60.2), "reversed"),
        ((56.0, 56.1, 56.2), (60.1, 60.0, 60.2), "reversed"),
        ((60.9, 61.1, 61.3), (60.1, 60.0, 60.2), "undecided"),  # surely better, but perhaps by less than a point
    ],
)
def test_a_claim_of_being_as_good_is_supported_where_the_90_percent_interval_is_within(
    first: tuple[float, ...], second: tuple[float, ...], word: str
) -> None:
    assert outcome(arm(*first), arm(*second), claim=replace(CLAIM, within=1.0)) == word


def test_too_few_pre_trainings_decide_nothing() -> None:
    assert outcome(arm(90.0, 90.1), arm(50.0, 50.1), enough=False) == "undecided"
    assert (arm(50.0).enough, arm(50.0, 51.0).enough, ArmScores({0: 1.0}, is_constant=True).enough) == (
        False,
        True,
        True,
    )


def test_arms_at_the_floor_test_nothing() -> None:
    floor = ArmScores({0: 50.0}, is_constant=True)
    pooled = Variance(0.01, 50.0)
    facts = {"metric": "accuracy", "rows": 1000, "floor": floor, "pooled": pooled}
    error = math.sqrt(0.5 * 0.5 / 1000) * 100  # of one score at the floor: 1.58 points
    near, far = 50.0 + 1.9 * error, 50.0 + 2.3 * error
    assert outcome(arm(near, near), arm(50.0, 50.0), **facts) == "cannot be tested"
    assert outcome(arm(far, far), arm(50.0, 50.0), **facts) == "supported"  # one arm has learned something


def test_a_floor_that_is_a_trained_model_has_an_error_of_its_own() -> None:
    facts = {"metric": "f1", "factor": 1.0, "rows": 1000, "pooled": Variance(0.01, 50.0)}
    scores = arm(11.6, 11.6)  # 2.0 points above 9.6; errors of the rows: 1.01 and 0.93 points
    assert outcome(scores, arm(10.2, 10.2), floor=arm(9.6, 9.6), **facts) == "cannot be tested"
    constant = ArmScores({0: 9.6}, is_constant=True)
    assert outcome(scores, arm(12.0, 12.0), floor=constant, **facts) != "cannot be tested"


def test_the_smallest_visible_difference_is_seen_in_four_of_five_repetitions() -> None:
    """A simulation with the degrees of freedom and the error of the comparison."""
    random, runs, degrees = np.random.default_rng(0), 20_000, 12
    comparison = compare_column("x", (arm(0.0, 0.0), arm(0.0, 0.0)), ColumnFacts(pooled=Variance(1.0, degrees)))
    assert comparison.smallest_visible is not None
    t = random.normal(comparison.smallest_visible, 1.0, runs) / np.sqrt(random.chisquare(degrees, runs) / degrees)
    assert np.mean(t > stats.t.ppf(0.975, degrees)) == pytest.approx(0.8, abs=0.02)


def test_holms_correction() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_claim_with_many_columns_needs_a_smaller_p() -> None:
    comparisons = [Comparison(name, 61.0, 60.0, (2, 2), error=0.38, degrees=10, p=0.03) for name in "abcd"]
    assert [each.outcome for each in judge_claim(CLAIM, comparisons[:1])] == ["supported"]
    judged = judge_claim(CLAIM, comparisons)
    assert {each.outcome for each in judged} == {"undecided"}
    assert [each.adjusted_p for each in judged] == pytest.approx([0.12] * 4)


@pytest.mark.parametrize(
    ("outcomes", "word"),
    [
        (("supported", "undecided", "no difference"), "supported"),
        (("supported", "reversed"), "undecided"),
        (("reversed", "cannot be tested"), "reversed"),
        (("no difference", "no difference", "cannot be tested"), "no difference"),
        (("no difference", "undecided"), "undecided"),
        (("cannot be tested",), "cannot be tested"),
        ((), "undecided"),
    ],
)
def test_the_outcome_of_a_claim_is_that_of_its_decided_columns(outcomes: tuple[Any, ...], word: str) -> None:
    columns = [Comparison("x", 0.0, 0.0, (2, 2), outcome=each) for each in outcomes]
    assert claim_outcome(columns) == word


def test_the_error_of_the_rows_widens_the_interval() -> None:
    facts = ColumnFacts(metric="accuracy", rows=400, pooled=Variance(1.0, 10.0))
    comparison = compare_column("x", (arm(62.0, 62.0), arm(60.0, 60.0)), facts)
    rows = math.sqrt((0.62 * 0.38 + 0.6 * 0.4) / 400) * 100
    assert comparison.row_error == pytest.approx(rows)
    total = math.hypot(1.0, rows)
    reach = stats.t.ppf(0.975, 10 * (total / 1.0) ** 4) * total  # Satterthwaite
    assert comparison.interval(with_rows=True) == pytest.approx((2.0 - reach, 2.0 + reach))
    assert comparison.holds_for_other_rows is False


def test_the_error_of_the_rows_never_makes_an_interval_narrower() -> None:
    facts = ColumnFacts(metric="accuracy", rows=1000)
    comparison = compare_column("x", (arm(62.0, 65.0), arm(60.0, 60.0)), facts)
    assert comparison.interval(with_rows=True) == comparison.interval()


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (0.0492, "p = 0.049"),
        (0.04966, "p = 0.0497"),
        (0.04999999, "p = 0.04999999"),
        (0.05, "p = 0.050"),
        (0.0503, "p = 0.050"),
        (0.001, "p = 0.001"),
        (0.00099, "p < 0.001"),
        (0.0, "p < 0.001"),
    ],
)
def test_a_p_shows_its_side_and_never_zero(p: float, words: str) -> None:
    assert p_text(p) == words


@pytest.mark.parametrize(("icc", "expected"), [(0.0, 0.049), (0.25, 0.108), (0.5, 0.185), (0.8, 0.308), (0.9, 0.368)])
def test_false_positives_of_the_old_rule_grow_with_the_variance_between_pre_trainings(
    icc: float, expected: float
) -> None:
    """Student's t over 2 pre-trainings x 3 fine-tunings where both pre-trainings agree; no arm differs from another.

    icc: the pre-trainings' part of the variance of a difference.
    """
    random, runs = np.random.default_rng(7), 20_000
    pairs = math.sqrt(icc) * random.normal(size=(runs, 2, 1)) + math.sqrt(1 - icc) * random.normal(size=(runs, 2, 3))
    p = stats.ttest_1samp(pairs.reshape(runs, 6), 0.0, axis=1).pvalue
    first, second = pairs.mean(axis=2).T
    assert np.mean((p < 0.05) & (np.sign(first) == np.sign(second))) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("spread", "first", "most"),
    [
        ((1.0,) * 9, (1.0, 1.0), 0.05),  # all arms vary alike, whatever the part of the pre-trainings
        ((15.0, 0.5) * 5, (15.0, 0.5), 0.07),  # as STS-B: one half of the arms may lose the head
        ((15.0, 0.5) * 5, (15.0, 15.0), 0.07),
        ((15.0, 0.5) * 5, (0.5, 0.5), 0.01),
    ],
)
def test_false_positives_of_this_rule_stay_near_five_percent(
    spread: tuple[float, ...], first: tuple[float, float], most: float
) -> None:
    """Two pre-trainings of each arm, no arm differs from another. spread: standard deviations of the other arms."""
    random, runs = np.random.default_rng(3), 1_000
    deviations = np.array([*first, *spread])
    decided = 0
    for units in (random.normal(size=(runs, len(deviations), 2)) * deviations[:, None]).tolist():
        pooled = pool([sample_variance([values]) for values in units])
        decided += outcome(arm(*units[0]), arm(*units[1]), pooled=pooled) in ("supported", "reversed")
    assert decided / runs <= most
