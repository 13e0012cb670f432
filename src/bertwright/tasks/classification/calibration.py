"""logits and gold labels → calibration: reliability by probability, its error, and a temperature.

A classifier is calibrated where its answers with a probability of 0.8 are correct in 80 % of the cases. A temperature
divides all logits. It changes the probabilities, and never the most probable label.

Shapes: N rows, L labels, M decisions: one for each row, or one for each row and label of a task with several labels.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError
from bertwright.tasks.classification.encoding import Predictions
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.finite import logistic, softmax

BINS: Final = 10
"""Number of equally wide bins of probabilities."""
_RANGE: Final = (1e-2, 1e2)
"""Smallest and largest temperature that is looked for."""
_HALVINGS: Final = 60

Logits = NDArray[np.float64]
Bin = dict[str, float]


def decisions(predictions: Predictions, targets: NDArray[np.int64 | np.bool_]) -> tuple[Logits, NDArray[np.bool_]]:
    """Return the probability of each decision [M], and True where it is correct [M].

    With one label per row the decision is the predicted label. With several labels each label is a decision: it applies
    with its probability.
    """
    assert predictions.probabilities is not None
    if targets.ndim == 2:
        return predictions.probabilities.ravel(), targets.astype(np.bool_).ravel()
    return predictions.probabilities.max(axis=1), predictions.values == targets


def reliability(probabilities: Logits, correct: NDArray[np.bool_]) -> list[Bin]:
    """Return the bins that hold decisions: {"from", "to", "count", "probability", "correct"}.

    probability: mean of the decisions. correct: fraction of the decisions that are correct.
    """
    numbers = np.minimum((probabilities * BINS).astype(np.int64), BINS - 1)
    bins = []
    for number in np.unique(numbers).tolist():
        inside = numbers == number
        bins.append(
            {
                "from": number / BINS,
                "to": (number + 1) / BINS,
                "count": int(inside.sum()),
                "probability": float(probabilities[inside].mean()),
                "correct": float(correct[inside].mean()),
            }
        )
    return bins


def calibration_error(bins: list[Bin]) -> float:
    """Return the expected calibration error: the mean distance of probability and correctness, weighted by count."""
    total = sum(part["count"] for part in bins)
    return float(sum(part["count"] * abs(part["probability"] - part["correct"]) for part in bins) / total)


def fit_temperature(task: ClassificationTask, logits: NDArray[np.float32], targets: NDArray[np.int64]) -> float:
    """Return the temperature with the smallest negative log-likelihood of the gold labels.

    logits [N, L] are not yet divided by a temperature; targets are [N], or [N, L] bool. Raises InputError where no
    temperature of the range is best: all answers are correct, or they say nothing about the labels.
    """
    scores = np.asarray(logits, dtype=np.float64)
    low, high = (float(np.log(1.0 / limit)) for limit in reversed(_RANGE))  # of the logarithm of 1 / temperature
    if _slope(task, scores, targets, float(np.exp(high))) <= 0.0:
        answers = scores > 0 if task.kind == "multilabel" else scores.argmax(1)
        if (answers == targets).all():
            raise InputError(
                f"--calibrate: all {len(scores)} rows are answered correctly, so no temperature is best; give more "
                "rows, which the model was not trained on"
            )
        raise InputError(
            f"--calibrate: on these {len(scores)} rows no temperature from {_RANGE[0]:g} to {_RANGE[1]:g} is best: the "
            "probabilities of the model are nearly equal; train it longer"
        )
    if _slope(task, scores, targets, float(np.exp(low))) >= 0.0:
        raise InputError(
            f"--calibrate: on these {len(scores)} rows the model is not better than guessing, so no temperature is "
            "best; check the labels, or train the model longer"
        )
    for _ in range(_HALVINGS):  # the likelihood is convex in 1 / temperature
        middle = (low + high) / 2
        if _slope(task, scores, targets, float(np.exp(middle))) > 0.0:
            high = middle
        else:
            low = middle
    return float(np.exp(-(low + high) / 2))


def _slope(task: ClassificationTask, scores: Logits, targets: NDArray[np.int64], inverse: float) -> float:
    """Return the derivative of the negative log-likelihood with respect to the inverse of the temperature."""
    scaled = scores * inverse
    if task.kind == "multilabel":
        return float(np.sum((logistic(scaled) - targets) * scores))
    return float(np.sum(softmax(scaled) * scores) - np.sum(scores[np.arange(len(scores)), targets]))
