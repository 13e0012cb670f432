"""predictions and targets → metrics of sentence tasks, between -1 and 1 and never NaN (paper §4.1, GLUE's metrics)."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import MissingExtra

Array = NDArray[Any]

NEGLIGIBLE: Final = 1e-12
"""Numbers whose range is below this fraction of their mean differ by rounding alone."""
COLLAPSED_FRACTION: Final = 0.01
"""Predictions whose standard deviation is below this fraction of the targets' count as constant."""
CORRELATIONS: Final = frozenset({"matthews", "pearson", "spearman"})
"""Metrics that are undefined where the predictions or the targets are constant; they then count as 0."""


def measure(names: Sequence[str], predicted: Array, targets: Array, *, positive: int | None = None) -> dict[str, float]:
    """Return the named metrics of N predictions against N targets.

    predicted, targets   [N] label ids, or numbers for "pearson" and "spearman"; for the metrics of SET_METRICS
                         [N, labels] bool: True where the label applies
    positive             label id that counts as positive for "f1"

    Raises ValueError where the two differ in shape or are empty, MissingExtra where a library is missing.
    """
    are_sets = predicted.ndim == 2 and set(names) <= set(SET_METRICS)
    if predicted.shape != targets.shape or not (predicted.ndim == 1 or are_sets) or not predicted.size:
        raise ValueError(
            f"predictions {predicted.shape} and targets {targets.shape} must have the same shape, [N] or [N, "
            "labels], with N > 0"
        )
    if are_sets:
        return {name: SET_METRICS[name](predicted.astype(bool), targets.astype(bool)) for name in names}
    is_constant = _constant(predicted) or _constant(targets)
    return {
        name: 0.0 if is_constant and name in CORRELATIONS else METRICS[name](predicted, targets, positive)
        for name in names
    }


def collapsed(predicted: Array, targets: Array, labels: Sequence[str]) -> str | None:
    """Return a message where all predictions are equal though the targets differ; None otherwise.

    `labels` names the classes and is empty for numbers.
    """
    if labels:
        first = predicted[0]
        if np.any(predicted != first) or np.all(targets == first):
            return None
        chosen = [int(first)] if predicted.ndim == 1 else np.flatnonzero(first).tolist()
        answer = ", ".join(f"'{labels[label]}'" for label in chosen) or "no label"
        return f"collapsed: all {len(predicted)} predictions are {answer}"
    spread, target_spread = (float(np.std(values, dtype=np.float64)) for values in (predicted, targets))
    if spread >= COLLAPSED_FRACTION * target_spread:
        return None
    return (
        f"collapsed: the {len(predicted)} predictions are nearly constant (standard deviation {spread:.2g}, targets"
        f" {target_spread:.2g}); the correlation with a constant is undefined and counts as 0"
    )


def without_collapsed(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a validation without its notes on equal predictions, whose keys end with "collapsed"."""
    return {name: value for name, value in metrics.items() if not name.endswith("collapsed")}


def by_file(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return metrics by validation file as one mapping; the name of the file precedes where there are several."""
    return {
        f"{name}.{metric}" if len(metrics) > 1 else metric: value
        for name, part in metrics.items()
        for metric, value in part.items()
    }


def _accuracy(predicted: Array, targets: Array, positive: int | None) -> float:
    return float(np.mean(predicted == targets))


def _f1(predicted: Array, targets: Array, positive: int | None) -> float:
    if positive is None:
        raise ValueError("f1 needs the id of the positive label")
    return float(_set_f1(predicted == positive, targets == positive))


def _macro_f1(predicted: Array, targets: Array, positive: int | None) -> float:
    labels = np.union1d(predicted, targets)
    right, answered, true = (
        np.bincount(np.searchsorted(labels, values), minlength=len(labels))
        for values in (targets[predicted == targets], predicted, targets)
    )
    return float(np.mean(2.0 * right / (answered + true)))


def _matthews(predicted: Array, targets: Array, positive: int | None) -> float:
    return float(_imported("sklearn.metrics").matthews_corrcoef(targets, predicted))


def _pearson(predicted: Array, targets: Array, positive: int | None) -> float:
    return float(_imported("scipy.stats").pearsonr(predicted.astype(np.float64), targets.astype(np.float64)).statistic)


def _spearman(predicted: Array, targets: Array, positive: int | None) -> float:
    return float(_imported("scipy.stats").spearmanr(predicted, targets).statistic)


def _micro_f1(predicted: Array, targets: Array) -> float:
    return float(_set_f1(predicted.ravel(), targets.ravel()))


def _macro_set_f1(predicted: Array, targets: Array) -> float:
    return float(np.mean(_set_f1(predicted, targets)))


def _exact_match(predicted: Array, targets: Array) -> float:
    return float(np.mean(np.all(predicted == targets, axis=1)))


def _set_f1(predicted: Array, targets: Array) -> Any:
    """Return F1 along the first axis; 0 where there are neither predicted nor true labels."""
    right, wrong = np.sum(predicted & targets, axis=0), np.sum(predicted ^ targets, axis=0)
    return 2.0 * right / np.maximum(2 * right + wrong, 1)


def _constant(values: Array) -> bool:
    return float(np.ptp(values)) <= NEGLIGIBLE * abs(float(np.mean(values)))


def _imported(module: str) -> Any:
    """Import a library only when it computes a metric, because other commands start faster without it."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtra("tasks", "scoring") from None


METRICS: Final[dict[str, Callable[[Array, Array, int | None], float]]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}

SET_METRICS: Final[dict[str, Callable[[Array, Array], float]]] = {
    "micro_f1": _micro_f1,
    "macro_f1": _macro_set_f1,
    "exact_match": _exact_match,
}
"""Metrics of rows with any number of labels: [N, labels] bool."""
