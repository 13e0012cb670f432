"""… → task: the examples of sentence tasks, read from tables with every doubt raised; train and dev (paper §4.1).

What a folder holds, what only the training data decide, and what a row must be.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.tables.files import table_stem
from bertwright.tables.reader import Table, read_table
from bertwright.tasks.classification.encoding import Encoded
from bertwright.tasks.classification.spec import SEPARATOR, ClassificationTask
from bertwright.tasks.spec import shown

FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
OTHER_DEV: Final = ("valid", "val", "validation")
"""What the table to measure on is also called."""
NUM_BINS: Final = 10  # of the targets of a regression, cut by rank, for a stratified split


@dataclass(frozen=True)
class Examples:
    """N texts or pairs and what is to be said about them."""

    texts_a: tuple[str, ...]
    texts_b: tuple[str, ...] | None
    targets: NDArray[Any] | None  # [N] int64 label ids or float32 numbers, [N, labels] bool; None: not asked for
    source: str
    lines: tuple[int, ...]
    between: str = ":"  # as a Table's

    def __len__(self) -> int:
        return len(self.texts_a)

    def place(self, row: int) -> str:
        """Where an example begins, as "file:line" or "file: row 3"."""
        return f"{self.source}{self.between}{self.lines[row]}"

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> "Examples":
        """The examples of the given rows, in their order."""
        return replace(
            self,
            texts_a=tuple(self.texts_a[row] for row in rows),
            texts_b=None if self.texts_b is None else tuple(self.texts_b[row] for row in rows),
            targets=None if self.targets is None else self.targets[np.asarray(rows, dtype=np.int64)],
            lines=tuple(self.lines[row] for row in rows),
        )


def train_file(data: Path) -> Path:
    """The training table: `data` itself, the folder's train.tsv (csv, jsonl …), or else its only one with that word.

    The last is said. Raises InputError where the folder has none, or two.
    """
    if not data.is_dir():
        return data
    found = _find_table(data, "train")
    if found:
        return found
    alike = [path for path in _tables(data) if re.search(r"(^|[-_.])train", path.name)]
    if len(alike) != 1:
        names = ", ".join(path.name for path in _tables(data)) or "no table at all"
        raise InputError(f"{data}: there is no train.tsv, train.csv, train.jsonl or train.parquet; there is: {names}")
    say(f"{data} holds no train.tsv: training on {alike[0].name}, the only table whose name holds 'train'")
    return alike[0]


def dev_files(task: ClassificationTask, data: Path) -> dict[str, Path]:
    """The dev tables by name, as far as the folder has them ({"dev": …}; two for MNLI); a file is its own only one.

    Where there is no dev, one of OTHER_DEV is taken, or a table whose name ends so (reviews-dev.tsv), which is said;
    InputError where there are two of these.
    """
    if not data.is_dir():
        return {table_stem(data) or data.name: data}
    found = {name: _find_table(data, name) for name in task.dev}
    if task.dev == ("dev",) and not found["dev"]:
        found["dev"] = other = named_table(data, ("dev", *OTHER_DEV))
        if other:
            say(f"{data} holds no dev.tsv: measuring on {other.name}")
    return {name: path for name, path in found.items() if path}


def named_table(data: Path, names: Sequence[str]) -> Path | None:
    """The folder's table called one of `names`, or ending so (codah-val.csv); InputError where there are two.

    None where there is none, or where `data` is a file.
    """
    if not data.is_dir():
        return None
    found = [path for path in _tables(data) if table_stem(path) in names]
    found = found or [path for path in _tables(data) if re.split(r"[-_.]", table_stem(path) or "")[-1] in names]
    if len(found) > 1:
        raise InputError(f"{data}: which one? {', '.join(path.name for path in found)}; keep one or name the file")
    return found[0] if found else None


def split_rows(texts: Sequence[str], source: str, *, share: float = 0.1, seed: int = 0) -> tuple[list[int], list[int]]:
    """Row numbers (train, dev) where there is no label to cut by: equal texts on one side, whatever their order."""
    groups: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(" ".join(text.casefold().split()), []).append(row)
    if len(groups) < 2:
        raise InputError(f"{source}: fewer than two different texts cannot be split into train and dev")
    order = sorted(groups, key=lambda key: _shuffled(key, seed))
    chosen = order[: max(1, round(share * len(order)))]
    dev = sorted(row for key in chosen for row in groups[key])
    return sorted(set(range(len(texts))) - set(dev)), dev


def learn(task: ClassificationTask, path: Path) -> ClassificationTask:
    """What the training data decide: the labels of `classify` and `multilabel`, in natural order; `regress`'s scale.

    A task that knows its labels, or its own scale, is returned as it is.
    """
    if task.kind == "regression":
        if not task.standardise:
            return task
        numbers = read_examples(task, path).targets
        assert numbers is not None
        return standardised(task, numbers)
    if task.labels:
        return task
    _refuse_told(task, path)
    table = _read(task, path, [task.label])
    several = task.kind == "multilabel"
    read = _label_texts if several else _label_text
    found = [read(cell, task.label, table, row) for row, cell in enumerate(table.column(task.label))]
    cells = [label for names in found for label in ([names] if isinstance(names, str) else names)]
    labels = sorted(set(cells), key=natural)
    if len(labels) < (1 if several else 2):
        holds = f"'{labels[0]}' alone; at least two labels are needed" if labels else "no label in any row"
        raise InputError(f"{table.source}: column '{task.label}' holds {holds}")
    if len(cells) >= 20 and 2 * len(labels) > len(cells):
        raise InputError(
            f"{table.source}: column '{task.label}' holds {len(labels)} values in {len(cells)} "
            f"{'places' if several else 'rows'}: no labels"
        )
    return task.model_copy(update={"labels": tuple(labels)})


def standardised(task: ClassificationTask, numbers: NDArray[np.float32]) -> ClassificationTask:
    """A regression that learns targets centred and scaled by those of its training data."""
    spread = float(np.std(numbers, dtype=np.float64)) or 1.0
    return task.model_copy(update={"centre": float(np.mean(numbers, dtype=np.float64)), "spread": spread})


def read_examples(task: ClassificationTask, path: Path | str, *, require_label: bool = True) -> Examples:
    """Read a table of the task; InputError with file and line for a missing column or cell and an unknown label."""
    if require_label:
        _refuse_told(task, path)
    columns = [*task.text, task.label] if require_label else list(task.text)
    return examples_of(task, _read(task, path, columns), require_label=require_label)


def examples_of(task: ClassificationTask, table: Table, *, require_label: bool = True) -> Examples:
    """The examples of a table that was read already; an empty text is a text."""
    sides = [table.texts(column) for column in task.text]
    return Examples(
        texts_a=sides[0],
        texts_b=sides[1] if len(sides) == 2 else None,
        targets=_targets(task, table) if require_label else None,
        source=table.source,
        lines=tuple(table.lines),
        between=table.between,
    )


def split_dev(examples: Examples, *, share: float = 0.1, seed: int = 0) -> tuple[Examples, Examples]:
    """Cut (train, dev): `share` of the rows for dev, of every label alike, equal inputs always on one side.

    Inputs that differ only in case and blanks count as equal. The choice is a function of the seed, the labels and the
    texts, not of their order. Raises InputError where there are fewer than two different inputs.
    """
    groups: dict[str, list[int]] = {}
    for row in range(len(examples)):
        groups.setdefault(text_key(examples, row), []).append(row)
    if len(groups) < 2:
        raise InputError(f"{examples.source}: fewer than two different texts cannot be split into train and dev")
    strata = _strata(examples)
    order = sorted(groups, key=lambda key: (strata[groups[key][0]], _shuffled(key, seed)))
    # Walking label by label with a running debt gives every label its share to within one group; a group of many equal
    # rows stays in train unless the debt has grown to its size, so that dev holds different texts.
    # A label's last group stays in train: what is never seen cannot be learned.
    debt, chosen = 0.5, set[str]()
    has_labels = examples.targets is not None and not np.issubdtype(examples.targets.dtype, np.floating)
    left = Counter(strata[rows[0]] for rows in groups.values())
    for key in order:
        stratum = strata[groups[key][0]]
        debt += share * len(groups[key])
        is_last = has_labels and left[stratum] == 1
        if debt >= len(groups[key]) and len(chosen) < len(groups) - 1 and not is_last:
            debt -= len(groups[key])
            left[stratum] -= 1
            chosen.add(key)
    if not chosen:
        chosen = {min(order, key=lambda key: len(groups[key]))}
    dev = sorted(row for key in chosen for row in groups[key])
    train = sorted(row for key in order if key not in chosen for row in groups[key])
    return examples.select(train), examples.select(dev)


def text_key(examples: Examples, row: int) -> str:
    """What two rows have in common whose texts are equal but for case and blanks."""
    sides = [examples.texts_a[row]] if examples.texts_b is None else [examples.texts_a[row], examples.texts_b[row]]
    return "\n".join(" ".join(side.casefold().split()) for side in sides)


def _refuse_told(task: ClassificationTask, path: Path | str) -> None:
    """InputError where the text that is read is the answer that is asked for."""
    if task.label in task.text:
        raise InputError(
            f"{path}: column '{task.label}' cannot be both the text and its label; --text-column and --label-column "
            "name them"
        )


def _read(task: ClassificationTask, path: Path | str, columns: Sequence[str]) -> Table:
    return read_table(path, columns=columns, headerless=task.columns, broken_rows=task.broken_rows)


def _targets(task: ClassificationTask, table: Table) -> NDArray[Any]:
    cells = table.column(task.label)
    if task.kind == "regression":
        numbers = [_number(cell, task.label, table, row) for row, cell in enumerate(cells)]
        return np.array(numbers, dtype=np.float32)
    if not task.labels:
        raise ValueError(f"the labels of {task.name} are not known yet: learn(task, train_file) finds them")
    spellings = [*task.labels, *(code for code in task.codes if code not in task.labels)]
    ids = {label: number for number, label in enumerate(task.labels)}
    ids |= {code: number for number, code in enumerate(task.codes) if code not in ids}

    def known(label: str, row: int) -> int:
        if label not in ids:
            raise InputError(
                f"{table.place(row)}: unknown label '{label}' in '{task.label}'; known: {shown(spellings)}"
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
    """A label as text: JSON numbers and truth values as JSON writes them."""
    text = cell.strip() if isinstance(cell, str) else ""
    if isinstance(cell, int) or (isinstance(cell, float) and math.isfinite(cell)):  # NaN says that there is none
        text = json.dumps(cell)
    if not text:
        raise InputError(f"{table.place(row)}: '{column}' is {cell!r}; a label is due")
    return text


def _label_texts(cell: object, column: str, table: Table, row: int) -> tuple[str, ...]:
    """The labels of a row, possibly none: a list in JSON lines and Parquet, else what SEPARATOR parts.

    A column of text in Parquet is read as one of csv: such tables become Parquet files.
    """
    if table.format == "jsonl" or (table.format == "parquet" and not isinstance(cell, str)):
        if not isinstance(cell, list):
            raise InputError(f"{table.place(row)}: '{column}' is {cell!r}; a list of labels is due ([] for none)")
        parts: list[object] = list(cell)
    else:
        parts = list(str(cell).split(SEPARATOR)) if str(cell).strip() else []
    labels = tuple(_label_text(part, column, table, row) for part in parts)
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise InputError(f"{table.place(row)}: '{column}' holds the label '{twice}' twice")
    return labels


def _number(cell: object, column: str, table: Table, row: int) -> float:
    trouble = InputError(f"{table.place(row)}: '{column}' is {cell!r}; a finite number is due")
    if isinstance(cell, bool) or not isinstance(cell, str | int | float) or "_" in str(cell):
        raise trouble
    try:
        number = float(cell)
    except (ValueError, OverflowError):
        raise trouble from None
    if not abs(number) <= FLOAT32_MAX:
        raise trouble
    return number


def natural(label: str) -> list[tuple[int, float, str]]:
    """A sort key: numbers by value ("2" before "10", inside a text too) and before text; the label itself on ties."""
    if re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?", label):
        return [(0, float(label), ""), (2, 0.0, label)]
    parts = re.findall(r"[0-9]+|[^0-9]+", label)
    keys = [(0, float(part), "") if part[0] in "0123456789" else (1, 0.0, part.casefold()) for part in parts]
    return [*keys, (2, 0.0, label)]


def _tables(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if table_stem(path) is not None and not path.name.startswith("."))


def _find_table(folder: Path, stem: str) -> Path | None:
    found = [path for path in _tables(folder) if table_stem(path) == stem]
    if len(found) > 1:
        raise InputError(f"{folder}: which one? {', '.join(path.name for path in found)}; keep one or name the file")
    return found[0] if found else None


def _shuffled(key: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}\n{key}".encode(), digest_size=16).digest()


def _strata(examples: Examples) -> list[int]:
    """The label of each row, the rarest of several, or the tenth into which its number falls."""
    targets = examples.targets
    if targets is None:
        return [0] * len(examples)
    if np.issubdtype(targets.dtype, np.integer):
        return [int(target) for target in targets]
    if targets.ndim == 2:  # the common labels of such rows fall to both sides by themselves, the rare ones would not
        counts = np.append(targets.sum(axis=0), len(targets) + 1)  # behind the labels: having none
        marked = np.column_stack([targets, np.ones(len(targets), dtype=np.bool_)])
        return [int(stratum) for stratum in np.where(marked, counts, len(targets) + 2).argmin(axis=1)]
    values, inverse = np.unique(targets, return_inverse=True)
    below = np.searchsorted(np.sort(targets), values)
    return [int(stratum) for stratum in (NUM_BINS * below // len(targets))[inverse]]


# … → task: how much each training row counts in the loss: by its label, and as a part of a text of several rows.


def weigh(task: ClassificationTask, train: Examples) -> ClassificationTask:
    """The task with the weight of each of its K labels, N / (K · count) among the N training rows, if it asks for it.

    So all labels weigh the same in the sum of all rows. InputError for a label that no row has.
    """
    if task.class_weights == "none":
        return task
    assert train.targets is not None
    counts = np.bincount(train.targets, minlength=len(task.labels))
    if not counts.all():
        absent = ", ".join(f"'{label}'" for label, count in zip(task.labels, counts, strict=True) if not count)
        raise InputError(
            f"{train.source}: --class-weights {task.class_weights} needs a training row of every label; "
            f"there is none of {absent}"
        )
    weights = len(train) / (len(counts) * counts)
    return task.model_copy(update={"weights": tuple(float(weight) for weight in weights)})


def row_weights(
    task: ClassificationTask, targets: NDArray[Any], encoded: Encoded, given: NDArray[np.float64] | None = None
) -> NDArray[np.float32] | None:
    """[rows] the label's weight (targets [examples]) over the number of the example's rows; None where all are 1.

    given: [examples] what each example's weight is multiplied by.
    """
    num_rows = encoded.num_rows
    of_example = np.array(task.weights)[targets] if task.weights else np.ones(len(targets))
    of_example = of_example if given is None else of_example * given
    found: NDArray[np.float32] = np.repeat(of_example / num_rows, num_rows).astype(np.float32)
    return None if np.all(found == 1.0) else found
