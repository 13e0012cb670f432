"""metrics.jsonl → the lines that a run logged and that are gone: its curve would begin in the middle and not say so."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertwright.console import say

_SHOWN = 3
"""Stretches of steps that a message names."""


@dataclass(frozen=True)
class Due:
    """The steps, ascending, after which a run has logged its training, and those after which it has measured."""

    lines: tuple[int, ...]
    measurements: tuple[int, ...]


def tell_missing(folder: Path, lines: Sequence[Mapping[str, Any]], due: Due, *, ends: str) -> None:
    """Say which lines are gone from a run's metrics.jsonl, if any are; `ends` says how the run stands."""
    measured = {line["step"] for line in lines if "held_out" in line}
    logged = {line["step"] for line in lines if "held_out" not in line}
    stretches = list(_stretches(due.lines, logged))
    lost = [str(step) for step in due.measurements if step not in measured]
    parts = []
    if stretches:
        parts.append(f"lines of steps {_listed([f'{first} to {last}' for first, last in stretches])}")
    if lost:
        parts.append(f"measurements after steps {_listed(lost)}")
    if parts:
        is_cut = len(stretches) == 1 and stretches[0][0] == 1
        curve = f"its curve begins after step {stretches[0][1]}" if is_cut else "its curve lacks them"
        say(f"{folder / 'metrics.jsonl'}: {' and '.join(parts)} are missing; {ends}, and {curve}")


def _stretches(due: Sequence[int], logged: set[int]) -> Iterator[tuple[int, int]]:
    """First and last step of what lines that are not there told of; a line tells of all steps since the one before."""
    first = 0
    for before, step in zip((0, *due), due, strict=False):
        if step in logged:
            if first:
                yield first, before
            first = 0
        else:
            first = first or before + 1
    if first:
        yield first, due[-1]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
