"""task + frozen encoder → what the recipe trains: any kind of task, on features instead of fine-tuned (paper §5.3)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache as cache_once
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.model.backbones import Backbone, build_backbone
from bertwright.model.config import Way
from bertwright.model.encoder import init_weights
from bertwright.model.families.bert import FEATURES
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.heads import for_loss
from bertwright.tasks import inference as precision
from bertwright.tasks.binding import Answered, Work
from bertwright.tasks.frozen_features import FrozenModel, Places, States, predicted, states_for, states_of
from bertwright.tasks.spec import TaskSpec
from bertwright.training.distributed import Trainable
from bertwright.training.hardware import CPU, module_device, resolve_device
from bertwright.training.settings import Device

READ = "rows read by the encoder"
"""What is said to be done while features are computed."""

_NO_TARGET = -100
"""Where a row has fewer places than the batch's longest."""


@dataclass(frozen=True)
class FeatureData:
    """A task bound to its data, as features need it.

    each        whether every place is answered (tags), or the row as a whole
    targets     [R] label ids by place, or [N] by row: label ids, or float32 numbers of a regression
    figures     dev logits by name → dev figures, as Work.evaluate gives them
    answered    the labels and notes of the model folder
    """

    task: TaskSpec
    digests: Mapping[str, Any]
    train: Places
    dev: Mapping[str, Places]
    targets: NDArray[Any]
    outputs: int
    each: bool
    figures: Callable[[Mapping[str, NDArray[np.float32]]], dict[str, float]]
    labels: tuple[str, ...]
    extra: Mapping[str, Any]


@dataclass(frozen=True)
class FeatureBatch:
    """Padded states [B, P, S, D], real places [B], targets [B, P] or [B]."""

    states: Tensor
    lengths: Tensor
    targets: Tensor


def feature_work(
    data: FeatureData, way: Way, *, width: int, saved: SavedModel, cache: Path, weights: str, device: Device = "cpu"
) -> Work[FeatureBatch]:
    """What learns from the features of train and dev, which are computed before the first step.

    cache: the folder that keeps them. weights: the digest of the encoder's, which decides the names of its files.
    device: what computes them; `ready` raises InputError without it.
    """
    encoder, layers = frozen_encoder(saved), states_of(way, saved.config.layers)
    if "four" in way and len(layers) < 4:
        say(f"{saved.place}: has {saved.config.layers} layers: {way} takes {len(layers)}")

    @cache_once
    def states(part: str | None) -> States:
        wanted = data.dev[part] if part else data.train
        return states_for(encoder.to(resolve_device(device)), wanted, layers, cache=cache, key=weights, what=READ)

    def ready() -> None:
        for part in (None, *data.dev):
            states(part)
        encoder.to(CPU)  # a GPU's memory is the head's now

    def batch(rows: NDArray[np.int64]) -> FeatureBatch:
        padded, lengths = states(None).padded(rows)
        return FeatureBatch(padded, lengths, _targets(data, rows, padded.shape[1]))

    def evaluate(model: nn.Module) -> dict[str, float]:
        return data.figures({name: predicted(_frozen(model).head, states(name)) for name in data.dev})

    return Work(
        ready=ready,
        task=data.task,
        digests=data.digests,
        lengths=np.diff(data.train.ends),
        head="head",
        build=lambda config: FrozenModel(config, way, outputs=data.outputs, width=width, each=data.each),
        batch=batch,
        trainable=lambda model: _trainable(_frozen(model), regression=data.targets.dtype.kind == "f"),
        evaluate=evaluate,
        answered=lambda model: Answered(
            model,
            FEATURES,
            data.labels,
            {**data.extra, "features": {"way": way, "width": width, "each": data.each, "outputs": data.outputs}},
        ),
    )


def open_with_features(saved: SavedModel) -> Callable[[Places], NDArray[np.float32]]:
    """A model folder that was learned on features, ready to answer: → logits [R, L] or [N, L]."""
    noted = saved.extra["features"]
    names = ("way", "outputs", "width", "each")
    if not isinstance(noted, dict) or not set(names) <= noted.keys():
        raise InputError(f"{saved.place}: config.json notes the features {noted!r}; {', '.join(names)} are due")
    model = FrozenModel(saved.config, noted["way"], outputs=noted["outputs"], width=noted["width"], each=noted["each"])
    load_weights(model, saved)
    encoder = precision.ready(nn.ModuleDict({"encoder": model.encoder}), saved)["encoder"]
    assert isinstance(encoder, Backbone)
    head, layers = model.head.eval().to(module_device(encoder)), states_of(noted["way"], saved.config.layers)
    return lambda wanted: predicted(head, states_for(encoder, wanted, layers, what=READ))


def frozen_encoder(saved: SavedModel) -> Backbone:
    """The encoder alone; for `random:SIZE` always the same one, since its features are computed once for all seeds."""
    encoder = build_backbone(saved.config)
    if saved.weights is None:
        init_weights(encoder, saved.config.initializer_range, torch.Generator().manual_seed(0))
    load_weights(nn.ModuleDict({"encoder": encoder}), saved)
    return encoder.eval()


def _targets(data: FeatureData, rows: NDArray[np.int64], longest: int) -> Tensor:
    if not data.each:
        return torch.from_numpy(data.targets[rows])
    targets = np.full((len(rows), longest), _NO_TARGET, dtype=np.int64)
    for place, row in enumerate(rows):
        part = data.targets[data.train.ends[row] : data.train.ends[row + 1]]
        targets[place, : len(part)] = part
    return torch.from_numpy(targets)


def _trainable(model: FrozenModel, *, regression: bool) -> Trainable[FeatureBatch]:
    def step(batch: FeatureBatch) -> dict[str, tuple[Tensor, str]]:
        logits = for_loss(model.head(batch.states, batch.lengths))
        if regression:
            return {"loss": (F.mse_loss(logits[:, 0], batch.targets, reduction="sum"), "rows")}
        flat = logits.flatten(0, -2)
        loss = F.cross_entropy(flat, batch.targets.flatten(), ignore_index=_NO_TARGET, reduction="sum")
        return {"loss": (loss, "rows")}

    return Trainable(
        module=model,
        blocks=(),
        step=step,
        counts=lambda batch: {"rows": float(len(batch.targets) if regression else (batch.targets != _NO_TARGET).sum())},
        flops=lambda batch: 6.0 * float(batch.lengths.sum()) * _matrix_weights(model),
        tokens=lambda batch: int(batch.lengths.sum()),
    )


def _matrix_weights(model: FrozenModel) -> int:
    return sum(parameter.numel() for parameter in model.head.parameters() if parameter.ndim > 1)


def _frozen(model: Any) -> FrozenModel:
    assert isinstance(model, FrozenModel)
    return model
