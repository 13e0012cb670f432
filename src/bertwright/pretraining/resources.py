"""Settings → resources of a run: parameters, memory and disk by arithmetic. Runs that cannot fit are refused."""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertwright.errors import InputError
from bertwright.model.config import (
    EncoderConfig,
    SingleBackboneConfig,
    attends_both_ways,
    finds_replaced,
    predicts_ahead,
)
from bertwright.model.families.elmo import LSTMConfig
from bertwright.objectives.replaced_tokens import generator_config
from bertwright.objectives.settings import GENERATOR_WIDTH, SecondSentence, predictions_by_length
from bertwright.objectives.system_model import SystemModel
from bertwright.objectives.vocabulary_loss import block_rows
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.systems import new_model
from bertwright.training import muon
from bertwright.training.hardware import Numerics
from bertwright.training.memory import resident_bytes, usable_bytes
from bertwright.training.settings import OptimizerSettings

_NUMBER_BYTES = 4
"""Bytes of a weight, a gradient or a moment."""
_PEAK_FACTOR = 1.8
"""Peak of a micro-batch over the bytes that backward keeps, with the allocator's gaps; 1.8 to 2.5 were measured."""


@dataclass(frozen=True)
class Memory:
    """Bytes of memory at the peak of training, by arithmetic, which is on the low side."""

    process: int
    """Bytes of the process before the model is made."""
    weights: int
    gradients: int
    moments: int
    activations: int
    """Bytes of the largest micro-batch, forward and backward."""
    spare: int = 0
    """Bytes of the copy of the weights that trial steps need."""
    accumulates: bool = True
    """True where gradients of earlier micro-batches exist beside the activations."""

    @property
    def peak(self) -> int:
        """Return the largest number of bytes that exist at the same time."""
        fixed = self.process + self.weights + self.moments + self.spare
        earlier_gradients = self.gradients if self.accumulates else 0
        return fixed + max(self.gradients, earlier_gradients + self.activations)


@dataclass(frozen=True)
class Disk:
    """Bytes on disk, and numbers of checkpoints."""

    checkpoint: int
    checkpoints: int
    """Number of checkpoints that exist at the same time."""
    kept: int
    """Number of checkpoints that stay at the end."""
    model: int
    metrics: int = 0
    plans: int = 0
    """Bytes of pair indexes in CORPUS/plans that are not there yet."""
    snapshots: int = 0
    """Bytes of all snapshots together."""

    @property
    def peak(self) -> int:
        """Return the bytes at --out while the last checkpoint or the model folder is written."""
        checkpoints = max(self.checkpoints * self.checkpoint, self.kept * self.checkpoint + self.model)
        return checkpoints + self.metrics + self.snapshots


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_moments(model: SystemModel, optimizer: OptimizerSettings) -> int:
    """Return the number of moments: two for each parameter, one for a parameter that Muon trains."""
    single = muon.matrices(model.trainable().blocks) if optimizer.method == "muon" else ()
    return 2 * count_parameters(model) - sum(weight.numel() for weight in single)


def meta_model(
    config: SingleBackboneConfig, *, second_sentence: SecondSentence, generator_width: float = GENERATOR_WIDTH
) -> SystemModel:
    """Return the model on torch's meta device: it can be counted, and nothing is allocated."""
    with torch.device("meta"):
        return new_model(config, second_sentence=second_sentence, generator_width=generator_width)


def _meta_model(settings: PretrainSettings, config: SingleBackboneConfig) -> SystemModel:
    """Return the model of a run on the meta device."""
    second_sentence, width = settings.examples.second_sentence, settings.generator_width
    return meta_model(config, second_sentence=second_sentence, generator_width=width)


def checkpoint_bytes(num_parameters: int, moments: int) -> int:
    """Return the bytes of a checkpoint without the headers of its files, which are under 1 %."""
    return _NUMBER_BYTES * (num_parameters + moments)


def largest_micro_batch(batch_size: int, length: int, *, micro_tokens: int, processes: int) -> int:
    """Return the rows of the largest micro-batch of a step with `batch_size` rows of `length` tokens.

    processes: number of processes that started the run; a step has at least as many micro-batches.
    """
    return min(math.ceil(batch_size / processes), max(1, micro_tokens // length))


def activation_bytes(
    settings: PretrainSettings, config: SingleBackboneConfig, *, length: int, precision: str, processes: int = 1
) -> int:
    """Return the bytes that the backward pass needs of the largest micro-batch, with those of the logits.

    processes: as for `largest_micro_batch`.
    """
    rows = largest_micro_batch(settings.batch_size, length, micro_tokens=settings.micro_tokens, processes=processes)
    if not finds_replaced(config):
        return _bytes_of(settings, config, (rows, length), precision)
    generator = generator_config(config, settings.generator_width)
    return sum(
        _bytes_of(settings, part, (rows, length), precision, reads=part is config) for part in (generator, config)
    )


def _bytes_of(
    settings: PretrainSettings,
    config: SingleBackboneConfig,
    shape: tuple[int, int],
    precision: str,
    *,
    reads: bool = False,
) -> int:
    """Return the bytes that the backward pass needs of one backbone with its output layer.

    shape: rows and tokens of the micro-batch. reads: True for a discriminator, which has a logit for each token.
    """
    rows, length = shape
    width, layer = config.hidden, _numbers_per_token(settings, config, length, precision)
    saved = _saved_by_bits(settings, config, precision)
    if reads:
        last, logits = length * (layer + 4 * width), 0
    elif attends_both_ways(config) and not config.predicts_ahead:
        masked = int(predictions_by_length(settings.examples.masking, length)[-1])
        logits = rows * masked
        if config.pools_all and settings.examples.pairs:  # the second head reads all last states
            last = length * (layer + 2 * width)
        else:  # the last layer computes masked positions and [CLS]
            attention = _attention_numbers(settings, config, length, precision)
            last = 3 * width * length + (15 * width - saved + attention) * (masked + 1)
    else:
        head = 6 if isinstance(config, EncoderConfig) and config.output_has_transform else 2
        last, logits = length * (layer + head * width), min(rows * length, block_rows(settings.device))
        if predicts_ahead(config):  # the masked pieces' logits are in memory together
            masked = int(predictions_by_length(settings.examples.masking, length)[-1])
            logits = max(logits, round((1 - settings.examples.causal_share) * rows * masked))
    layers = (config.layers - 1) * layer
    if settings.activation_checkpointing and config.layers > 1:  # the inputs of all layers, and all of one layer
        layers, last = config.layers * width + layer, 0
    kept = rows * (length * (layers + 2 * width - saved // 2) + last)
    return (_NUMBER_BYTES if precision == "fp32" else 2) * kept + _NUMBER_BYTES * logits * config.vocab_size


def _numbers_per_token(settings: PretrainSettings, config: SingleBackboneConfig, length: int, precision: str) -> int:
    """Return how many numbers the backward pass needs of each token in one layer."""
    if isinstance(config, LSTMConfig):
        return 7 * config.cells + 3 * config.hidden  # gates and cells, inputs and outputs
    assert isinstance(config, EncoderConfig)
    # attention, norms and dropout keep 10 D, the feed-forward part its inner numbers before and after the activation
    kept = 10 * config.hidden + (4 if config.is_gated else 2) * config.intermediate
    kept -= _saved_by_bits(settings, config, precision)
    return kept + _attention_numbers(settings, config, length, precision)


def _saved_by_bits(settings: PretrainSettings, config: SingleBackboneConfig, precision: str) -> int:
    """Return how many numbers fewer the two dropouts of a layer keep for a token: random numbers have two bytes."""
    has_bits = isinstance(config, EncoderConfig) and precision == "fp32" and settings.device == "cpu"
    return config.hidden if has_bits and settings.dropout else 0


def _attention_numbers(settings: PretrainSettings, config: EncoderConfig, length: int, precision: str) -> int:
    """Return how many numbers of attention are kept for a token; none where torch's fused attention computes it.

    Without dropout it is the softmax alone, in bf16. With dropout it is the softmax before and after, and random
    numbers of two bytes; the one pass of processors with bf16 keeps one softmax less.
    """
    if settings.device != "cpu":
        return 0
    kept: float = int(precision == "bf16")
    if settings.dropout:
        kept = 3 if precision == "bf16" else 2.5
    return int(kept * config.heads * config.mean_keys(length))


def estimate_memory(
    settings: PretrainSettings, config: SingleBackboneConfig, *, precision: str, processes: int = 1
) -> Memory:
    """Return the memory of a process in its largest phase. Raises InputError without the device of the settings."""
    model = _meta_model(settings, config)
    weights = _NUMBER_BYTES * count_parameters(model)
    stages = settings.stages
    options: Any = {"precision": precision, "processes": processes}
    kept = max(
        activation_bytes(
            settings.model_copy(update={"batch_size": stage.batch_size, "examples": settings.examples_of(stage)}),
            config,
            length=stage.length,
            **options,
        )
        for stage in stages
    )
    return Memory(
        process=resident_bytes(settings.device),
        weights=weights,
        gradients=weights,
        moments=_NUMBER_BYTES * count_moments(model, settings.optimizer),
        activations=round(_PEAK_FACTOR * kept),
        spare=weights if settings.minutes else 0,
        accumulates=any(
            stage.batch_size > processes * max(1, settings.micro_tokens // stage.length) for stage in stages
        ),
    )


def estimate_disk(
    num_parameters: int, moments: int, *, tokenizer: Path, saves: int, keep: int, snapshots: int = 0
) -> Disk:
    """Return the disk of a run that writes `saves` checkpoints, keeps the newest `keep`, and makes `snapshots`."""
    files = sum(path.stat().st_size for path in tokenizer.iterdir() if path.is_file())
    model = _NUMBER_BYTES * num_parameters + files
    return Disk(
        checkpoint=checkpoint_bytes(num_parameters, moments),
        checkpoints=min(saves, keep + 1),
        kept=min(saves, keep),
        model=model,
        snapshots=snapshots * model,
    )


def refuse_unfit(
    settings: PretrainSettings,
    config: SingleBackboneConfig,
    *,
    numerics: Numerics,
    out: Path,
    tokenizer: Path,
    processes: int,
    steps: int | None = None,
    snapshots: int | None = None,
) -> None:
    """Raise InputError where memory or disk certainly do not suffice. No weights are allocated for that.

    steps, snapshots: number of steps and of models that are kept, where the settings alone do not decide them.
    """
    memory = estimate_memory(settings, config, precision=numerics.precision, processes=processes)
    usable = usable_bytes(numerics.device)
    refuse_memory(memory.peak, usable, settings, config, precision=numerics.precision, processes=processes)
    model = _meta_model(settings, config)
    seconds = _least_seconds(settings, model, numerics.peak_flops * processes, steps=steps or settings.steps or 1)
    disk = estimate_disk(
        count_parameters(model),
        count_moments(model, settings.optimizer),
        tokenizer=tokenizer,
        saves=1 + int(seconds // (60 * settings.save_minutes)),
        keep=settings.kept_checkpoints,
        snapshots=len(settings.snapshots) if snapshots is None else snapshots,
    )
    refuse_disk(disk, out)


def _least_seconds(settings: PretrainSettings, model: SystemModel, peak_flops: float, *, steps: int) -> float:
    """Return the seconds of a run: its minutes, or the seconds of its matrix products at `peak_flops` FLOP/s."""
    if settings.minutes:
        return 60 * settings.minutes
    flops = sum(stage.share * stage.batch_size * model.encoder.flops(stage.length, 1) for stage in settings.stages)
    return 3.0 * steps * flops / peak_flops


def refuse_disk(disk: Disk, out: Path, corpus: Path | None = None) -> None:
    """Raise InputError where `disk` does not fit at `out`; pair indexes count where `corpus` is on that disk."""
    same_disk = corpus is not None and corpus.stat().st_dev == existing_parent(out).stat().st_dev
    needed, free = disk.peak + (disk.plans if same_disk else 0), free_bytes(out)
    if needed > free:
        plans = f" and {size_text(disk.plans)} of pair indexes in {corpus}/plans" if same_disk and disk.plans else ""
        snapshots = f", snapshots of {size_text(disk.snapshots)}" if disk.snapshots else ""
        raise InputError(
            f"{out}: the run needs {size_text(needed)} of disk ({disk.checkpoints} checkpoints of "
            f"{size_text(disk.checkpoint)} at the same time, a model of {size_text(disk.model)}{snapshots}{plans}), "
            f"and {size_text(free)} are free there, {size_text(needed - free)} too few; choose another --out, a "
            "smaller --size, or make room"
        )


def refuse_memory(
    needed: int,
    usable: int | None,
    settings: PretrainSettings,
    config: SingleBackboneConfig,
    *,
    precision: str,
    processes: int,
) -> None:
    """Raise InputError with an option that fits, where `needed` bytes are more than the `usable` ones."""
    if usable is None or needed <= usable:
        return
    advice = "choose a smaller --size or shorter rows (--lengths)"
    longest = max(phase.length for phase in settings.phases)
    tokens = min(settings.micro_tokens, math.ceil(settings.batch_size / processes) * longest)
    while tokens > longest:
        tokens //= 2
        smaller = settings.model_copy(update={"micro_tokens": tokens})
        estimate = estimate_memory(smaller, config, precision=precision, processes=processes)
        if 1.3 * estimate.peak < usable:  # the arithmetic is on the low side
            advice = f"use --micro-tokens {tokens}"
            break
    memory = "memory" if settings.device == "cpu" else "GPU memory"
    raise InputError(
        f"training {settings.size} needs at least {size_text(needed)} of {memory} with --micro-tokens "
        f"{settings.micro_tokens}, and {size_text(usable)} are available; {advice}"
    )


def free_bytes(out: Path) -> int:
    """Return the free bytes of the disk of `out`, and those of the files that the run has already written there."""
    used = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) if out.is_dir() else 0
    return used + shutil.disk_usage(existing_parent(out)).free


def existing_parent(path: Path) -> Path:
    """Return `path`, or the first folder above it that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


def size_text(size: float) -> str:
    """Return a number of bytes as text, such as 1.5 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
