"""The metrics of vectors beside rankings that were made by hand."""

import numpy as np
import pytest

from bertwright.tasks.embedding import metrics as module
from bertwright.tasks.embedding.metrics import vector_metrics
from bertwright.tasks.embedding.pairs import PairOfTable, pairs_of

ANGLES = {"near": 0.1, "middle": 0.5, "far": 1.0, "opposite": 2.0}


def on_circle(angles: list[float]) -> np.ndarray:
    return np.array([[np.cos(angle), np.sin(angle)] for angle in angles], dtype=np.float32)


def test_the_rank_counts_negatives_and_other_positives_but_no_match() -> None:
    rows = [
        PairOfTable("a", "middle", ("near",)),  # `near` is closer: rank 2
        PairOfTable("a", "far"),  # `middle` matches too and does not count: rank 2
        PairOfTable("b", "opposite"),  # rank 4
    ]
    pairs = pairs_of(rows, "dev.tsv")
    seconds = on_circle([ANGLES[text] for text in pairs.seconds])
    metrics = vector_metrics(pairs, on_circle([0.0, 0.0]), seconds)
    assert metrics == {"mrr@10": pytest.approx((0.5 + 0.5 + 0.25) / 3), "accuracy": 0.0, "collapsed": 0.0}


def test_equal_vectors_find_nothing_and_count_as_collapsed() -> None:
    pairs = pairs_of([PairOfTable(str(row), f"text {row}") for row in range(20)], "dev.tsv")
    metrics = vector_metrics(pairs, np.ones((20, 3), np.float32), np.ones((20, 3), np.float32))
    assert metrics == {"mrr@10": 0.0, "accuracy": 0.0, "collapsed": 1.0}


def test_a_large_file_is_ranked_in_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POOL", 2)
    pairs = pairs_of([PairOfTable(str(row), f"text {row}") for row in range(4)], "dev.tsv")
    firsts, seconds = on_circle([0.0, 1.0, 0.0, 1.0]), on_circle([0.1, 1.1, 0.2, 1.2])
    assert vector_metrics(pairs, firsts, seconds)["accuracy"] == 1.0


def test_scores_are_compared_by_their_order() -> None:
    rows = [PairOfTable("a", text, score=score) for text, score in (("near", 5.0), ("middle", 1.0), ("far", 2.0))]
    pairs = pairs_of(rows, "dev.tsv")
    seconds = on_circle([ANGLES[text] for text in pairs.seconds])
    metrics = vector_metrics(pairs, on_circle([0.0]), seconds)
    assert vector_metrics(pairs_of(rows[:1], "dev.tsv"), on_circle([0.0]), seconds[:1])["collapsed"] == 0.0
    assert vector_metrics(pairs_of(rows, "dev.tsv"), on_circle([0.0]), on_circle([1.0] * 3))["collapsed"] == 1.0
    assert next(iter(metrics)) == "spearman"
    assert metrics["spearman"] == pytest.approx(0.5)
    assert metrics["collapsed"] == 0.0
