"""predictions and gold labels → confusion matrix, error table and calibration of sentence tasks."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.console import result_lines
from bertwright.tasks.classification.calibration import Bin, calibration_error, decisions, reliability
from bertwright.tasks.classification.encoding import Predictions, rounded_numbers
from bertwright.tasks.classification.examples import TextExamples
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.errors import Errors, rounded

_MATRIX_LABELS: Final = 12
"""Number of labels up to which the confusion matrix is printed as a matrix."""
_CONFUSIONS: Final = 20
"""Number of confusions that are printed where there are more labels."""
_COLUMNS: Final = {"line", "file", "gold", "predicted", "residual", "wrong", "probability", "gold_probability"}
"""Names of the columns of errors beside those of the texts."""
_TABLES: Final = ("confusion", "reliability")
"""Entries of an evaluation that are printed as tables."""

Confusion = dict[str, dict[str, int]]
"""Gold label → predicted label → number of rows; numbers of 0 are left out."""


def confusion_of(task: ClassificationTask, predictions: Predictions, targets: NDArray[Any]) -> Confusion:
    """Return the confusion matrix of a task with one label per row."""
    counts = np.zeros((task.num_outputs, task.num_outputs), dtype=np.int64)
    np.add.at(counts, (targets, predictions.values), 1)
    return {
        gold: {task.labels[column]: int(row[column]) for column in np.flatnonzero(row)}
        for gold, row in zip(task.labels, counts, strict=True)
    }


def assess(task: ClassificationTask, predictions: Predictions, targets: NDArray[Any]) -> dict[str, Any]:
    """Return the expected calibration error, the reliability by probability and the confusion matrix; {} for numbers.

    Several labels per row have no confusion matrix.
    """
    if predictions.probabilities is None:
        return {}
    bins = reliability(*decisions(predictions, targets))
    result: dict[str, Any] = {"calibration_error": calibration_error(bins), "reliability": bins}
    if task.kind == "classification":
        result["confusion"] = confusion_of(task, predictions, targets)
    return result


def errors_of(task: ClassificationTask, rows: TextExamples, predictions: Predictions) -> Errors:
    """Return every row with its texts, gold value, predicted value and probability; numbers have a residual instead.

    The probability of several labels is that of the whole set: the product over all labels.
    """
    targets = rows.targets
    assert targets is not None
    columns: dict[str, Sequence[object]] = {"line": list(rows.lines)}
    for name, texts in zip(task.text, (rows.texts_a, rows.texts_b), strict=False):
        assert texts is not None
        columns[f"text_{name}" if name in _COLUMNS else name] = texts
    if predictions.probabilities is None:
        residuals = predictions.values - targets
        columns |= {
            "gold": targets.tolist(),
            "predicted": rounded_numbers(task, predictions.values),
            "residual": rounded(residuals),
        }
        return Errors(columns, np.zeros(len(rows)), np.abs(residuals).astype(np.float64))
    chances = predictions.probabilities
    assert predictions.labels is not None
    if task.kind == "multilabel":
        wrong = np.any(predictions.values != targets, axis=1)
        confidence, of_gold = (np.where(sets, chances, 1.0 - chances).prod(1) for sets in (predictions.values, targets))
        gold: list[Any] = [[task.labels[label] for label in np.flatnonzero(row)] for row in targets]
        predicted: list[Any] = [list(labels) for labels in predictions.labels]
    else:
        wrong = predictions.values != targets
        every = np.arange(len(rows))
        confidence, of_gold = chances[every, predictions.values], chances[every, targets]
        gold, predicted = [task.labels[target] for target in targets], list(predictions.labels)
    columns |= {"gold": gold, "predicted": predicted, "wrong": wrong.tolist()}
    columns |= {"probability": rounded(confidence), "gold_probability": rounded(of_gold)}
    return Errors(columns, (~wrong).astype(np.float64), confidence)


def evaluation_text(metrics: Mapping[str, Any]) -> str:
    """Return the metrics line by line, then the tables of calibration and confusion."""
    lines = result_lines({name: value for name, value in metrics.items() if not name.endswith(_TABLES)})
    for name, value in metrics.items():
        file = name.rpartition(".")[0]
        of_file = f" of {file}" if file else ""
        if name.endswith("reliability"):
            lines += ["", f"reliability{of_file}, by the probability of an answer", *_bin_lines(value)]
        elif name.endswith("confusion"):
            lines += ["", *_confusion_lines(value, of_file)]
    return "\n".join(lines)


def _bin_lines(bins: Sequence[Bin]) -> list[str]:
    head = f"{'probability':14}{'answers':>9}{'mean probability':>19}{'correct':>10}"
    return [head] + [
        f"{part['from']:.1f} to {part['to']:.1f}{part['count']:13,}{part['probability']:19.3f}{part['correct']:10.3f}"
        for part in bins
    ]


def _confusion_lines(confusion: Confusion, of_file: str) -> list[str]:
    labels = list(confusion)
    totals = {label: sum(row.values()) for label, row in confusion.items()}
    commonest = max(totals, key=lambda label: totals[label])
    share = totals[commonest] / max(1, sum(totals.values()))
    always = f"the answer {commonest!r} for every row would have the accuracy {share:.4f}"
    if len(labels) > _MATRIX_LABELS:
        pairs = [
            (count, f"{gold} → {predicted}")
            for gold, row in confusion.items()
            for predicted, count in row.items()
            if gold != predicted
        ]
        most = sorted(pairs, key=lambda pair: -pair[0])[:_CONFUSIONS]
        return [
            f"most frequent confusions{of_file}: gold → predicted",
            *(f"{count:8,}  {text}" for count, text in most),
            always,
        ]
    width = max(8, *(len(label) + 2 for label in labels))
    lines = [f"confusion{of_file}: a row for each gold label, a column for each predicted label"]
    lines.append(" " * width + "".join(f"{label:>{width}}" for label in labels))
    for gold, row in confusion.items():
        lines.append(f"{gold:{width}}" + "".join(f"{row.get(label, 0):>{width},}" for label in labels))
    return [*lines, always]
