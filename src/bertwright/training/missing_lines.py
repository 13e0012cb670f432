"""metrics.jsonl → a message about the lines that a run logged and that are missing from it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertwright.console import say

_MOST_NAMED = 3
"""Number of stretches of steps that a message names."""


@dataclass(frozen=True)
class ExpectedLines:
    """The lines that metrics.jsonl must have."""

    training: tuple[int, ...]
    """Steps after which training metrics were logged, ascending."""
    evaluations: tuple[int, ...]
    """Steps after which the model was evaluated, ascending."""


def say_missing_lines(folder: Path, lines: Sequence[Mapping[str, Any]], expected: ExpectedLines, *, state: str) -> None:
    """Print the expected lines that are missing. `state`: text on how the run continues."""
    evaluated = {line["step"] for line in lines if "held_out" in line}
    logged = {line["step"] for line in lines if "held_out" not in line}
    stretches = list(_missing_stretches(expected.training, logged))
    evaluations = [str(step) for step in expected.evaluations if step not in evaluated]
    parts = []
    if stretches:
        parts.append(f"lines of steps {_listed([f'{first} to {last}' for first, last in stretches])}")
    if evaluations:
        parts.append(f"evaluations after steps {_listed(evaluations)}")
    if parts:
        is_start = len(stretches) == 1 and stretches[0][0] == 1
        curve = f"its curve begins after step {stretches[0][1]}" if is_start else "its curve lacks them"
        say(f"{folder / 'metrics.jsonl'}: {' and '.join(parts)} are missing; {state}, and {curve}")


def _missing_stretches(expected: Sequence[int], logged: set[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) step of each stretch without lines. A line covers the steps since the line before it."""
    first = 0
    for previous, step in zip((0, *expected), expected, strict=False):
        if step in logged:
            if first:
                yield first, previous
            first = 0
        else:
            first = first or previous + 1
    if first:
        yield first, expected[-1]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
