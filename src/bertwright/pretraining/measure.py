"""settings → seconds: what a step, an evaluation and a checkpoint take on this machine, and the steps that fit."""

import hashlib
import math
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final

import torch

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import cache_folder
from bertwright.pretraining.resources import Memory, checkpoint_bytes, existing_parent, memory_needs, too_much_memory
from bertwright.pretraining.setup import Pretraining
from bertwright.pretraining.systems import Rows, figures_of, task_of
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, is_share
from bertwright.training.hardware import Numerics, own_device
from bertwright.training.loop import Plan
from bertwright.training.memory import forget_peak, peak_bytes, resident_bytes, usable_bytes
from bertwright.training.trial import FITS_ALONE, GOES_ON, Found, largest, measure_step_seconds, unless_full

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
    ranks: Ranks = SINGLE_PROCESS,
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
    return (time.perf_counter() - start) * trained.held_out.num_rows / rows / trained.ranks.world_size


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


# settings → whether a run's step is compiled: settled before step 0, said, and kept with the run.
#
# `torch.compile` takes half a minute to some minutes for the first step of a kind, and whether the compiled step is
# faster depends on processor and model: a long run tries both, a short one is not worth the trial.

LONG: Final = 3600.0
"""Seconds that a run is to take before `auto` tries a compiled step."""
GAIN: Final = 1.05
"""`auto` takes it where it is at least this much faster."""
_USUAL_SHARE: Final = 0.3
"""Of the matrix rate, for telling how long a number of steps takes without measuring it."""
_SECONDS: Final = 5.0
"""Of steps on each side of the trial."""


def settle_compiled(trained: "Pretraining", numerics: Numerics) -> Numerics:
    """`numerics` with `compiled` as the settings say, as far as this machine can."""
    asked = trained.settings.compile
    if asked == "off" or (asked == "auto" and _expected_seconds(trained, numerics) < LONG):
        return _with(numerics, compiled=False)
    if not can_compile():
        say("there is no C++ compiler here (c++): the step is not compiled; the same run, perhaps slower")
        return _with(numerics, compiled=False)
    begin = time.perf_counter()
    try:
        fast = _step_seconds(trained, _with(numerics, compiled=True))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # torch's compiler fails in many ways, and a run must not end of it
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        say(f"the step is not compiled, torch.compile failed: {why[:200]}; the same run, perhaps slower")
        return _with(numerics, compiled=False)
    took = f"torch.compile took {max(0.0, time.perf_counter() - begin - _SECONDS):.0f} s (less where it is cached)"
    if asked == "on":
        say(f"{took}; a step takes {fast * 1e3:.0f} ms")
        return _with(numerics, compiled=True)
    plain = _step_seconds(trained, _with(numerics, compiled=False))
    chosen = plain >= GAIN * fast
    say(
        f"{took}; a step takes {fast * 1e3:.0f} ms compiled and {plain * 1e3:.0f} ms as it is: "
        f"{'compiled' if chosen else 'not compiled'}"
    )
    return _with(numerics, compiled=chosen)


def resumed(numerics: Numerics, *, allow_other: bool) -> Numerics:
    """What a run that was begun with `numerics` goes on with. InputError where it cannot be compiled here any more."""
    if not numerics.compiled or can_compile():
        return numerics
    if not allow_other:
        raise InputError(
            "this run was begun with a compiled step, and here is no C++ compiler (c++): its bits would differ from "
            "an undisturbed run's; --allow-other-numerics goes on all the same, uncompiled"
        )
    return _with(numerics, compiled=False)


def can_compile() -> bool:
    """Whether there is a compiler; what it makes is kept in the person's cache folder (torch's is not kept long)."""
    name = shlex.split(os.environ.get("CXX") or "c++")[0]
    if shutil.which(name) is None and ("CXX" in os.environ or shutil.which("g++") is None):
        return False
    with suppress(OSError):
        folder = cache_folder() / "inductor"
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    return True


def _expected_seconds(trained: "Pretraining", numerics: Numerics) -> float:
    """What was asked for, or what the steps take at the usual share of the machine's matrix rate."""
    settings = trained.settings
    if settings.minutes:
        return 60 * settings.minutes
    assert settings.steps
    flops = task_of(trained.model).flops
    work = sum(
        phase.share * sum(map(flops, trained.micro_batches(examples, 0)))
        for phase, examples in zip(settings.phases, trained.phases, strict=True)
    )
    return settings.steps * work / (_USUAL_SHARE * numerics.peak_flops * trained.ranks.world_size)


def _step_seconds(trained: "Pretraining", numerics: Numerics) -> float:
    """Of the longest stretch of steps, in throw-away updates of this process alone."""
    phases = zip(trained.settings.phases, trained.phases, strict=True)
    _, examples = max(phases, key=lambda pair: pair[0].share)
    return step_seconds(trained, examples, numerics, seconds=_SECONDS)


def _with(numerics: Numerics, *, compiled: bool) -> Numerics:
    return numerics.model_copy(update={"compiled": compiled})


# settings → the memory of a run, measured on a quarter of a micro-batch, and what to say where it does not suffice.
_NEAR: Final = 4
"""A run is measured where its arithmetic comes within so many times of what can be used: it is on the low side."""


def refuse_near(trained: "Pretraining", numerics: Numerics) -> None:
    """Before a run that is not far from the limit: InputError where it would end for want of memory.

    The model is on the device afterwards where that was measured.
    """
    usable = usable_bytes(numerics.device)
    memory = _memory(trained, numerics)
    if usable is not None and _NEAR * memory.peak > usable:
        foresee(trained, numerics)


def foresee(trained: "Pretraining", numerics: Numerics) -> Memory:
    """The arithmetic, in bytes; InputError where a quarter of the largest micro-batch, times four, would be too much.

    The model is on the device afterwards.
    """
    memory = _memory(trained, numerics)
    for index, phase in enumerate(trained.settings.phases):
        rows = _rows(trained, phase.length)
        if rows >= 4:
            _measure(trained, numerics, memory, rows=rows, quarter=rows // 4, index=index)
    return memory


def refuse_peak(trained: "Pretraining", numerics: Numerics, needed: int) -> None:
    """InputError where so many bytes cannot be used here."""
    usable = usable_bytes(numerics.device)
    if usable is not None and needed > usable:
        of_rows: Any = {"numerics": numerics, "parts": trained.parts}
        raise InputError(too_much_memory(needed, usable, trained.settings, trained.config, **of_rows))


def fitting(trained: "Pretraining", numerics: Numerics, compute: Callable[[], Found]) -> Found:
    """What `compute` returns; RunFailed with the --micro-tokens that fit where a GPU's memory does not suffice."""
    return unless_full(compute, partial(_what_fits, trained, numerics))


def _what_fits(trained: "Pretraining", numerics: Numerics) -> str:
    """After a GPU ran out of memory: which --micro-tokens fit, found by computing ever smaller micro-batches."""
    if any(map(is_share, trained.model.parameters())):  # one rank alone cannot compute anything then
        tokens = max(_rows(trained, examples.length) * examples.length for examples in trained.phases)
        return f"try --micro-tokens {tokens // 2} or --activation-checkpointing{GOES_ON}"
    smaller = []
    for examples in trained.phases:
        rows = _rows(trained, examples.length)
        found = largest(rows, partial(_compute, trained, examples, numerics))
        if not found:
            return (
                f"not even one row of {examples.length} fits; choose a smaller --size, shorter rows or "
                "--activation-checkpointing"
            )
        smaller += [] if found == rows else [found * examples.length]
    if not smaller:
        return FITS_ALONE
    return f"--micro-tokens {min(smaller)} fits{GOES_ON}"


def _compute(trained: "Pretraining", examples: Rows, numerics: Numerics, rows: int) -> float:
    return step_seconds(trained, examples, numerics, seconds=0.0, rows=rows)


def _memory(trained: "Pretraining", numerics: Numerics) -> Memory:
    return memory_needs(trained.settings, trained.config, precision=numerics.precision, parts=trained.parts)


def _rows(trained: "Pretraining", length: int) -> int:
    """Of the largest micro-batch with rows of `length` tokens."""
    return min(math.ceil(trained.settings.batch_size / trained.parts), max(1, trained.settings.micro_tokens // length))


def _measure(
    trained: "Pretraining", numerics: Numerics, memory: Memory, *, rows: int, quarter: int, index: int
) -> None:
    """Compute a quarter of a micro-batch and refuse where the whole would not fit."""
    examples = trained.phases[index]
    trained.micro_batches(examples, 0, rows=quarter)  # what only the first rows take is not the step's
    trained.model.to(own_device(numerics.device)).zero_grad(set_to_none=True)
    forget_peak(numerics.device)
    copied = memory.weights  # of the weights, by the measuring itself
    fixed = resident_bytes(numerics.device) + memory.gradients + memory.moments + copied
    _compute(trained, examples, numerics, quarter)
    whole = fixed + max(0, peak_bytes(numerics.device) - fixed) * rows // quarter
    refuse_peak(trained, numerics, whole - (0 if memory.spare else copied))


def pace_here(trained: Pretraining, numerics: Numerics, *, out: Path) -> Pace:
    """Measured here and now; 20 seconds for each thing at most, and a thirtieth of the minutes."""
    seconds = min(20.0, 2.0 * trained.settings.minutes) if trained.settings.minutes else 5.0
    return measure_pace(trained, numerics, out=out, seconds=seconds)
