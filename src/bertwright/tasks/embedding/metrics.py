"""vectors of validation pairs → metrics: rank of the positive in a pool of texts, or Spearman with the scores."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.tasks.embedding.pairs import TextPairs
from bertwright.tasks.metrics import measure

POOL: Final = 1000
"""Number of validation pairs whose second texts and hard negatives are ranked together."""
Similarities = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[Any]]
"""Function numbers of first texts [A], numbers of second texts [P] → similarities [A, P]."""
_CORRELATIONS: Final = ("spearman", "pearson")
_FIRST_RANKS: Final = 10
_SAME: Final = 1e-6
"""Cosines whose range is below this number are constant."""


def vector_metrics(pairs: TextPairs, firsts: NDArray[Any], seconds: NDArray[Any]) -> dict[str, float]:
    """Return the metrics of the vectors of first texts [A, D] and second texts [P, D].

    Pairs with scores have those of `score_metrics`, by their cosines; other pairs have those of `rank_metrics`.
    """
    if pairs.scores is not None:
        cosines = rounded_cosines(firsts[pairs.anchors], seconds[pairs.positives])
        is_constant = bool(np.ptp(cosines) < _SAME and np.ptp(pairs.scores) > 0)
        return {**score_metrics(cosines, pairs.scores), "collapsed": float(is_constant)}
    units = [unit(vectors) for vectors in (firsts, seconds)]
    is_constant = len(units[1]) > 1 and bool(np.ptp(units[1], axis=0).max() < _SAME)
    ranked = rank_metrics(pairs, lambda anchors, pool: units[0][anchors] @ units[1][pool].T)
    return {**ranked, "collapsed": float(is_constant)}


def score_metrics(similarities: NDArray[np.float64], scores: NDArray[np.float64]) -> dict[str, float]:
    """Return Spearman's and Pearson's correlation of the similarity of each pair [N] with its score [N]."""
    return measure(_CORRELATIONS, similarities, scores)


def rank_metrics(pairs: TextPairs, similarities: Similarities) -> dict[str, float]:
    """Return mrr@10, the mean of 1 / rank of the positive (0 below rank 10), and accuracy, the fraction with rank 1."""
    ranks = np.concatenate([_ranks(pairs, rows, similarities) for rows in _pools(len(pairs))])
    found_early = np.where(ranks <= _FIRST_RANKS, 1.0 / ranks, 0.0)
    return {"mrr@10": float(found_early.mean()), "accuracy": float((ranks == 1).mean())}


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors [N, W] divided by their lengths; a vector of zeros stays one."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    divided: NDArray[np.float32] = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
    return divided


def rounded_cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the cosine [N] of each pair of vectors [N, W].

    It is rounded, because a rank correlation would order pairs of equal texts by rounding errors.
    """
    cosines: NDArray[np.float64] = np.round(np.sum(unit(first).astype(np.float64) * unit(second), axis=1), 6)
    return cosines


def _pools(count: int) -> list[NDArray[np.int64]]:
    """Return the numbers of the pairs of each pool; all pools have about the same size."""
    return list(np.array_split(np.arange(count), -(-count // POOL)))


def _ranks(pairs: TextPairs, rows: NDArray[np.int64], similarities: Similarities) -> NDArray[np.int64]:
    """Return the rank of each pair's positive among the texts of the pool, from 1 on; ties count against it.

    Other texts that match the anchor are left out.
    """
    negatives = [np.array(pairs.negatives[row], dtype=np.int64) for row in rows]
    pool = np.unique(np.concatenate([pairs.positives[rows], *negatives]))
    compared = similarities(pairs.anchors[rows], pool)
    positive = np.searchsorted(pool, pairs.positives[rows])[:, None]
    others = ~pairs.match(pairs.anchors[rows], pool)
    np.put_along_axis(others, positive, False, axis=1)
    of_positive = np.take_along_axis(compared, positive, axis=1)
    return np.asarray(1 + np.sum(others & (compared >= of_positive), axis=1))
