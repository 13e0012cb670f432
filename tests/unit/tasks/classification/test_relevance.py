"""The output by which a reranker orders documents, and the tasks that have none."""

import pytest

from bertwright.errors import InputError
from bertwright.tasks.classification.relevance import relevant_label
from bertwright.tasks.classification.spec import CLASSIFY, MNLI, MRPC, MULTILABEL, QNLI, REGRESS, RTE, SST2, STSB
from bertwright.tasks.embedding.spec import EMBED
from bertwright.tasks.spec import TaskSpec

PAIR = ("query", "document")


def classifier(*labels: str) -> TaskSpec:
    return CLASSIFY.model_copy(update={"text": PAIR, "labels": labels})


@pytest.mark.parametrize(
    ("task", "label"),
    [
        (STSB, None),
        (REGRESS.model_copy(update={"text": PAIR}), None),
        (MRPC, "equivalent"),  # the task names it as positive
        (QNLI, "entailment"),  # the first label; the second is its negation
        (RTE, "entailment"),
        (classifier("irrelevant", "relevant"), "relevant"),
        (classifier("Relevant", "not relevant"), "Relevant"),
        (classifier("-1", "1"), "1"),
        (classifier("0", "1"), "1"),
        (classifier("no", "yes"), "yes"),
    ],
)
def test_the_relevant_label(task: TaskSpec, label: str | None) -> None:
    assert relevant_label(task, "model") == label


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (SST2, "m: expected a reranker, .* got one for sst2, which reads one text; train one: bertwright finetune"),
        (MNLI, "got one for mnli with the labels entailment, neutral, contradiction; train"),
        (
            MULTILABEL.model_copy(update={"text": PAIR, "labels": ("a", "b")}),
            "multilabel with the labels a, b, any number",
        ),
        (EMBED, "got one for embed; train"),
    ],
)
def test_other_tasks_are_refused_by_name(task: TaskSpec, message: str) -> None:
    with pytest.raises(InputError, match=message):
        relevant_label(task, "m")
