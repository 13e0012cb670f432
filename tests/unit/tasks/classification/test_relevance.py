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
        (classifier("Yes", "No"), "Yes"),
        (classifier("true", "false"), "true"),
        (classifier("positive", "negative"), "positive"),
        (classifier("LABEL_0", "LABEL_1"), "LABEL_1"),
        (classifier("match", "mismatch"), "match"),
        (classifier("relevant", "unrelated"), "relevant"),
        (classifier("paraphrase", "unrelated"), "paraphrase"),
        (classifier("duplicate", "other"), "duplicate"),
        (classifier("different", "same topic"), "same topic"),
        (classifier("contradiction", "Entailment"), "Entailment"),
        (classifier("not similar", "relevant"), "relevant"),
    ],
)
def test_the_relevant_label(task: TaskSpec, label: str | None) -> None:
    assert relevant_label(task, "model") == label


@pytest.mark.parametrize(
    "labels",
    [
        ("a", "b"),
        ("related", "unsure"),
        ("highly relevant", "relevant"),  # an end, but no negation
        ("1", "11"),
        ("irrelevant", "related"),  # a word of relevance, but within another word
        ("mismatch", "correct"),
        ("not_duplicate", "other"),
        ("same", "similar"),
    ],
)
def test_labels_that_do_not_tell_are_refused_until_one_is_named(labels: tuple[str, str]) -> None:
    with pytest.raises(InputError, match=f"m: expected two labels .*got {', '.join(labels)}; name the label"):
        relevant_label(classifier(*labels), "m")
    assert [relevant_label(classifier(*labels), "m", relevant=label) for label in labels] == [*labels]


def test_a_label_that_is_named_goes_before_the_words_and_must_be_there() -> None:
    assert relevant_label(MRPC, "m", relevant="not_equivalent") == "not_equivalent"
    with pytest.raises(InputError, match="m: relevant 'same': expected one of not_equivalent, equivalent"):
        relevant_label(MRPC, "m", relevant="same")
    with pytest.raises(InputError, match="m: relevant 'same': the score is a number; leave relevant out"):
        relevant_label(STSB, "m", relevant="same")
    with pytest.raises(InputError) as half:  # half of a character, as JSON may escape it: the message can be sent
        relevant_label(MRPC, "m", relevant="\ud800")
    assert "relevant '\\ud800': expected one of" in str(half.value).encode().decode()


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
