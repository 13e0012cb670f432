"""a step's losses and gradient norm → whether its update may be made, and what a person is told where it may not."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_SKIPPED = 10
"""Bad steps of a run that are left out; one more stops it all the same."""
_USUAL_OVER = 50
"""Steps over which the usual loss of a run is a mean."""
_IF_A_BATCH = "; if it was this batch, --resume --skip-loss-spikes goes on without it"
_IF_AN_UPDATE = "; if it was an update before, all that come leap as well: a new run with a lower --learning-rate helps"


@dataclass(frozen=True)
class BadStep:
    """What is wrong with a step, in words; whether its loss leapt, so that the weights may be what is wrong."""

    what: str
    leapt: bool = False


class LossGuard:
    """What a run knows of its steps so far to tell a bad one: `usual`, its loss; `skipped`, the bad ones left out.

    watch_spikes: whether a loss that leaps up counts as a bad step. skips: whether bad steps are left out, MOST_SKIPPED
        at most.
    """

    def __init__(self, *, watch_spikes: bool, skips: bool) -> None:
        self._watch_spikes, self._skips = watch_spikes, skips
        self.usual, self.skipped = 0.0, 0

    def notes(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"usual": self.usual, "skipped": self.skipped}

    def go_on(self, notes: Mapping[str, Any]) -> None:
        """Take up what a checkpoint kept; earlier ones kept nothing."""
        self.usual, self.skipped = notes.get("usual", 0.0), notes.get("skipped", 0)

    def find(self, losses: Mapping[str, float], norm: float) -> BadStep | None:
        """What is wrong with a step, before its update; None where nothing is."""
        loss = sum(losses.values())
        if not math.isfinite(loss):
            return BadStep("the loss is not finite")
        if not math.isfinite(norm):
            return BadStep("the gradient is not finite")
        if self._watch_spikes and self.usual and loss > 2.0 * self.usual + 2.0:
            return BadStep(f"the loss leapt to {loss:.3f}, where it was {self.usual:.3f}", leapt=True)
        return None

    def learn(self, step: int, losses: Mapping[str, float]) -> None:
        """Count a step that was good."""
        loss = sum(losses.values())
        self.usual += (loss - self.usual) / min(step + 1, _USUAL_OVER) if self.usual else loss

    def skip(self) -> str | None:
        """Leave one more out, and what is said of it; None where the run has to stop."""
        if not self._skips or self.skipped == MOST_SKIPPED:
            return None
        self.skipped += 1
        return f"its update is left out, number {self.skipped} of {MOST_SKIPPED} at most"

    def advice(self, bad: BadStep) -> str:
        """What helps after the step that stopped the run."""
        return ("" if self._skips else _IF_A_BATCH) + _IF_AN_UPDATE if bad.leapt else ""
