"""Validation rows of a single file are taken where training keeps every label, or the file is refused."""

import numpy as np
import pytest

from bertwright.errors import InputError
from bertwright.tasks.classification.examples import weigh
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.classification.split import split_dev, split_rows
from tests.support.examples import text_examples

CANNOT = "expected a text that can be kept for validation, but each has a label that no other text has"


@pytest.mark.parametrize("only", [0, 1])
def test_a_labels_only_row_is_learned_where_another_label_has_three(only: int) -> None:
    rows = text_examples(["one", "two", "three", "four"], [only, 1 - only, 1 - only, 1 - only])
    for seed in range(10):
        train, dev = split_dev(rows, seed=seed)
        assert set(train.targets) == {0, 1}
        assert dev.targets.tolist() == [1 - only]
        task = ClassificationTask(name="t", text=("text",), labels=("a", "b"), class_weights="balanced")
        assert len(weigh(task, train).weights) == 2


def test_a_text_with_two_labels_is_no_spare_row_of_the_first() -> None:
    """The text "same" has the only row of label 1, behind a row of label 0."""
    rows = text_examples(["same", "same", *(f"text {row}" for row in range(30))], [0, 1, *[0] * 30])
    for seed in range(20):
        assert set(split_dev(rows, fraction=0.5, seed=seed)[0].targets) == {0, 1}


def test_each_of_several_labels_stays_in_training() -> None:
    """Label 0 is in two rows, each of which belongs to the stratum of a rarer or equal label."""
    targets = np.zeros((44, 3), dtype=np.bool_)
    targets[0, [0, 1]] = targets[1, [0, 2]] = True
    targets[2, 1] = targets[3, 2] = True
    targets[4:, 1] = True
    targets[24:, 2] = True
    for seed in range(20):
        train, dev = split_dev(text_examples([f"text {row}" for row in range(44)], targets), fraction=0.5, seed=seed)
        assert train.targets.any(axis=0).all()
        assert len(dev)


def test_a_file_without_a_spare_row_is_refused() -> None:
    with pytest.raises(InputError, match=f"made up: {CANNOT}.*; add rows, or give a folder"):
        split_dev(text_examples(["one", "two"], [0, 1]))
    with pytest.raises(InputError, match=f"made up: {CANNOT}"):
        split_dev(text_examples(["one", "two"], np.eye(2, dtype=np.bool_)))
    assert len(split_dev(text_examples(["one", "two"], np.array([0.0, 1.0], dtype=np.float32)))[1]) == 1
    with pytest.raises(InputError, match=f"words: {CANNOT}"):
        split_rows(["one", "two"], "words", labels=[{"A"}, {"B"}])
    assert split_rows(["one", "two", "three"], "words", labels=[{"A"}, {"A", "B"}, {"C"}]) == ([1, 2], [0])
