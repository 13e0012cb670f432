"""Python values → texts, labels, numbers and weights, checked one by one.

Messages name a value as Python does: X[3] is the fourth text, X[3][1] the second text of its pair.
"""

import json
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from bertwright.console import redirect_messages
from bertwright.errors import InputError, MissingExtra, shown
from bertwright.model.hf_config import UNWRITABLE
from bertwright.tables.in_memory import column_names, column_values
from bertwright.tables.reader import refuse_halves
from bertwright.tasks.classification.examples import FLOAT32_MAX

DEFAULT_NAMES: Final = {1: ("text",), 2: ("text_a", "text_b")}
"""Names of the text columns in the model folder where the input has no names."""


class EstimatorError(InputError, ValueError):
    """Bad input, as the ValueError that scikit-learn and its users expect."""


@dataclass(frozen=True)
class Texts:
    """N texts or pairs; `names` are the column names of a table."""

    sides: tuple[tuple[str, ...], ...]
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.sides[0])

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the column names for the model folder; a text column cannot be called `label`."""
        return DEFAULT_NAMES[len(self.sides)] if self.names is None or "label" in self.names else self.names

    def select(self, rows: NDArray[np.int64]) -> "Texts":
        """Return the texts of these rows."""
        return Texts(tuple(tuple(side[row] for row in rows) for side in self.sides), self.names)


@contextmanager
def in_python(warned: set[str] | None = None, *, verbose: bool = False) -> Iterator[None]:
    """Replace option names in errors by parameter names, and turn messages into warnings.

    warned: warnings that are not repeated; new ones are added. Other numbers in "3 of 12" make no other warning.
    verbose: print messages as on the command line.
    """
    warned = set() if warned is None else warned
    messages: list[str] = []
    try:
        with nullcontext() if verbose else redirect_messages(messages.append):
            yield
    except (EstimatorError, MissingExtra):
        raise
    except InputError as error:
        raise EstimatorError(
            re.sub(
                r"bertwright \w+ .*|(?<![\w-])--([a-z][a-z-]+)",  # a command stays as it is
                lambda match: match[1].replace("-", "_") if match[1] else match[0],
                str(error),
            )
        ) from None
    for text in messages:
        key = re.sub(r"[\d,]+ of [\d,]+ ", "", text)
        if key not in warned and not text.startswith("answering in"):  # the precision is a parameter
            warned.add(key)
            warnings.warn(text, UserWarning, stacklevel=4)


def check_texts(X: Any) -> Texts:
    """Return one column of texts, or two. Raises EstimatorError with the position of a value that is no text."""
    names: tuple[str, ...] | None = None
    rows: list[Any]
    if (columns := column_names(X)) is not None:
        rows = list(zip(*(column_values(X, number) for number in range(len(columns))), strict=True))
        if all(isinstance(name, str) for name in columns) and len(set(columns)) == len(columns) in DEFAULT_NAMES:
            names = tuple(columns)
    else:
        rows = _listed(X, "X", "texts")
    if not rows:
        raise EstimatorError("X: 0 sample(s); a minimum of 1 is required")
    width = len(rows[0]) if isinstance(rows[0], list | tuple) else 0
    if isinstance(rows[0], list | tuple) and width not in DEFAULT_NAMES:
        raise EstimatorError(f"X[0]: expected a text or a pair of two, got {width} columns")
    if not width:
        return Texts((tuple(_text(text, f"X[{row}]") for row, text in enumerate(rows)),))
    for row, cells in enumerate(rows):
        if not isinstance(cells, list | tuple) or len(cells) != width:
            raise EstimatorError(f"X[{row}]: expected {width} texts, as in X[0], got {shown(cells)}")
    sides = (
        tuple(_text(cells[number], f"X[{row}][{number}]") for row, cells in enumerate(rows)) for number in range(width)
    )
    return Texts(tuple(sides), names)


def check_words(X: Any) -> tuple[tuple[str, ...], ...]:
    """Return the words of each sentence."""
    return _rows_of(X, "X", "words", "a word")


def check_tags(y: Any, words: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Return one tag for each of the words."""
    tags_of_rows = _rows_of(y, "y", "tags", "a tag")
    _check_length(len(words), tags_of_rows, "lists of tags")
    for row, (tags, of_row) in enumerate(zip(tags_of_rows, words, strict=True)):
        if len(tags) != len(of_row):
            raise EstimatorError(f"y[{row}]: expected {len(of_row)} tags, one per word of X[{row}], got {len(tags)}")
        for index, tag in enumerate(tags):
            _refuse_unwritable(tag, f"y[{row}][{index}]")
    return tags_of_rows


def check_labels(y: Any, count: int) -> NDArray[Any]:
    """Return the classes of `count` texts, as numpy stores values of their type; a Series of texts stays as it is."""
    column = _column(y, count, "labels")
    labels = _python_values(column)
    for row, label in enumerate(labels):
        if not _is_label(label):
            raise EstimatorError(f"y[{row}]: expected a label, got {label!r}")
        _refuse_unwritable(label, f"y[{row}]")
    if len({str if isinstance(label, str) else bool if isinstance(label, bool) else float for label in labels}) > 1:
        kinds = sorted({type(label).__name__ for label in labels})
        raise EstimatorError(f"y: expected labels of one type, got {', '.join(kinds)}")
    if column.dtype == object and (isinstance(y, list | tuple) or not isinstance(labels[0], str)):
        column = np.array(labels)
        for row, (label, stored) in enumerate(zip(labels, column.tolist(), strict=True)):
            if column.dtype == object or label != stored:
                raise EstimatorError(f"y[{row}]: expected a label that an array can hold, got {label!r}; use texts")
    try:
        check_classification_targets(column)
    except ValueError as error:
        raise EstimatorError(f"y: {error}") from None
    return column


def check_numbers(y: Any, count: int) -> NDArray[np.float64]:
    """Return the targets of `count` texts."""
    numbers = _python_values(_column(y, count, "numbers"))
    for row, number in enumerate(numbers):
        if isinstance(number, str | bytes | bool | complex) or not _is_number(number):
            is_large = type(number) is int or (type(number) is float and math.isfinite(number))
            kind = f"a number from -{FLOAT32_MAX:.1e} to {FLOAT32_MAX:.1e}" if is_large else "a finite number"
            raise EstimatorError(f"y[{row}]: expected {kind}, got {number!r}")
    return np.array(numbers, dtype=np.float64)


def check_weights(sample_weight: Any, count: int) -> NDArray[np.float64] | None:
    """Return the weights of `count` texts; None where there are no weights."""
    if sample_weight is None:
        return None
    try:
        weights: NDArray[np.float64] = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise EstimatorError(f"sample_weight: expected numbers, got {shown(sample_weight)}") from None
    weights = np.full(count, float(weights)) if weights.ndim == 0 else weights
    if weights.shape != (count,):
        raise EstimatorError(f"sample_weight: has shape {weights.shape}; Sample weights must be 1D, here ({count},)")
    for row in np.flatnonzero(~(np.isfinite(weights) & (weights >= 0.0))):
        raise EstimatorError(f"sample_weight[{row}]: expected a number from 0 on, got {weights[row]}")
    if not weights.any():
        raise EstimatorError("sample_weight: Sample weights must contain at least one non-zero number; all are zero")
    return weights


def label_name(label: Any) -> str:
    """Return the name of a class in the model folder: numbers and truth values as JSON writes them."""
    value = label.item() if isinstance(label, np.generic) else label
    return json.dumps(value) if isinstance(value, bool | int | float) else str(value)


def _listed(values: Any, name: str, what: str) -> list[Any]:
    """Return the values of a list, an array, or a column of pandas or Arrow."""
    if hasattr(values, "toarray"):
        raise EstimatorError(f"{name}: expected a list of {what}, got a sparse matrix")
    for convert in ("to_pylist", "tolist"):
        if callable(method := getattr(values, convert, None)):
            values = method()
            break
    else:
        if hasattr(values, "__array__"):
            values = np.asarray(values, dtype=object).tolist()
    if not isinstance(values, list | tuple):
        raise EstimatorError(f"{name}: expected a list of {what}, got {type(values).__name__} {shown(values)}")
    return list(values)


def _rows_of(values: Any, name: str, what: str, item: str) -> tuple[tuple[str, ...], ...]:
    rows = [
        _listed(cells, f"{name}[{row}]", what) for row, cells in enumerate(_listed(values, name, f"lists of {what}"))
    ]
    if not any(rows):
        raise EstimatorError(f"{name}: {len(rows)} sample(s) without any {what}; a minimum of 1 is required")
    return tuple(
        tuple(_text(cell, f"{name}[{row}][{index}]", item) for index, cell in enumerate(cells))
        for row, cells in enumerate(rows)
    )


def _text(value: Any, position: str, what: str = "a text") -> str:
    if not isinstance(value, str):
        raise EstimatorError(f"{position}: expected {what}, got {type(value).__name__} {shown(value)}")
    try:
        refuse_halves([value])
    except InputError as error:
        raise EstimatorError(f"{position}: {error}") from None
    return str(value)


def _column(y: Any, count: int, what: str) -> NDArray[Any]:
    if y is None:
        raise EstimatorError(
            f"y: expected {what}, got None (the estimator requires y to be passed, but the target y is None)"
        )
    try:  # numpy would make texts or floats of a list of several types, and scikit-learn floats of pandas' own types
        values = np.array(y, dtype=object) if isinstance(y, list | tuple) else np.asarray(y)
        column: NDArray[Any] = column_or_1d(values, warn=True)
    except ValueError as error:
        raise EstimatorError(f"y: {error}") from None
    _check_length(count, column, what)
    return column


def _python_values(column: NDArray[Any]) -> list[Any]:
    """Return the values of an array as Python's; an array of objects may hold values of numpy."""
    return [value.item() if isinstance(value, np.generic) else value for value in column.tolist()]


def _check_length(count: int, values: Any, what: str) -> None:
    if len(values) != count:
        raise EstimatorError(f"X has {count} texts, y has {len(values)} {what}; expected as many as texts")


def _is_label(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _refuse_unwritable(label: Any, position: str) -> None:
    """Raise EstimatorError for a label that a model folder cannot store."""
    if isinstance(label, str) and UNWRITABLE.search(label):
        raise EstimatorError(f"{position}: expected a label in one line without control characters, got {label!r}")


def _is_number(value: Any) -> bool:
    try:
        return abs(float(value)) <= FLOAT32_MAX
    except (TypeError, ValueError, OverflowError):
        return False
