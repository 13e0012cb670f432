"""labelled tables → examples of sentence tasks; training and validation rows (paper §4.1).

This module finds the tables of a folder and checks every row. The labels, their weights, and the mean and deviation of
numbers come from the training table.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.console import say
from bertwright.errors import InputError, shown
from bertwright.tables.bad_rows import BadRow, bad_rows_of, is_blank
from bertwright.tables.files import only_file, table_stem
from bertwright.tables.reader import Table, read_table, usable_rows
from bertwright.tasks.classification.encoding import Encoded
from bertwright.tasks.classification.spec import SEPARATOR, ClassificationTask
from bertwright.tasks.labels import checked_label
from bertwright.tasks.spec import listed_labels, say_alike_labels
from bertwright.text.document import OnError, raise_error

FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
OTHER_DEV: Final = ("valid", "val", "validation")
"""Other names of the validation table."""


@dataclass(frozen=True)
class TextExamples:
    """N texts or pairs with their targets.

    factors   factor of each example's weight in the loss [N]; None where all are 1
    left_out  numbers of the rows that were left out, by reason
    """

    texts_a: tuple[str, ...]
    texts_b: tuple[str, ...] | None
    targets: NDArray[Any] | None  # [N] int64 label ids or float64 numbers, or [N, labels] bool; None where not read
    source: str
    lines: tuple[int, ...]
    between: str = ":"  # as in Table
    factors: NDArray[np.float64] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts_a)

    def location(self, row: int) -> str:
        """Return the position of an example, as "file:line" or "file: row 3"."""
        return f"{self.source}{self.between}{self.lines[row]}"

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> "TextExamples":
        """Return the examples of these rows, in their order."""
        return replace(
            self,
            texts_a=tuple(self.texts_a[row] for row in rows),
            texts_b=None if self.texts_b is None else tuple(self.texts_b[row] for row in rows),
            targets=None if self.targets is None else self.targets[np.asarray(rows, dtype=np.int64)],
            lines=tuple(self.lines[row] for row in rows),
            factors=None if self.factors is None else self.factors[np.asarray(rows, dtype=np.int64)],
        )


def train_file(data: Path) -> Path:
    """Return the training table: `data` itself, or train.tsv (csv, jsonl …) of the folder.

    Without it, the only table whose name has a word that begins with "train" is used, and printed. Raises InputError
    where there is no such table, or several.
    """
    if not data.is_dir():
        return data
    table = _find_table(data, "train")
    if table:
        return table
    paths = [path for path in _tables(data) if re.search(r"(^|[-_.])train", path.name)]
    if len(paths) != 1:
        names = ", ".join(path.name for path in _tables(data)) or "no table"
        raise InputError(f"{data}: expected train.tsv, train.csv, train.jsonl or train.parquet, found {names}")
    say(f"{data} has no train.tsv: training on {paths[0].name}, the only table with 'train' in its name")
    return paths[0]


def dev_files(task: ClassificationTask, data: Path) -> dict[str, Path]:
    """Return the validation tables of a folder by name: {"dev": …}, or two for MNLI; a file is its only table.

    Without a table `dev`, the table is used that `named_table` finds, and printed. Raises InputError for two of these.
    """
    if not data.is_dir():
        return {table_stem(data) or data.name: data}
    paths = {name: _find_table(data, name) for name in task.dev}
    if task.dev == ("dev",) and not paths["dev"]:
        paths["dev"] = other = named_table(data, ("dev", *OTHER_DEV))
        if other:
            say(f"{data} has no dev.tsv: validating on {other.name}")
    return {name: path for name, path in paths.items() if path}


def named_table(data: Path, names: Sequence[str]) -> Path | None:
    """Return the table of a folder whose name is one of `names`, or ends with one, such as codah-val.csv.

    A name may end with the number of a part, as on the Hub: validation-00000-of-00001.parquet. None where there is no
    such table, or where `data` is a file. Raises InputError for two.
    """
    if not data.is_dir():
        return None
    stems = {path: re.sub(r"-\d{5}-of-\d{5}(-[0-9a-f]{16})?$", "", table_stem(path) or "") for path in _tables(data)}
    paths = [path for path, stem in stems.items() if stem in names]
    paths = paths or [path for path, stem in stems.items() if re.split(r"[-_.]", stem)[-1] in names]
    return only_file(data, paths)


def learn(task: ClassificationTask, path: Path) -> ClassificationTask:
    """Return the task with values from the training table: labels in natural order, or mean and deviation of numbers.

    A task that has labels, and a regression without `standardise`, are returned unchanged.
    """
    if task.labels or (task.kind == "regression" and not task.standardise):
        return task
    _refuse_label_as_text(task, path)
    return _learn(task, _read(task, path, [task.label]))


def read_training(task: ClassificationTask, path: Path) -> tuple[ClassificationTask, TextExamples]:
    """Read the training table once; return the task as `learn`, and the examples as `read_examples`."""
    with bad_rows_of(path, task.on_error) as bad_rows:
        table = _read_labelled(task, path, bad_rows.add)
        learned = _learn(task, table)
        examples = examples_of(learned, table)
    return learned, replace(examples, left_out=dict(bad_rows.counts))


def _learn(task: ClassificationTask, table: Table) -> ClassificationTask:
    if task.kind == "regression":
        numbers = _targets(task, table)
        if len(numbers) > 1 and not np.ptp(numbers):
            say(
                f"{table.source}: every row has the number {numbers[0]:g} in column '{task.label}', so that there is "
                "nothing to learn; check --label-column"
            )
        return standardised(task, numbers) if task.standardise else task
    if task.labels:
        return task
    several = task.kind == "multilabel"
    cells = [label for labels in _labels(task, table) for label in labels]
    labels = sorted(set(cells), key=natural)
    if len(labels) < (1 if several else 2):
        content = f"only the label '{labels[0]}'" if labels else "no label"
        raise InputError(
            f"{table.source}: expected {'labels' if several else 'at least two labels'} in column '{task.label}', "
            f"got {content}"
        )
    if len(cells) >= 20 and 2 * len(labels) > len(cells):
        raise InputError(
            f"{table.source}: expected labels in column '{task.label}', got {len(labels)} different values in "
            f"{len(cells)} {'places' if several else 'rows'}; set --label-column"
        )
    say_alike_labels(table.source, _spellings(task, table))
    return task.model_copy(update={"labels": tuple(labels)})


def standardised(task: ClassificationTask, numbers: NDArray[np.float64]) -> ClassificationTask:
    """Return the regression task with the mean and the standard deviation of these training targets."""
    spread = float(np.std(numbers, dtype=np.float64)) or 1.0
    return task.model_copy(update={"centre": float(np.mean(numbers, dtype=np.float64)), "spread": spread})


def read_examples(task: ClassificationTask, path: Path | str) -> TextExamples:
    """Read a table of the task.

    Raises InputError with file and line for a missing column or cell or an unknown label.
    """
    whole = task.model_copy(update={"broken_rows": 0})  # only the published training file has such rows
    with bad_rows_of(path, task.on_error) as bad_rows:
        examples = examples_of(task, _read_labelled(whole, path, bad_rows.add))
    return replace(examples, left_out=dict(bad_rows.counts))


def examples_of(task: ClassificationTask, table: Table, *, require_label: bool = True) -> TextExamples:
    """Return the examples of a table in memory; an empty text is allowed."""
    sides = [table.texts(column) for column in task.text]
    return TextExamples(
        texts_a=sides[0],
        texts_b=sides[1] if len(sides) == 2 else None,
        targets=_targets(task, table) if require_label else None,
        source=table.source,
        lines=tuple(table.lines),
        between=table.between,
    )


def _refuse_label_as_text(task: ClassificationTask, path: Path | str) -> None:
    """Raise InputError where the label column is also a text column."""
    if task.label in task.text:
        raise InputError(
            f"{path}: column '{task.label}' cannot be both text and label; set --text-column and --label-column"
        )


def _read(task: ClassificationTask, path: Path | str, columns: Sequence[str], on_error: OnError = raise_error) -> Table:
    options: Any = {"headerless": task.columns, "broken_rows": task.broken_rows, "format": task.input_format}
    table = read_table(path, columns=columns, on_error=on_error, **options)
    table.check_columns(columns)
    return table


def _read_labelled(task: ClassificationTask, path: Path | str, on_error: OnError) -> Table:
    """Return the texts and labels of a table; with `--on-error skip` without the rows that cannot be used."""
    _refuse_label_as_text(task, path)
    table = _read(task, path, [*task.text, task.label], on_error)
    return table if task.on_error == "stop" else usable_rows(table, lambda rows: _check(task, rows), on_error)


def _check(task: ClassificationTask, table: Table) -> None:
    """Raise BadRow for a row without a text or a label, and for a label that the task does not have."""
    for column in task.text:
        for row, text in enumerate(table.texts(column)):
            if is_blank(text):
                raise BadRow("without a text", f"{table.location(row)}: expected a text in '{column}', got {text!r}")
    if task.labels or task.kind == "regression":
        _targets(task, table)
    else:
        for _ in _labels(task, table):
            pass


def _labels(task: ClassificationTask, table: Table) -> Iterator[tuple[str, ...]]:
    """Yield the labels of each row: one, or any number for `multilabel`."""
    for row, cell in enumerate(table.column(task.label)):
        if task.kind == "multilabel":
            yield _label_texts(cell, task.label, table, row)
        else:
            yield (_label_text(cell, task.label, table, row),)


def _spellings(task: ClassificationTask, table: Table) -> Counter[str]:
    """Return the number of rows of each label as the table writes it, with the blanks at the ends of a cell."""
    if task.kind == "multilabel":
        return Counter(label for labels in _labels(task, table) for label in labels)
    cells = enumerate(table.column(task.label))
    return Counter(cell if isinstance(cell, str) else _label_text(cell, task.label, table, row) for row, cell in cells)


def _targets(task: ClassificationTask, table: Table) -> NDArray[Any]:
    cells = table.column(task.label)
    if task.kind == "regression":
        numbers = [cell_number(cell, task.label, table, row) for row, cell in enumerate(cells)]
        return np.array(numbers, dtype=np.float64)
    if not task.labels:
        raise ValueError(f"{task.name} has no labels yet; call learn(task, train_file)")
    spellings = [*task.labels, *(code for code in task.codes if code not in task.labels)]
    ids = {label: number for number, label in enumerate(task.labels)}
    ids |= {code: number for number, code in enumerate(task.codes) if code not in ids}

    def known(label: str, row: int) -> int:
        if label not in ids:
            raise BadRow(
                "with an unknown label",
                f"{table.location(row)}: unknown label '{label}' in column '{task.label}'; allowed: "
                f"{listed_labels(spellings)}",
            )
        return ids[label]

    if task.kind == "multilabel":
        applies = np.zeros((len(cells), len(task.labels)), dtype=np.bool_)
        for row, labels in enumerate(_labels(task, table)):
            for label in labels:
                applies[row, known(label, row)] = True
        return applies
    return np.array([known(label, row) for row, (label,) in enumerate(_labels(task, table))], dtype=np.int64)


def _label_text(cell: object, column: str, table: Table, row: int) -> str:
    """Return a label as text: numbers and truth values as JSON writes them, decimals with all their digits."""
    text = cell.strip() if isinstance(cell, str) else f"{cell:f}" if isinstance(cell, Decimal) else ""
    if isinstance(cell, int) or (isinstance(cell, float) and math.isfinite(cell)):  # NaN means no label
        text = json.dumps(cell)
    if not text:
        raise BadRow("without a label", f"{table.location(row)}: expected a label in column '{column}', got {cell!r}")
    return checked_label(text, table.location(row))


def _label_texts(cell: object, column: str, table: Table, row: int) -> tuple[str, ...]:
    """Return the labels of a row, possibly none: a list in JSON lines and Parquet, else separated by SEPARATOR.

    A text column of Parquet is read like csv, because csv tables are often converted to Parquet.
    """
    if table.format == "jsonl" or (table.format == "parquet" and not isinstance(cell, str)):
        if not isinstance(cell, list):
            raise BadRow(
                "without a list of labels",
                f"{table.location(row)}: expected a list of labels in column '{column}' ([] for none), got {cell!r}",
            )
        parts: list[object] = list(cell)
    else:
        parts = list(str(cell).split(SEPARATOR)) if str(cell).strip() else []
    if len(parts) > 1 and not all(str(part).strip() for part in parts):
        raise BadRow(
            "with an empty label beside another",
            f"{table.location(row)}: expected labels in column '{column}', got an empty one beside another: "
            f"{shown(repr(cell))}; take the empty label out",
        )
    labels = tuple(_label_text(part, column, table, row) for part in parts)
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise BadRow("with a label twice", f"{table.location(row)}: column '{column}' has the label '{twice}' twice")
    return labels


def cell_number(cell: object, column: str, table: Table, row: int) -> float:
    """Return the number of a cell; BadRow for a cell that is no finite number."""
    location = table.location(row)
    error = BadRow("without a number", f"{location}: expected a finite number in column '{column}', got {cell!r}")
    if isinstance(cell, bool) or not isinstance(cell, str | int | float | Decimal) or "_" in str(cell):
        raise error
    try:
        number = float(cell)
    except (ValueError, OverflowError):
        raise error from None
    if not abs(number) <= FLOAT32_MAX:
        raise error
    return number


def natural(label: str) -> list[tuple[int, float, str]]:
    """Return a sort key of natural order: numbers by value and before text, also inside a text ("label 10" is last)."""
    if re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?", label):
        return [(0, float(label), ""), (2, 0.0, label)]
    parts = re.findall(r"[0-9]+|[^0-9]+", label)
    keys = [(0, float(part), "") if part[0] in "0123456789" else (1, 0.0, part.casefold()) for part in parts]
    return [*keys, (2, 0.0, label)]


def _tables(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if table_stem(path) is not None and not path.name.startswith("."))


def _find_table(folder: Path, stem: str) -> Path | None:
    return only_file(folder, [path for path in _tables(folder) if table_stem(path) == stem])


def weigh(task: ClassificationTask, train: TextExamples) -> ClassificationTask:
    """Return the task with a weight for each of its K labels where it has class weights, else unchanged.

    The weight is N / (K · number of rows with the label), of N training rows: all labels have the same total weight.
    Raises InputError for a label without a row.
    """
    if task.class_weights == "none":
        return task
    assert train.targets is not None
    counts = np.bincount(train.targets, minlength=len(task.labels))
    if not counts.all():
        absent = ", ".join(f"'{label}'" for label, count in zip(task.labels, counts, strict=True) if not count)
        raise InputError(
            f"{train.source}: --class-weights {task.class_weights} needs a training row of every label; "
            f"there is none with {absent}"
        )
    weights = len(train) / (len(counts) * counts)
    return task.model_copy(update={"weights": tuple(float(weight) for weight in weights)})


def row_weights(
    task: ClassificationTask, targets: NDArray[Any], encoded: Encoded, factors: NDArray[np.float64] | None = None
) -> NDArray[np.float32] | None:
    """Return the weight of each row [rows]; None where all are 1.

    The weight of an example is its label's weight times its factor. It is divided equally among the example's rows.

    targets, factors   [examples]
    """
    of_examples = np.array(task.weights)[targets] if task.weights else np.ones(len(targets))
    of_examples = of_examples if factors is None else of_examples * factors
    weights: NDArray[np.float32] = np.repeat(of_examples / encoded.num_rows, encoded.num_rows).astype(np.float32)
    return None if np.all(weights == 1.0) else weights
