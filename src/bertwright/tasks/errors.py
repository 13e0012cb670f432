"""answers beside gold values → a table of errors: the most confidently wrong first, then the most doubtful."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError
from bertwright.tables.reader import Table
from bertwright.tables.writer import PredictRequest, TableOut, as_format, opened_target

WORST: Final = 20
"""Number of rows that a run keeps for its report."""
VALIDATION: Final = "validation.json"
"""File of a seed's folder with the confusion matrix and the worst rows of the validation files."""
PREDICTIONS: Final = "predictions.json"
"""File of a seed's folder with the answer to each validation row after the last epoch."""
_KEYS: Final = ("line", "id")
"""Columns that name a row."""
_LABELS: Final = ("gold", "predicted")
_LONGEST: Final = 1000
"""Number of characters of a text that a run keeps for its report."""


@dataclass(frozen=True)
class EvaluateRequest:
    """A request for an evaluation.

    data        a folder with validation files, or one file
    rows        the rows to measure, where they are only a part of `data`; None: all rows of the files
    errors      the file for the errors; None: none is written
    calibrate   True: fit a temperature and store it in the model folder
    """

    data: Path
    errors: PredictRequest | None = None
    calibrate: bool = False
    rows: Any = None

    def refuse_breaks(self, texts: Iterable[str], source: str) -> None:
        """Raise InputError where the errors go into a tsv file and a text holds a tab or a line break."""
        if self.errors is None or self.errors.table_format != "tsv":
            return
        if any(character in text for text in texts for character in "\t\n\r"):
            raise InputError(
                f"--errors {self.errors.target}: a text of {source} holds a tab or a line break, which tsv cannot "
                "hold; name a file .csv, .jsonl or .parquet"
            )


@dataclass(frozen=True)
class Errors:
    """N answers beside their gold values.

    columns      name → the N cells of a column; the lines in the file are a column too
    score        [N] 1 where the answer is right, 0 where it is wrong; the F1 of an answer to a question, 0 to 1
    confidence   [N] probability of the answer; of a number, its distance from the gold number
    are_texts    True where gold and predicted values are texts of the data, not labels or numbers
    """

    columns: Mapping[str, Sequence[object]]
    score: NDArray[np.float64]
    confidence: NDArray[np.float64]
    are_texts: bool = False

    def predictions(self) -> dict[str, list[object]]:
        """Return the score of each row in the order of the file, its line or id, and its labels; no texts."""
        names = _KEYS if self.are_texts else (*_KEYS, *_LABELS)
        kept = {name: list(column) for name, column in self.columns.items() if name in names}
        return {**kept, "score": [*rounded(self.score)]}

    @property
    def order(self) -> NDArray[np.int64]:
        """Return the rows [N]: the lowest score first, then the highest confidence; of right rows the lowest."""
        return np.lexsort((np.where(self.score < 1.0, -self.confidence, self.confidence), self.score))

    def rows(self) -> list[tuple[object, ...]]:
        """Return the cells of all rows, in the order above."""
        return [tuple(column[row] for column in self.columns.values()) for row in self.order.tolist()]

    def worst(self) -> dict[str, Any]:
        """Return the first rows for the report of a run: {"columns", "rows"}; long texts are cut."""
        rows = [[_cut(cell) for cell in row] for row in self.rows()[:WORST]]
        return {"columns": list(self.columns), "rows": rows}


def write_errors(request: PredictRequest, parts: Mapping[str, Errors]) -> None:
    """Write the errors of validation files by name as one table; of several files, each row has the file's name."""
    several = len(parts) > 1
    names = tuple(next(iter(parts.values())).columns)
    cells = [((name, *row) if several else row) for name, errors in parts.items() for row in errors.rows()]
    columns = ("file", *names) if several else names
    lines = range(1, len(cells) + 1)
    table = Table(request.target, "jsonl", columns, True, tuple(cells), lines=lines, numbers=lines, available=columns)
    with opened_target(request) as stream, TableOut(stream) as out:
        out.write(as_format(table, request.table_format or "jsonl"))


def rounded(values: NDArray[Any]) -> list[float]:
    """Return numbers with six significant digits, as the cells of a column."""
    return [float(f"{value:.6g}") for value in values]


def _cut(cell: object) -> object:
    return f"{cell[:_LONGEST]}…" if isinstance(cell, str) and len(cell) > _LONGEST else cell
