"""settings → the memory of a run, measured on a quarter of a micro-batch, and the refusal of what would not fit."""

from typing import TYPE_CHECKING, Final

from bertwright.errors import InputError
from bertwright.recipes.needs import Memory, memory_needs, too_much_memory
from bertwright.recipes.pace import step_seconds
from bertwright.training.machine import Numerics
from bertwright.training.memory import forget_peak, peak_bytes, resident_bytes, usable_bytes

if TYPE_CHECKING:
    from bertwright.recipes.pretrain import Pretraining

_NEAR: Final = 4
"""A run is measured where its arithmetic comes within so many times of what can be used: it is on the low side."""


def refuse_near(trained: "Pretraining", numerics: Numerics) -> None:
    """Before a run that is not far from the machine's limit: InputError where it would be killed for its memory."""
    usable = usable_bytes()
    memory = memory_needs(trained.settings, trained.config, precision=numerics.precision)
    if usable is not None and _NEAR * memory.peak > usable:
        foresee(trained, numerics)


def foresee(trained: "Pretraining", numerics: Numerics) -> Memory:
    """The arithmetic; InputError where a quarter of the largest micro-batch, times four, would be too much."""
    settings = trained.settings
    memory = memory_needs(settings, trained.config, precision=numerics.precision)
    for index, phase in enumerate(settings.phases):
        rows = min(settings.batch_size, max(1, settings.micro_tokens // phase.length))
        if rows >= 4:
            _measure(trained, numerics, memory, rows=rows, quarter=rows // 4, index=index)
    return memory


def refuse_peak(trained: "Pretraining", numerics: Numerics, needed: int) -> None:
    """InputError where so many bytes cannot be used here."""
    usable = usable_bytes()
    if usable is not None and needed > usable:
        settings, config = trained.settings, trained.config
        raise InputError(too_much_memory(needed, usable, settings, config, precision=numerics.precision))


def _measure(
    trained: "Pretraining", numerics: Numerics, memory: Memory, *, rows: int, quarter: int, index: int
) -> None:
    """Compute a quarter of a micro-batch and refuse where the whole would not fit."""
    examples = trained.phases[index]
    trained.micro_batches(examples, 0, rows=quarter)  # what only the first rows take is not the step's
    forget_peak()
    fixed = resident_bytes() + memory.gradients + memory.moments + memory.spare
    step_seconds(trained, examples, numerics, seconds=0.0, rows=quarter)
    refuse_peak(trained, numerics, fixed + max(0, peak_bytes() - fixed) * rows // quarter)
