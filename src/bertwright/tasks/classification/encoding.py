"""texts or pairs → rows of token ids; logits → predictions and metrics of sentence tasks.

There are three ways to encode a text or a pair that is too long: cut its end (`truncate`), cut its middle
(`head-tail`, because the beginning and the end often decide the label), or make several rows that overlap by half
(`windows`). The room of a row is the maximal length without the special tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError
from bertwright.tables.reader import Table, add_columns
from bertwright.tasks.classification.spec import SEPARATOR, ClassificationTask, Long
from bertwright.tasks.finite import check_finite, logistic, softmax
from bertwright.tasks.metrics import measure
from bertwright.tasks.tagging.entities import Counts
from bertwright.text.base_tokenizer import Pieces

TokenPair = tuple[list[int], list[int]]


def shortened(a: Sequence[int], b: Sequence[int], room: int, *, middle: bool) -> TokenPair:
    """Return both texts with at most `room` tokens together; the longer one is cut first, the second on ties.

    The end is cut off. With `middle` the middle is cut out: a quarter of the tokens that are kept stand before it.
    """
    keep_a = min(len(a), max((room + 1) // 2, room - len(b)))
    keep_b = min(len(b), room - keep_a)
    if middle:
        return _without_middle(a, keep_a), _without_middle(b, keep_b)
    return list(a[:keep_a]), list(b[:keep_b])


def windows(a: Sequence[int], b: Sequence[int], room: int) -> tuple[list[TokenPair], bool]:
    """Return rows of at most `room` tokens for a text or pair that may be too long, and True where tokens are left out.

    Each window begins half a window after the previous one. In a pair, the text that takes more than half of the room
    is divided into windows, and each row has the whole other text. Where both take more, the first is cut to half the
    room.
    """
    half = room // 2
    if len(a) + len(b) <= room:
        return [(list(a), list(b))], False
    if len(b) <= half < len(a):
        return [(part, list(b)) for part in _windows(a, room - len(b))], False
    kept = list(a[:half])
    return [(kept, part) for part in _windows(b, room - len(kept))], len(a) > half


def _windows(tokens: Sequence[int], width: int) -> list[list[int]]:
    stride = max(1, width // 2)
    return [list(tokens[begin : begin + width]) for begin in range(0, max(1, len(tokens) - width + stride), stride)]


def _without_middle(tokens: Sequence[int], keep: int) -> list[int]:
    if keep >= len(tokens):
        return list(tokens)
    head = keep // 4
    return [*tokens[:head], *tokens[len(tokens) - (keep - head) :]]


@dataclass(frozen=True)
class Encoded:
    """N rows of token ids: [CLS] A [SEP] or [CLS] A [SEP] B [SEP]. GPT-1 has other special tokens, GPT-2 may have none.

    A row without any token is one unknown piece.
    """

    ids: tuple[NDArray[np.int32], ...]
    first: NDArray[np.int32]  # [N] number of tokens in segment 0: [CLS], A and the next special token
    cut: NDArray[np.bool_]  # [examples] True where tokens were cut
    begins: NDArray[np.int64] | None = None  # [examples] first row of each example; None where each has one row

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_truncated(self) -> int:
        """Return the number of examples that were cut."""
        return int(self.cut.sum())

    @property
    def num_rows(self) -> NDArray[np.int64]:
        """Return the number of rows of each example [examples]."""
        if self.begins is None:
            return np.ones(len(self.ids), dtype=np.int64)
        return np.diff(self.begins, append=len(self.ids))

    def mean_of_rows(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits [examples, L] of the rows' [N, L]: the mean where an example has several rows."""
        if self.begins is None:
            return logits
        sums = np.add.reduceat(logits, self.begins, axis=0, dtype=np.float64)
        return (sums / self.num_rows[:, None]).astype(np.float32)


@dataclass(frozen=True)
class Predictions:
    """Predictions for N examples."""

    values: NDArray[Any]  # [N] int64 label ids, [N, labels] bool, or float64 numbers in the targets' unit
    labels: tuple[Any, ...] | None  # [N] names, or tuples of names; None for a regression
    probabilities: NDArray[np.float64] | None  # [N, labels]; None for a regression


def encode(
    tokenizer: Pieces,
    texts_a: Sequence[str],
    texts_b: Sequence[str] | None = None,
    *,
    max_length: int,
    long: Long = "truncate",
) -> Encoded:
    """Return rows of at most `max_length` token ids; `long` says how longer texts are encoded."""
    before, between, after = map(list, tokenizer.row_frame)
    if texts_b is None:
        between = []
    num_special = len(before) + len(between) + len(after)
    room = max_length - num_special
    if room < 1:
        raise InputError(f"maximal length {max_length}: expected at least {num_special + 1}, to have room for text")
    sides_a = tokenizer.ids(texts_a)
    sides_b = [[] for _ in sides_a] if texts_b is None else tokenizer.ids(texts_b)
    rows: list[NDArray[np.int32]] = []
    first: list[int] = []
    begins: list[int] = []
    cut: list[bool] = []
    for a, b in zip(sides_a, sides_b, strict=True):
        begins.append(len(rows))
        if long == "windows":
            parts, is_cut = windows(a, b, room)
        else:
            parts, is_cut = [shortened(a, b, room, middle=long == "head-tail")], len(a) + len(b) > room
        cut.append(is_cut)
        for part_a, part_b in parts:
            ids = before + part_a + between + part_b + after
            rows.append(np.array(ids or [tokenizer.unk_id], dtype=np.int32))
            first.append(len(before) + len(part_a) + len(between or after))
    return Encoded(
        ids=tuple(rows),
        first=np.array(first, dtype=np.int32),
        cut=np.array(cut, dtype=np.bool_),
        begins=np.array(begins, dtype=np.int64) if len(rows) > len(begins) else None,
    )


def loss_targets(task: ClassificationTask, targets: NDArray[Any]) -> NDArray[Any]:
    """Return the targets of the loss: label ids, scaled numbers, or for each label 1 where it applies (float32)."""
    if task.kind == "classification":
        return targets
    if task.kind == "multilabel":
        return targets.astype(np.float32)
    return ((targets - task.centre) / task.spread).astype(np.float32)


def decode(
    task: ClassificationTask, logits: NDArray[Any], location: Callable[[int], str] = "input {}".format
) -> Predictions:
    """Return predictions from logits [N, num_outputs], or [N] of a regression.

    Logits of labels are divided by the temperature of the task. Raises RunFailed unless all are finite; `location`
    describes an example for the message.
    """
    logits = np.asarray(logits, dtype=np.float64).reshape(len(logits), task.num_outputs)
    check_finite(logits, location)
    if task.kind == "regression":
        return Predictions(values=logits[:, 0] * task.spread + task.centre, labels=None, probabilities=None)
    logits = logits / task.temperature
    if task.kind == "multilabel":
        applies = logits > 0  # a probability over 0.5
        return Predictions(
            values=applies,
            labels=tuple(tuple(task.labels[label] for label in np.flatnonzero(row)) for row in applies),
            probabilities=logistic(logits),
        )
    values = np.argmax(logits, axis=1)
    return Predictions(values, labels=tuple(task.labels[value] for value in values), probabilities=softmax(logits))


def score_values(task: ClassificationTask, values: NDArray[Any], targets: NDArray[Any]) -> dict[str, float]:
    """Return the task's metrics of label ids, of bool labels [N, labels], or of numbers."""
    positive = task.labels.index(task.positive) if task.positive else None
    return measure(task.metrics, values, targets, positive=positive)


def score_labels(task: ClassificationTask, values: NDArray[Any], targets: NDArray[Any]) -> dict[str, float]:
    """Return LABEL.f1, LABEL.precision, LABEL.recall and LABEL.examples of each label; {} for a regression."""
    if not task.has_labels:
        return {}
    predicted, true = (
        array if array.ndim == 2 else array[:, None] == np.arange(task.num_outputs) for array in (values, targets)
    )
    metrics: dict[str, float] = {}
    for number, label in enumerate(task.labels):
        is_predicted, is_true = predicted[:, number], true[:, number]
        counts = Counts(int((is_predicted & is_true).sum()), int(is_predicted.sum()), int(is_true.sum()))
        metrics |= {f"{label}.{name}": value for name, value in counts.metrics.items()}
        metrics[f"{label}.examples"] = counts.true
    return metrics


def add_predictions(task: ClassificationTask, table: Table, predictions: Predictions) -> Table:
    """Return the table with new columns on the right: the label and the probabilities, or the score.

    JSON lines get an object `probabilities`, other tables a column `probability_LABEL` for each label. Where the table
    already has a column `label` (`score`), the new column is `predicted_label` (`predicted_score`).
    """
    answer = "score" if predictions.labels is None else "label"
    name = f"predicted_{answer}" if answer in table.available else answer
    if predictions.labels is None or predictions.probabilities is None:
        return add_columns(table, {name: rounded_numbers(task, predictions.values)})
    rounded = np.round(predictions.probabilities, 6).tolist()
    columns: dict[str, Sequence[object]] = {name: predictions.labels}
    if task.kind == "multilabel":
        columns[name] = _label_cells(task, table, predictions.labels)
    if table.format == "jsonl":
        columns["probabilities"] = [dict(zip(task.labels, row, strict=True)) for row in rounded]
    else:
        columns |= {f"probability_{label}": [row[k] for row in rounded] for k, label in enumerate(task.labels)}
    return add_columns(table, columns)


def rounded_numbers(task: ClassificationTask, values: NDArray[Any]) -> list[float]:
    """Return numbers of a regression with seven significant digits, more where their centre takes some of them."""
    digits = 7 + math.ceil(math.log10(max(1.0, abs(task.centre) / task.spread)))
    return [float(f"{value:.{digits}g}") for value in values]


def _label_cells(task: ClassificationTask, table: Table, answers: Sequence[tuple[str, ...]]) -> list[object]:
    """Return the cell of each row's labels: a list in JSON lines and Parquet, else labels joined by SEPARATOR."""
    if table.format in ("jsonl", "parquet"):
        return [list(names) for names in answers]
    ambiguous = [label for label in task.labels if SEPARATOR in label]
    if ambiguous:
        raise InputError(
            f"{table.source}: the label '{ambiguous[0]}' contains '{SEPARATOR}', which separates labels in this "
            "format; use JSON lines"
        )
    return [SEPARATOR.join(names) for names in answers]
