"""Losses and gradient norm of a step → whether its update is applied, and the message where it is not."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_SKIPPED = 10
"""Number of bad steps that a run skips; the next bad step stops it."""
_AVERAGED_STEPS = 50
"""Number of steps over which the usual loss is averaged."""
_SKIP_ADVICE = "; if this batch caused it, --resume --skip-loss-spikes continues without the batch"
_RATE_ADVICE = (
    "; if an earlier update caused it, all later losses are as high: start a run with a lower --learning-rate"
)


@dataclass(frozen=True)
class BadStep:
    """A step whose update must not be applied."""

    message: str
    is_spike: bool = False
    """True for a loss spike: the weights themselves may be the cause."""


class LossGuard:
    """Finds bad steps, and counts the skipped ones.

    watch_spikes: a loss spike is a bad step, too. skips: bad steps are skipped, MOST_SKIPPED at most.
    """

    def __init__(self, *, watch_spikes: bool, skips: bool) -> None:
        self._watch_spikes, self._skips = watch_spikes, skips
        self.usual, self.skipped = 0.0, 0

    def notes(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"usual": self.usual, "skipped": self.skipped}

    def restore(self, notes: Mapping[str, Any]) -> None:
        """Continue with the state of a checkpoint."""
        self.usual, self.skipped = notes["usual"], notes["skipped"]

    def check(self, losses: Mapping[str, float], norm: float) -> BadStep | None:
        """Return the fault of a step before its update, or None for a good step."""
        loss = sum(losses.values())
        if not math.isfinite(loss):
            return BadStep("the loss is not finite")
        if not math.isfinite(norm):
            return BadStep("the gradient is not finite")
        if self._watch_spikes and self.usual and loss > 2.0 * self.usual + 2.0:
            return BadStep(f"loss spike: {loss:.3f}, after {self.usual:.3f} on average", is_spike=True)
        return None

    def record(self, step: int, losses: Mapping[str, float]) -> None:
        """Average the loss of a good step into the usual loss."""
        loss = sum(losses.values())
        self.usual += (loss - self.usual) / min(step + 1, _AVERAGED_STEPS) if self.usual else loss

    def skip(self) -> str | None:
        """Count one more skipped step and return the message about it; None where the run must stop."""
        if not self._skips or self.skipped == MOST_SKIPPED:
            return None
        self.skipped += 1
        return f"its update is skipped ({self.skipped} of at most {MOST_SKIPPED})"

    def advice(self, bad: BadStep) -> str:
        """Return what helps after the step that stopped the run."""
        return ("" if self._skips else _SKIP_ADVICE) + _RATE_ADVICE if bad.is_spike else ""
