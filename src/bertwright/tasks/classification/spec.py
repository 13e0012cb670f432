"""… → task → prediction: one sentence or a pair, in; labels or a number, out (paper §3.2, §4.1, appendix B.1).

A spec says which columns hold the text and the label, which labels there are and what is measured. The functions
below are the only encoding, decoding and scoring of such tasks: training, evaluation and prediction all use them.
To add a task of this kind, add a line to the specs at the end.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from bertwright.errors import InputError
from bertwright.registry import get
from bertwright.tasks.metrics import METRICS, SET_METRICS
from bertwright.tasks.spec import TaskSpec, shown

Long = Literal["truncate", "head-tail", "windows"]

SEPARATOR: Final = "|"
"""What stands between the labels of a cell in tsv and csv, where a row may have several."""
_LATER: Final = ("class_weights", "weights", "long", "symmetric")
"""Settings that earlier folders do not note: as long as they are the default they are left out."""


class ClassificationTask(TaskSpec):
    """A task with a label, any number of labels, or a number per sentence or pair; it goes into the model folder."""

    text: tuple[str, ...] = Field(min_length=1, max_length=2)  # the columns of A, or of A and B
    label: str = "label"  # the column of the label or number
    kind: Literal["classification", "multilabel", "regression"] = "classification"
    labels: tuple[str, ...] = ()  # in the order of the logits; none: `learn` finds them in the training data
    codes: tuple[str, ...] = ()  # how the files spell the labels, in the same order; the names are understood as well
    positive: str | None = None  # the label that F1 is about
    metrics: tuple[str, ...] = Field(default=("accuracy",), min_length=1)  # the first one decides which epoch is best
    columns: tuple[str, ...] = ()  # the columns' names in files without a header line
    dev: tuple[str, ...] = ("dev",)  # the dev files' names without their endings
    broken_rows: int = 0  # how many rows of a published file may be torn
    standardise: bool = False  # whether `learn` takes a regression's centre and spread from the training data
    centre: float = 0.0  # the model of a regression learns (target - centre) / spread
    spread: float = Field(default=1.0, gt=0.0)
    class_weights: Literal["none", "balanced"] = "none"  # whether the training data give each label a weight
    weights: tuple[float, ...] = ()  # of each label in the loss, in the order of the labels; none: all count alike
    long: Long = "truncate"  # what becomes of a text that is too long
    symmetric: bool = False  # whether the two texts of a pair say the same in either order (GPT paper §3.3)

    @model_serializer(mode="wrap")
    def _as_noted(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        noted: dict[str, Any] = handler(self)
        defaults = type(self).model_fields
        same = [name for name in _LATER if getattr(self, name) == defaults[name].default]
        return {name: value for name, value in noted.items() if name not in same}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        known = SET_METRICS if self.kind == "multilabel" else METRICS
        unknown = sorted(set(self.metrics) - set(known))
        if unknown:
            raise ValueError(f"unknown metrics {', '.join(unknown)}; there are: {', '.join(known)}")
        if self.codes and len(self.codes) != len(self.labels):
            raise ValueError(f"{len(self.codes)} codes for {len(self.labels)} labels")
        if len(set(self.labels)) != len(self.labels) or len(set(self.codes)) != len(self.codes):
            raise ValueError("labels and codes must be distinct")
        if self.kind == "regression" and self.labels:
            raise ValueError("a regression has no labels")
        if self.kind != "classification" and self.class_weights != "none":
            raise ValueError(f"class weights are for tasks with one label per text, and this is a {self.kind}")
        if self.weights and len(self.weights) != len(self.labels):
            raise ValueError(f"{len(self.weights)} weights for {len(self.labels)} labels")
        if "f1" in self.metrics and self.positive not in self.labels:
            raise ValueError(f"F1 needs a positive label out of {', '.join(self.labels)}; got {self.positive}")
        return self

    @property
    def has_labels(self) -> bool:
        """Whether its answers are labels, one or any number of them, and not a number."""
        return self.kind != "regression"

    @property
    def num_outputs(self) -> int:
        """The width of the logits: the number of labels, or 1."""
        if self.has_labels and not self.labels:
            raise ValueError(f"the labels of {self.name} are not known yet: learn(task, train_file) finds them")
        return max(1, len(self.labels))

    @property
    def primary_metric(self) -> str:
        """The metric by which epochs and settings are compared; the higher the better."""
        return self.metrics[0]


def get_task(name: str) -> ClassificationTask:
    """The sentence task of that name; InputError lists what there is."""
    return get("bertwright.tasks", name, ClassificationTask)


def with_columns(
    task: ClassificationTask, *, text: Sequence[str] = (), label: str | None = None, columns: Sequence[str] = ()
) -> ClassificationTask:
    """The task on a table whose columns are called otherwise; `columns` names all of a file without a header line."""
    if len(text) > 2:
        raise InputError(f"{len(text)} text columns ({', '.join(text)}); allowed: one or two")
    if len(set(text)) < len(text):
        raise InputError(f"--text-column {text[0]}: stands there twice; a pair has two columns, a text alone has one")
    given = {"text": tuple(text) or task.text, "label": label or task.label, "columns": tuple(columns) or task.columns}
    return task.model_copy(update=given)


def with_texts_of(task: ClassificationTask, trained: ClassificationTask, source: str) -> ClassificationTask:
    """The task; InputError where it asks for another number of texts than the model was fine-tuned with."""
    if len(task.text) != len(trained.text):
        raise InputError(
            f"{source}: was fine-tuned on {len(trained.text)} text column(s) ({', '.join(trained.text)}), "
            f"and {len(task.text)} ({', '.join(task.text)}) are named"
        )
    return task


def with_labels(task: ClassificationTask, labels: Sequence[str]) -> ClassificationTask:
    """The task with its labels in a model's order; InputError where the model knows other labels."""
    open_ended = task.has_labels and not task.labels
    if not open_ended and sorted(labels) != sorted(task.labels):
        expected = shown(task.labels) or "a number instead"
        raise InputError(f"the model's labels are {shown(labels) or 'none'}; {task.name} has {expected}")
    ordered: dict[str, Any] = {"labels": tuple(labels)}
    for name in ("codes", "weights"):
        of_label = dict(zip(task.labels, getattr(task, name), strict=bool(getattr(task, name))))
        ordered[name] = tuple(of_label[label] for label in labels) if of_label else ()
    return task.model_copy(update=ordered)


def with_options(
    task: ClassificationTask, *, class_weights: Literal["none", "balanced"] = "none", long: Long = "truncate"
) -> ClassificationTask:
    """The task with labels that weigh as their counts say, and with another way with texts that are too long."""
    if class_weights != "none" and task.kind != "classification":
        has = "a number" if task.kind == "regression" else "any number of labels"
        raise InputError(
            f"--class-weights {class_weights}: is for tasks with one label per text; {task.name} has {has}"
        )
    return task.model_copy(update={"class_weights": class_weights, "long": long})


# The tasks of GLUE in GLUE's own file layout, then any table. The labels' order is the one that published models use.
SENTENCES = ("sentence1", "sentence2")
QUESTIONS = ("question1", "question2")
BITS = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")

SST2 = ClassificationTask(name="sst2", text=("sentence",), labels=("negative", "positive"), codes=BITS)
COLA = ClassificationTask(
    name="cola",
    text=("sentence",),
    labels=("unacceptable", "acceptable"),
    codes=BITS,
    metrics=("matthews", "accuracy"),
    columns=("source", "label", "mark", "sentence"),
)
MRPC = ClassificationTask(
    name="mrpc",
    text=("#1 String", "#2 String"),
    label="Quality",
    labels=("not_equivalent", "equivalent"),
    codes=BITS,
    positive="equivalent",
    metrics=("f1", "accuracy"),
    symmetric=True,
)
QQP = ClassificationTask(
    name="qqp",
    text=QUESTIONS,
    label="is_duplicate",
    labels=("not_duplicate", "duplicate"),
    codes=BITS,
    positive="duplicate",
    metrics=("f1", "accuracy"),
    broken_rows=32,  # a few questions of the published training file hold a line break, which tears the row in two
    symmetric=True,
)
STSB = ClassificationTask(
    name="stsb", text=SENTENCES, label="score", kind="regression", metrics=("spearman", "pearson"), symmetric=True
)
MNLI = ClassificationTask(
    name="mnli",
    text=SENTENCES,
    label="gold_label",
    labels=("entailment", "neutral", "contradiction"),
    dev=("dev_matched", "dev_mismatched"),
)
QNLI = ClassificationTask(name="qnli", text=("question", "sentence"), labels=ENTAILMENT)
RTE = ClassificationTask(name="rte", text=SENTENCES, labels=ENTAILMENT)
WNLI = ClassificationTask(name="wnli", text=SENTENCES, labels=("not_entailment", "entailment"), codes=BITS)
CLASSIFY = ClassificationTask(name="classify", text=("text",), metrics=("accuracy", "macro_f1"))
MULTILABEL = ClassificationTask(
    name="multilabel", text=("text",), kind="multilabel", metrics=("micro_f1", "macro_f1", "exact_match")
)
REGRESS = ClassificationTask(
    name="regress", text=("text",), kind="regression", metrics=("spearman", "pearson"), standardise=True
)
