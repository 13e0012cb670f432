"""numbers over steps → SVG coordinates of lines, ticks and dots; metrics.jsonl → loss.png."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from bertwright.console import say
from bertwright.reports.figures import new_figure, save_figure
from bertwright.training.run_folder import RunFolder

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 36
_MOST_POINTS = 300
"""Largest number of points in a line. More are averaged: a screen has no more pixels."""
_EARLY = 0.05
"""Fraction of the steps at the beginning. Their high losses may lie outside the picture."""
_LOSS_LABELS = {"mlm": "masked-LM loss (nats)", "lm": "language model's loss (nats)"}
"""Main loss of a run → label of the axis in loss.png."""

Point = tuple[float, float]
Axis = Literal["step", "words"]
"""Key of the lines of metrics.jsonl for the horizontal axis."""


@dataclass(frozen=True)
class Series:
    """A line of a chart: its label, points (step, value), and number of its colour; validation is drawn with dots."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    validation: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines in the same axes, over the `step` or the `words` seen; from_zero: the value axis starts at 0.

    chance: value of a dashed line; such a chart leaves out no point.
    """

    title: str
    unit: str
    series: Sequence[Series]
    from_zero: bool = False
    over: Axis = "step"
    chance: float | None = None

    @property
    def axis(self) -> str:
        """Name of the horizontal axis."""
        return "step" if self.over == "step" else "words seen"

    @cached_property
    def steps(self) -> tuple[float, float]:
        """Range of the horizontal axis: 0 to the last step, or to the words seen."""
        return 0.0, max(x for series in self.series for x, _ in series.points) or 1.0

    @cached_property
    def limits(self) -> tuple[float, float]:
        """Range of the value axis. It leaves out early and noisy values that lie far above all others."""
        values = [y for series in self.series for _, y in series.points]
        if self.chance is not None:
            low, high = min(*values, self.chance), max(*values, self.chance)
            room = 0.04 * (high - low) or 1.0
            return low - room, high + room
        training = [series for series in self.series if not series.validation] or self.series
        late = sorted(y for each in training for x, y in each.points if x > _EARLY * self.steps[1]) or sorted(values)
        bottom, top = late[int(0.02 * (len(late) - 1))], late[math.ceil(0.98 * (len(late) - 1))]
        fence = top + 0.5 * (top - bottom)
        dots = [y for each in self.series if each.validation for x, y in each.points if x > _EARLY * self.steps[1]]
        high = max([*(y for y in values if y <= fence), *dots], default=top)
        low = min(0.0, *values) if self.from_zero else min(values)
        room = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
        return low if low == 0 and self.from_zero else low - room, high + room

    @property
    def above(self) -> str:
        """Sentence about the points above the picture; empty where there are none."""
        left_out = [y for series in self.series for _, y in series.points if y > self.limits[1]]
        if not left_out:
            return ""
        points = "one point lies" if len(left_out) == 1 else f"{len(left_out)} points lie"
        return f"{points} above the picture, the highest at {short(max(left_out))}"

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """(x, text) of the ticks of the horizontal axis."""
        return [(round(self._x(at), 1), text) for at, text in ticks(*self.steps, most=6)]

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        """(y, text) of the ticks of the value axis."""
        return [(round(self._y(at), 1), text) for at, text in ticks(*self.limits, most=6)]

    @property
    def chance_y(self) -> float | None:
        """Coordinate y of the line of chance."""
        return None if self.chance is None else round(self._y(self.chance), 1)

    @property
    def paths(self) -> list[tuple[Series, str]]:
        """(line, attribute d of its SVG path), for lines of two points or more."""
        return [(each, self._path(averaged(each.points, _MOST_POINTS))) for each in self.series if len(each.points) > 1]

    @property
    def dots(self) -> list[tuple[Series, float, float, str]]:
        """(line, x, y, text of its tooltip) for the points of validation, and of lines of one point."""
        return [
            (each, round(self._x(x), 1), round(self._y(y), 1), f"{each.label}: {short(y)} {self.unit} at {self._at(x)}")
            for each in self.series
            for x, y in each.points
            if (each.validation or len(each.points) == 1) and y <= self.limits[1]
        ]

    @property
    def legend(self) -> list[Series]:
        """Lines for the legend: one for each label."""
        return list({series.label: series for series in self.series}.values())

    def _path(self, points: Sequence[Point]) -> str:
        return "M" + "L".join(f"{self._x(x):.1f} {self._y(y):.1f}" for x, y in points)

    def _at(self, x: float) -> str:
        return f"step {x:,.0f}" if self.over == "step" else f"{x:,.0f} words"

    def _x(self, step: float) -> float:
        low, high = self.steps
        return LEFT + (step - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        low, high = self.limits
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def ticks(low: float, high: float, *, most: int) -> list[tuple[float, str]]:
    """Return at most `most` round numbers from low to high with their texts; their distance is 1, 2 or 5 times 10^n."""
    power = math.floor(math.log10((high - low) / most))
    for times in (1, 2, 5, 10, 20):
        distance = times * 10.0**power
        first, last = math.ceil(low / distance - 1e-9), math.floor(high / distance + 1e-9)
        if last - first + 1 <= most:
            break
    values = [float(f"{multiple * distance:.12g}") for multiple in range(first, last + 1)]
    decimals = max(0, -math.floor(math.log10(distance) + 1e-9))
    return [(value, short(value) if decimals > 3 else f"{value:,.{decimals}f}") for value in values]


def averaged(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` points, each the mean of a group of neighbours; the groups are equally large."""
    group = -(-len(points) // most)
    parts = [points[begin : begin + group] for begin in range(0, len(points), group)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def short(value: float) -> str:
    """Return a number as text for an axis or a table: 12,000, 4.683, 0.0005, 2e-5."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.4g}"
    text = (f"{value:.3f}" if abs(value) >= 1 else f"{value:.3g}").replace("e-0", "e-")
    return text if "e" in text else text.rstrip("0").rstrip(".")


def try_curve(run: RunFolder) -> str | None:
    """Draw training and validation loss of a run into `RUN/loss.png` and return its path.

    Print a message and return None where the run has no metrics, or without matplotlib.
    """
    if not (lines := run.metrics()):
        say(f"{run.folder / 'metrics.jsonl'}: has no lines, so there is no loss curve")
        return None
    if not (figure := new_figure("a loss curve", 7, 4)):
        return None
    term = next((term for term in _LOSS_LABELS if any(term in line for line in lines)), "mlm")
    training = [(line["step"], line[term]) for line in lines if term in line]
    validation = [(line["step"], line["held_out"][f"{term}_loss"]) for line in lines if "held_out" in line]
    axes = figure.add_subplot()
    axes.plot(*zip(*training, strict=True), color="#b8c4d6", linewidth=1, label="training")
    if validation:
        axes.plot(*zip(*validation, strict=True), color="#1f4e8c", marker="o", markersize=3, label="validation")
    axes.set(xlabel="step", ylabel=_LOSS_LABELS[term], title=f"{run.folder.name}, {lines[-1]['step']:,} steps")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    path = run.folder / "loss.png"
    save_figure(figure, path)
    return str(path)
