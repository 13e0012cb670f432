"""table in memory, of pandas, Arrow or a library like them → names and values of its columns."""

from typing import Any

import numpy as np


def column_names(table: Any) -> list[Any] | None:
    """Return the names of the columns of a table in memory, in order; None where `table` is no table."""
    names = table.column_names if hasattr(table, "column_names") else getattr(table, "columns", None)
    return None if names is None or callable(names) else list(names)


def column_values(table: Any, index: int) -> list[Any]:
    """Return the values of column `index`, from 0 on, of a table in memory."""
    values: list[Any]
    if hasattr(table, "iloc"):
        values = table.iloc[:, index].tolist()
    elif hasattr(table, "column_names"):
        values = table.column(index).to_pylist()
    else:  # a table of another library, which numpy can read
        values = np.asarray(table, dtype=object)[:, index].tolist()
    return values
