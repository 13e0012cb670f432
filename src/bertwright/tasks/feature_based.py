"""bound task + frozen encoder → a task that trains a BiLSTM on features instead of the encoder (paper §5.3)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
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
from bertwright.model.config import BackboneConfig, Way
from bertwright.model.encoder import init_weights
from bertwright.model.families.bert import FEATURES
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.heads import for_loss
from bertwright.tasks.binding import BoundTask, ModelToSave
from bertwright.tasks.frozen_features import FeaturePositions, FrozenModel, States, predicted, states_for, states_of
from bertwright.tasks.inference import ready
from bertwright.training.distributed import Trainable
from bertwright.training.hardware import CPU, module_device, resolve_device
from bertwright.training.settings import Device

_PROGRESS = "rows read by the encoder"
"""End of the progress line while features are computed."""

_NO_TARGET = -100
"""Target where a row has fewer positions than the batch's longest row."""


@dataclass(frozen=True)
class FeatureBatch:
    """Padded states [B, P, S, D], real positions [B], targets [B, P] or [B]."""

    states: Tensor
    lengths: Tensor
    targets: Tensor


@dataclass(frozen=True)
class FeatureTask(BoundTask):
    """A bound task that is learned from the states of a frozen encoder.

    way       name of the layers whose states are the features
    width     width of the BiLSTM
    saved     the encoder's model folder
    cache     folder of the computed features
    weights   digest of the encoder's weights, from which the names of the files in `cache` are derived
    device    device that computes the features; `prepare` raises InputError where there is none
    """

    way: Way
    width: int
    saved: SavedModel
    cache: Path
    weights: str
    device: Device = "cpu"
    _states: dict[str | None, States] = field(default_factory=dict, repr=False)

    @property
    def head(self) -> str:
        """Return the prefix of the trained parameters."""
        return "head"

    @property
    def each(self) -> bool:
        """Return whether each position has a target, and not the row."""
        return self.kind.feature_unit == "position"

    @property
    def outputs(self) -> int:
        """Return the number of outputs; a regression has one."""
        return len(self.kind.label_names(self.task))

    @cached_property
    def encoder(self) -> Backbone:
        """Return the frozen encoder."""
        return frozen_encoder(self.saved)

    @cached_property
    def positions(self) -> FeaturePositions:
        """Return the positions of the training rows."""
        positions: FeaturePositions = self.kind.feature_positions(*self.train)
        return positions

    @cached_property
    def feature_targets(self) -> NDArray[Any]:
        """Return the targets by position [R] or by row [N]."""
        return self.kind.feature_targets(self.task, self.train[0])

    def states(self, name: str | None) -> States:
        """Return the states of a validation file, or of the training rows (None)."""
        if name not in self._states:
            positions = self.positions if name is None else self.kind.feature_positions(*self.validation[name])
            encoder = self.encoder.to(resolve_device(self.device))
            layers = states_of(self.way, self.saved.config.layers)
            self._states[name] = states_for(
                encoder, positions, layers, cache=self.cache, key=self.weights, what=_PROGRESS
            )
        return self._states[name]

    def prepare(self) -> None:
        """Compute all features, then move the encoder to the CPU: the head needs the memory of the GPU."""
        for name in (None, *self.validation):
            self.states(name)
        self.encoder.to(CPU)

    def build(self, config: BackboneConfig) -> FrozenModel:
        """Build the encoder and the head."""
        return FrozenModel(config, self.way, outputs=self.outputs, width=self.width, each=self.each)

    def batch(self, chosen: NDArray[np.int64]) -> FeatureBatch:
        """Return a padded batch of the chosen training rows."""
        states, lengths = self.states(None).padded(chosen)
        targets = self.feature_targets
        if not self.each:
            return FeatureBatch(states, lengths, torch.from_numpy(targets[chosen]))
        padded = np.full((len(chosen), states.shape[1]), _NO_TARGET, dtype=np.int64)
        for index, row in enumerate(chosen):
            part = targets[self.positions.ends[row] : self.positions.ends[row + 1]]
            padded[index, : len(part)] = part
        return FeatureBatch(states, lengths, torch.from_numpy(padded))

    def trainable(self, model: Any) -> Trainable[FeatureBatch]:
        """Return what the training loop trains: the squared error of a regression, or the cross entropy."""
        regression = self.feature_targets.dtype.kind == "f"
        weights = sum(parameter.numel() for parameter in model.head.parameters() if parameter.ndim > 1)

        def step(batch: FeatureBatch) -> dict[str, tuple[Tensor, str]]:
            logits = for_loss(model.head(batch.states, batch.lengths))
            if regression:
                return {"loss": (F.mse_loss(logits[:, 0], batch.targets, reduction="sum"), "rows")}
            flat = logits.flatten(0, -2)
            loss = F.cross_entropy(flat, batch.targets.flatten(), ignore_index=_NO_TARGET, reduction="sum")
            return {"loss": (loss, "rows")}

        def count(batch: FeatureBatch) -> float:
            return float(len(batch.targets) if regression else (batch.targets != _NO_TARGET).sum())

        return Trainable(
            module=model,
            blocks=(),
            step=step,
            counts=lambda batch: {"rows": count(batch)},
            flops=lambda batch: 6.0 * float(batch.lengths.sum()) * weights,
            tokens=lambda batch: int(batch.lengths.sum()),
        )

    def logits(self, model: Any, name: str) -> NDArray[np.float32]:
        """Return the logits of a validation file, with dropout off."""
        return predicted(model.head, self.states(name))

    def to_save(self, model: nn.Module, metrics: Mapping[str, float]) -> ModelToSave:
        """Return the model as it is saved."""
        saved = self.kind.to_save(self.task, model, metrics, self.max_length)
        notes = {"way": self.way, "width": self.width, "each": self.each, "outputs": self.outputs}
        return ModelToSave(model, FEATURES, saved.labels, {**saved.extra, "features": notes})


def feature_task(
    bound: BoundTask, way: Way, *, width: int, saved: SavedModel, cache: Path, weights: str, device: Device = "cpu"
) -> FeatureTask:
    """Return the bound task for the feature-based approach."""
    layers = states_of(way, saved.config.layers)
    if "four" in way and len(layers) < 4:
        say(f"{saved.source}: has {saved.config.layers} layers: {way} uses {len(layers)}")
    task = FeatureTask(**vars(bound), way=way, width=width, saved=saved, cache=cache, weights=weights, device=device)
    lengths = np.diff(task.positions.ends)
    return replace(task, lengths=lengths, tokens=lengths)


def open_with_features(saved: SavedModel) -> Callable[[FeaturePositions], NDArray[np.float32]]:
    """Return a function positions → logits [R, L] or [N, L] of a feature-based model folder."""
    stored = saved.extra["features"]
    names = ("way", "outputs", "width", "each")
    if not isinstance(stored, dict) or not set(names) <= stored.keys():
        raise InputError(f"{saved.source}: expected features with {', '.join(names)} in config.json, got {stored!r}")
    model = FrozenModel(saved.config, stored["way"], **{name: stored[name] for name in names[1:]})
    load_weights(model, saved)
    encoder = ready(nn.ModuleDict({"encoder": model.encoder}), saved)["encoder"]
    assert isinstance(encoder, Backbone)
    head, layers = model.head.eval().to(module_device(encoder)), states_of(stored["way"], saved.config.layers)
    return lambda positions: predicted(head, states_for(encoder, positions, layers, what=_PROGRESS))


def frozen_encoder(saved: SavedModel) -> Backbone:
    """Return the encoder of a model; that of `random:SIZE` is always the same, because all seeds share its features."""
    encoder = build_backbone(saved.config)
    if saved.weights is None:
        init_weights(encoder, saved.config.initializer_range, torch.Generator().manual_seed(0))
    load_weights(nn.ModuleDict({"encoder": encoder}), saved)
    return encoder.eval()
