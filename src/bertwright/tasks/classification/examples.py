"""labelled tables → examples of sentence tasks; training and validation rows (paper §4.1).

This module finds the tables of a folder and checks every row. The labels, their weights, and the mean and deviation of
numbers come from the training table.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.tables.files import only_file, table_stem
from bertwright.tables.reader import Table, read_table
from bertwright.tasks.classification.encoding import Encoded
from bertwright.tasks.classification.spec import SEPARATOR, ClassificationTask
from bertwright.tasks.spec import listed_labels

FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
OTHER_DEV: Final = ("valid", "val", "validation")
"""Other names of the validation table."""
NUM_BINS: Final = 10  # number of groups of a regression's targets from which validation rows are drawn


@dataclass(frozen=True)
class TextExamples:
    """N texts or pairs with their targets."""

    texts_a: tuple[str, ...]
    texts_b: tuple[str, ...] | None
    targets: NDArray[Any] | None  # [N] int64 label ids or float32 numbers, or [N, labels] bool; None where not read
    source: str
    lines: tuple[int, ...]
    between: str = ":"  # as in Table

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

    None where there is no such table, or where `data` is a file. Raises InputError for two.
    """
    if not data.is_dir():
        return None
    paths = [path for path in _tables(data) if table_stem(path) in names]
    paths = paths or [path for path in _tables(data) if re.split(r"[-_.]", table_stem(path) or "")[-1] in names]
    return only_file(data, paths)


def split_rows(
    texts: Sequence[str], source: str, *, fraction: float = 0.1, seed: int = 0
) -> tuple[list[int], list[int]]:
    """Return the row numbers (train, validation) of texts without labels; equal texts are all in one of the two."""
    groups: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(" ".join(text.casefold().split()), []).append(row)
    if len(groups) < 2:
        raise InputError(f"{source}: expected at least two different texts, to split off validation rows")
    order = sorted(groups, key=lambda key: _shuffled(key, seed))
    chosen = order[: max(1, round(fraction * len(order)))]
    dev = sorted(row for key in chosen for row in groups[key])
    return sorted(set(range(len(texts))) - set(dev)), dev


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
    _refuse_label_as_text(task, path)
    table = _read(task, path, [*task.text, task.label])
    task = _learn(task, table)
    return task, examples_of(task, table)


def _learn(task: ClassificationTask, table: Table) -> ClassificationTask:
    if task.kind == "regression":
        return standardised(task, _targets(task, table)) if task.standardise else task
    if task.labels:
        return task
    several = task.kind == "multilabel"
    rows = enumerate(table.column(task.label))
    if several:
        cells = [label for row, cell in rows for label in _label_texts(cell, task.label, table, row)]
    else:
        cells = [_label_text(cell, task.label, table, row) for row, cell in rows]
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
    return task.model_copy(update={"labels": tuple(labels)})


def standardised(task: ClassificationTask, numbers: NDArray[np.float32]) -> ClassificationTask:
    """Return the regression task with the mean and the standard deviation of these training targets."""
    spread = float(np.std(numbers, dtype=np.float64)) or 1.0
    return task.model_copy(update={"centre": float(np.mean(numbers, dtype=np.float64)), "spread": spread})


def read_examples(task: ClassificationTask, path: Path | str, *, require_label: bool = True) -> TextExamples:
    """Read a table of the task.

    Raises InputError with file and line for a missing column or cell or an unknown label.
    """
    if require_label:
        _refuse_label_as_text(task, path)
    columns = [*task.text, task.label] if require_label else list(task.text)
    return examples_of(task, _read(task, path, columns), require_label=require_label)


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


def split_dev(examples: TextExamples, *, fraction: float = 0.1, seed: int = 0) -> tuple[TextExamples, TextExamples]:
    """Return (train, validation) with `fraction` of the rows of every label for validation.

    Equal texts are all in one of the two; texts that differ only in case and blanks count as equal. The choice depends
    on the seed, the labels and the texts, not on the order of the rows. Raises InputError for fewer than two different
    texts.
    """
    groups: dict[str, list[int]] = {}
    for row in range(len(examples)):
        groups.setdefault(text_key(examples, row), []).append(row)
    if len(groups) < 2:
        raise InputError(f"{examples.source}: expected at least two different texts, to split off validation rows")
    strata = _strata(examples)
    order = sorted(groups, key=lambda key: (strata[groups[key][0]], _shuffled(key, seed)))
    # `missing` is the number of rows that validation should have by now and has not. A group of equal texts is chosen
    # when `missing` has reached its size, so that many equal rows do not fill validation. The last group of a label is
    # never chosen, because train needs every label.
    missing, chosen = 0.5, set[str]()
    has_labels = examples.targets is not None and not np.issubdtype(examples.targets.dtype, np.floating)
    groups_left = Counter(strata[rows[0]] for rows in groups.values())
    for key in order:
        stratum = strata[groups[key][0]]
        missing += fraction * len(groups[key])
        is_last = has_labels and groups_left[stratum] == 1
        if missing >= len(groups[key]) and len(chosen) < len(groups) - 1 and not is_last:
            missing -= len(groups[key])
            groups_left[stratum] -= 1
            chosen.add(key)
    if not chosen:
        chosen = {min(order, key=lambda key: len(groups[key]))}
    dev = sorted(row for key in chosen for row in groups[key])
    train = sorted(row for key in order if key not in chosen for row in groups[key])
    return examples.select(train), examples.select(dev)


def text_key(examples: TextExamples, row: int) -> str:
    """Return the texts of a row in lower case with single blanks: equal keys mean equal texts."""
    sides = [examples.texts_a[row]] if examples.texts_b is None else [examples.texts_a[row], examples.texts_b[row]]
    return "\n".join(" ".join(side.casefold().split()) for side in sides)


def _refuse_label_as_text(task: ClassificationTask, path: Path | str) -> None:
    """Raise InputError where the label column is also a text column."""
    if task.label in task.text:
        raise InputError(
            f"{path}: column '{task.label}' cannot be both text and label; set --text-column and --label-column"
        )


def _read(task: ClassificationTask, path: Path | str, columns: Sequence[str]) -> Table:
    return read_table(path, columns=columns, headerless=task.columns, broken_rows=task.broken_rows)


def _targets(task: ClassificationTask, table: Table) -> NDArray[Any]:
    cells = table.column(task.label)
    if task.kind == "regression":
        numbers = [_number(cell, task.label, table, row) for row, cell in enumerate(cells)]
        return np.array(numbers, dtype=np.float32)
    if not task.labels:
        raise ValueError(f"{task.name} has no labels yet; call learn(task, train_file)")
    spellings = [*task.labels, *(code for code in task.codes if code not in task.labels)]
    ids = {label: number for number, label in enumerate(task.labels)}
    ids |= {code: number for number, code in enumerate(task.codes) if code not in ids}

    def known(label: str, row: int) -> int:
        if label not in ids:
            raise InputError(
                f"{table.location(row)}: unknown label '{label}' in column '{task.label}'; allowed: "
                f"{listed_labels(spellings)}"
            )
        return ids[label]

    if task.kind == "multilabel":
        applies = np.zeros((len(cells), len(task.labels)), dtype=np.bool_)
        for row, cell in enumerate(cells):
            for label in _label_texts(cell, task.label, table, row):
                applies[row, known(label, row)] = True
        return applies
    labels = (_label_text(cell, task.label, table, row) for row, cell in enumerate(cells))
    return np.array([known(label, row) for row, label in enumerate(labels)], dtype=np.int64)


def _label_text(cell: object, column: str, table: Table, row: int) -> str:
    """Return a label as text: numbers and truth values as JSON writes them, decimals with all their digits."""
    text = cell.strip() if isinstance(cell, str) else f"{cell:f}" if isinstance(cell, Decimal) else ""
    if isinstance(cell, int) or (isinstance(cell, float) and math.isfinite(cell)):  # NaN means no label
        text = json.dumps(cell)
    if not text:
        raise InputError(f"{table.location(row)}: expected a label in column '{column}', got {cell!r}")
    return text


def _label_texts(cell: object, column: str, table: Table, row: int) -> tuple[str, ...]:
    """Return the labels of a row, possibly none: a list in JSON lines and Parquet, else separated by SEPARATOR.

    A text column of Parquet is read like csv, because csv tables are often converted to Parquet.
    """
    if table.format == "jsonl" or (table.format == "parquet" and not isinstance(cell, str)):
        if not isinstance(cell, list):
            raise InputError(
                f"{table.location(row)}: expected a list of labels in column '{column}' ([] for none), got {cell!r}"
            )
        parts: list[object] = list(cell)
    else:
        parts = list(str(cell).split(SEPARATOR)) if str(cell).strip() else []
    labels = tuple(_label_text(part, column, table, row) for part in parts)
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise InputError(f"{table.location(row)}: column '{column}' has the label '{twice}' twice")
    return labels


def _number(cell: object, column: str, table: Table, row: int) -> float:
    error = InputError(f"{table.location(row)}: expected a finite number in column '{column}', got {cell!r}")
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


def _shuffled(key: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}\n{key}".encode(), digest_size=16).digest()


def _strata(examples: TextExamples) -> list[int]:
    """Return the group of each row from which validation rows are drawn.

    It is the label, the rarest of several labels, or the tenth of all targets in which a number lies.
    """
    targets = examples.targets
    if targets is None:
        return [0] * len(examples)
    if np.issubdtype(targets.dtype, np.integer):
        return [int(target) for target in targets]
    if targets.ndim == 2:  # only rare labels could be absent from train or validation
        counts = np.append(targets.sum(axis=0), len(targets) + 1)  # the last stratum: rows without labels
        marked = np.column_stack([targets, np.ones(len(targets), dtype=np.bool_)])
        return [int(stratum) for stratum in np.where(marked, counts, len(targets) + 2).argmin(axis=1)]
    values, inverse = np.unique(targets, return_inverse=True)
    below = np.searchsorted(np.sort(targets), values)
    return [int(stratum) for stratum in (NUM_BINS * below // len(targets))[inverse]]


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
