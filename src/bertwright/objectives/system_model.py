"""The model that a pre-training system trains: a backbone with its heads, its inputs, its losses and its metrics."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from bertwright.model.cpu.muon_iteration import muon_iteration
from bertwright.model.encoder import SingleBackbone
from bertwright.objectives.settings import SecondSentence
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, Terms, Trainable
from bertwright.training.hardware import module_device, move_to_device


class SystemModel(nn.Module, ABC):
    """A backbone with the heads of its pre-training. Each kind of objective is a subclass."""

    encoder: SingleBackbone
    second_sentence: SecondSentence = "none"
    """Objective for pairs of sentences."""

    @property
    @abstractmethod
    def architecture(self) -> str:
        """Return the class that config.json names."""

    @abstractmethod
    def inputs(self, batch: Any) -> Any:
        """Return NumPy rows of the model's kind as tensors."""

    @abstractmethod
    def losses(self, inputs: Any, *, z_weight: float = 0.0) -> Terms:
        """Return each summed loss with the name of the count that divides it; z_weight: the weight of the z-losses."""

    @abstractmethod
    def counts(self, inputs: Any) -> dict[str, float]:
        """Return the counts of a batch that divide its losses, by name."""

    @abstractmethod
    def flops(self, inputs: Any) -> float:
        """Return the FLOPs of the matrix products in the forward and backward pass of a batch."""

    @property
    def loss_weights(self) -> Mapping[str, float]:
        """Return the factors of the losses by name; 1 where none is named."""
        return {}

    def blocks(self) -> Sequence[nn.Module]:
        """Return the layers that are sharded one by one, and whose matrices Muon updates."""
        return self.encoder.blocks()

    def trainable(self, *, z_weight: float = 0.0) -> Trainable[Any]:
        """Return the model with the functions by which the loop trains it."""
        return Trainable(
            module=self,
            blocks=self.blocks(),
            step=lambda inputs: self.losses(inputs, z_weight=z_weight),
            counts=self.counts,
            flops=self.flops,
            tokens=lambda inputs: int(inputs.mask.sum()),
            weights=self.loss_weights,
            muon_iteration=muon_iteration,
        )

    @abstractmethod
    def metrics(
        self,
        batches: Iterable[Any],
        further: Iterable[Any] = (),
        *,
        characters: np.ndarray | None = None,
        ranks: Ranks = SINGLE_PROCESS,
    ) -> dict[str, float]:
        """Return validation metrics over all predictions and rows, not means over batches.

        batches: rows of the model's kind. further: rows for sentence order, or without masks, where the model was
        trained for either. characters: number of characters of each piece [V], for the bits per character; -1
        for special tokens, which are no text.
        The model must be in evaluation mode. All ranks get the same batches, and each evaluates a part of them.
        """

    def sums(
        self,
        batches: Iterable[Any],
        inputs: Callable[[Any], Any],
        measure: Callable[[Any], Mapping[str, float]],
        ranks: Ranks,
    ) -> dict[str, float]:
        """Return the numbers that `measure` returns for the tensors of a batch, summed over the batches of all ranks.

        inputs: function that returns NumPy rows as tensors.
        """
        sums: defaultdict[str, float] = defaultdict(float)
        for _, batch, counts in ranks.partition(list(batches)):
            numbers = measure(move_to_device(inputs(batch), module_device(self)))
            for name, number in numbers.items():
                sums[name] += number if counts else 0.0
        return dict(zip(sums, ranks.sum(list(sums.values())), strict=True))
