"""metrics of an experiment → a picture: a panel for each column, with means, standard deviations and a dot per seed."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bertwright.experiments.plan import ExperimentPlan
from bertwright.experiments.scores import Cell
from bertwright.experiments.spec import Arm, Column
from bertwright.reports.figures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PER_ROW: Final = 3
_COLOURS: Final = ("#1f4e8c", "#c2571a", "#3d7d3d", "#7a4c9a")
_SPAN: Final = 8.0
"""Ratio of the largest to the smallest x from which on the axis is logarithmic."""


def draw_picture(plan: ExperimentPlan, cells: Mapping[tuple[str, str], Cell], path: Path) -> bool:
    """Draw the metrics that are there into `path`; return False where there are none, or where matplotlib is absent."""
    columns = [column for column in plan.columns if any(cells[arm.name, column.name].values for arm in plan.arms)]
    if not columns:
        return False
    width = min(_PER_ROW, len(columns))
    rows = math.ceil(len(columns) / width)
    over_x = plan.experiment.axis is not None
    height = 2.7 if over_x else 0.7 + 0.32 * len(plan.arms)
    inches = 3.4 * width + (0.0 if over_x else 1.6), height * rows + 0.5
    if not (figure := new_figure("a picture of the results", *inches)):
        return False
    panels = figure.subplots(rows, width, squeeze=False, sharey=False if over_x else "row").ravel()
    for number, (panel, column) in enumerate(zip(panels, columns, strict=False)):
        paint = _lines if over_x else _dots
        paint(panel, plan, column, cells)
        panel.set_title(column.name, fontsize=10)
        panel.tick_params(axis="y", labelsize=8)
        panel.grid(alpha=0.25, axis="both" if over_x else "x")
        panel.spines[["top", "right"]].set_visible(False)
        if over_x and number + width >= len(columns):
            panel.set_xlabel(plan.experiment.axis, fontsize=8)
    for panel in panels[len(columns) :]:
        panel.set_visible(False)
    _legend(figure, plan)
    save_figure(figure, path, dpi=130)
    return True


def _lines(panel: "Axes", plan: ExperimentPlan, column: Column, cells: Mapping[tuple[str, str], Cell]) -> None:
    """Draw the arms over x, a line for each series."""
    by_series = {name: [arm for arm in plan.arms if arm.series == name] for name in _series(plan)}
    for number, arms in enumerate(by_series.values()):
        points = [(arm.x, list(cells[arm.name, column.name].values.values())) for arm in arms]
        measured = [(x, values) for x, values in points if values and x is not None]
        colour = _COLOURS[number % len(_COLOURS)]
        panel.errorbar(
            [x for x, _ in measured],
            [statistics.fmean(values) for _, values in measured],
            yerr=[_deviation(values) for _, values in measured],
            color=colour,
            marker="o",
            markersize=4,
            linewidth=1.5,
            capsize=2,
        )
        for x, values in measured:
            panel.plot([x] * len(values), values, ".", color=colour, alpha=0.35, markersize=4)
    _ticks(panel, plan.arms)


def _ticks(panel: "Axes", arms: Sequence[Arm]) -> None:
    """Draw a tick at every arm, with the arm's title where no other arm has its x, else with x."""
    positions = [arm.x for arm in arms if arm.x is not None]
    single = len(set(positions)) == len(positions)
    names = {arm.x: arm.title if single else f"{arm.x:g}" for arm in arms if arm.x is not None}
    if min(names) > 0 and max(names) / min(names) >= _SPAN:
        panel.set_xscale("log")
        panel.minorticks_off()
    crowded = sum(map(len, names.values())) > 24
    panel.set_xticks(list(names), list(names.values()), rotation=30 if crowded else 0, fontsize=7)


def _dots(panel: "Axes", plan: ExperimentPlan, column: Column, cells: Mapping[tuple[str, str], Cell]) -> None:
    """Draw the arms below one another, the first on top."""
    for row, arm in enumerate(plan.arms):
        values = list(cells[arm.name, column.name].values.values())
        if not values:
            continue
        colour = "#777777" if arm.baseline or not arm.is_trained else _COLOURS[0]
        panel.plot(values, [row] * len(values), ".", color=colour, alpha=0.35, markersize=5)
        panel.errorbar(
            statistics.fmean(values), row, xerr=_deviation(values), color=colour, marker="o", markersize=5, capsize=3
        )
    panel.tick_params(axis="x", labelsize=8)
    panel.set_yticks(range(len(plan.arms)), [arm.title for arm in plan.arms])
    panel.set_ylim(len(plan.arms) - 0.5, -0.5)


def _series(plan: ExperimentPlan) -> list[str]:
    """Return the names of the lines. An arm without a place on the axis is on none."""
    return list(dict.fromkeys(arm.series for arm in plan.arms if arm.x is not None))


def _legend(figure: Any, plan: ExperimentPlan) -> None:
    """Draw the legend of the lines, where there are several."""
    series = _series(plan)
    if plan.experiment.axis is None or len(series) < 2:
        return
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=_COLOURS[number % len(_COLOURS)], marker="o", markersize=4, label=name)
        for number, name in enumerate(series)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(series), frameon=False, fontsize=9)


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
