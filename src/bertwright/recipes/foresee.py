"""settings → the memory of a run, measured on a quarter of a micro-batch, and what to say where it does not suffice."""

import gc
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from bertwright.errors import InputError, RunFailed
from bertwright.recipes.needs import Memory, memory_needs, too_much_memory
from bertwright.recipes.pace import step_seconds
from bertwright.recipes.systems import Rows
from bertwright.training.device import own_device
from bertwright.training.machine import Numerics
from bertwright.training.memory import forget_peak, peak_bytes, resident_bytes, usable_bytes
from bertwright.training.ranks import is_share

if TYPE_CHECKING:
    from bertwright.recipes.pretrain import Pretraining

Found = TypeVar("Found")
GOES_ON: Final = "; a run goes on with it by --resume --allow-other-numerics"
FITS_ALONE: Final = "the rows of a step fit, so an evaluation or another program did not; go on with --resume"
ON_PROCESSORS: Final = "--device cpu computes it on the processors"
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


def unless_full(compute: Callable[[], Found], advice: Callable[[], str]) -> Found:
    """What `compute` returns; RunFailed with the advice where the memory of a GPU does not suffice for it."""
    try:
        return compute()
    except torch.OutOfMemoryError as error:
        told = str(error).partition(". ")[0]
    _free()
    raise RunFailed(f"{told}: {advice()}")


def fitting(trained: "Pretraining", numerics: Numerics, compute: Callable[[], Found]) -> Found:
    """What `compute` returns; RunFailed with the --micro-tokens that fit where a GPU's memory does not suffice."""
    return unless_full(compute, partial(_what_fits, trained, numerics))


def _what_fits(trained: "Pretraining", numerics: Numerics) -> str:
    """After a GPU ran out of memory: which --micro-tokens fit, found by computing ever smaller micro-batches."""
    if any(map(is_share, trained.model.parameters())):  # one rank alone cannot compute anything then
        tokens = max(_rows(trained, examples.length) * examples.length for examples in trained.phases)
        return f"try --micro-tokens {tokens // 2} or --recompute{GOES_ON}"
    smaller = []
    for examples in trained.phases:
        rows = _rows(trained, examples.length)
        found = largest(rows, partial(_compute, trained, examples, numerics))
        if not found:
            return f"not even one row of {examples.length} fits; choose a smaller --size, shorter rows or --recompute"
        smaller += [] if found == rows else [found * examples.length]
    if not smaller:
        return FITS_ALONE
    return f"--micro-tokens {min(smaller)} fits{GOES_ON}"


def largest(rows: int, compute: Callable[[int], object]) -> int:
    """`rows`, halved until a GPU's memory suffices to compute them; 0 where it does not for one."""
    while rows:
        try:
            compute(rows)
        except torch.OutOfMemoryError:
            rows //= 2
        else:
            return rows
        _free()
    return 0


def _free() -> None:
    """Give back what a computation that failed held; within the handler of its error it is still held."""
    gc.collect()
    torch.cuda.empty_cache()


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
