"""specification of multiple choice: a context and several continuations in, the best one out (paper §4.4, SWAG).

A row has a context and two or more choices. Context and choice together are one input of the model, which gives it a
score. A softmax over the row's choices gives probabilities. The number of choices may differ between rows.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError, shown
from bertwright.tables.bad_rows import BadRow, bad_rows_of, is_blank
from bertwright.tables.reader import ABSENT, Table, add_columns, read_table, usable_rows
from bertwright.tasks.classification.encoding import Encoded, encode
from bertwright.tasks.finite import check_finite, softmax
from bertwright.tasks.spec import TaskSpec
from bertwright.text.base_tokenizer import Pieces


class ChoiceTask(TaskSpec):
    """A multiple-choice task; columns are named as in SWAG, fields of JSON lines `context` and `choices`."""

    context: str = "sent1"  # the column of A
    begin: str = "sent2"  # the column with the beginning of every choice
    ending: str = "ending"  # prefix of the choices' columns: ending0, ending1, …
    fields: tuple[str, str] = ("context", "choices")  # in JSON lines: the field of A, and that of the list of choices
    label: str = "label"  # the number of the right choice, from 0
    dev: tuple[str, ...] = ("dev", "val", "validation")  # possible names of the validation file, without endings


@dataclass(frozen=True)
class Choices:
    """N rows of a context and its choices. `left_out` has the numbers of the rows that were left out, by reason."""

    contexts: tuple[str, ...]
    choices: tuple[tuple[str, ...], ...]
    targets: NDArray[np.int64] | None  # [N] number of the right choice; None where not read
    source: str
    lines: tuple[int, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.contexts)

    @property
    def first(self) -> NDArray[np.int64]:
        """Return the index of each row's first choice among all choices [N+1]."""
        return np.cumsum([0, *(len(row) for row in self.choices)])

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> "Choices":
        """Return these rows, in their order."""
        return replace(
            self,
            contexts=tuple(self.contexts[row] for row in rows),
            choices=tuple(self.choices[row] for row in rows),
            targets=None if self.targets is None else self.targets[np.asarray(rows, dtype=np.int64)],
            lines=tuple(self.lines[row] for row in rows),
        )


def read_choices(task: ChoiceTask, path: Path | str) -> Choices:
    """Read a table of choices. Raises InputError with file and line for an invalid row."""
    with bad_rows_of(path, task.on_error) as bad_rows:
        table = read_table(path, format=task.input_format, on_error=bad_rows.add)
        if task.on_error == "skip":
            table = usable_rows(table, lambda rows: choices_of(task, rows), bad_rows.add)
        rows = choices_of(task, table)
    return replace(rows, left_out=dict(bad_rows.counts))


def choices_of(task: ChoiceTask, table: Table, *, require_label: bool = True) -> Choices:
    """Return the choices of a table in memory."""
    as_lists = table.format == "jsonl" or (table.format == "parquet" and task.fields[1] in table.available)
    contexts, choices = _of_objects(task, table) if as_lists else _of_columns(task, table)
    for row, endings in enumerate(choices):
        if len(endings) < 2:
            message = f"{table.location(row)}: expected at least two choices, got {len(endings)}"
            raise BadRow("with fewer than two choices", message)
    targets = _targets(task, table, [len(endings) for endings in choices]) if require_label else None
    return Choices(tuple(contexts), tuple(choices), targets, table.source, tuple(table.lines))


def encode_choices(tokenizer: Pieces, rows: Choices, *, max_length: int) -> Encoded:
    """Return [CLS] context [SEP] choice [SEP] for every choice of every row, one after another."""
    contexts = [context for context, endings in zip(rows.contexts, rows.choices, strict=True) for _ in endings]
    return encode(
        tokenizer, contexts, [choice for endings in rows.choices for choice in endings], max_length=max_length
    )


def decode_choices(
    scores: NDArray[Any], first: NDArray[np.int64], location: Callable[[int], str] = "input {}".format
) -> tuple[NDArray[np.int64], list[NDArray[Any]]]:
    """Return the best choice of each row [N], and its probabilities, from scores [R] and `Choices.first` [N+1].

    Raises RunFailed unless all scores are finite; `location` describes a row for the message.
    """
    by_row = [scores[begin:end] for begin, end in pairwise(first)]
    check_finite(by_row, location)
    return np.array([int(row.argmax()) for row in by_row]), [softmax(row) for row in by_row]


def add_answers(table: Table, best: NDArray[np.int64], probabilities: Sequence[NDArray[Any]]) -> Table:
    """Return the table with the number of the best choice and all probabilities in new columns on the right."""
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
    """Return contexts and choices of SWAG's columns; empty cells or nulls at the end of a row are not choices."""
    numbered = [re.fullmatch(rf"{re.escape(task.ending)}([0-9]+)", name) for name in table.columns]
    names = sorted((match[0] for match in numbered if match), key=lambda name: int(name.removeprefix(task.ending)))
    if len(names) < 2 or names != [f"{task.ending}{index}" for index in range(len(names))]:
        raise InputError(
            f"{table.source}: expected columns {task.ending}0, {task.ending}1, … for the choices; the columns are: "
            f"{', '.join(table.available)}"
        )
    contexts = list(table.texts(task.context))
    begins = table.texts(task.begin, null="") if task.begin in table.columns else [""] * len(table)
    endings = list(zip(*(table.texts(name, null="") for name in names), strict=True))
    choices = []
    for row, cells in enumerate(endings):
        texts = list(cells)
        while texts and is_blank(texts[-1]):
            texts.pop()
        for index, text in enumerate(texts):
            if is_blank(text):
                raise BadRow(
                    "with an empty choice",
                    f"{table.location(row)}: expected a choice in '{task.ending}{index}', got an empty cell before "
                    "another choice",
                )
        choices.append(tuple(f"{begins[row]} {text}".strip() for text in texts))
    return contexts, choices


def _of_objects(task: ChoiceTask, table: Table) -> tuple[list[str], list[tuple[str, ...]]]:
    context_field, choices_field = task.fields
    contexts, choices = [], []
    cells = zip(table.column(context_field), table.column(choices_field), strict=True)
    for row, (context, endings) in enumerate(cells):
        if not isinstance(context, str):
            message = f"{table.location(row)}: expected a text in '{context_field}', got {shown(context)}"
            raise BadRow("without a text", message)
        if not isinstance(endings, list):
            message = (
                f"{table.location(row)}: expected a list of texts in '{choices_field}', got {shown(repr(endings))}"
            )
            raise BadRow("without a list of choices", message)
        for index, text in enumerate(endings):
            if not isinstance(text, str) or is_blank(text):
                position = f"{table.location(row)}: expected a text in '{choices_field}[{index}]'"
                raise BadRow("with an empty choice", f"{position}, got {shown(repr(text))}")
        contexts.append(context)
        choices.append(tuple(endings))
    return contexts, choices


def _targets(task: ChoiceTask, table: Table, counts: Sequence[int]) -> NDArray[np.int64]:
    targets = np.empty(len(table), dtype=np.int64)
    for row, cell in enumerate(table.column(task.label)):
        text = cell.strip() if isinstance(cell, str) else "" if cell is ABSENT or isinstance(cell, bool) else str(cell)
        if not re.fullmatch("[0-9]{1,9}", text):
            raise BadRow(
                "without the number of the right choice",
                f"{table.location(row)}: expected the number of the right choice in '{task.label}', got "
                f"{shown(repr(cell))}",
            )
        if int(text) >= counts[row]:
            raise BadRow(
                "without the number of the right choice",
                f"{table.location(row)}: expected a number from 0 to {counts[row] - 1} in '{task.label}', got {text}",
            )
        targets[row] = int(text)
    return targets


SWAG = ChoiceTask(name="swag")
