"""model's outputs → probabilities, and the check that every answer passes, since finite weights may overflow."""

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertwright.errors import RunFailed

NOT_FINITE: Final = (
    "expected finite numbers from the model, got NaN or infinity; its weights are too large or damaged, so use another "
    "checkpoint or train again with a lower learning rate"
)


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return probabilities in float64, with a sum of 1 over the last dimension."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def logistic(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability of each logit by itself, in a form that does not overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)))


def logistic_of(logit: float) -> float:
    """Return the probability of a logit, in a form that does not overflow."""
    return 0.5 * (1.0 + math.tanh(0.5 * logit))


class NotFinite(RunFailed):
    """An output with NaN or infinity. `index` is the number of its input, from 0 on."""

    def __init__(self, index: int, location: str) -> None:
        super().__init__(f"{location}: {NOT_FINITE}")
        self.index, self.location = index, location

    def __reduce__(self) -> tuple[type, tuple[int, str]]:  # pickled where a worker process fails
        return type(self), (self.index, self.location)


def check_finite(
    outputs: Iterable[ArrayLike], location: Callable[[int], str] = "input {}".format, *, first: int = 0
) -> None:
    """Raise NotFinite for the first output that is not all finite.

    location   function from the number of an input to its description in the message
    first      number of the first input
    """
    for index, values in enumerate(outputs, first):
        if not np.isfinite(values).all():
            raise NotFinite(index, location(index))
