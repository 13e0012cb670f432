"""teacher + shape → the student before its first step: layers of the teacher, or random weights.

Evenly spaced layers are taken, the first and the last one included. Of 12 layers 6 are those that DistilBERT took:
1, 3, 5, 8, 10 and 12 (Sanh et al. 2019, §3, and its published code).
"""

from dataclasses import replace
from typing import Any

from torch import nn

from bertwright.console import say
from bertwright.distillation.settings import DistillationSettings
from bertwright.model.config import EncoderConfig, encoder_shape, initializer_range_for, size_config, written_size
from bertwright.model.folder import SavedModel
from bertwright.model.modern_config import ModernBertConfig, Reach
from bertwright.pretraining.resources import count_parameters

_LAYERS = "encoder.layers."
_SHAPE = ("hidden", "heads", "intermediate")


def student_config(settings: DistillationSettings, teacher: EncoderConfig) -> EncoderConfig:
    """Return the teacher's configuration in the size of the student. Raises InputError for an unknown size."""
    if settings.layers is not None:
        changes: dict[str, Any] = {"layers": settings.layers}
    else:
        assert settings.size is not None
        size = size_config(settings.size, teacher.vocab_size)
        inner = teacher.model_copy(update={"hidden": size.hidden}).usual_intermediate
        size = size.model_copy(update={"intermediate": inner})
        changes = {name: getattr(size, name) for name in ("layers", *_SHAPE)}
    if isinstance(teacher, ModernBertConfig):
        is_copied = all(changes.get(name, getattr(teacher, name)) == getattr(teacher, name) for name in _SHAPE)
        changes["reaches"] = _reaches(teacher, changes["layers"]) if is_copied else None
    return type(teacher).model_validate({**teacher.model_dump(), **changes})


def _reaches(teacher: ModernBertConfig, layers: int) -> tuple[Reach, ...] | None:
    """Return the reach of each layer of a student that takes `layers` of the teacher; None for the usual pattern.

    A layer computes what it learned only with the window and the positions that it had in the teacher.
    """
    if layers > teacher.layers:
        return None
    is_global = [teacher.is_global(number) for number in taken_layers(layers, teacher.layers)]
    usual = teacher.model_copy(update={"layers": layers, "reaches": None})
    if is_global == [usual.is_global(number) for number in range(layers)]:
        return None
    return tuple("global" if reach else "local" for reach in is_global)


def taken_layers(student: int, teacher: int) -> list[int]:
    """Return the numbers, from 0, of evenly spaced layers of `teacher` layers for a student with `student` of them."""
    if student == 1:
        return [0]
    return [(2 * layer * (teacher - 1) + student - 1) // (2 * (student - 1)) for layer in range(student)]


def student_of(teacher: SavedModel, settings: DistillationSettings) -> SavedModel:
    """Return the student as a model to start from, and say what it begins with.

    Its layers are the teacher's where their shapes are equal and the teacher has as many; else all weights are random.
    Raises InputError for a teacher that is no bidirectional encoder.
    """
    shape = encoder_shape(teacher.config, teacher.source)
    config = student_config(settings, shape)
    size = written_size(config.layers, config.hidden, config.heads)
    differing = [name for name in _SHAPE if getattr(config, name) != getattr(shape, name)]
    if differing or config.layers > shape.layers or teacher.weights is None:
        shown = ", ".join(f"{name} {getattr(config, name)}" for name in differing) or f"layers {config.layers}"
        there = ", ".join(str(getattr(shape, name)) for name in differing) or str(shape.layers)
        say(f"student {size}: begins with random weights ({shown}; the teacher has {there})")
        config = config.model_copy(update={"initializer_range": initializer_range_for(config.hidden)})
        return replace(teacher, source=f"random:{size}", config=config, weights=None, digest=None)
    layers = taken_layers(config.layers, shape.layers)
    weights = {name: tensor for name, tensor in teacher.weights.items() if not name.startswith(_LAYERS)}
    for number, layer in enumerate(layers):
        begin = f"{_LAYERS}{layer}."
        of_layer = [name for name in teacher.weights if name.startswith(begin)]
        weights |= {f"{_LAYERS}{number}.{name.removeprefix(begin)}": teacher.weights[name] for name in of_layer}
    shown = ", ".join(str(layer + 1) for layer in layers)
    say(f"student {size}: begins with the embeddings and the layers {shown} of {shape.layers} of {teacher.source}")
    return replace(teacher, config=config, weights=weights, digest=None)


def say_larger(student: nn.Module, teacher: nn.Module) -> None:
    """Say where the student has no fewer parameters than the teacher, which is no error."""
    numbers = [count_parameters(model) for model in (student, teacher)]
    if numbers[0] >= numbers[1]:
        say(f"the student has {numbers[0]:,} parameters, no fewer than the teacher's {numbers[1]:,}")
