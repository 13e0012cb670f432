"""vectors of validation pairs → metrics: rank of the positive in a pool of texts, or Spearman with the scores."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.tasks.embedding.pairs import TextPairs
from bertwright.tasks.metrics import measure

POOL: Final = 1000
"""Number of validation pairs whose second texts and hard negatives are ranked together."""
_CORRELATIONS: Final = ("spearman", "pearson")
_FIRST_RANKS: Final = 10
_SAME: Final = 1e-6
"""Cosines whose range is below this number are constant."""


def vector_metrics(pairs: TextPairs, firsts: NDArray[Any], seconds: NDArray[Any]) -> dict[str, float]:
    """Return the metrics of the vectors of first texts [A, D] and second texts [P, D].

    Pairs with scores have Spearman's and Pearson's correlation of the cosines with the scores. Other pairs have mrr@10,
    the mean of 1 / rank of the positive (0 below rank 10), and accuracy, the fraction of positives with rank 1.
    """
    units = [unit(vectors) for vectors in (firsts, seconds)]
    if pairs.scores is not None:
        cosines = rounded_cosines(units[0][pairs.anchors], units[1][pairs.positives])
        values = measure(_CORRELATIONS, cosines, pairs.scores)
        return {**values, "collapsed": float(np.ptp(cosines) < _SAME)}
    ranks = np.concatenate([_ranks(pairs, rows, units) for rows in _pools(len(pairs))])
    found_early = np.where(ranks <= _FIRST_RANKS, 1.0 / ranks, 0.0)
    is_constant = bool(np.ptp(units[1], axis=0).max() < _SAME) and len(units[1]) > 1
    return {
        "mrr@10": float(found_early.mean()),
        "accuracy": float((ranks == 1).mean()),
        "collapsed": float(is_constant),
    }


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors [N, W] divided by their lengths; a vector of zeros stays one."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    divided: NDArray[np.float32] = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
    return divided


def rounded_cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the cosine [N] of each pair of unit vectors [N, W].

    It is rounded, because a rank correlation would order pairs of equal texts by rounding errors.
    """
    cosines: NDArray[np.float64] = np.round(np.sum(first.astype(np.float64) * second, axis=1), 6)
    return cosines


def _pools(count: int) -> list[NDArray[np.int64]]:
    """Return the numbers of the pairs of each pool; all pools have about the same size."""
    return list(np.array_split(np.arange(count), -(-count // POOL)))


def _ranks(pairs: TextPairs, rows: NDArray[np.int64], units: list[NDArray[Any]]) -> NDArray[np.int64]:
    """Return the rank of each pair's positive among the texts of the pool, from 1 on; equal cosines count against it.

    Other texts that match the anchor are left out.
    """
    negatives = [np.array(pairs.negatives[row], dtype=np.int64) for row in rows]
    pool = np.unique(np.concatenate([pairs.positives[rows], *negatives]))
    cosines = units[0][pairs.anchors[rows]] @ units[1][pool].T
    positive = np.searchsorted(pool, pairs.positives[rows])[:, None]
    others = ~pairs.match(pairs.anchors[rows], pool)
    np.put_along_axis(others, positive, False, axis=1)
    of_positive = np.take_along_axis(cosines, positive, axis=1)
    return np.asarray(1 + np.sum(others & (cosines >= of_positive), axis=1))
