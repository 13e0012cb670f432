"""settings → seconds: what a step, an evaluation and a checkpoint take on this machine, and the steps that fit."""

import hashlib
import os
import tempfile
import time
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bertwright.console import say
from bertwright.recipes.needs import checkpoint_bytes, existing_parent
from bertwright.recipes.systems import Rows, figures_of, task_of
from bertwright.training.loop import Plan, measure_step_seconds
from bertwright.training.machine import Numerics
from bertwright.training.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from bertwright.recipes.pretrain import Pretraining

_PROBE = 32 << 20
"""Bytes that are written to see how long a checkpoint takes."""


@dataclass(frozen=True)
class Pace:
    """Seconds of a step in each phase, of an evaluation (0 where there is none) and of a checkpoint."""

    steps: tuple[float, ...]
    evaluation: float
    checkpoint: float


def measure_pace(trained: "Pretraining", numerics: Numerics, *, out: Path, seconds: float) -> Pace:
    """From throw-away steps of every phase, a few batches of an evaluation, and a file at `out` that is removed."""
    steps = [
        step_seconds(trained, examples, numerics, seconds=seconds, ranks=trained.ranks) for examples in trained.phases
    ]
    return Pace(
        steps=tuple(steps),
        evaluation=_evaluation_seconds(trained, seconds) if trained.settings.evaluations else 0.0,
        checkpoint=_checkpoint_seconds(checkpoint_bytes(trained.num_parameters, trained.num_moments), out),
    )


def step_seconds(
    trained: "Pretraining",
    examples: Rows,
    numerics: Numerics,
    *,
    seconds: float,
    rows: int | None = None,
    ranks: Ranks = ALONE,
) -> float:
    """Of one step on the examples, from throw-away updates; `rows`: of a first micro-batch of so many alone."""

    def of_step(step: int) -> list[Any]:
        return trained.micro_batches(examples, step, rows=rows)[: 1 if rows else None]

    of_step(0)  # the first rows compile their making and walk the epoch
    return measure_step_seconds(
        task_of(trained.model),
        of_step,
        plan=Plan(steps=10**6, seed=trained.settings.seed, optimizer=trained.settings.optimizer),
        numerics=numerics,
        seconds=seconds,
        ranks=ranks,
    )


def affordable_steps(trained: "Pretraining", pace: Pace) -> int:
    """Steps that fit into the minutes beside evaluations and checkpoints."""
    settings = trained.settings
    assert settings.minutes
    budget = 60 * settings.minutes
    aside = settings.evaluations * pace.evaluation + (1 + settings.minutes // settings.save_minutes) * pace.checkpoint
    if aside > budget / 2:
        say(f"evaluations and checkpoints take {aside:.0f} s; the run will be longer than asked")
    step = sum(phase.share * seconds for phase, seconds in zip(settings.phases, pace.steps, strict=True))
    return max(1, round(max(budget - aside, budget / 2) / step))


def _evaluation_seconds(trained: "Pretraining", seconds: float) -> float:
    """Of one held-out evaluation; what only the first one does, such as planning its rows, is not counted."""
    if not trained.held_out:
        return 0.0
    ordered = chain(trained.held_out.in_order(), repeat(None))
    next(iter(trained.held_out))
    next(trained.held_out.in_order(), None)
    trained.model.eval()
    rows, start = 0, time.perf_counter()
    with torch.inference_mode():
        for batch, pairs in zip(trained.held_out, ordered, strict=False):  # as many rows of both, where there are both
            figures_of(trained.model, [batch], [pairs] if pairs else [])
            rows += len(batch.ids)
            if time.perf_counter() - start > seconds:
                break
    return (time.perf_counter() - start) * trained.held_out.num_rows / rows / trained.ranks.world


def _checkpoint_seconds(size: int, out: Path) -> float:
    """Of writing `size` bytes at `out` and of hashing them, from a file without a name."""
    block = bytes(_PROBE)
    start = time.perf_counter()
    with tempfile.TemporaryFile(dir=existing_parent(out)) as stream:
        stream.write(block)
        stream.flush()
        os.fsync(stream.fileno())
    hashlib.sha256(block)
    return (time.perf_counter() - start) * size / _PROBE
