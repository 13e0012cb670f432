"""Losses of steps → their means since the last log line."""

from collections.abc import Mapping
from typing import Any


class StepMeans:
    """Sums of named numbers, and the number of steps that had each of them."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, values: Mapping[str, float]) -> None:
        """Add the numbers of a step; a name that is absent does not count in this step."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1

    def means(self) -> dict[str, float]:
        """Return the mean of each number over the steps that had it."""
        return {name: value / self._counts[name] for name, value in self._sums.items()}

    def clear(self) -> None:
        """Begin anew, after a log line."""
        self._sums, self._counts = {}, {}

    def notes(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"sums": self._sums, "counts": self._counts}

    def restore(self, notes: Mapping[str, Any], *, steps: float) -> None:
        """Continue with the state of a checkpoint; one of an earlier version has no counts, but `steps` steps."""
        self._sums = dict(notes["sums"])
        self._counts = dict(notes.get("counts") or dict.fromkeys(self._sums, int(steps)))
