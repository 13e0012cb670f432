"""values → HTML for notebooks: tables, bars, texts with marked parts, and a page in a frame.

Every text is escaped here. Text has the colours of the notebook, and colours with an alpha channel lie over its
background, so that everything is legible in light and dark themes. Styles are attributes, which act on nothing else.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from html import escape

MOST_ROWS = 10
"""Largest number of bars, or of results of a list, that are shown."""
COLOURS = ("74,134,200", "214,126,44", "64,160,112", "160,104,190", "200,80,110", "140,140,60")
"""Red, green and blue of the colours of marks."""
_MOST_CHARACTERS = 3000
"""Largest number of characters of a text that are shown."""
_BEFORE = 300
"""Number of characters before the first mark of a longer text."""
_CELL = "text-align:left;vertical-align:middle;padding:.15em 1em .15em 0;border:0"
_TABLE = "border-collapse:collapse;margin:.3em 0;border:0"
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.7;max-width:60em"


class Html(str):
    """Text that is HTML already: what came from a text is escaped in it."""

    __slots__ = ()


@dataclass(frozen=True)
class Mark:
    """A part of a text, from character `start` to before `end`.

    label: shown behind it, as a small word. hint: shown where the mouse points at it. colour: number in `COLOURS`, or
    any larger one. strength: 0 to 1, of the colour.
    """

    start: int
    end: int
    label: str = ""
    hint: str = ""
    colour: int = 0
    strength: float = 1.0


def stacked(parts: Iterable[Html]) -> Html:
    """Return the parts below each other."""
    return Html("".join(f"<div>{part}</div>" for part in parts if part))


def note(text: str) -> Html:
    """Return a small remark; an empty text gives nothing."""
    return Html(f'<small style="opacity:.75">{escape(text)}</small>' if text else "")


def bold(text: str) -> Html:
    """Return a text in bold."""
    return Html(f"<b>{escape(text)}</b>")


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> Html:
    """Return rows of texts, or of HTML, as a table; the first cell of a row is its name."""
    titles = "".join(f'<th style="{_CELL}">{_escaped(cell)}</th>' for cell in head)
    lines = [
        f'<th style="{_CELL};font-weight:normal;opacity:.75">{_escaped(first)}</th>'
        + "".join(f'<td style="{_CELL}">{_escaped(cell)}</td>' for cell in rest)
        for first, *rest in rows
    ]
    return _table([titles, *lines] if head else lines)


def bars(probabilities: Iterable[tuple[str, float]], *, chosen: Container[str] = ()) -> Html:
    """Return a bar for each name with its probability, the most probable first; `chosen` names are bold."""
    rows = sorted(probabilities, key=lambda row: -row[1])
    lines = [
        f'<td style="{_CELL}">{bold(name) if name in chosen else escape(name)}</td>'
        f'<td style="{_CELL};width:12em"><div style="background:rgba(127,127,127,.2);border-radius:2px">'
        f'<div style="background:rgb({COLOURS[0]});border-radius:2px;height:.75em;width:{100 * probability:.1f}%">'
        f'</div></div></td><td style="{_CELL};font-variant-numeric:tabular-nums">{probability:.1%}</td>'
        for name, probability in rows[:MOST_ROWS]
    ]
    return Html(_table(lines) + note(more(len(rows) - MOST_ROWS)))


def more(count: int) -> str:
    """Return the remark about rows that are not shown; empty where there are none."""
    return f"… and {count:,} more" if count > 0 else ""


def _escaped(cell: str) -> str:
    return cell if isinstance(cell, Html) else escape(cell)


def _table(lines: Iterable[str]) -> Html:
    rows = "".join(f'<tr style="background:none">{line}</tr>' for line in lines)
    return Html(f'<table style="{_TABLE}"><tbody>{rows}</tbody></table>')


def marked(text: str, marks: Iterable[Mark] = ()) -> Html:
    """Return a text with its marks, which do not overlap; of a long text, the part from before the first mark on."""
    ordered = sorted(marks, key=lambda mark: mark.start)
    is_long = len(text) > _MOST_CHARACTERS
    begin = max(0, ordered[0].start - _BEFORE) if is_long and ordered else 0
    end = begin + _MOST_CHARACTERS if is_long else len(text)
    parts, done = ["…" if begin else ""], begin
    for mark in ordered:
        if mark.start < end:
            parts += [escape(text[done : mark.start]), _mark(mark, text)]
            done = mark.end
    parts += [escape(text[done:end]), "…" if max(done, end) < len(text) else ""]
    return Html(f'<div dir="auto" style="{_TEXT}">{"".join(parts)}</div>')


def _mark(mark: Mark, text: str) -> str:
    colour = COLOURS[mark.colour % len(COLOURS)]
    style = (
        f"background:rgba({colour},{0.35 * mark.strength:.2f});"
        f"border-bottom:2px solid rgba({colour},{mark.strength:.2f});border-radius:3px;padding:0 .15em"
    )
    hint = f' title="{escape(mark.hint)}"' if mark.hint else ""
    label = f" <small><b>{escape(mark.label)}</b></small>" if mark.label else ""
    return f'<span style="{style}"{hint}>{escape(text[mark.start : mark.end])}{label}</span>'


def framed(page: str, *, title: str) -> Html:
    """Return a whole page in a frame of its own, in which no script runs and from which no style leaks."""
    return Html(
        f'<iframe sandbox="" title="{escape(title)}" srcdoc="{escape(page)}" style="display:block;width:100%;'
        'box-sizing:border-box;height:640px;border:1px solid rgba(127,127,127,.4);border-radius:4px"></iframe>'
    )
