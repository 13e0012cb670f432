"""The forest plot: its ticks for narrow and wide differences, and a legend of every line that it draws."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bertwright.experiments.evidence import ClaimEvidence
from bertwright.experiments.forest import axis_ticks, draw_forest
from bertwright.experiments.spec import Claim
from bertwright.experiments.statistics import Comparison

CLAIM = Claim(statement="A is better.", paper="", arm="a", against="b")
PLAN: Any = SimpleNamespace(experiment=SimpleNamespace(paper_differences=lambda _: {}), columns=(), unit="pre-training")


def comparison(difference: float, **facts: Any) -> Comparison:
    return Comparison("RTE", 50.0 + difference, 50.0, (2, 2), **facts)


def drawn(
    path: Path, monkeypatch: pytest.MonkeyPatch, *comparisons: Comparison, claim: Claim = CLAIM
) -> tuple[list[str], list[str]]:
    """Draw a claim; return the texts of the legends and the labels of the ticks."""
    figures: list[Figure] = []
    really = Figure.savefig

    def saved(figure: Figure, *arguments: Any, **options: Any) -> None:
        figures.append(figure)
        really(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", saved)
    assert draw_forest(PLAN, [ClaimEvidence(1, claim, comparisons, "undecided")], path)
    (figure,) = figures
    (panel,) = figure.axes
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return legends, [label.get_text() for label in panel.get_xticklabels()]


def test_a_picture_without_intervals_has_ticks_and_explains_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Table 3: one pre-training of each arm, a difference of 0.03 and a band of one point."""
    legends, ticks = drawn(tmp_path / "a.png", monkeypatch, comparison(0.03, at_floor=True, outcome="cannot be tested"))
    assert ticks == ["-2", "-1.5", "-1", "-0.5", "0", "+0.5", "+1", "+1.5", "+2"]
    assert legends == ["cannot be tested here", "no difference: within δ"]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_legend_explains_thick_and_thin_lines_and_on_these_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"error": 1.0, "degrees": 8.0, "row_error": 3.0}
    on_these_rows, undecided = comparison(4.0, **known, outcome="supported"), comparison(1.0, **known)
    assert on_these_rows.holds_for_other_rows is False
    legends, ticks = drawn(tmp_path / "a.png", monkeypatch, on_these_rows, undecided)
    lines = [text for text in legends if text.startswith(("thick: ", "thin: ", "“on these rows”: "))]
    assert len(lines) == 3
    assert ticks == ["-5", "-2", "0", "+2", "+5", "+10"]
    legends, _ = drawn(tmp_path / "b.png", monkeypatch, undecided)
    assert not any(text.startswith(("“on these rows”", "grey")) for text in legends)
    corrected = comparison(2.5, error=1.0, degrees=8.0, adjusted_p=0.06)
    legends, _ = drawn(tmp_path / "c.png", monkeypatch, corrected)
    assert any(text.startswith("grey, and the thick line does not cross 0:") for text in legends)


def test_the_legend_has_the_words_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reversed_one = comparison(-4.0, outcome="reversed")
    legends, _ = drawn(tmp_path / "a.png", monkeypatch, reversed_one, claim=replace(CLAIM, within=1.0))
    assert legends[0] == "not as good"
    legends, _ = drawn(tmp_path / "a.png", monkeypatch, reversed_one)
    assert legends[0] == "reversed"


def test_what_else_differs_stands_below_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    really = Axes.text

    def written(panel: Axes, x: float, y: float, text: str, **options: Any) -> Any:
        texts.append(text)
        return really(panel, x, y, text, **options)

    monkeypatch.setattr(Axes, "text", written)
    claim = replace(CLAIM, confound="a learns next sentences")
    assert draw_forest(PLAN, [ClaimEvidence(1, claim, (comparison(1.0),), "undecided")], tmp_path / "a.png")
    assert texts == ["1. A is better.", "Also different: a learns next sentences."]


def test_nothing_is_drawn_where_nothing_was_compared(tmp_path: Path) -> None:
    assert not draw_forest(PLAN, [ClaimEvidence(1, CLAIM, (), None)], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (-2.0, 2.0, [-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2]),
        (-2.0, 4.2, [-2, -1, 0, 1, 2, 3, 4]),
        (-2.0, 60.0, [-2, 0, 2, 5, 10, 20, 50]),
        (-130.0, 11.0, [-100, -50, -20, -10, -5, -2, 0, 2, 5, 10]),
    ],
)
def test_ticks_are_fine_where_all_of_the_axis_is_linear(low: float, high: float, ticks: list[float]) -> None:
    assert axis_ticks(low, high) == ticks
