"""Verdicts on claims, against Student's t by hand, and data that give no verdict."""

import math

import pytest
from scipy import stats

from bertwright.experiments.spec import Claim
from bertwright.experiments.statistics import ArmScores, Verdict, judge_claim, p_text


def judge(
    first: ArmScores, second: ArmScores, columns: tuple[str, ...] = ("x",), within: float | None = None
) -> Verdict:
    claim = Claim(statement="", paper="", arm="first", against="second", within=within)
    return judge_claim(claim, first, second, columns=columns)


def scores(differences: list[float], *, seeds: int = 3, column: str = "x") -> tuple[dict, dict]:
    """Return the scores of two arms with these differences, ordered by pre-training seed, then fine-tuning seed."""
    pairs = [divmod(number, seeds) for number in range(len(differences))]
    base = {pair: 50.0 + 7 * number for number, pair in enumerate(pairs)}
    first = {pair: base[pair] + difference for pair, difference in zip(pairs, differences, strict=True)}
    return {column: first}, {column: base}


def test_the_interval_and_p_are_students() -> None:
    values = [1.0, 2.0, 4.0, 3.0]
    verdict = judge(*scores(values, seeds=4))
    mean, error = 2.5, stats.tstd(values) / math.sqrt(4)
    half = stats.t.ppf(0.975, df=3) * error
    assert (verdict.mean, verdict.low, verdict.high) == pytest.approx((mean, mean - half, mean + half))
    assert verdict.p == pytest.approx(2 * stats.t.sf(mean / error, df=3))
    assert len(verdict.differences) == 4


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


@pytest.mark.parametrize(
    ("differences", "word"),
    [
        ([2.0, 2.5, 1.8, 2.2], "supported"),
        ([-2.0, -2.5, -1.8, -2.2], "not supported"),
        ([0.1, -0.1, 0.05, -0.05], "not supported"),  # surely less than the margin of half a point
        ([3.0, -2.0, 2.0, -1.0], "not decided at this scale"),
        ([0.3, 0.3, 0.3, 0.31], "supported"),  # small, but sure and in the claimed direction
        ([1.0, 1.0], "not decided at this scale"),  # two that are equal: chance does that every second time
        ([1.0] * 6, "supported"),
        ([-1.0] * 6, "not supported"),
        ([0.0, 0.0], "not decided at this scale"),
        ([0.0] * 6, "not supported"),
    ],
)
def test_which_is_better(differences: list[float], word: str) -> None:
    assert judge(*scores(differences, seeds=len(differences))).word == word


@pytest.mark.parametrize(
    ("differences", "word"),
    [
        ([0.1, -0.1, 0.2, 0.0], "supported"),
        ([2.0, 2.5, 1.8, 2.2], "not supported"),
        ([-2.0, -2.5, -1.8, -2.2], "not supported"),
        ([1.0, -1.0, 0.5, -0.2], "not decided at this scale"),
        ([0.1, 0.1], "not decided at this scale"),
        ([0.1] * 6, "supported"),
    ],
)
def test_which_are_as_good(differences: list[float], word: str) -> None:
    assert judge(*scores(differences, seeds=4), within=0.5).word == word


def test_pre_trainings_that_disagree_decide_nothing() -> None:
    """Two of three pre-trainings gain a lot and one loses a little: p alone would be significant."""
    differences = [5.0, 5.1, 4.9, 5.0, 5.1, 4.9, -0.1, -0.1, -0.1]
    verdict = judge(*scores(differences))
    assert verdict.p is not None
    assert verdict.p < 0.05
    assert verdict.word == "not decided at this scale"
    agreeing = [abs(value) for value in differences]
    assert judge(*scores(agreeing)).word == "supported"


def test_a_pre_training_without_any_difference_supports_no_claim() -> None:
    for sign in (1.0, -1.0):
        verdict = judge(*scores([0.0, 0.0, *(sign * value for value in [5.0, 5.1, 4.9, 5.2, 5.0, 5.1])], seeds=2))
        assert verdict.p is not None
        assert verdict.p < 0.05
        assert verdict.word == "not decided at this scale"


def test_fewer_than_two_pairs_give_no_verdict() -> None:
    one = judge(*scores([9.0]))
    assert (one.word, one.p, one.by_column) == (None, None, {"x": 9.0})
    nothing = judge({"x": {}}, {"x": {(0, 0): 1.0}})
    assert (nothing.word, nothing.differences) == (None, {})


def test_the_mean_of_the_columns_and_of_those_both_arms_have() -> None:
    (first, second), (more, less) = scores([2.0, 2.0], column="x"), scores([4.0, 6.0], column="y")
    verdict = judge({**first, **more, "z": {(0, 0): 1.0}}, {**second, **less}, ("x", "y", "z"))
    assert verdict.columns == ("x", "y")
    assert verdict.differences == {(0, 0): 3.0, (0, 1): 4.0}
    assert verdict.by_column == {"x": 2.0, "y": 5.0}


def test_only_pairs_that_all_columns_have_count() -> None:
    (first, second), (more, less) = scores([2.0, 2.0, 2.0], column="x"), scores([4.0, 6.0], column="y")
    verdict = judge({**first, **more}, {**second, **less}, ("x", "y"))
    assert sorted(verdict.differences) == [(0, 0), (0, 1)]
