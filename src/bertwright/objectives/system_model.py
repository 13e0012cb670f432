"""The model that a pre-training system trains: a backbone with its heads, its inputs, its loss and its metrics."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import nn

from bertwright.model.encoder import SingleBackbone
from bertwright.objectives.settings import SecondSentence
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, Trainable


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
    def trainable(self, *, z_weight: float = 0.0) -> Trainable[Any]:
        """Return the model with the functions by which the loop trains it; z_weight: the weight of the z-losses."""

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
