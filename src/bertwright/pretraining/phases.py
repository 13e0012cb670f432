"""Phases of lengths, of masks and of rows per step → stages: the parts of a run in which none of them changes.

This module is read for --help, so it imports no torch.
"""

from collections.abc import Sequence
from typing import Annotated, TypeVar

from pydantic import Field

from bertwright.config import Settings, Share

RowsPerStep = Annotated[int, Field(gt=0, le=1 << 24)]


class Phase(Settings):
    """Rows of `length` tokens for a fraction `share` of the steps."""

    length: Annotated[int, Field(ge=8)]
    share: Share

    def __str__(self) -> str:
        return f"{self.length}:{self.share:g}"


class MaskPhase(Settings):
    """The fraction `masked` of the tokens predicted for a fraction `share` of the steps."""

    masked: Annotated[float, Field(gt=0, le=1)]
    share: Share

    def __str__(self) -> str:
        return f"{self.masked:g}:{self.share:g}"


class BatchPhase(Settings):
    """Steps of `rows` rows for a fraction `share` of the steps."""

    rows: RowsPerStep
    share: Share


class Stage(Phase):
    """A part of the steps with one row length, one number of rows per step, and one fraction of predicted tokens.

    masked: None for the fraction of the masking.
    """

    batch_size: int
    masked: float | None = None


def stages_of(
    phases: Sequence[Phase],
    mask_schedule: Sequence[MaskPhase],
    batch_schedule: Sequence[BatchPhase],
    *,
    batch_size: int,
) -> tuple[Stage, ...]:
    """Return the parts of the steps in order: a new one begins with each phase of lengths, of masks or of rows."""
    if not mask_schedule and len(batch_schedule) <= 1:
        size = batch_size
        return tuple(Stage(length=phase.length, share=phase.share, batch_size=size) for phase in phases)
    lengths, masks, batches = _ends(phases), _ends(mask_schedule), _ends(batch_schedule)
    ends = sorted({end for end, _ in (*lengths, *masks, *batches)})
    stages, begin = [], 0.0
    for end in ends:
        length = next(phase.length for last, phase in lengths if last >= end)
        masked = next((phase.masked for last, phase in masks if last >= end), None)
        rows = next((phase.rows for last, phase in batches if last >= end), batch_size)
        stages.append(Stage(length=length, share=end - begin, batch_size=rows, masked=masked))
        begin = end
    return tuple(stages)


AnyPhase = TypeVar("AnyPhase", Phase, MaskPhase, BatchPhase)


def _ends(phases: Sequence[AnyPhase]) -> list[tuple[float, AnyPhase]]:
    """Return the fraction of the steps at which each phase ends, rounded, and the phase; the last one ends at 1."""
    shares = [phase.share for phase in phases]
    ends: list[float] = [round(sum(shares[: index + 1]), 9) for index in range(len(phases) - 1)]
    return list(zip([*ends, 1.0], phases, strict=True)) if phases else []
