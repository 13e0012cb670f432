"""… → task: one of several continuations, in; the likeliest one, out (paper §4.4, SWAG).

A row has a context and two or more choices, each of which makes an input of its own; all are scored by one vector, and
a softmax over the row's choices makes probabilities of the scores. The number of choices may differ from row to row.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError, RunFailed, shown
from bertwright.tables.reader import ABSENT, Table, add_columns, read_table
from bertwright.tasks.classification.encoding import Encoded, encode
from bertwright.tasks.spec import TaskSpec
from bertwright.text.base_tokenizer import Pieces


class ChoiceTask(TaskSpec):
    """A task of choosing; columns as SWAG names them, fields of JSON lines as everybody does."""

    context: str = "sent1"  # the column of A
    begin: str = "sent2"  # the column of how every B begins
    ending: str = "ending"  # the columns of the choices: this and 0, 1, 2, …
    fields: tuple[str, str] = ("context", "choices")  # the same in JSON lines: A, and the list of all B
    label: str = "label"  # the number of the right choice, from 0
    dev: tuple[str, ...] = ("dev", "val", "validation")  # the dev file's name without its endings, whichever is there


@dataclass(frozen=True)
class Choices:
    """N rows of a context and its choices."""

    contexts: tuple[str, ...]
    choices: tuple[tuple[str, ...], ...]
    targets: NDArray[np.int64] | None  # [N] the number of the right choice; None where it was not asked for
    source: str
    lines: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.contexts)

    @property
    def first(self) -> NDArray[np.int64]:
        """[N+1] where each row's choices begin among all choices."""
        return np.cumsum([0, *(len(row) for row in self.choices)])

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> "Choices":
        """The given rows, in their order."""
        return replace(
            self,
            contexts=tuple(self.contexts[row] for row in rows),
            choices=tuple(self.choices[row] for row in rows),
            targets=None if self.targets is None else self.targets[np.asarray(rows, dtype=np.int64)],
            lines=tuple(self.lines[row] for row in rows),
        )


def read_choices(task: ChoiceTask, path: Path | str, *, require_label: bool = True) -> Choices:
    """Read a table of choices; InputError with file and line for what no row may be."""
    return choices_of(task, read_table(path), require_label=require_label)


def choices_of(task: ChoiceTask, table: Table, *, require_label: bool = True) -> Choices:
    """The choices of a table that was read already."""
    as_lists = table.format == "jsonl" or (table.format == "parquet" and task.fields[1] in table.available)
    contexts, choices = _of_objects(task, table) if as_lists else _of_columns(task, table)
    for row, given in enumerate(choices):
        if len(given) < 2:
            raise InputError(f"{table.place(row)}: {len(given)} choice(s); at least two are needed to choose from")
    targets = _targets(task, table, [len(given) for given in choices]) if require_label else None
    return Choices(tuple(contexts), tuple(choices), targets, table.source, tuple(table.lines))


def encode_choices(tokenizer: Pieces, rows: Choices, *, max_length: int) -> Encoded:
    """[CLS] context [SEP] choice [SEP] for every choice of every row, one after another."""
    contexts = [context for context, given in zip(rows.contexts, rows.choices, strict=True) for _ in given]
    return encode(tokenizer, contexts, [choice for given in rows.choices for choice in given], max_length=max_length)


def decode_choices(scores: NDArray[Any], first: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[NDArray[Any]]]:
    """Scores of all choices [R] and where each row's begin [N+1] → the best of each row [N], probabilities by row."""
    if not np.all(np.isfinite(scores)):
        raise RunFailed("the model's output holds numbers that are not finite")
    by_row = [scores[begin:end].astype(np.float64) for begin, end in pairwise(first)]
    powers = [np.exp(row - row.max()) for row in by_row]
    return np.array([int(row.argmax()) for row in by_row]), [row / row.sum() for row in powers]


def add_answers(table: Table, best: NDArray[np.int64], probabilities: Sequence[NDArray[Any]]) -> Table:
    """The table with the number of the best choice and all probabilities on its right."""
    name = "predicted_label" if "label" in table.available else "label"
    rounded = [[round(float(value), 6) for value in row] for row in probabilities]
    if table.format in ("jsonl", "parquet"):
        return add_columns(table, {name: best.tolist(), "probabilities": rounded})
    widest = max(len(row) for row in rounded)
    columns: dict[str, Sequence[object]] = {name: best.tolist()}
    for index in range(widest):
        columns[f"probability_{index}"] = [row[index] if index < len(row) else "" for row in rounded]
    return add_columns(table, columns)


def _of_columns(task: ChoiceTask, table: Table) -> tuple[list[str], list[tuple[str, ...]]]:
    """SWAG's columns; an empty cell, or null, behind the last choice of a row is no choice."""
    numbered = [re.fullmatch(rf"{re.escape(task.ending)}([0-9]+)", name) for name in table.columns]
    names = sorted((match[0] for match in numbered if match), key=lambda name: int(name.removeprefix(task.ending)))
    if len(names) < 2 or names != [f"{task.ending}{index}" for index in range(len(names))]:
        have = ", ".join(table.available)
        raise InputError(
            f"{table.source}: the choices are columns {task.ending}0, {task.ending}1, …; there are: {have}"
        )
    contexts = list(table.texts(task.context))
    begins = table.texts(task.begin, null="") if task.begin in table.columns else [""] * len(table)
    endings = list(zip(*(table.texts(name, null="") for name in names), strict=True))
    choices = []
    for row, cells in enumerate(endings):
        given = list(cells)
        while given and not given[-1].strip():
            given.pop()
        for index, text in enumerate(given):
            if not text.strip():
                raise InputError(f"{table.place(row)}: '{task.ending}{index}' is empty, and a later choice is not")
        choices.append(tuple(f"{begins[row]} {text}".strip() for text in given))
    return contexts, choices


def _of_objects(task: ChoiceTask, table: Table) -> tuple[list[str], list[tuple[str, ...]]]:
    context_field, choices_field = task.fields
    contexts, choices = [], []
    for row, (context, given) in enumerate(zip(table.column(context_field), table.column(choices_field), strict=True)):
        if not isinstance(context, str):
            raise InputError(f"{table.place(row)}: '{context_field}' is {shown(context)}; a text is due")
        if not isinstance(given, list):
            raise InputError(f"{table.place(row)}: '{choices_field}' is {shown(repr(given))}; a list of texts is due")
        for index, text in enumerate(given):
            if not isinstance(text, str) or not text.strip():
                place = f"{table.place(row)}: '{choices_field}[{index}]'"
                raise InputError(f"{place} is {shown(repr(text))}; a text is due, and no empty one")
        contexts.append(context)
        choices.append(tuple(given))
    return contexts, choices


def _targets(task: ChoiceTask, table: Table, counts: Sequence[int]) -> NDArray[np.int64]:
    targets = np.empty(len(table), dtype=np.int64)
    for row, cell in enumerate(table.column(task.label)):
        text = cell.strip() if isinstance(cell, str) else "" if cell is ABSENT or isinstance(cell, bool) else str(cell)
        if not re.fullmatch("[0-9]{1,9}", text):
            raise InputError(
                f"{table.place(row)}: '{task.label}' is {shown(repr(cell))}; the number of the right choice is due"
            )
        if int(text) >= counts[row]:
            raise InputError(f"{table.place(row)}: '{task.label}' is {text}; the choices are 0 to {counts[row] - 1}")
        targets[row] = int(text)
    return targets


SWAG = ChoiceTask(name="swag")
