"""specifications of sentence tasks: a sentence or a pair in, labels or a number out (paper §3.2, §4.1, appendix B.1).

A specification names the text and label columns, the labels and the metrics. To add a task of this kind, add a line to
the specifications at the end.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from bertwright.errors import InputError
from bertwright.registry import get
from bertwright.tasks.metrics import METRICS, SET_METRICS
from bertwright.tasks.spec import TaskSpec, listed_labels

Long = Literal["truncate", "head-tail", "windows"]

SEPARATOR: Final = "|"
"""Separator of the labels in a tsv or csv cell of a task with several labels."""
_LATER: Final = ("class_weights", "weights", "long", "symmetric", "temperature")
"""Settings that are stored only where they differ from the default."""


class ClassificationTask(TaskSpec):
    """A task with one label, any number of labels, or a number for each sentence or pair."""

    text: tuple[str, ...] = Field(min_length=1, max_length=2)  # the columns of A, or of A and B
    label: str = "label"  # the column of the label or number
    kind: Literal["classification", "multilabel", "regression"] = "classification"
    labels: tuple[str, ...] = ()  # in the order of the logits; empty: `learn` finds them in the training data
    codes: tuple[str, ...] = ()  # the labels as files may spell them, in the same order; files may also have the names
    positive: str | None = None  # the positive label of F1
    metrics: tuple[str, ...] = Field(default=("accuracy",), min_length=1)  # the first one selects the best epoch
    columns: tuple[str, ...] = ()  # names of the columns in files without a header line
    dev: tuple[str, ...] = ("dev",)  # names of the validation files without their endings
    broken_rows: int = 0  # number of rows of a published file that a line break may split
    standardise: bool = False  # True where `learn` sets centre and spread to mean and deviation of the training data
    centre: float = 0.0  # the model of a regression learns (target - centre) / spread
    spread: float = Field(default=1.0, gt=0.0)
    class_weights: Literal["none", "balanced"] = "none"  # balanced: `weigh` computes the weights
    weights: tuple[float, ...] = ()  # of each label in the loss, in the order of the labels; empty: all 1
    long: Long = "truncate"  # how a text that is too long is encoded
    symmetric: bool = False  # True where the order of a pair's texts has no meaning (GPT paper §3.3)
    temperature: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)  # predictions divide the logits by it

    @model_serializer(mode="wrap")
    def _as_stored(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        stored: dict[str, Any] = handler(self)
        defaults = type(self).model_fields
        same = [name for name in _LATER if getattr(self, name) == defaults[name].default]
        return {name: value for name, value in stored.items() if name not in same}

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
            raise ValueError(f"class weights need a task with one label per text; this is a {self.kind}")
        if self.weights and len(self.weights) != len(self.labels):
            raise ValueError(f"{len(self.weights)} weights for {len(self.labels)} labels")
        if "f1" in self.metrics and self.positive not in self.labels:
            raise ValueError(f"F1 needs a positive label, one of {', '.join(self.labels)}; got {self.positive}")
        return self

    @property
    def has_labels(self) -> bool:
        """Return whether the task predicts labels and not a number."""
        return self.kind != "regression"

    @property
    def num_outputs(self) -> int:
        """Return the width of the logits: the number of labels, or 1."""
        if self.has_labels and not self.labels:
            raise ValueError(f"{self.name} has no labels yet; call learn(task, train_file)")
        return max(1, len(self.labels))

    @property
    def primary_metric(self) -> str:
        """Return the metric that compares epochs and settings; higher is better."""
        return self.metrics[0]


def get_task(name: str) -> ClassificationTask:
    """Return the sentence task with this name. Raises InputError, which lists all tasks, for an unknown name."""
    return get("bertwright.tasks", name, ClassificationTask)


def with_columns(
    task: ClassificationTask, *, text: Sequence[str] = (), label: str | None = None, columns: Sequence[str] = ()
) -> ClassificationTask:
    """Return the task with other column names; `columns` names all columns of a file without a header line."""
    if len(text) > 2:
        raise InputError(f"{len(text)} text columns ({', '.join(text)}); allowed: one or two")
    if len(set(text)) < len(text):
        raise InputError(f"--text-column {text[0]}: given twice; name two columns for pairs, one for single texts")
    named = {*text, *([label] if label else [])}
    of_task = task.columns if named <= {*task.columns} else ()  # a file with other columns names them in its header
    columns_update = {
        "text": tuple(text) or task.text,
        "label": label or task.label,
        "columns": tuple(columns) or of_task,
    }
    return task.model_copy(update=columns_update)


def as_trained(task: ClassificationTask, trained: ClassificationTask) -> ClassificationTask:
    """Return the task with the columns of the trained one, if it is the same task or one for any table.

    A task for any table (`classify`, `multilabel`, `regress`) also gets the labels, codes and scale of the trained one.
    """
    names = {"text", "label"} if task.name == trained.name else set()
    if task.name in (CLASSIFY.name, MULTILABEL.name, REGRESS.name) and task.kind == trained.kind:
        names |= {"text", "label", "labels", "codes", "columns", "centre", "spread"}
    return task.model_copy(update={name: getattr(trained, name) for name in names})


def with_texts_of(task: ClassificationTask, trained: ClassificationTask, source: str) -> ClassificationTask:
    """Return the task. Raises InputError where its number of text columns differs from the trained one."""
    if len(task.text) != len(trained.text):
        raise InputError(
            f"{source}: was fine-tuned on {len(trained.text)} text column(s) ({', '.join(trained.text)}), "
            f"got {len(task.text)} ({', '.join(task.text)})"
        )
    return task


def with_labels(task: ClassificationTask, labels: Sequence[str]) -> ClassificationTask:
    """Return the task with its labels in a model's order. Raises InputError where the model has other labels."""
    learns_labels = task.has_labels and not task.labels
    if not learns_labels and sorted(labels) != sorted(task.labels):
        expected = listed_labels(task.labels) or "a number instead"
        raise InputError(f"the model's labels are {listed_labels(labels) or 'none'}; {task.name} has {expected}")
    ordered: dict[str, Any] = {"labels": tuple(labels)}
    for name in ("codes", "weights"):
        of_label = dict(zip(task.labels, getattr(task, name), strict=bool(getattr(task, name))))
        ordered[name] = tuple(of_label[label] for label in labels) if of_label else ()
    return task.model_copy(update=ordered)


def with_options(
    task: ClassificationTask, *, class_weights: Literal["none", "balanced"] = "none", long: Long = "truncate"
) -> ClassificationTask:
    """Return the task with class weights and with another way to encode texts that are too long."""
    if class_weights != "none" and task.kind != "classification":
        has = "a number" if task.kind == "regression" else "any number of labels"
        raise InputError(
            f"--class-weights {class_weights}: needs a task with one label per text; {task.name} has {has}"
        )
    return task.model_copy(update={"class_weights": class_weights, "long": long})


# The tasks of GLUE in GLUE's file layout, then tasks for any table. Labels are in the order of published models.
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
    broken_rows=32,  # a few questions of the published training file contain a line break
    symmetric=True,
)
STSB = ClassificationTask(
    name="stsb",
    text=SENTENCES,
    label="score",
    kind="regression",
    metrics=("spearman", "pearson"),
    symmetric=True,
    standardise=True,
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
