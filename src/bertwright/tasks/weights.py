"""… → task: how much each training row counts in the loss: by its label, and as a part of a text of several rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError
from bertwright.tasks.classify import ClassificationTask, Encoded
from bertwright.tasks.examples import Examples


def weigh(task: ClassificationTask, train: Examples) -> ClassificationTask:
    """The task with the weight of each of its K labels, N / (K · count) among the N training rows, if it asks for it.

    So all labels weigh the same in the sum of all rows. InputError for a label that no row has.
    """
    if task.class_weights == "none":
        return task
    assert train.targets is not None
    counts = np.bincount(train.targets, minlength=len(task.labels))
    if not counts.all():
        absent = ", ".join(f"'{label}'" for label, count in zip(task.labels, counts, strict=True) if not count)
        raise InputError(
            f"{train.source}: --class-weights {task.class_weights} needs a training row of every label; "
            f"there is none of {absent}"
        )
    weights = len(train) / (len(counts) * counts)
    return task.model_copy(update={"weights": tuple(float(weight) for weight in weights)})


def row_weights(
    task: ClassificationTask, targets: NDArray[Any], encoded: Encoded, given: NDArray[np.float64] | None = None
) -> NDArray[np.float32] | None:
    """[rows] the label's weight (targets [examples]) over the number of the example's rows; None where all are 1.

    given: [examples] what each example's weight is multiplied by.
    """
    num_rows = encoded.num_rows
    of_example = np.array(task.weights)[targets] if task.weights else np.ones(len(targets))
    of_example = of_example if given is None else of_example * given
    found: NDArray[np.float32] = np.repeat(of_example / num_rows, num_rows).astype(np.float32)
    return None if np.all(found == 1.0) else found
