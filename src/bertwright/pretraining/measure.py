"""Settings → measurements on this machine before step 0: timings, a compiled step or not, the memory preflight.

Most of them need trial steps on rows of the run. The weights are restored afterwards.

- Timings: seconds of a step, an evaluation and a checkpoint, and the number of steps that fit into a run's minutes.
- Compiling: torch.compile takes half a minute to some minutes for the first step. The processor and the model decide
  whether the compiled step is faster. A long run tries both, and run.json keeps the choice.
- Memory preflight: the memory of a run that may not fit, from a quarter of a micro-batch.
"""

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import cache_folder
from bertwright.jit import compiler_words
from bertwright.pretraining.resources import (
    Memory,
    checkpoint_bytes,
    estimate_memory,
    existing_parent,
    refuse_memory,
)
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.setup import Pretraining
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, is_sharded
from bertwright.training.hardware import Numerics, resolve_device
from bertwright.training.loop import Plan
from bertwright.training.memory import peak_bytes, reset_peak, resident_bytes, usable_bytes
from bertwright.training.trial import (
    FITS_ADVICE,
    RESUME_ADVICE,
    advise_on_full_gpu,
    measure_step_seconds,
    most_fitting_rows,
)

_Result = TypeVar("_Result")
_TRIAL_BYTES: Final = 32 << 20
"""Bytes of the file by which the time of a checkpoint is measured."""
LONG_RUN_SECONDS: Final = 3600.0
"""Expected seconds of a run from which `auto` tries a compiled step."""
_SPEEDUP: Final = 1.05
"""Factor by which a compiled step must be faster for `auto` to choose it."""
_USUAL_MFU: Final = 0.3
"""MFU by which the seconds of a run are estimated without a measurement."""
_TRIAL_SECONDS: Final = 5.0
"""Seconds of trial steps, compiled and not compiled each."""
_PREFLIGHT_FACTOR: Final = 4
"""The memory is measured where the estimate, times this factor, is above the usable memory."""


@dataclass(frozen=True)
class Timings:
    """Seconds of a step in each phase, of an evaluation (0 where there is none) and of a checkpoint."""

    steps: tuple[float, ...]
    evaluation: float
    checkpoint: float


def measure_timings(pretraining: Pretraining, numerics: Numerics, *, out: Path) -> Timings:
    """Return timings from trial steps of every phase, some validation batches, and a temporary file at `out`.

    Each measurement takes 5 seconds. In a run of minutes it takes a thirtieth of them, and at most 20 seconds.
    """
    settings = pretraining.settings
    seconds = min(20.0, 2.0 * settings.minutes) if settings.minutes else 5.0
    steps = [
        step_seconds(pretraining, phase, numerics, seconds=seconds, ranks=pretraining.ranks)
        for phase in range(len(pretraining.stages))
    ]
    return Timings(
        steps=tuple(steps),
        evaluation=_evaluation_seconds(pretraining, seconds) if settings.evaluations else 0.0,
        checkpoint=_checkpoint_seconds(checkpoint_bytes(pretraining.num_parameters, pretraining.num_moments), out),
    )


def step_seconds(
    pretraining: Pretraining,
    phase: int,
    numerics: Numerics,
    *,
    seconds: float,
    rows: int | None = None,
    ranks: Ranks = SINGLE_PROCESS,
) -> float:
    """Return the seconds of a step of a phase, from trial steps.

    With `rows`, a step is one micro-batch of that many rows.
    """

    def micro_batches(step: int) -> list[Any]:
        first = step * pretraining.stages[phase].batch_size
        return pretraining.micro_batches(phase, first, rows=rows)[: 1 if rows else None]

    micro_batches(0)  # the first call compiles the code that makes rows, and plans the epoch
    return measure_step_seconds(
        pretraining.trainable(),
        micro_batches,
        plan=Plan(steps=10**6, seed=pretraining.settings.seed, optimizer=pretraining.settings.optimizer),
        numerics=numerics,
        seconds=seconds,
        ranks=ranks,
    )


def affordable_steps(settings: PretrainSettings, timings: Timings) -> int:
    """Return the number of steps that fit into a run's minutes, together with its evaluations and checkpoints."""
    assert settings.minutes
    budget = 60 * settings.minutes
    saves = 1 + settings.minutes // settings.save_minutes
    overhead = settings.evaluations * timings.evaluation + saves * timings.checkpoint
    if overhead > budget / 2:
        say(
            f"--minutes {settings.minutes:g}: evaluations and checkpoints take {overhead:.0f} s, more than half of "
            "them; the run will take longer"
        )
    step = sum(phase.share * seconds for phase, seconds in zip(settings.stages, timings.steps, strict=True))
    return max(1, round(max(budget - overhead, budget / 2) / step))


def _evaluation_seconds(pretraining: Pretraining, seconds: float) -> float:
    """Return the seconds of one evaluation, without the planning of its rows, which happens once in a run."""
    validation = pretraining.validation
    if not validation:
        return 0.0
    further = chain(validation.further_batches(), repeat(None))
    next(iter(validation))  # the first batch of each kind plans the rows
    next(validation.further_batches(), None)
    pretraining.model.eval()
    rows, start = 0, time.perf_counter()
    with torch.inference_mode():
        for batch, further_batch in zip(validation, further, strict=False):
            pretraining.model.metrics([batch], [further_batch] if further_batch else [])
            rows += len(batch.ids)
            if time.perf_counter() - start > seconds:
                break
    return (time.perf_counter() - start) * validation.num_rows / rows / pretraining.ranks.world_size


def _checkpoint_seconds(size: int, out: Path) -> float:
    """Return the seconds in which `size` bytes are written at `out` and hashed, from a smaller temporary file."""
    block = bytes(_TRIAL_BYTES)
    start = time.perf_counter()
    with tempfile.TemporaryFile(dir=existing_parent(out)) as stream:
        stream.write(block)
        stream.flush()
        os.fsync(stream.fileno())
    hashlib.sha256(block)
    return (time.perf_counter() - start) * size / _TRIAL_BYTES


def choose_compiled(pretraining: Pretraining, numerics: Numerics) -> Numerics:
    """Return `numerics` with or without a compiled step, as the settings say; `auto` decides by a trial.

    With `auto`, a run shorter than LONG_RUN_SECONDS and a run on an Apple GPU are not compiled.
    """
    choice = pretraining.settings.compile
    if choice == "auto" and numerics.device == "mps":
        choice = "off"
    plain, compiled = (numerics.model_copy(update={"compiled": value}) for value in (False, True))
    if choice == "off" or (choice == "auto" and _expected_seconds(pretraining, numerics) < LONG_RUN_SECONDS):
        return plain
    if not can_compile():
        say("no C++ compiler found (c++): the step is not compiled; the results are the same, perhaps slower")
        return plain
    _forget_compiled()
    start = time.perf_counter()
    try:
        compiled_seconds = _longest_phase_seconds(pretraining, compiled)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # torch's compiler fails in many ways, and none of them may end the run
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        say(f"torch.compile failed: {reason[:200]}; the step is not compiled; the results are the same, perhaps slower")
        return plain
    compile_seconds = max(0.0, time.perf_counter() - start - _TRIAL_SECONDS)
    compiling = f"torch.compile took {compile_seconds:.0f} s (less where it is cached)"
    if choice == "on":
        say(f"{compiling}; a step takes {compiled_seconds * 1e3:.0f} ms")
        return compiled
    plain_seconds = _longest_phase_seconds(pretraining, plain)
    is_faster = plain_seconds >= _SPEEDUP * compiled_seconds
    say(
        f"{compiling}; a step takes {compiled_seconds * 1e3:.0f} ms compiled and {plain_seconds * 1e3:.0f} ms not "
        f"compiled; the run's steps are {'compiled' if is_faster else 'not compiled'}"
    )
    return compiled if is_faster else plain


def resume_compiled(numerics: Numerics, *, allow_other: bool) -> Numerics:
    """Return the numerics of a resumed run. With `allow_other`, it goes on uncompiled where nothing can be compiled.

    Raises InputError where the step cannot be compiled here and `allow_other` is False.
    """
    if not numerics.compiled:
        return numerics
    if can_compile():
        _forget_compiled()
        return numerics
    if not allow_other:
        raise InputError(
            "--resume: the run was started with a compiled step, and no C++ compiler (c++) was found: results would "
            "differ in their bits; install one, or --allow-other-numerics resumes without compiling"
        )
    return numerics.model_copy(update={"compiled": False})


def _forget_compiled() -> None:
    """Let torch count anew how often it compiles the step: at most eight times, and all models have the same one."""
    torch.compiler.reset()


def can_compile() -> bool:
    """Return whether a C++ compiler exists; if so, let torch.compile keep its output in the user's cache folder."""
    name = compiler_words(os.environ.get("CXX") or "c++")[0]
    if shutil.which(name) is None and ("CXX" in os.environ or shutil.which("g++") is None):
        return False
    with suppress(OSError):
        folder = cache_folder() / "inductor"
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    return True


def _expected_seconds(pretraining: Pretraining, numerics: Numerics) -> float:
    """Return the seconds of a run: its minutes, or the seconds of its steps at the usual MFU."""
    settings = pretraining.settings
    if settings.minutes:
        return 60 * settings.minutes
    assert pretraining.steps
    flops = pretraining.model.trainable().flops
    flops_per_step = sum(
        stage.share * sum(map(flops, pretraining.micro_batches(phase, 0)))
        for phase, stage in enumerate(settings.stages)
    )
    return pretraining.steps * flops_per_step / (_USUAL_MFU * numerics.peak_flops * pretraining.ranks.world_size)


def _longest_phase_seconds(pretraining: Pretraining, numerics: Numerics) -> float:
    """Return the seconds of a step in the phase with the most steps, measured without the other processes."""
    phase, _ = max(enumerate(pretraining.settings.stages), key=lambda numbered: numbered[1].share)
    return step_seconds(pretraining, phase, numerics, seconds=_TRIAL_SECONDS)


def preflight_if_close(pretraining: Pretraining, numerics: Numerics) -> None:
    """Run the memory preflight where the estimate is close to the usable memory."""
    usable = usable_bytes(numerics.device)
    if usable is not None and _PREFLIGHT_FACTOR * _estimate(pretraining, numerics).peak > usable:
        memory_preflight(pretraining, numerics)


def memory_preflight(pretraining: Pretraining, numerics: Numerics) -> Memory:
    """Compute a quarter of the largest micro-batch of each phase. Return the estimate by arithmetic.

    Raises InputError where four times the measured memory does not fit. The model is on the device afterwards.
    """
    memory = _estimate(pretraining, numerics)
    for phase in range(len(pretraining.stages)):
        rows = pretraining.micro_batch_rows(phase)
        if rows >= 4:
            _measure_quarter(pretraining, phase, numerics, memory, rows=rows)
    return memory


def refuse_measured(pretraining: Pretraining, numerics: Numerics, needed: int) -> None:
    """Raise InputError where the `needed` bytes, which were measured, are not available."""
    settings, usable = pretraining.settings, usable_bytes(numerics.device)
    options: Any = {"precision": numerics.precision, "processes": pretraining.processes}
    refuse_memory(needed, usable, settings, pretraining.config, **options)


def advise_micro_tokens(pretraining: Pretraining, numerics: Numerics, compute: Callable[[], _Result]) -> _Result:
    """Return `compute()`. Where the memory of a GPU does not suffice, raise RunFailed with --micro-tokens that fit."""
    return advise_on_full_gpu(compute, partial(_fitting_micro_tokens, pretraining, numerics))


def _fitting_micro_tokens(pretraining: Pretraining, numerics: Numerics) -> str:
    """Return advice after a GPU ran out of memory, from trials with smaller and smaller micro-batches."""
    if any(map(is_sharded, pretraining.model.parameters())):  # one rank alone cannot compute sharded tensors
        phases = enumerate(pretraining.stages)
        tokens = max(pretraining.micro_batch_rows(phase) * stage.length for phase, stage in phases)
        return f"try --micro-tokens {tokens // 2} or --activation-checkpointing{RESUME_ADVICE}"
    smaller = []
    for phase, stage in enumerate(pretraining.stages):
        rows = pretraining.micro_batch_rows(phase)
        fitting = most_fitting_rows(rows, partial(_compute, pretraining, phase, numerics))
        if not fitting:
            return (
                f"not even one row of {stage.length} fits; choose a smaller --size, shorter rows or "
                "--activation-checkpointing"
            )
        smaller += [] if fitting == rows else [fitting * stage.length]
    if not smaller:
        return FITS_ADVICE
    return f"--micro-tokens {min(smaller)} fits{RESUME_ADVICE}"


def _compute(pretraining: Pretraining, phase: int, numerics: Numerics, rows: int) -> float:
    return step_seconds(pretraining, phase, numerics, seconds=0.0, rows=rows)


def _estimate(pretraining: Pretraining, numerics: Numerics) -> Memory:
    options: Any = {"precision": numerics.precision, "processes": pretraining.processes}
    return estimate_memory(pretraining.settings, pretraining.config, **options)


def _measure_quarter(pretraining: Pretraining, phase: int, numerics: Numerics, memory: Memory, *, rows: int) -> None:
    """Compute a quarter of a micro-batch of `rows` rows of a phase.

    Raises InputError where the whole micro-batch does not fit.
    """
    quarter = rows // 4
    pretraining.micro_batches(phase, 0, rows=quarter)  # the first call compiles, with memory that no step needs
    pretraining.model.to(resolve_device(numerics.device)).zero_grad(set_to_none=True)
    reset_peak(numerics.device)
    weights_copy = memory.weights  # made by the trial step
    fixed = resident_bytes(numerics.device) + memory.gradients + memory.moments + weights_copy
    _compute(pretraining, phase, numerics, quarter)
    needed = fixed + max(0, peak_bytes(numerics.device) - fixed) * rows // quarter
    refuse_measured(pretraining, numerics, needed - (0 if memory.spare else weights_copy))
