"""The baseline of words beside a plain loop."""

import numpy as np
import pytest

from bertwright.tasks.embedding.pairs import PairOfTable, pairs_of
from bertwright.tasks.embedding.words import word_cosines, word_metrics

TEXTS = [
    ("The ship sails.", "the SHIP is on the sea"),
    ("Rain falls", "rain falls on the roof"),
    ("a book", "the teacher reads"),
]


def overlap(first: str, second: str) -> float:
    words = [{word.strip(".").lower() for word in text.split()} for text in (first, second)]
    return len(words[0] & words[1]) / np.sqrt(len(words[0]) * len(words[1]))


def test_pairs_with_scores_are_compared_by_their_common_words() -> None:
    pairs = pairs_of([PairOfTable(*texts, score=score) for texts, score in zip(TEXTS, (2, 3, 1), strict=True)], "x")
    np.testing.assert_allclose(word_cosines(pairs), [overlap(*texts) for texts in TEXTS], atol=1e-6)
    assert word_metrics(pairs)["spearman"] == pytest.approx(1.0)


def test_other_pairs_are_ranked_by_them() -> None:
    rows = [PairOfTable(*texts) for texts in TEXTS]
    rows[1] = PairOfTable(*TEXTS[1], negatives=("Rain falls.",))  # a closer text
    expected = [1.0, 0.5, 0.25]  # no common word: all four texts have the same similarity, and ties count against it
    metrics = word_metrics(pairs_of(rows, "x"))
    assert metrics == {"mrr@10": pytest.approx(np.mean(expected)), "accuracy": pytest.approx(1 / 3)}


def test_words_with_marks_differ() -> None:
    """The first two texts have no common word; without their vowel signs they would be equal."""
    pairs = pairs_of([PairOfTable("की कि", "का कु"), PairOfTable("की कि", "को कि")], "x")
    np.testing.assert_allclose(word_cosines(pairs), [0.0, 0.5])
