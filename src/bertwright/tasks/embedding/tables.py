"""table of pairs, scored pairs, labelled pairs or texts → pairs of texts; the layout comes from the columns.

    pairs    anchor, positive and, where there are hard negatives, negative, negative_2, …
    scored   sentence1, sentence2, score
    nli      sentence1, sentence2, label (or gold_label): entailment, neutral or contradiction
    texts    text: a text matches itself, computed with other dropout

Of labelled pairs, an entailment is a pair, and the contradictions of its first text are its hard negatives.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from bertwright.console import say
from bertwright.errors import InputError, shown
from bertwright.tables.bad_rows import BadRow, bad_rows_of, is_blank
from bertwright.tables.reader import ABSENT, Table, read_table
from bertwright.tasks.classification.examples import cell_number
from bertwright.tasks.embedding.pairs import (
    PairOfTable,
    TextPairs,
    contradiction,
    counted,
    equal_key,
    pairs_of,
    without_conflicts,
)
from bertwright.tasks.embedding.spec import Layout, VectorTask
from bertwright.text.document import OnError

ENTAILMENT_LABELS: Final = ("entailment", "neutral", "contradiction")
LAYOUT_COLUMNS: Final[Mapping[Layout, str]] = {
    "pairs": "anchor, positive and perhaps negative, negative_2, …",
    "scored": "sentence1, sentence2, score",
    "nli": "sentence1, sentence2, label (entailment, neutral or contradiction)",
    "texts": "text",
}
"""Columns of each layout, for messages."""
ReadRow = Callable[[int, list[str]], PairOfTable]
"""Function row of a table + its texts → pair; BadRow for a row that cannot be used."""
_TEXTS: Final[Mapping[Layout, tuple[str, ...]]] = {
    "pairs": ("anchor", "positive"),
    "scored": ("sentence1", "sentence2"),
    "nli": ("sentence1", "sentence2"),
    "texts": ("text",),
}
_NAMES: Final[Mapping[Layout, str]] = {
    "pairs": "pairs",
    "scored": "pairs with scores",
    "nli": "pairs with labels of inference",
    "texts": "texts alone, each matched with itself under other dropout",
}
_LABELS: Final[Mapping[Layout, tuple[str, ...]]] = {"scored": ("score",), "nli": ("label", "gold_label")}


def read_pairs(task: VectorTask, path: Path) -> TextPairs:
    """Read a table of pairs; print its layout and the numbers of pairs and hard negatives.

    Raises InputError with file and line for a table of another layout, and for a row that cannot be used.
    """
    with bad_rows_of(path, task.on_error) as bad_rows:
        table = read_table(path, format=task.input_format, on_error=bad_rows.add)
        layout = layout_of(task, table)
        if task.label is not None and layout not in _LABELS:
            raise InputError(
                f"{table.source}: --label-column {task.label}: expected scores or labels of inference, got "
                f"{_NAMES[layout]}; leave it out, or name the columns of the two texts with --text-column"
            )
        rows = _rows_of(task, layout, table, bad_rows.add)
        location = partial(_location, table)
        if layout == "nli":
            rows, note = _grouped(rows, location, bad_rows.add)
        else:
            rows, note = without_conflicts(rows, location, bad_rows.add), ""
        if not rows:
            raise InputError(f"{table.source}: holds no pair to learn from; expected {LAYOUT_COLUMNS[layout]}")
        pairs = pairs_of(rows, table.source, between=table.between, twins=layout == "texts", alike=layout != "pairs")
    say(f"{path}: {_NAMES[layout]}: {counted(pairs)}{note}")
    return replace(pairs, left_out=dict(bad_rows.counts))


def _location(table: Table, line: int) -> str:
    return f"{table.source}{table.between}{line}"


def layout_of(task: VectorTask, table: Table) -> Layout:
    """Return the layout of a table: the one that is set, or the only one whose columns the table has."""
    if task.layout in ("beir", "corpus"):
        raise InputError(f"{table.source}: layout={task.layout}: expected a folder, got a table")
    if task.label is not None:
        table.column(task.label)  # InputError where there is no such column
    if task.layout != "auto":
        return task.layout
    if task.text:
        return _with_named_texts(task, table)
    names = set(table.available)
    complete = [
        layout
        for layout, texts in _TEXTS.items()
        if names.issuperset(texts) and (layout not in _LABELS or _label_column(task, layout, table) is not None)
    ]
    if len(complete) == 1:
        return complete[0]
    listed = "; ".join(f"{layout} ({columns})" for layout, columns in LAYOUT_COLUMNS.items())
    columns = f"the columns are: {', '.join(table.available)}"
    if complete:
        fits = " or ".join(complete)
        raise InputError(
            f"{table.source}: is {fits} by its columns; add --task-setting layout={complete[0]}; {columns}"
        )
    raise InputError(
        f"{table.source}: expected the columns of {listed}; {columns}; name the columns of pairs with --text-column "
        "FIRST --text-column SECOND, and that of scores with --label-column"
    )


def _with_named_texts(task: VectorTask, table: Table) -> Layout:
    """Return the layout of a table whose columns are named: pairs; with a label, scored if the labels are numbers."""
    if task.label is None:
        return "pairs"
    is_label = any(str(cell).strip().casefold() in ENTAILMENT_LABELS for cell in table.column(task.label)[:100])
    return "nli" if is_label else "scored"


def _label_column(task: VectorTask, layout: Layout, table: Table) -> str | None:
    names = (task.label,) if task.label else _LABELS[layout]
    return next((name for name in names if name in table.available), None)


def _rows_of(task: VectorTask, layout: Layout, table: Table, on_error: OnError) -> list[PairOfTable]:
    """Return the rows of a table; `on_error` is called with the BadRow of each row that cannot be used."""
    names = task.text if task.text and layout != "texts" else _TEXTS[layout]
    columns = [table.column(name) for name in names]
    read = _READERS[layout](task, table)
    rows = []
    for row, cells in enumerate(zip(*columns, strict=True)):
        try:
            texts = [_text(cell, name, table, row) for name, cell in zip(names, cells, strict=True)]
            rows.append(read(row, texts))
        except BadRow as error:
            on_error(error)
    return rows


def _text(cell: object, name: str, table: Table, row: int) -> str:
    """Return a cell's text; BadRow for a blank one, and for a cell that is no text."""
    if not isinstance(cell, str) or is_blank(cell):
        raise BadRow("without a text", f"{table.location(row)}: expected a text in '{name}', got {shown(repr(cell))}")
    return cell


def _refuse_equal(texts: Sequence[str], table: Table, row: int) -> None:
    """Raise BadRow for a pair of equal texts: its cosine is 1 whatever the model is, and nothing is learned from it."""
    if equal_key(texts[0]) == equal_key(texts[1]):
        location = table.location(row)
        raise BadRow("with equal texts", f"{location}: expected two different texts, got {shown(texts[0])} twice")


def _of_pairs(task: VectorTask, table: Table) -> ReadRow:
    names = [name for name in table.available if re.fullmatch(r"negative(_?[0-9]+)?", name)]
    columns = [table.column(name) for name in names]

    def read(row: int, texts: list[str]) -> PairOfTable:
        _refuse_equal(texts, table, row)
        negatives = []
        for name, column in zip(names, columns, strict=True):
            cell_or_list = column[row]
            cells: list[object] = cell_or_list if isinstance(cell_or_list, list) else [cell_or_list]
            # A row may have fewer negatives than others.
            negatives += [_text(cell, name, table, row) for cell in cells if cell not in (None, ABSENT, "")]
        keys = set(map(equal_key, negatives))
        if equal_key(texts[0]) in keys:
            message = f"{table.location(row)}: expected negatives that do not match the anchor, got the anchor itself"
            raise BadRow("with a negative that is a positive", message)
        if equal_key(texts[1]) in keys:
            raise contradiction(table.location(row), table.location(row))
        return PairOfTable(texts[0], texts[1], tuple(negatives), line=table.lines[row])

    return read


def _of_scores(task: VectorTask, table: Table) -> ReadRow:
    column = task.label or "score"
    cells = table.column(column)
    lowest, highest = task.scores or (-np.inf, np.inf)

    def read(row: int, texts: list[str]) -> PairOfTable:
        score = cell_number(cells[row], column, table, row)
        if not lowest <= score <= highest:
            allowed = f"a number from {lowest:g} to {highest:g}"
            message = f"{table.location(row)}: expected {allowed} in '{column}', got {score:g}"
            raise BadRow("with a score out of range", message)
        return PairOfTable(texts[0], texts[1], score=score, line=table.lines[row])

    return read


def _of_labels(task: VectorTask, table: Table) -> ReadRow:
    column = _label_column(task, "nli", table) or task.label or "label"
    cells = table.column(column)

    def read(row: int, texts: list[str]) -> PairOfTable:
        cell = cells[row]
        label = cell.strip().casefold() if isinstance(cell, str) else ""
        if label not in ENTAILMENT_LABELS:
            allowed = ", ".join(ENTAILMENT_LABELS)
            message = f"{table.location(row)}: expected one of {allowed} in '{column}', got {shown(repr(cell))}"
            raise BadRow("with an unknown label", message)
        _refuse_equal(texts, table, row)
        return PairOfTable(texts[0], texts[1], label=label, line=table.lines[row])

    return read


def _of_texts(task: VectorTask, table: Table) -> ReadRow:
    return lambda row, texts: PairOfTable(texts[0], texts[0], line=table.lines[row])


_READERS: Final[Mapping[Layout, Callable[[VectorTask, Table], ReadRow]]] = {
    "pairs": _of_pairs,
    "scored": _of_scores,
    "nli": _of_labels,
    "texts": _of_texts,
}


def _grouped(
    rows: Sequence[PairOfTable], location: Callable[[int], str], on_error: OnError
) -> tuple[list[PairOfTable], str]:
    """Return the entailments, with the contradictions of their first text as hard negatives, and a note on the rest."""
    entailed = {(equal_key(row.anchor), equal_key(row.positive)): row.line for row in rows if row.label == "entailment"}
    negatives: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.label != "contradiction":
            continue
        key = equal_key(row.anchor)
        line = entailed.get((key, equal_key(row.positive)))
        if line is None:
            negatives[key].append(row.positive)
        else:
            on_error(contradiction(location(row.line), location(line)))
    positives = [row for row in rows if row.label == "entailment"]
    anchors = {equal_key(row.anchor) for row in positives}
    neutral = sum(row.label == "neutral" for row in rows)
    unused = sum(len(texts) for key, texts in negatives.items() if key not in anchors)
    note = f"; {neutral:,} neutral pairs, and {unused:,} contradictions of a text without an entailment, are not used"
    return [replace(row, negatives=tuple(negatives[equal_key(row.anchor)])) for row in positives], note
