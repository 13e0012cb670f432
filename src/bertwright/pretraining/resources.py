"""settings → what a run needs: parameters, memory and disk by arithmetic, and the refusal of what cannot fit."""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertwright.errors import InputError
from bertwright.model.config import EncoderConfig, SingleBackboneConfig, attends_both_ways
from bertwright.model.families.elmo import LSTMConfig
from bertwright.model.families.gpt import GPTConfig
from bertwright.objectives.settings import SecondSentence, predictions_by_length
from bertwright.objectives.vocabulary_loss import block_rows
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.systems import Model, new_model
from bertwright.training import muon
from bertwright.training.hardware import Numerics
from bertwright.training.memory import resident_bytes, usable_bytes
from bertwright.training.optimizer import OptimizerSettings

NUMBER = 4
"""Bytes of a weight, a gradient, a moment."""
_TIMES_KEPT = 1.8
"""Peak of a micro-batch over what backward keeps of it, the allocator's gaps included; measured were 1.8 to 2.5."""


@dataclass(frozen=True)
class Memory:
    """Bytes of memory at the peak of training, the process itself included; by arithmetic, on the low side."""

    process: int
    weights: int
    gradients: int
    moments: int
    activations: int
    """Of the largest micro-batch, forward and backward."""
    spare: int = 0
    """The weights that are put back after throw-away steps."""
    accumulates: bool = True
    """Whether gradients of earlier micro-batches are there beside the activations."""

    @property
    def peak(self) -> int:
        """All that is there at once."""
        beside = self.gradients if self.accumulates else 0
        return self.process + self.weights + self.moments + self.spare + max(self.gradients, beside + self.activations)


@dataclass(frozen=True)
class Disk:
    """Bytes on disk: a checkpoint, how many there are at once, the model folder, and what grows with the run."""

    checkpoint: int
    checkpoints: int
    kept: int
    """Of them, once the last one is written."""
    model: int
    metrics: int = 0
    plans: int = 0
    """In CORPUS/plans, beyond those there are."""
    snapshots: int = 0
    """Of all model folders that are kept on the way."""

    @property
    def peak(self) -> int:
        """At --out, while the last checkpoint or the model folder is written."""
        beside = self.metrics + self.snapshots
        return beside + max(self.checkpoints * self.checkpoint, self.kept * self.checkpoint + self.model)


def count_parameters(model: nn.Module) -> int:
    """Numbers that are learned."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_moments(model: Model, optimizer: OptimizerSettings) -> int:
    """Numbers that the optimiser keeps: two of each that is learned, one of Muon's matrices."""
    single = muon.matrices(model.encoder.blocks()) if optimizer.method == "muon" else ()
    return 2 * count_parameters(model) - sum(weight.numel() for weight in single)


def unmade(config: SingleBackboneConfig, *, second_sentence: SecondSentence) -> Model:
    """The whole pre-training model, to be counted; nothing is allocated."""
    with torch.device("meta"):
        return new_model(config, second_sentence=second_sentence)


def checkpoint_bytes(num_parameters: int, moments: int) -> int:
    """The files' heads, under 1 %, are left out."""
    return NUMBER * (num_parameters + moments)


def activation_bytes(
    settings: "PretrainSettings", config: SingleBackboneConfig, *, length: int, precision: str, parts: int = 1
) -> int:
    """What backward keeps of one micro-batch of rows of `length` tokens, and the logits that are there with it.

    parts: micro-batches of a step at least, which is the number of processes that it was begun with.
    """
    rows = min(math.ceil(settings.batch_size / parts), max(1, settings.micro_tokens // length))
    width, layer = config.hidden, _numbers_of_layer(settings, config, length)
    if attends_both_ways(config):  # the masked places and [CLS] alone are asked for
        masked = int(predictions_by_length(settings.examples.masking, length)[-1])
        scores = _scores(settings, config, length)
        last, logits = 3 * width * length + (15 * width + scores) * (masked + 1), rows * masked
    else:
        head = 6 if isinstance(config, EncoderConfig) and not isinstance(config, GPTConfig) else 2
        last, logits = length * (layer + head * width), min(rows * length, block_rows(settings.device))
    layers = (config.layers - 1) * layer
    if (
        settings.activation_checkpointing and config.layers > 1
    ):  # the inputs of all layers, and the inside of one at a time
        layers, last = config.layers * width + layer, 0
    kept = rows * (length * (layers + 2 * width) + last)
    return (NUMBER if precision == "fp32" else 2) * kept + NUMBER * logits * config.vocab_size


def _numbers_of_layer(settings: "PretrainSettings", config: SingleBackboneConfig, length: int) -> int:
    """What backward keeps of each token in one layer."""
    if isinstance(config, LSTMConfig):
        return 7 * config.cells + 3 * config.hidden  # gates and cells, what goes in and comes out
    assert isinstance(config, EncoderConfig)
    # 10 D of attention, norms and dropout, 8 D of the inner layer
    return 18 * config.hidden + _scores(settings, config, length)


def _scores(settings: "PretrainSettings", config: EncoderConfig, length: int) -> int:
    """What is kept of each token's attention: softmax, dropout's mask, and their product; a GPU keeps none of it."""
    return 3 * config.heads * length if settings.dropout and settings.device == "cpu" else 0


def memory_needs(
    settings: "PretrainSettings", config: SingleBackboneConfig, *, precision: str, parts: int = 1
) -> Memory:
    """Memory of a process in the worst phase, on the settings' device. InputError without that device."""
    model = unmade(config, second_sentence=settings.examples.second_sentence)
    states = NUMBER * count_parameters(model)
    lengths = [phase.length for phase in settings.phases]
    of_rows: Any = {"precision": precision, "parts": parts}
    kept = max(activation_bytes(settings, config, length=length, **of_rows) for length in lengths)
    return Memory(
        process=resident_bytes(settings.device),
        weights=states,
        gradients=states,
        moments=NUMBER * count_moments(model, settings.optimizer),
        activations=round(_TIMES_KEPT * kept),
        spare=states if settings.minutes else 0,
        accumulates=any(settings.batch_size > parts * max(1, settings.micro_tokens // length) for length in lengths),
    )


def disk_needs(
    num_parameters: int, moments: int, *, tokenizer: Path, saves: int, keep: int, snapshots: int = 0
) -> Disk:
    """Disk of a run that writes `saves` checkpoints, the newest `keep` of which stay, and so many snapshots."""
    files = sum(path.stat().st_size for path in tokenizer.iterdir() if path.is_file())
    model, at_once = NUMBER * num_parameters + files, min(saves, keep + 1)
    checkpoint = checkpoint_bytes(num_parameters, moments)
    return Disk(checkpoint, at_once, min(saves, keep), model, snapshots=snapshots * model)


def refuse_unfit(
    settings: "PretrainSettings",
    config: SingleBackboneConfig,
    *,
    numerics: Numerics,
    out: Path,
    tokenizer: Path,
    parts: int,
) -> None:
    """InputError where memory or disk surely do not suffice; nothing is allocated before. parts: processes."""
    memory = memory_needs(settings, config, precision=numerics.precision, parts=parts)
    usable = usable_bytes(numerics.device)
    if usable is not None and memory.peak > usable:
        raise InputError(too_much_memory(memory.peak, usable, settings, config, numerics=numerics, parts=parts))
    model = unmade(config, second_sentence=settings.examples.second_sentence)
    saves = 1 + int(_least_seconds(settings, model, numerics.peak_flops * parts) // (60 * settings.save_minutes))
    numbers = count_parameters(model), count_moments(model, settings.optimizer)
    kept = {"keep": settings.keep, "snapshots": len(settings.snapshots)}
    refuse_disk(disk_needs(*numbers, tokenizer=tokenizer, saves=saves, **kept), out)


def _least_seconds(settings: "PretrainSettings", model: "Model", rate: float) -> float:
    """A run's minutes, or what the products of its blocks alone take where all are computed at `rate`, in FLOP/s."""
    if settings.minutes:
        return 60 * settings.minutes
    assert settings.steps
    rows = settings.steps * settings.batch_size
    body = model.encoder
    return 3.0 * rows * sum(phase.share * body.flops(phase.length, 1) for phase in settings.phases) / rate


def refuse_disk(disk: Disk, out: Path, corpus: Path | None = None) -> None:
    """InputError where `disk` does not fit at `out`; the plans of `corpus` count where they lie on the same disk."""
    shared = corpus is not None and corpus.stat().st_dev == existing_parent(out).stat().st_dev
    needed, free = disk.peak + (disk.plans if shared else 0), free_bytes(out)
    if needed > free:
        plans = f" and {size_text(disk.plans)} of plans in {corpus}/plans" if shared and disk.plans else ""
        snapshots = f", snapshots of {size_text(disk.snapshots)}" if disk.snapshots else ""
        raise InputError(
            f"{out}: the run needs {size_text(needed)} of disk ({disk.checkpoints} checkpoints of "
            f"{size_text(disk.checkpoint)} at once, a model of {size_text(disk.model)}{snapshots}{plans}), and "
            f"{size_text(free)} are free there; choose another --out, a smaller --size, or make room"
        )


def too_much_memory(
    needed: int,
    usable: int,
    settings: "PretrainSettings",
    config: SingleBackboneConfig,
    *,
    numerics: Numerics,
    parts: int,
) -> str:
    """The figure, the limit, and what to change."""
    memory = "memory" if numerics.device == "cpu" else "GPU memory"
    text = f"training {settings.size} needs {size_text(needed)} of {memory} or more with --micro-tokens "
    text += f"{settings.micro_tokens}, and {size_text(usable)} can be used here"
    longest = max(phase.length for phase in settings.phases)
    tokens = min(settings.micro_tokens, math.ceil(settings.batch_size / parts) * longest)
    while tokens > longest:
        tokens //= 2
        smaller = settings.model_copy(update={"micro_tokens": tokens})
        needs = memory_needs(smaller, config, precision=numerics.precision, parts=parts)
        if 1.3 * needs.peak < usable:  # the arithmetic is on the low side
            return f"{text}; --micro-tokens {tokens} would do"
    return f"{text}; choose a smaller --size or shorter rows (--lengths)"


def free_bytes(out: Path) -> int:
    """Free disk at `out`, with what an earlier part of the run has there already."""
    own = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) if out.is_dir() else 0
    return own + shutil.disk_usage(existing_parent(out)).free


def existing_parent(path: Path) -> Path:
    """`path`, or the folder over it that there is."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


def size_text(size: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
