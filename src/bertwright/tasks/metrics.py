"""task → figures: the metrics of sentence tasks, each between -1 and 1, never NaN (paper §4.1, GLUE's metrics).

Where a coefficient is undefined, because one side does not vary, it counts as 0; `collapsed` puts that into words.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import MissingExtra

Values = NDArray[Any]

# A coefficient computed from a spread below this share of the mean would be rounding noise.
NEGLIGIBLE: Final = 1e-12
# Predicted numbers that vary by less than this share of the targets' standard deviation answer every row alike.
COLLAPSED_SHARE: Final = 0.01


def measure(
    names: Sequence[str], predicted: Values, targets: Values, *, positive: int | None = None
) -> dict[str, float]:
    """The named metrics of N predictions against N targets.

    predicted, targets   [N] label ids, or numbers for "pearson" and "spearman"; [N, labels] which labels apply, for
                         the metrics of SET_METRICS
    positive             the label id that "f1" is about

    Raises ValueError where the two differ in shape or are empty, MissingExtra without scikit-learn and scipy.
    """
    of_sets = predicted.ndim == 2 and set(names) <= set(SET_METRICS)
    if predicted.shape != targets.shape or not (predicted.ndim == 1 or of_sets) or not predicted.size:
        raise ValueError(f"predictions {predicted.shape} and targets {targets.shape} must be two lists of one length")
    if of_sets:
        return {name: SET_METRICS[name](predicted.astype(bool), targets.astype(bool)) for name in names}
    return {name: float(METRICS[name](predicted, targets, positive)) for name in names}


def collapsed(predicted: Values, targets: Values, labels: Sequence[str]) -> str | None:
    """What to tell about predictions that are all alike though the targets are not; None where they differ.

    `labels` names the classes and is empty for numbers.
    """
    if labels:
        first = predicted[0]
        if np.any(predicted != first) or np.all(targets == first):
            return None
        chosen = [int(first)] if predicted.ndim == 1 else np.flatnonzero(first).tolist()
        answer = ", ".join(f"'{labels[label]}'" for label in chosen) or "no label"
        return f"collapsed: all {len(predicted)} predictions are {answer}"
    spread, wanted = (float(np.std(values, dtype=np.float64)) for values in (predicted, targets))
    if spread >= COLLAPSED_SHARE * wanted:
        return None
    return (
        f"collapsed: the {len(predicted)} predictions hardly vary (standard deviation {spread:.2g}, targets"
        f" {wanted:.2g}); a correlation with a constant is undefined and counts as 0"
    )


def _accuracy(predicted: Values, targets: Values, positive: int | None) -> float:
    return float(np.mean(predicted == targets))


def _f1(predicted: Values, targets: Values, positive: int | None) -> float:
    if positive is None:
        raise ValueError("f1 needs to know which label is the positive one")
    return float(_sklearn().f1_score(targets == positive, predicted == positive, zero_division=0.0))


def _macro_f1(predicted: Values, targets: Values, positive: int | None) -> float:
    return float(_sklearn().f1_score(targets, predicted, average="macro", zero_division=0.0))


def _matthews(predicted: Values, targets: Values, positive: int | None) -> float:
    if _constant(predicted) or _constant(targets):
        return 0.0
    return float(_sklearn().matthews_corrcoef(targets, predicted))


def _pearson(predicted: Values, targets: Values, positive: int | None) -> float:
    if _constant(predicted) or _constant(targets):
        return 0.0
    return float(_scipy().pearsonr(predicted.astype(np.float64), targets.astype(np.float64)).statistic)


def _spearman(predicted: Values, targets: Values, positive: int | None) -> float:
    if _constant(predicted) or _constant(targets):
        return 0.0
    return float(_scipy().spearmanr(predicted, targets).statistic)


def _micro_f1(predicted: Values, targets: Values) -> float:
    return float(_set_f1(predicted.ravel(), targets.ravel()))


def _macro_set_f1(predicted: Values, targets: Values) -> float:
    return float(np.mean(_set_f1(predicted, targets)))


def _exact_match(predicted: Values, targets: Values) -> float:
    return float(np.mean(np.all(predicted == targets, axis=1)))


def _set_f1(predicted: Values, targets: Values) -> Any:
    """F1 along the first axis; 0 where nothing was predicted and nothing due."""
    right, wrong = np.sum(predicted & targets, axis=0), np.sum(predicted ^ targets, axis=0)
    return 2.0 * right / np.maximum(2 * right + wrong, 1)


def _constant(values: Values) -> bool:
    return float(np.ptp(values)) <= NEGLIGIBLE * abs(float(np.mean(values)))


def _sklearn() -> Any:
    """Scikit-learn's metrics, imported where they are needed: commands that score nothing start without them."""
    try:
        import sklearn.metrics
    except ImportError:
        raise MissingExtra("tasks", "scoring") from None
    return sklearn.metrics


def _scipy() -> Any:
    try:
        import scipy.stats
    except ImportError:
        raise MissingExtra("tasks", "scoring") from None
    return scipy.stats


METRICS: Final[dict[str, Callable[[Values, Values, int | None], float]]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}

# Of rows that may have any number of labels: [N, labels] truth values.
SET_METRICS: Final[dict[str, Callable[[Values, Values], float]]] = {
    "micro_f1": _micro_f1,
    "macro_f1": _macro_set_f1,
    "exact_match": _exact_match,
}
