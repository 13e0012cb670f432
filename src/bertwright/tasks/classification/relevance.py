"""task of pairs → the output by which a reranker orders documents: a number, or the probability of a label."""

from bertwright.errors import InputError
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.spec import TaskSpec, listed_labels


def relevant_label(task: TaskSpec, source: str) -> str | None:
    """Return the label whose probability is the relevance of a pair; None for a regression, whose number it is.

    It is the positive label of the task, where the task names one. Else, where one label is the end of the other
    (relevant, not_relevant), it is the shorter one. Else it is the second label. Raises InputError, with `source`, for
    a task without pairs, and for one that has neither a number nor two labels.
    """
    if not isinstance(task, ClassificationTask):
        raise no_reranker(source, f"one for {task.name}")
    if len(task.text) == 1:
        raise no_reranker(source, f"one for {task.name}, which reads one text")
    if task.kind == "regression":
        return None
    if task.kind == "multilabel" or len(task.labels) != 2:
        several = ", any number of which apply" if task.kind == "multilabel" else ""
        raise no_reranker(source, f"one for {task.name} with the labels {listed_labels(task.labels)}{several}")
    if task.positive is not None:
        return task.positive
    short, long = sorted(task.labels, key=len)
    return short if long.casefold().endswith(short.casefold()) else task.labels[1]


def no_reranker(source: str, actual: str) -> InputError:
    """Return the error for a model that is no reranker; `actual` says what it is."""
    return InputError(
        f"{source}: expected a reranker, a model that was fine-tuned on two texts with a number or with two labels, "
        f"got {actual}; train one: bertwright finetune regress --text-column query --text-column document …"
    )
