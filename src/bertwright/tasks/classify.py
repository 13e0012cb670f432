"""… → task → prediction: one sentence or a pair, in; a label or a number, out (paper §3.2, §4.1, appendix B.1).

A spec says which columns hold the text and the label, which labels there are and what is measured. The functions
below are the only encoding, decoding and scoring of such tasks: training, evaluation and prediction all use them.
To add a task of this kind, add a line to the specs at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from bertwright.errors import InputError, RunFailed
from bertwright.registry import get
from bertwright.tasks.metrics import METRICS, measure
from bertwright.tasks.spec import TaskSpec
from bertwright.tasks.tables import Table, add_columns


class ClassificationTask(TaskSpec):
    """A task with one label or one number per sentence or pair; with its labels it goes into the model folder."""

    text: tuple[str, ...] = Field(min_length=1, max_length=2)  # the columns of A, or of A and B
    label: str = "label"  # the column of the label or number
    kind: Literal["classification", "regression"] = "classification"
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

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        unknown = sorted(set(self.metrics) - set(METRICS))
        if unknown:
            raise ValueError(f"unknown metrics {', '.join(unknown)}; there are: {', '.join(METRICS)}")
        if self.codes and len(self.codes) != len(self.labels):
            raise ValueError(f"{len(self.codes)} codes for {len(self.labels)} labels")
        if len(set(self.labels)) != len(self.labels) or len(set(self.codes)) != len(self.codes):
            raise ValueError("labels and codes must be distinct")
        if self.kind == "regression" and self.labels:
            raise ValueError("a regression has no labels")
        if "f1" in self.metrics and self.positive not in self.labels:
            raise ValueError(f"F1 needs a positive label out of {', '.join(self.labels)}; got {self.positive}")
        return self

    @property
    def num_outputs(self) -> int:
        """The width of the logits: the number of labels, or 1."""
        if self.kind == "classification" and not self.labels:
            raise ValueError(f"the labels of {self.name} are not known yet: learn(task, train_file) finds them")
        return max(1, len(self.labels))

    @property
    def primary_metric(self) -> str:
        """The metric by which epochs and settings are compared; the higher the better."""
        return self.metrics[0]


class Pieces(Protocol):
    """What `encode` asks of a tokenizer."""

    @property
    def cls_id(self) -> int:
        """The id of [CLS]."""
        ...

    @property
    def sep_id(self) -> int:
        """The id of [SEP]."""
        ...

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special tokens."""
        ...


@dataclass(frozen=True)
class Encoded:
    """N rows of token ids, ragged: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""

    ids: tuple[NDArray[np.int32], ...]
    first: NDArray[np.int32]  # [N] tokens of segment 0: [CLS], A and its [SEP]
    num_truncated: int  # how many rows lost tokens

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Predictions:
    """N answers."""

    values: NDArray[Any]  # [N] int64 label ids, or float64 numbers in the unit of the targets
    labels: tuple[str, ...] | None  # [N] names; None for a regression
    probabilities: NDArray[np.float64] | None  # [N, labels]; None for a regression


def get_task(name: str) -> ClassificationTask:
    """The sentence task of that name; InputError lists what there is."""
    return get("bertwright.tasks", name, ClassificationTask)


def with_columns(
    task: ClassificationTask, *, text: Sequence[str] = (), label: str | None = None, columns: Sequence[str] = ()
) -> ClassificationTask:
    """The task on a table whose columns are called otherwise; `columns` names all of a file without a header line."""
    if len(text) > 2:
        raise InputError(f"{len(text)} text columns ({', '.join(text)}); allowed: one or two")
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
    open_ended = task.kind == "classification" and not task.labels
    if not open_ended and sorted(labels) != sorted(task.labels):
        expected = ", ".join(task.labels) or "a number instead"
        raise InputError(f"the model's labels are {', '.join(labels) or 'none'}; {task.name} has {expected}")
    codes = dict(zip(task.labels, task.codes, strict=True)) if task.codes else {}
    ordered = {"labels": tuple(labels), "codes": tuple(codes[label] for label in labels) if codes else ()}
    return task.model_copy(update=ordered)


def encode(
    tokenizer: Pieces, texts_a: Sequence[str], texts_b: Sequence[str] | None = None, *, max_length: int
) -> Encoded:
    """Token ids of at most `max_length`; the longer side of a pair gives way first, from its end, the second on ties.

    That is the truncation of the original's classifier (longest first), in closed form.
    """
    num_special = 2 if texts_b is None else 3
    room = max_length - num_special
    if room < 1:
        raise InputError(f"a maximal length of {max_length} leaves no room for text; at least {num_special + 1}")
    sides_a = tokenizer.ids(texts_a)
    sides_b = [[] for _ in sides_a] if texts_b is None else tokenizer.ids(texts_b)
    cls, sep = [tokenizer.cls_id], [tokenizer.sep_id]
    rows: list[NDArray[np.int32]] = []
    first = np.empty(len(sides_a), dtype=np.int32)
    num_truncated = 0
    for row, (a, b) in enumerate(zip(sides_a, sides_b, strict=True)):
        keep_a, keep_b = _fit(len(a), len(b), room)
        num_truncated += keep_a + keep_b < len(a) + len(b)
        tail = [] if texts_b is None else b[:keep_b] + sep
        rows.append(np.array(cls + a[:keep_a] + sep + tail, dtype=np.int32))
        first[row] = keep_a + 2
    return Encoded(ids=tuple(rows), first=first, num_truncated=num_truncated)


def loss_targets(task: ClassificationTask, targets: NDArray[Any]) -> NDArray[Any]:
    """What the logits are compared with: label ids as they are; numbers centred and scaled, float32."""
    if task.kind == "classification":
        return targets
    return ((targets - task.centre) / task.spread).astype(np.float32)


def decode(task: ClassificationTask, logits: NDArray[Any]) -> Predictions:
    """Answers from logits [N, num_outputs] (a regression's may be [N]); RunFailed where they are not finite."""
    logits = np.asarray(logits, dtype=np.float64).reshape(len(logits), task.num_outputs)
    if not np.all(np.isfinite(logits)):
        raise RunFailed(f"{task.name}: the model's output holds numbers that are not finite")
    if task.kind == "regression":
        return Predictions(values=logits[:, 0] * task.spread + task.centre, labels=None, probabilities=None)
    values = np.argmax(logits, axis=1)
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return Predictions(
        values=values,
        labels=tuple(task.labels[value] for value in values),
        probabilities=exponents / exponents.sum(axis=1, keepdims=True),
    )


def score(task: ClassificationTask, logits: NDArray[Any], targets: NDArray[Any]) -> dict[str, float]:
    """The task's metrics; `targets` as in Examples, in their own unit."""
    return score_values(task, decode(task, logits).values, targets)


def score_values(task: ClassificationTask, values: NDArray[Any], targets: NDArray[Any]) -> dict[str, float]:
    """The task's metrics of label ids or numbers (a baseline's, say)."""
    positive = task.labels.index(task.positive) if task.positive else None
    return measure(task.metrics, values, targets, positive=positive)


def add_predictions(task: ClassificationTask, table: Table, predictions: Predictions) -> Table:
    """The table with the answers on its right: label and probabilities, or score.

    JSON lines get an object `probabilities`, tsv and csv a column `probability_LABEL` for each. Where the table has a
    column `label` (`score`) of its own, the answer is called `predicted_label` (`predicted_score`).
    """
    answer = "score" if predictions.labels is None else "label"
    name = f"predicted_{answer}" if answer in table.available else answer
    if predictions.labels is None or predictions.probabilities is None:
        return add_columns(table, {name: [round(float(value), 6) for value in predictions.values]})
    rounded = np.round(predictions.probabilities, 6).tolist()
    columns: dict[str, Sequence[object]] = {name: predictions.labels}
    if table.format == "jsonl":
        columns["probabilities"] = [dict(zip(task.labels, row, strict=True)) for row in rounded]
    else:
        columns |= {f"probability_{label}": [row[k] for row in rounded] for k, label in enumerate(task.labels)}
    return add_columns(table, columns)


def _fit(num_a: int, num_b: int, room: int) -> tuple[int, int]:
    """How many tokens of each side remain: the longer gives way until both are equal, then B and A in turn."""
    keep_a = min(num_a, max((room + 1) // 2, room - num_b))
    return keep_a, min(num_b, room - keep_a)


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
)
STSB = ClassificationTask(
    name="stsb", text=SENTENCES, label="score", kind="regression", metrics=("spearman", "pearson")
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
REGRESS = ClassificationTask(
    name="regress", text=("text",), kind="regression", metrics=("spearman", "pearson"), standardise=True
)
