"""values of a program → texts, labels, numbers and weights, checked one by one.

What is wrong is named with its place as Python writes it: X[3] is the fourth text, X[3][1] the second of its two.
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
from bertwright.tables.reader import column_names, column_values, refuse_halves
from bertwright.tasks.classification.examples import FLOAT32_MAX

DEFAULT_NAMES: Final = {1: ("text",), 2: ("text_a", "text_b")}
"""What the columns are called in the model folder where they have no names."""


class EstimatorError(InputError, ValueError):
    """Bad input, which scikit-learn and its users expect as a ValueError."""


@dataclass(frozen=True)
class Texts:
    """N texts, or pairs of two sides; `names` are those of a table's columns."""

    sides: tuple[tuple[str, ...], ...]
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.sides[0])

    @property
    def columns(self) -> tuple[str, ...]:
        """What the model folder calls the columns; a text cannot be called as its label is."""
        return DEFAULT_NAMES[len(self.sides)] if self.names is None or "label" in self.names else self.names

    def select(self, rows: NDArray[np.int64]) -> "Texts":
        """The texts of the given rows."""
        return Texts(tuple(tuple(side[row] for row in rows) for side in self.sides), self.names)


@contextmanager
def in_python(*, verbose: bool = False) -> Iterator[None]:
    """Within, errors are told with parameters instead of options, and what would be said becomes a warning.

    verbose: it is said as on the command line.
    """
    heard: list[str] = []
    try:
        with nullcontext() if verbose else redirect_messages(heard.append):
            yield
    except (EstimatorError, MissingExtra):
        raise
    except InputError as error:
        raise EstimatorError(
            re.sub(
                r"bertwright \w+ .*|(?<![\w-])--([a-z][a-z-]+)",  # a command stays as it is
                lambda found: found[1].replace("-", "_") if found[1] else found[0],
                str(error),
            )
        ) from None
    for text in heard:
        warnings.warn(text, UserWarning, stacklevel=4)


def texts_of(X: Any) -> Texts:
    """A column of texts, or two; EstimatorError with the place of what is none."""
    names: tuple[str, ...] | None = None
    rows: list[Any]
    if (given := column_names(X)) is not None:
        rows = list(zip(*(column_values(X, place) for place in range(len(given))), strict=True))
        if all(isinstance(name, str) for name in given) and len(set(given)) == len(given) in DEFAULT_NAMES:
            names = tuple(given)
    else:
        rows = _listed(X, "X", "texts")
    if not rows:
        raise EstimatorError("X: 0 sample(s); a minimum of 1 is required")
    width = len(rows[0]) if isinstance(rows[0], list | tuple) else 0
    if isinstance(rows[0], list | tuple) and width not in DEFAULT_NAMES:
        raise EstimatorError(f"X[0]: {width} columns; due is a text, or a pair of two")
    if not width:
        return Texts((tuple(_text(text, f"X[{row}]") for row, text in enumerate(rows)),))
    for row, cells in enumerate(rows):
        if not isinstance(cells, list | tuple) or len(cells) != width:
            raise EstimatorError(f"X[{row}]: {shown(cells)}; X[0] has {width} texts, and so must every row")
    sides = (
        tuple(_text(cells[number], f"X[{row}][{number}]") for row, cells in enumerate(rows)) for number in range(width)
    )
    return Texts(tuple(sides), names)


def words_of(X: Any) -> tuple[tuple[str, ...], ...]:
    """The words of each sentence."""
    return _rows_of(X, "X", "words", "a word")


def tags_of(y: Any, words: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """A tag for each of the words."""
    found = _rows_of(y, "y", "tags", "a tag")
    _check_length(len(words), found, "lists of tags")
    for row, (tags, of_row) in enumerate(zip(found, words, strict=True)):
        if len(tags) != len(of_row):
            raise EstimatorError(f"y[{row}]: {len(tags)} tags; X[{row}] has {len(of_row)} words")
        for at, tag in enumerate(tags):
            _refuse_unwritable(tag, f"y[{row}][{at}]")
    return found


def labels_of(y: Any, count: int) -> NDArray[Any]:
    """The classes of `count` texts, one each."""
    column = _column(y, count, "labels")
    for row, label in enumerate(column.tolist()):
        if not _is_label(label):
            raise EstimatorError(f"y[{row}]: {label!r}; a label is due")
        _refuse_unwritable(label, f"y[{row}]")
    try:
        np.unique(column)
        check_classification_targets(column)
    except TypeError:
        kinds = sorted({type(label).__name__ for label in column.tolist()})
        raise EstimatorError(f"y: labels of several types, {', '.join(kinds)}; they must have one") from None
    except ValueError as error:
        raise EstimatorError(f"y: {error}") from None
    return column


def numbers_of(y: Any, count: int) -> NDArray[np.float32]:
    """The targets of `count` texts."""
    column = _column(y, count, "numbers").tolist()
    for row, number in enumerate(column):
        if isinstance(number, str | bytes | bool | complex) or not _is_number(number):
            raise EstimatorError(f"y[{row}]: {number!r}; a finite number is due")
    return np.array(column, dtype=np.float32)


def weights_of(sample_weight: Any, count: int) -> NDArray[np.float64] | None:
    """How much each of `count` texts counts; None where all count alike."""
    if sample_weight is None:
        return None
    try:
        weights: NDArray[np.float64] = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise EstimatorError(f"sample_weight: {shown(sample_weight)}; numbers are due") from None
    weights = np.full(count, float(weights)) if weights.ndim == 0 else weights
    if weights.shape != (count,):
        raise EstimatorError(f"sample_weight: has shape {weights.shape}; Sample weights must be 1D, here ({count},)")
    for row in np.flatnonzero(~(np.isfinite(weights) & (weights >= 0.0))):
        raise EstimatorError(f"sample_weight[{row}]: {weights[row]}; a number from 0 on is due")
    if not weights.any():
        raise EstimatorError("sample_weight: Sample weights must contain at least one non-zero number; all are zero")
    return weights


def label_name(label: Any) -> str:
    """What a class is called in the model folder: numbers and truth values as JSON writes them."""
    value = label.item() if isinstance(label, np.generic) else label
    return json.dumps(value) if isinstance(value, bool | int | float) else str(value)


def _listed(given: Any, name: str, what: str) -> list[Any]:
    """The values of a list, an array, or a column of pandas or Arrow."""
    if hasattr(given, "toarray"):
        raise EstimatorError(f"{name}: a sparse matrix; a list of {what} is due")
    for convert in ("to_pylist", "tolist"):
        if callable(method := getattr(given, convert, None)):
            given = method()
            break
    else:
        if hasattr(given, "__array__"):
            given = np.asarray(given, dtype=object).tolist()
    if not isinstance(given, list | tuple):
        raise EstimatorError(f"{name}: {type(given).__name__} {shown(given)}; a list of {what} is due")
    return list(given)


def _rows_of(given: Any, name: str, what: str, one: str) -> tuple[tuple[str, ...], ...]:
    rows = [
        _listed(row, f"{name}[{place}]", what) for place, row in enumerate(_listed(given, name, f"lists of {what}"))
    ]
    if not any(rows):
        raise EstimatorError(f"{name}: {len(rows)} sample(s) without any {what}; a minimum of 1 is required")
    return tuple(
        tuple(_text(cell, f"{name}[{place}][{at}]", one) for at, cell in enumerate(row))
        for place, row in enumerate(rows)
    )


def _text(given: Any, place: str, what: str = "a text") -> str:
    if not isinstance(given, str):
        raise EstimatorError(f"{place}: {type(given).__name__} {shown(given)}; {what} is due")
    try:
        refuse_halves([given])
    except InputError as error:
        raise EstimatorError(f"{place}: {error}") from None
    return str(given)


def _column(y: Any, count: int, what: str) -> NDArray[Any]:
    if y is None:
        raise EstimatorError(
            f"y: None; {what} are due (the estimator requires y to be passed, but the target y is None)"
        )
    try:
        column: NDArray[Any] = column_or_1d(y, warn=True)
    except ValueError as error:
        raise EstimatorError(f"y: {error}") from None
    _check_length(count, column, what)
    return column


def _check_length(count: int, given: Any, what: str) -> None:
    if len(given) != count:
        raise EstimatorError(f"X has {count} texts, y has {len(given)} {what}; they must have one length")


def _is_label(given: Any) -> bool:
    if isinstance(given, str):
        return bool(given.strip())
    return isinstance(given, int) or (isinstance(given, float) and math.isfinite(given))


def _refuse_unwritable(label: Any, place: str) -> None:
    """EstimatorError for a label that no model folder can hold."""
    if isinstance(label, str) and UNWRITABLE.search(label):
        raise EstimatorError(f"{place}: {label!r}; a label is a text in one line, without control characters")


def _is_number(given: Any) -> bool:
    try:
        return abs(float(given)) <= FLOAT32_MAX
    except (TypeError, ValueError, OverflowError):
        return False
