"""values of a program → task: the columns of a table of pandas or Arrow, and texts without a broken character."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from bertwright.errors import InputError


def column_names(given: Any) -> list[Any] | None:
    """What the columns of a table are called, in their order; None for what is no table."""
    names = given.column_names if hasattr(given, "column_names") else getattr(given, "columns", None)
    return None if names is None or callable(names) else list(names)


def column_values(table: Any, place: int) -> list[Any]:
    """The values of the column at `place`, from 0 on."""
    values: list[Any]
    if hasattr(table, "iloc"):
        values = table.iloc[:, place].tolist()
    elif hasattr(table, "column_names"):
        values = table.column(place).to_pylist()
    else:  # of another library, all of which numpy can read
        values = np.asarray(table, dtype=object)[:, place].tolist()
    return values


def refuse_halves(texts: Iterable[str], what: str = "") -> None:
    """InputError for a text that holds one of the two halves in which JSON may write a character; `what` begins it."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{what}holds half of a character (place {error.start}), which is no text") from None
