"""Errors of multiple choice: the order of the rows and their cells."""

import numpy as np

from bertwright.tasks.multiple_choice.errors import choice_errors
from bertwright.tasks.multiple_choice.spec import Choices, decode_choices

ROWS = Choices(
    contexts=("Rain falls.", "It snows.", "Fog lies.", "Hail falls."),
    choices=(("a", "b"), ("c", "d", "e"), ("f", "g"), ("h", "i")),
    targets=np.array([1, 2, 0, 0]),
    source="dev.csv",
    lines=(2, 3, 4, 5),
)


def test_confidently_wrong_endings_come_first_and_doubtful_ones_next() -> None:
    chances = [[0.6, 0.4], [0.7, 0.2, 0.1], [0.9, 0.1], [0.55, 0.45]]
    scores = np.log(np.concatenate(chances))
    errors = choice_errors(ROWS, *decode_choices(scores, ROWS.first))
    assert list(errors.columns) == ["line", "context", "gold", "predicted", "wrong", "probability", "gold_probability"]
    assert errors.rows() == [
        (3, "It snows.", "e", "c", True, 0.7, 0.1),
        (2, "Rain falls.", "b", "a", True, 0.6, 0.4),
        (5, "Hail falls.", "h", "h", False, 0.55, 0.55),
        (4, "Fog lies.", "f", "f", False, 0.9, 0.9),
    ]
