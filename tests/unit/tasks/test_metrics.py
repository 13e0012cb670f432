"""Metrics against their textbook formulas, worked by hand or by brute force, and where they are undefined."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from bertwright.errors import MissingExtra
from bertwright.tasks.metrics import by_file, collapsed, measure

BITS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30)
NUMBERS = st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=2, max_size=20)


def sides(rows):
    predicted, targets = np.array(rows).T
    return predicted, targets


@settings(max_examples=60, deadline=None)
@given(BITS)
def test_binary_metrics_follow_the_formulas(rows):
    predicted, targets = sides(rows)
    tp, fp, fn, tn = (rows.count(pair) for pair in [(1, 1), (1, 0), (0, 1), (0, 0)])
    root = ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
    wanted = {
        "accuracy": (tp + tn) / len(rows),
        "f1": 2 * tp / (2 * tp + fp + fn) if tp else 0.0,
        "matthews": (tp * tn - fp * fn) / root if root else 0.0,
    }
    assert measure(list(wanted), predicted, targets, positive=1) == pytest.approx(wanted, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(NUMBERS)
def test_correlations_follow_the_formulas(rows):
    predicted, targets = sides(rows)

    def correlation(x, y):
        x, y = x - x.mean(), y - y.mean()
        return float((x * y).sum() / ((x * x).sum() * (y * y).sum()) ** 0.5) if x.any() and y.any() else 0.0

    def ranks(values):  # the mean place of equal values
        return np.array([np.sum(values < value) + (np.sum(values == value) + 1) / 2 for value in values])

    wanted = {
        "pearson": correlation(predicted.astype(float), targets.astype(float)),
        "spearman": correlation(ranks(predicted), ranks(targets)),
    }
    assert measure(list(wanted), predicted, targets) == pytest.approx(wanted, abs=1e-9)


def test_f1_is_about_the_positive_label_wherever_it_stands():
    predicted, targets = np.array([0, 0, 1, 0]), np.array([0, 1, 1, 0])
    assert measure(["f1"], predicted, targets, positive=1) == {"f1": pytest.approx(2 / 3)}
    assert measure(["f1"], predicted, targets, positive=0) == {"f1": pytest.approx(0.8)}
    with pytest.raises(ValueError, match="positive"):
        measure(["f1"], predicted, targets)


def test_macro_f1_weighs_labels_alike():
    predicted, targets = np.array([0, 0, 0, 0]), np.array([0, 0, 0, 1])
    assert measure(["macro_f1"], predicted, targets)["macro_f1"] == pytest.approx((6 / 7 + 0) / 2)
    drawn = np.random.default_rng(0)
    for num_labels in (2, 3, 7, 40):
        predicted, targets = drawn.integers(0, num_labels, (2, 60))
        f1 = f1_score(targets, predicted, average="macro", zero_division=0.0)
        assert measure(["macro_f1"], predicted, targets) == {"macro_f1": pytest.approx(f1, abs=1e-15)}


@pytest.mark.parametrize("targets", [np.array([0, 1, 1]), np.array([1, 1, 1])])
def test_constant_predictions_have_no_matthews_correlation(targets):
    assert measure(["matthews"], np.array([1, 1, 1]), targets) == {"matthews": 0.0}


@pytest.mark.parametrize(
    ("predicted", "targets"),
    [
        ([2.5, 2.5, 2.5], [0.0, 1.0, 5.0]),
        ([0.0, 1.0, 5.0], [2.5, 2.5, 2.5]),
        ([1.0, 1.0 + 1e-15, 1.0], [0.0, 1.0, 5.0]),  # rounding noise
        ([3.0], [2.0]),
    ],
)
def test_an_undefined_correlation_counts_as_0_without_a_warning(predicted, targets):
    figures = measure(["pearson", "spearman"], np.array(predicted), np.array(targets))
    assert figures == {"pearson": 0.0, "spearman": 0.0}


def test_float32_answers_close_together_still_correlate():
    predicted = np.array([2.0, 2.0001, 2.0002], dtype=np.float32)
    figures = measure(["pearson", "spearman"], predicted, np.array([1.0, 2.0, 3.0], dtype=np.float32))
    assert figures == pytest.approx({"pearson": 1.0, "spearman": 1.0}, abs=1e-3)


@pytest.mark.parametrize("shapes", [((2,), (3,)), ((0,), (0,)), ((2, 1), (2, 1))])
def test_lengths_must_agree(shapes):
    with pytest.raises(
        ValueError,
        match=r"predictions .* must have the same shape, \[N\] or \[N, labels\], with N > 0",
    ):
        measure(["accuracy"], *(np.zeros(shape, dtype=np.int64) for shape in shapes))


def test_collapse_to_one_label_is_named():
    labels = ("negative", "positive")
    assert "all 3 predictions are 'positive'" in str(collapsed(np.array([1, 1, 1]), np.array([0, 1, 1]), labels))
    assert collapsed(np.array([1, 0, 1]), np.array([0, 1, 1]), labels) is None
    assert collapsed(np.array([1, 1]), np.array([1, 1]), labels) is None  # right to be all alike
    assert collapsed(np.array([0, 0]), np.array([1, 1]), labels) is not None


def test_collapse_to_one_number_is_named():
    targets = np.array([0.0, 2.0, 5.0], dtype=np.float32)
    assert "nearly constant" in str(collapsed(np.array([2.70, 2.71, 2.70]), targets, ()))
    assert collapsed(np.array([2.0, 2.5, 3.0]), targets, ()) is None


@pytest.mark.parametrize("name", ["matthews", "pearson", "spearman"])
def test_without_the_extra_the_install_line_is_given(monkeypatch, name):
    for module in ["sklearn.metrics", "scipy.stats"]:
        monkeypatch.setitem(sys.modules, module, None)
    assert measure(["accuracy", "f1", "macro_f1"], np.array([0, 1]), np.array([0, 1]), positive=1)
    with pytest.raises(MissingExtra, match=r"pip install 'bertwright\[tasks\]'"):
        measure([name], np.array([0, 1]), np.array([0, 1]), positive=1)


def test_metrics_of_several_files_have_their_names() -> None:
    assert by_file({"dev": {"accuracy": 0.5}}) == {"accuracy": 0.5}
    both = by_file({"dev_matched": {"accuracy": 0.5}, "dev_mismatched": {"accuracy": 0.25}})
    assert both == {"dev_matched.accuracy": 0.5, "dev_mismatched.accuracy": 0.25}
