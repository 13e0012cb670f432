"""trials of a search over settings → search.png: the metric over each setting."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertwright.reports.figures import new_figure, save_figure

PICTURE = "search.png"


def try_trials(result: Mapping[str, Any], folder: Path) -> str | None:
    """Draw the trials into `folder`/search.png and return its path; print a message and return None without matplotlib.

    One panel for each setting; a pruned trial is hollow and stands at the last metric that was measured.
    """
    rows = [(row, metric) for row in result["rows"] if (metric := _metric(row)) is not None]
    names = list(rows[0][0]["settings"])
    columns = min(3, len(names))
    lines = math.ceil(len(names) / columns)
    if not (figure := new_figure("a picture of the trials", 3.4 * columns, 2.8 * lines)):
        return None
    panels = figure.subplots(lines, columns, squeeze=False, sharey=True).flat
    for panel, name in zip(panels, names, strict=False):
        values = [row["settings"][name] for row, _ in rows]
        metrics = [metric for _, metric in rows]
        fills = ["#1f4e8c" if row["state"] == "complete" else "white" for row, _ in rows]
        at = values if name == "learning_rate" else _places(values)
        panel.scatter(at, metrics, c=fills, edgecolors="#1f4e8c", linewidths=1, s=30)
        panel.scatter(at[:1], metrics[:1], c="#c2410c", s=60, marker="*", label="best", zorder=3)
        if name == "learning_rate":
            panel.set_xscale("log")
        else:
            panel.set_xticks(sorted(set(at)), [f"{value:g}" for value in sorted(set(values))])
        panel.set(xlabel=name.replace("_", " "))
        panel.grid(alpha=0.3)
    for panel in list(figure.axes)[len(names) :]:
        panel.set_visible(False)
    figure.axes[0].set_ylabel(f"{result['metric']} on dev")
    figure.axes[0].legend(frameon=False)
    path = folder / PICTURE
    save_figure(figure, path)
    return str(path)


def _metric(row: Mapping[str, Any]) -> float | None:
    """Return the metric of a trial, or its last one where it was pruned; None where nothing was measured."""
    if row["state"] == "complete":
        return float(row["mean"])
    reports = row["reports"]
    return float(reports[max(reports, key=int)]) if reports else None


def _places(values: Sequence[float]) -> list[int]:
    """Return the place of each value among the different ones."""
    order = sorted(set(values))
    return [order.index(value) for value in values]
