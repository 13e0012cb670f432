"""rows of runs → the table of `bertwright runs`."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from rich.box import ASCII, SIMPLE_HEAD, Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertwright.reports.runs import KIND_TITLES, duration, moment

_TABLE_WIDTH = 180
"""Width of the table in characters where standard output is no terminal."""


def runs_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of `bertwright runs`: a line for each run, and below them the reasons for their states."""
    table = Table(box=_box(), pad_edge=False)
    for name in ("run", "kind", "state"):
        table.add_column(name, overflow="fold")
    for name in ("steps", "tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("loss", "validation", "left", "started"):
        table.add_column(name)
    for row in rows:
        table.add_row(*(Text(cell) for cell in _cells(row)))
    stream = StringIO()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _TABLE_WIDTH
    console = Console(file=stream, width=width, highlight=False, no_color=True)
    console.print(table)
    for row in rows:
        if row["detail"]:
            console.print(Text(f"{row['name']}: {row['state']}: {row['detail']}"))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip("\n")


def _box() -> Box:
    """Return the lines of the table; those of ASCII where standard output has no others, as on some Windows."""
    try:
        "─".encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return ASCII
    return SIMPLE_HEAD


def _cells(row: Mapping[str, Any]) -> list[str]:
    if row["state"] == "broken":
        return [row["name"], "", "broken", *[""] * 6]
    planned = f"{row['planned']:,}" if row["planned"] else "?"
    validation = list(row["held_out"].items())[:2]
    return [
        row["name"],
        KIND_TITLES[row["kind"]],
        row["state"],
        f"{row['steps']:,} / {planned}",
        f"{row['tokens_per_second']:,.0f}" if row["tokens_per_second"] else "",
        " ".join(f"{name} {value:.3f}" for name, value in row["loss"].items()),
        " ".join(f"{name} {value:.3f}" for name, value in validation),
        duration(row["seconds_left"]),
        moment(row["started"]) if row["started"] else "",
    ]
