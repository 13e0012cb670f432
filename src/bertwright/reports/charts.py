"""Numbers over steps → the places of lines, ticks and dots in a drawing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bertwright.console import say
from bertwright.errors import MissingExtra
from bertwright.files import atomic_file
from bertwright.training.run_folder import RunFolder

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 36
_MOST = 300
"""Points of a line; more are averaged, which the eye cannot tell on so many dots of a screen."""
_EARLY = 0.05
"""The first part of the steps, whose high losses may lie outside the picture."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A line: what it is called, its colour's number, and whether its points are single measurements, drawn as dots."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    measured: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines over steps in the same axes. `from_zero`: the lower end is 0, so that heights compare as the figures do."""

    title: str
    unit: str
    series: Sequence[Series]
    from_zero: bool = False

    @cached_property
    def steps(self) -> tuple[float, float]:
        """From 0 to the last step."""
        return 0.0, max(x for one in self.series for x, _ in one.points) or 1.0

    @cached_property
    def limits(self) -> tuple[float, float]:
        """The values that the picture shows: all but early and noisy ones far above the bulk of them."""
        values = [y for one in self.series for _, y in one.points]
        trained = [one for one in self.series if not one.measured] or self.series
        late = sorted(y for one in trained for x, y in one.points if x > _EARLY * self.steps[1]) or sorted(values)
        bottom, top = late[int(0.02 * (len(late) - 1))], late[math.ceil(0.98 * (len(late) - 1))]
        fence = top + 0.5 * (top - bottom)
        measured = [y for one in self.series if one.measured for x, y in one.points if x > _EARLY * self.steps[1]]
        high = max([*(y for y in values if y <= fence), *measured], default=top)
        low = min(0.0, *values) if self.from_zero else min(values)
        room = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
        return low if low == 0 and self.from_zero else low - room, high + room

    @property
    def above(self) -> str:
        """What was left out at the top, in words."""
        left_out = [y for one in self.series for _, y in one.points if y > self.limits[1]]
        if not left_out:
            return ""
        points = "one point lies" if len(left_out) == 1 else f"{len(left_out)} points lie"
        return f"{points} above the picture, the highest at {short(max(left_out))}"

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """(place, text) along the bottom."""
        return [(round(self._x(at), 1), text) for at, text in ticks(*self.steps, most=6)]

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        """(place, text) along the side."""
        return [(round(self._y(at), 1), text) for at, text in ticks(*self.limits, most=6)]

    @property
    def paths(self) -> list[tuple[Series, str]]:
        """Each line as the d of an SVG path."""
        return [(one, self._path(averaged(one.points, _MOST))) for one in self.series if len(one.points) > 1]

    @property
    def dots(self) -> list[tuple[Series, float, float, str]]:
        """(line, x, y, what it says) for measurements, and for lines of one point."""
        return [
            (one, round(self._x(x), 1), round(self._y(y), 1), f"{one.label}: {short(y)} {self.unit} at step {x:,.0f}")
            for one in self.series
            for x, y in one.points
            if (one.measured or len(one.points) == 1) and y <= self.limits[1]
        ]

    @property
    def legend(self) -> list[Series]:
        """One of each label."""
        return list({one.label: one for one in self.series}.values())

    def _path(self, points: Sequence[Point]) -> str:
        return "M" + "L".join(f"{self._x(x):.1f} {self._y(y):.1f}" for x, y in points)

    def _x(self, step: float) -> float:
        low, high = self.steps
        return LEFT + (step - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        low, high = self.limits
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def ticks(low: float, high: float, *, most: int) -> list[tuple[float, str]]:
    """At most `most` round numbers from low to high, apart by 1, 2 or 5 times a power of ten, and how to write them."""
    power = math.floor(math.log10((high - low) / most))
    for times in (1, 2, 5, 10, 20):
        apart = times * 10.0**power
        first, last = math.ceil(low / apart - 1e-9), math.floor(high / apart + 1e-9)
        if last - first + 1 <= most:
            break
    places = [float(f"{place * apart:.12g}") for place in range(first, last + 1)]
    decimals = max(0, -math.floor(math.log10(apart) + 1e-9))
    return [(at, short(at) if decimals > 3 else f"{at:,.{decimals}f}") for at in places]


def averaged(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` points, each the mean of equally many neighbours."""
    group = -(-len(points) // most)
    parts = [points[begin : begin + group] for begin in range(0, len(points), group)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def short(value: float) -> str:
    """A number for an axis or a table: 12,000, 4.683, 0.0005, 2e-5."""
    if value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.4g}"
    shown = f"{value:.3f}" if abs(value) >= 1 else f"{value:.3g}"
    return shown.replace("e-0", "e-").rstrip("0").rstrip(".") if "e" not in shown else shown.replace("e-0", "e-")


# metrics.jsonl → a picture of the losses.

_TERMS = {"mlm": "masked-LM loss (nats)", "lm": "language model's loss (nats)"}
"""What a run learns first of all, and what its axis is called."""


def draw_curve(run: RunFolder) -> Path:
    """Draw the training loss and the held-out loss of a run into `RUN/loss.png`; MissingExtra without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("plots", "a loss curve") from None
    lines = run.metrics()
    term = next((term for term in _TERMS if any(term in line for line in lines)), "mlm")
    trained = [(line["step"], line[term]) for line in lines if term in line]
    held_out = [(line["step"], line["held_out"][f"{term}_loss"]) for line in lines if "held_out" in line]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*zip(*trained, strict=True), color="#b8c4d6", linewidth=1, label="training")
    if held_out:
        axes.plot(*zip(*held_out, strict=True), color="#1f4e8c", marker="o", markersize=3, label="held out")
    axes.set(xlabel="step", ylabel=_TERMS[term], title=f"{run.folder.name}, {lines[-1]['step']:,} steps")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    path = run.folder / "loss.png"
    with atomic_file(path) as stream:
        figure.savefig(stream, dpi=110, format="png")
    return path


def try_curve(run: RunFolder) -> str | None:
    """Return the path of the picture, or None, with a message, where matplotlib is absent."""
    try:
        return str(draw_curve(run))
    except MissingExtra as error:
        say(str(error))
        return None
