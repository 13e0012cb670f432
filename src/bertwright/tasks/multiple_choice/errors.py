"""chosen and right endings → the table of errors of multiple choice."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertwright.tasks.errors import Errors, rounded
from bertwright.tasks.multiple_choice.spec import Choices


def choice_errors(rows: Choices, best: NDArray[np.int64], probabilities: Sequence[NDArray[Any]]) -> Errors:
    """Return every row with its context, the right and the chosen ending, and the probabilities of both.

    best            [N] number of the chosen ending
    probabilities   of each row, those of its endings
    """
    targets = rows.targets
    assert targets is not None
    confidence, of_gold = (
        np.array([chances[number] for chances, number in zip(probabilities, numbers, strict=True)], dtype=np.float64)
        for numbers in (best, targets)
    )
    gold, predicted = (
        [endings[number] for endings, number in zip(rows.choices, numbers, strict=True)] for numbers in (targets, best)
    )
    right = best == targets
    columns: dict[str, Sequence[object]] = {
        "line": list(rows.lines),
        "context": rows.contexts,
        "gold": gold,
        "predicted": predicted,
        "wrong": (~right).tolist(),
        "probability": rounded(confidence),
        "gold_probability": rounded(of_gold),
    }
    return Errors(columns, right.astype(np.float64), confidence, are_texts=True)
