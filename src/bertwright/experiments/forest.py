"""evidence on the claims → forest plot: a row for each claim and task, with its difference and intervals."""

import math
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bertwright.experiments.answers import outcome_word
from bertwright.experiments.evidence import ClaimEvidence
from bertwright.experiments.plan import ExperimentPlan
from bertwright.experiments.statistics import ClaimOutcome, Comparison
from bertwright.reports.figures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS: Final[dict[ClaimOutcome, str]] = {
    "supported": "#1f4e8c",
    "reversed": "#c2571a",
    "no difference": "#3d7d3d",
    "undecided": "#777777",
    "cannot be tested": "#bbbbbb",
}
_BAND: Final = "#e4ece4"
_LINEAR: Final = 5.0
"""Points up to which the axis is linear; beyond, it is logarithmic, because the tasks differ by a factor of thirty."""
_TICKS: Final = (-100, -50, -20, -10, -5, -2, 0, 2, 5, 10, 20, 50, 100)
_NARROW: Final = 2.0
"""Points to each side that the axis shows at least."""
_THICK, _THIN = 3.0, 1.0
"""Widths of the intervals over pre-trainings, and over dev rows too."""
_WIDTH: Final = 90
"""Characters of a line of a claim."""
_LIGHT_WIDTH: Final = 115
"""Characters of a line that is not bold."""


def draw_forest(plan: ExperimentPlan, evidence: Sequence[ClaimEvidence], path: Path) -> bool:
    """Draw the differences of all claims into `path`; return False where there are none, or without matplotlib."""
    drawn = [each for each in evidence if each.comparisons]
    if not drawn:
        return False
    titles = [_title(each) for each in drawn]
    rows = sum(len(title) + len(each.comparisons) for title, each in zip(titles, drawn, strict=True))
    if not (figure := new_figure("a picture of the results", 7.6, 0.27 * rows + 1.3)):
        return False
    panel = figure.subplots()
    labels: dict[int, str] = {}
    row, has_paper = 0, False
    for title, each in zip(titles, drawn, strict=True):
        for line, weight in title:
            panel.text(0.0, row, line, transform=panel.get_yaxis_transform(), fontsize=8, va="center", weight=weight)
            row += 1
        paper = plan.experiment.paper_differences(each.claim)
        for comparison in each.comparisons:
            labels[row] = comparison.column
            delta = each.claim.delta
            panel.plot([-delta, delta], [row, row], "-", color=_BAND, linewidth=8, solid_capstyle="butt", zorder=0)
            _draw_row(panel, row, comparison)
            if comparison.column in paper:
                panel.plot(paper[comparison.column], row, "D", color="#b3132b", markersize=4, zorder=1)
                has_paper = True
            row += 1
    units = {column.name for column in plan.columns if column.has_own_unit}
    _finish_axes(panel, labels, rows, units=[name for name in dict.fromkeys(labels.values()) if name in units])
    _legend(figure, drawn, has_paper=has_paper, unit=plan.unit)
    save_figure(figure, path, dpi=130)
    return True


def _title(evidence: ClaimEvidence) -> list[tuple[str, str]]:
    """Return the lines above the rows of a claim, and their weights: the claim, and what else differs."""
    claim = evidence.claim
    lines = [(line, "bold") for line in textwrap.wrap(f"{evidence.number}. {_plain(claim.statement)}", _WIDTH)]
    also = textwrap.wrap(f"Also different: {_plain(claim.confound)}.", _LIGHT_WIDTH) if claim.confound else []
    return [*lines, *((line, "normal") for line in also)]


def _plain(text: str) -> str:
    """Return a text of a page without the marks of code, which a picture would show."""
    return text.replace("`", "")


def _draw_row(panel: "Axes", row: int, comparison: Comparison) -> None:
    """Draw the difference, its interval over pre-trainings (thick) and that over other rows too (thin)."""
    colour = _COLOURS[comparison.outcome]
    for with_rows, width in ((True, _THIN), (False, _THICK)):
        interval = comparison.interval(with_rows=with_rows)
        if interval is not None:
            panel.plot(interval, [row, row], "-", color=colour, linewidth=width, solid_capstyle="butt")
    panel.plot(comparison.difference, row, color=colour, zorder=3, **_marker(comparison.outcome))


def _marker(outcome: ClaimOutcome) -> dict[str, Any]:
    """Return the point of an outcome: filled, or a ring where nothing can be tested."""
    colour = _COLOURS[outcome]
    face, edge = ("white", colour) if outcome == "cannot be tested" else (colour, "white")
    return {"marker": "o", "markersize": 5.5, "markerfacecolor": face, "markeredgecolor": edge}


def axis_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of an axis between two limits in points: in steps of one or a half where all of it is linear."""
    reach = max(-low, high)
    if reach > _LINEAR:
        return [tick for tick in _TICKS if low <= tick <= high]
    step = 0.5 if reach <= _NARROW else 1.0
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _finish_axes(panel: "Axes", labels: dict[int, str], rows: int, *, units: Sequence[str]) -> None:
    panel.axvline(0.0, color="black", linewidth=0.8, zorder=1)
    panel.set_xscale("symlog", linthresh=_LINEAR, linscale=1.0)
    low, high = panel.get_xlim()
    low, high = min(low, -_NARROW), max(high, _NARROW)
    panel.set_xlim(low, high)
    ticks = axis_ticks(low, high)
    panel.set_xticks(ticks, [f"{tick:+g}" if tick else "0" for tick in ticks], fontsize=8)
    panel.set_xticks([], minor=True)
    panel.set_yticks(list(labels), list(labels.values()), fontsize=8)
    panel.tick_params(axis="y", length=0)
    panel.set_ylim(rows - 0.4, -0.6)
    panel.grid(alpha=0.25, axis="x")
    panel.spines[["top", "right", "left"]].set_visible(False)
    scale = f" (logarithmic beyond ± {_LINEAR:g})" if max(-low, high) > _LINEAR else ""
    others = f"\nnot in points, but in units of their own: {', '.join(units)}" if units else ""
    panel.set_xlabel(f"points by which the first arm of the claim is better{scale}{others}", fontsize=8)


def _legend(figure: Any, evidence: Sequence[ClaimEvidence], *, has_paper: bool, unit: str) -> None:
    from matplotlib.lines import Line2D

    words: dict[ClaimOutcome, dict[str, None]] = defaultdict(dict)
    for each in evidence:
        for comparison in each.comparisons:
            words[comparison.outcome][outcome_word(each.claim, comparison)] = None
    handles = [
        Line2D([], [], color=colour, label=", ".join(words[outcome]), linewidth=2.5, **_marker(outcome))
        for outcome, colour in _COLOURS.items()
        if outcome in words
    ]
    handles.append(Line2D([], [], color=_BAND, linewidth=8, label="no difference: within δ"))
    if has_paper:
        handles.append(Line2D([], [], color="#b3132b", marker="D", linestyle="", markersize=4, label="the paper"))
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(handles)), frameon=False, fontsize=8)
    colour = _COLOURS["undecided"]
    labels = _interval_labels(evidence, unit)
    lines = [Line2D([], [], color=colour, linewidth=width, label=label) for width, label in labels]
    if lines:
        figure.legend(handles=lines, loc="outside lower center", ncols=1, frameon=False, fontsize=8)


def _interval_labels(evidence: Sequence[ClaimEvidence], unit: str) -> list[tuple[float, str]]:
    """Return width and meaning of each kind of line that is drawn; width 0 for what a verdict makes of them."""
    comparisons = [comparison for each in evidence for comparison in each.comparisons]
    labels: list[tuple[float, str]] = []
    if any(each.interval() for each in comparisons):
        labels.append((_THICK, f"thick: 95 % interval of the difference over other {unit}s"))
    if any(each.interval(with_rows=True) for each in comparisons):
        labels.append((_THIN, f"thin: the same over other {unit}s and other dev rows"))
    decided = [each for each in comparisons if each.outcome in ("supported", "reversed")]
    if any(each.holds_for_other_rows is False for each in decided):
        labels.append((0.0, "“on these rows”: the thin line crosses 0, and the thick line does not"))
    undecided = [
        comparison.interval()
        for each in evidence
        for comparison in each.comparisons
        if comparison.outcome == "undecided" and each.claim.within is None
    ]
    if any(interval and not interval[0] <= 0 <= interval[1] for interval in undecided):
        reason = f"p is corrected for the number of tasks,\nor there are too few {unit}s"
        labels.append((0.0, f"grey, and the thick line does not cross 0: {reason}"))
    return labels
