"""header line of a csv table → separator of its cells."""

import csv
import re
from collections.abc import Container
from typing import Final, Literal

_QUOTED: Final = re.compile(r'"[^"]*"')


def csv_separator(header: str, names: Container[str] | None = None) -> Literal[",", ";"]:
    """Return the separator of a table: a semicolon where its header line has semicolons and no comma, else a comma.

    Spreadsheets write semicolons where the comma belongs to numbers. Quoted cells may have both. With `names`, a line
    without any of these is a row: its semicolons belong to its text.
    """
    bare = _QUOTED.sub("", header)
    if "," in bare or ";" not in bare:
        return ","
    if names is None:
        return ";"
    try:
        cells = next(csv.reader([header], delimiter=";"))
    except csv.Error:
        return ","  # whoever reads the line with commas tells the error
    return ";" if any(cell in names for cell in cells) else ","
