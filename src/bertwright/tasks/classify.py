"""… → task → prediction: one sentence or a pair, in; labels or a number, out (paper §3.2, §4.1, appendix B.1).

A spec says which columns hold the text and the label, which labels there are and what is measured. The functions
below are the only encoding, decoding and scoring of such tasks: training, evaluation and prediction all use them.
To add a task of this kind, add a line to the specs at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from bertwright.errors import InputError, RunFailed
from bertwright.registry import get
from bertwright.tasks.entities import Counts
from bertwright.tasks.long_texts import Long, shortened, windows
from bertwright.tasks.metrics import METRICS, SET_METRICS, measure
from bertwright.tasks.spec import TaskSpec, shown
from bertwright.tasks.tables import Table, add_columns
from bertwright.text.pieces import Pieces

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


@dataclass(frozen=True)
class Encoded:
    """N rows of token ids, ragged: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]; with a GPT-1's tokens in their places."""

    ids: tuple[NDArray[np.int32], ...]
    first: NDArray[np.int32]  # [N] tokens of segment 0: [CLS], A and what follows it
    cut: NDArray[np.bool_]  # [examples] which of them lost tokens
    begins: NDArray[np.int64] | None = None  # [examples] the first row of each; None: each example is one row

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_truncated(self) -> int:
        """How many examples lost tokens."""
        return int(self.cut.sum())

    @property
    def num_rows(self) -> NDArray[np.int64]:
        """[examples] how many rows each has: one, or one for each of its windows."""
        if self.begins is None:
            return np.ones(len(self.ids), dtype=np.int64)
        return np.diff(self.begins, append=len(self.ids))


@dataclass(frozen=True)
class Predictions:
    """N answers."""

    values: NDArray[Any]  # [N] int64 label ids, [N, labels] which ones apply, or float64 numbers in the targets' unit
    labels: tuple[Any, ...] | None  # [N] names, or tuples of all that apply; None for a regression
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


def encode(
    tokenizer: Pieces,
    texts_a: Sequence[str],
    texts_b: Sequence[str] | None = None,
    *,
    max_length: int,
    long: Long = "truncate",
) -> Encoded:
    """Token ids of at most `max_length` a row; what is too long is cut, or made several rows, as `long` says."""
    num_special = 2 if texts_b is None else 3
    room = max_length - num_special
    if room < 1:
        raise InputError(f"a maximal length of {max_length} leaves no room for text; at least {num_special + 1}")
    sides_a = tokenizer.ids(texts_a)
    sides_b = [[] for _ in sides_a] if texts_b is None else tokenizer.ids(texts_b)
    begin, between, end = [tokenizer.begin_id], [tokenizer.between_id], [tokenizer.end_id]
    rows: list[NDArray[np.int32]] = []
    first: list[int] = []
    begins: list[int] = []
    cut: list[bool] = []
    for a, b in zip(sides_a, sides_b, strict=True):
        begins.append(len(rows))
        if long == "windows":
            parts, loses = windows(a, b, room)
        else:
            parts, loses = [shortened(a, b, room, middle=long == "head-tail")], len(a) + len(b) > room
        cut.append(loses)
        for part_a, part_b in parts:
            tail = [] if texts_b is None else between + part_b
            rows.append(np.array(begin + part_a + tail + end, dtype=np.int32))
            first.append(len(part_a) + 2)
    return Encoded(
        ids=tuple(rows),
        first=np.array(first, dtype=np.int32),
        cut=np.array(cut, dtype=np.bool_),
        begins=np.array(begins, dtype=np.int64) if len(rows) > len(begins) else None,
    )


def loss_targets(task: ClassificationTask, targets: NDArray[Any]) -> NDArray[Any]:
    """What the logits are compared with: label ids; numbers centred and scaled, or which labels apply, in float32."""
    if task.kind == "classification":
        return targets
    if task.kind == "multilabel":
        return targets.astype(np.float32)
    return ((targets - task.centre) / task.spread).astype(np.float32)


def decode(task: ClassificationTask, logits: NDArray[Any]) -> Predictions:
    """Answers from logits [N, num_outputs] (a regression's may be [N]); RunFailed where they are not finite."""
    logits = np.asarray(logits, dtype=np.float64).reshape(len(logits), task.num_outputs)
    if not np.all(np.isfinite(logits)):
        raise RunFailed(f"{task.name}: the model's output holds numbers that are not finite")
    if task.kind == "regression":
        return Predictions(values=logits[:, 0] * task.spread + task.centre, labels=None, probabilities=None)
    if task.kind == "multilabel":
        applies = logits > 0  # a probability over 0.5
        return Predictions(
            values=applies,
            labels=tuple(tuple(task.labels[label] for label in np.flatnonzero(row)) for row in applies),
            probabilities=0.5 * (1.0 + np.tanh(0.5 * logits)),  # the logistic function, which never overflows so
        )
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
    """The task's metrics of label ids, labels that apply, or numbers (a baseline's, say)."""
    positive = task.labels.index(task.positive) if task.positive else None
    return measure(task.metrics, values, targets, positive=positive)


def score_labels(task: ClassificationTask, values: NDArray[Any], targets: NDArray[Any]) -> dict[str, float]:
    """LABEL.f1, LABEL.precision, LABEL.recall and LABEL.examples, how many have it, of each label; none of a number."""
    if not task.has_labels:
        return {}
    found, there = (one if one.ndim == 2 else one[:, None] == np.arange(task.num_outputs) for one in (values, targets))
    figures: dict[str, float] = {}
    for number, label in enumerate(task.labels):
        ours, theirs = found[:, number], there[:, number]
        counts = Counts(int((ours & theirs).sum()), int(ours.sum()), int(theirs.sum()))
        figures |= {f"{label}.{name}": value for name, value in counts.figures.items()}
        figures[f"{label}.examples"] = counts.there
    return figures


def add_predictions(task: ClassificationTask, table: Table, predictions: Predictions) -> Table:
    """The table with the answers on its right: label (all that apply, as they are read) and probabilities, or score.

    JSON lines get an object `probabilities`, other tables a column `probability_LABEL` for each. Where the table has a
    column `label` (`score`) of its own, the answer is called `predicted_label` (`predicted_score`).
    """
    answer = "score" if predictions.labels is None else "label"
    name = f"predicted_{answer}" if answer in table.available else answer
    if predictions.labels is None or predictions.probabilities is None:
        return add_columns(table, {name: [float(f"{value:.7g}") for value in predictions.values]})
    rounded = np.round(predictions.probabilities, 6).tolist()
    columns: dict[str, Sequence[object]] = {name: predictions.labels}
    if task.kind == "multilabel":
        columns[name] = _label_cells(task, table, predictions.labels)
    if table.format == "jsonl":
        columns["probabilities"] = [dict(zip(task.labels, row, strict=True)) for row in rounded]
    else:
        columns |= {f"probability_{label}": [row[k] for row in rounded] for k, label in enumerate(task.labels)}
    return add_columns(table, columns)


def _label_cells(task: ClassificationTask, table: Table, answers: Sequence[tuple[str, ...]]) -> list[object]:
    """The labels of each row as they are read: a list where cells may be, else joined; InputError where no cell is."""
    if table.format in ("jsonl", "parquet"):
        return [list(names) for names in answers]
    torn = [label for label in task.labels if SEPARATOR in label]
    if torn:
        raise InputError(
            f"{table.source}: the label '{torn[0]}' holds '{SEPARATOR}', which parts labels there; use JSON lines"
        )
    return [SEPARATOR.join(names) for names in answers]


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
