"""… → task: what becomes of a text, or of a pair, that has more tokens than fit.

Three ways: cut the end off (`truncate`), give up the middle (`head-tail`: what decides a label often stands where a
text begins or ends), or make several rows of it that overlap by half (`windows`). All take time and memory in
proportion to the number of tokens. The room is what the special tokens leave.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError, RunFailed
from bertwright.tables.reader import Table, add_columns
from bertwright.tasks.classification.spec import SEPARATOR, ClassificationTask, Long
from bertwright.tasks.metrics import measure
from bertwright.tasks.tagging.entities import Counts
from bertwright.text.base_tokenizer import Pieces

Part = tuple[list[int], list[int]]


def shortened(a: Sequence[int], b: Sequence[int], room: int, *, middle: bool) -> Part:
    """Both sides, together of at most `room` tokens; the longer one gives way first, the second on ties.

    From its end, as in the original's classifier, or from its middle: a quarter of what remains is then its beginning.
    """
    keep_a, keep_b = _fit(len(a), len(b), room)
    cut = _without_middle if middle else _without_end
    return cut(a, keep_a), cut(b, keep_b)


def windows(a: Sequence[int], b: Sequence[int], room: int) -> tuple[list[Part], bool]:
    """Rows of at most `room` tokens that together hold everything, and whether something is lost all the same.

    Each window begins half a window after the one before. Of a pair, the side that takes up more than half of the room
    is cut into windows, and the other one stands whole in each row; where both do, the first is cut to half the room.
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


def _fit(num_a: int, num_b: int, room: int) -> tuple[int, int]:
    """How many tokens of each side remain, in closed form: until both are equal the longer, then B and A in turn."""
    keep_a = min(num_a, max((room + 1) // 2, room - num_b))
    return keep_a, min(num_b, room - keep_a)


def _without_end(tokens: Sequence[int], keep: int) -> list[int]:
    return list(tokens[:keep])


def _without_middle(tokens: Sequence[int], keep: int) -> list[int]:
    if keep >= len(tokens):
        return list(tokens)
    head = keep // 4
    return [*tokens[:head], *tokens[len(tokens) - (keep - head) :]]


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
