"""rows of a step → advice after a GPU ran out of memory, from trial steps."""

import math

import numpy as np
from torch import nn

from bertwright.finetuning.batches import micro_batches
from bertwright.finetuning.schedule import ScheduledSettings
from bertwright.tasks.binding import BoundTask
from bertwright.training.distributed import is_sharded
from bertwright.training.hardware import Numerics
from bertwright.training.loop import Plan
from bertwright.training.trial import FITS_ADVICE, RESUME_ADVICE, measure_step_seconds, most_fitting_rows


def advise_batch_size(
    settings: ScheduledSettings, bound: BoundTask, model: nn.Module, plan: Plan, numerics: Numerics, parts: int
) -> str:
    """Return advice after a GPU ran out of memory: the largest batch size with which a trial step fits."""
    advice = (
        ""
        if settings.activation_checkpointing or settings.features
        else f"--activation-checkpointing needs less memory{RESUME_ADVICE}; or "
    )
    if any(map(is_sharded, model.parameters())):  # a single rank cannot compute a sharded model
        return f"{advice}start again with a smaller --batch-size"
    longest = np.argsort(-bound.lengths, kind="stable")

    def compute(rows: int) -> float:
        batches = [bound.batch(part) for part in micro_batches(bound, longest[:rows])]
        return measure_step_seconds(
            bound.trainable(model), lambda _: batches, plan=plan, numerics=numerics, seconds=0.0
        )

    rows_of_rank = min(math.ceil(settings.batch_size / parts), len(longest))
    rows = most_fitting_rows(rows_of_rank, compute)
    if rows == rows_of_rank:
        return FITS_ADVICE
    smaller = f"--batch-size {rows * parts}, whose longest rows fit" if rows else "a smaller --max-length: no row fits"
    return f"{advice}start again with {smaller}"
