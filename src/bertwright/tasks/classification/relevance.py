"""task of pairs → the output by which a reranker orders documents: a number, or the probability of a label."""

import re
from typing import Final

from bertwright.errors import InputError, shown
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.spec import TaskSpec, listed_labels

_NEGATION: Final = re.compile(r"(not|non|no)[ _-]*|(un|ir|in|im|dis|mis)-?|-")
"""Beginning that turns a label into its opposite: not_relevant, non-relevant, irrelevant, mismatch, -1."""
_NEGATIVE_WORDS: Final = frozenset(("not", "non", "no", "never"))
_SPELLINGS: Final = {
    frozenset(("0", "1")): "1",
    frozenset(("label_0", "label_1")): "label_1",  # names that transformers gives
    frozenset(("no", "yes")): "yes",
    frozenset(("false", "true")): "true",
    frozenset(("negative", "positive")): "positive",
}
"""Pairs of labels in lower case, with the relevant one of each."""
_WORDS: Final = ("relevant", "match", "duplicate", "paraphrase", "equivalent", "entailment", "same", "similar")
"""Beginnings of words by which a label says that the two texts belong together."""


class NoReranker(InputError):
    """A model that is no reranker; `actual` says what it is."""

    def __init__(self, source: str, actual: str) -> None:
        super().__init__(
            f"{source}: expected a reranker, a model that was fine-tuned on two texts with a number or with two "
            f"labels, got {actual}; train one: bertwright finetune regress --text-column query --text-column document …"
        )


def relevant_label(task: TaskSpec, source: str, *, relevant: str | None = None) -> str | None:
    """Return the label whose probability is the relevance of a pair; None for a regression, whose number it is.

    The first of these that there is: `relevant`, the positive label of the task, and a label that its words name:

    - one label is the other with a negation before it (relevant, not_relevant): the one without the negation;
    - 0 and 1, no and yes, false and true, negative and positive: the second;
    - only one label has a word such as "duplicate": that one.

    Raises NoReranker, with `source`, for a task without pairs, and for one that has neither a number nor two labels.
    Raises InputError if neither label is known to be the relevant one, and if `relevant` is no label of the task.
    """
    if not isinstance(task, ClassificationTask):
        raise NoReranker(source, f"one for {task.name}")
    if len(task.text) == 1:
        raise NoReranker(source, f"one for {task.name}, which reads one text")
    if task.kind == "regression":
        if relevant is not None:
            raise InputError(f"{source}: relevant {shown(relevant)!r}: the score is a number; leave relevant out")
        return None
    if task.kind == "multilabel" or len(task.labels) != 2:
        several = ", any number of which apply" if task.kind == "multilabel" else ""
        raise NoReranker(source, f"one for {task.name} with the labels {listed_labels(task.labels)}{several}")
    if relevant is not None and relevant not in task.labels:
        raise InputError(f"{source}: relevant {shown(relevant)!r}: expected one of {listed_labels(task.labels)}")
    label = relevant or task.positive or _label_by_words(*task.labels)
    if label is None:
        raise InputError(
            f"{source}: expected two labels of which one is known as the relevant one, such as irrelevant and "
            f"relevant, got {listed_labels(task.labels)}; name the label whose probability is the score: relevant in "
            "Python and over HTTP, --relevant of search; or train with such labels"
        )
    return label


def _label_by_words(first: str, second: str) -> str | None:
    """Return the relevant one of two labels, None where their words do not tell which one it is."""
    short, long = sorted((first, second), key=len)
    if long.casefold().endswith(short.casefold()) and _NEGATION.fullmatch(long.casefold()[: -len(short)]):
        return short
    if known := _SPELLINGS.get(frozenset((first.casefold(), second.casefold()))):
        return first if first.casefold() == known else second
    related = [label for label in (first, second) if _says_relevant(label)]
    return related[0] if len(related) == 1 else None


def _says_relevant(label: str) -> bool:
    words = re.findall(r"[^\W_]+", label.casefold())
    return not _NEGATIVE_WORDS & set(words) and any(word.startswith(_WORDS) for word in words)
