"""heads → loss: a language model, which predicts a token at every position (paper §5.1; GPT paper §3.1; ELMo).

A left-to-right backbone predicts the token after the position, a right-to-left backbone the token before it.

Shapes: B batch, T tokens, M predictions in the batch, D hidden, V vocabulary.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.model.backbones import build_backbone
from bertwright.model.config import SingleBackboneConfig
from bertwright.model.encoder import SingleBackbone
from bertwright.model.families import family_of
from bertwright.model.folder import SavedModel, load_weights, refuse_random
from bertwright.model.heads import MaskedLMHead, TiedOutput
from bertwright.objectives.batches import TokenBatch
from bertwright.objectives.system_model import SystemModel
from bertwright.objectives.vocabulary_loss import bits_per_character, loss_terms, running_losses, token_losses
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, Terms
from bertwright.training.hardware import module_device


@dataclass(frozen=True)
class LanguageInputs:
    """A TokenBatch as tensors.

    picked: indices in B·T of the positions that predict [M]. labels: ids of their targets [M].
    """

    ids: Tensor
    segments: Tensor
    mask: Tensor
    picked: Tensor
    labels: Tensor


class LanguageModel(SystemModel):
    """A backbone that attends to one side, and its family's output layer, which is tied to the word embeddings."""

    def __init__(self, config: SingleBackboneConfig) -> None:
        """Raise ValueError for a backbone that attends to both sides: it would see the token that it predicts."""
        super().__init__()
        if config.attends == "both":
            raise ValueError("a language model's tokens attend to one side")
        backbone = build_backbone(config)
        assert isinstance(backbone, SingleBackbone)
        self.encoder = backbone
        output = family_of(config).output(config)
        if isinstance(output, MaskedLMHead):
            self.masked_lm = output
        else:
            assert isinstance(output, TiedOutput)
            self.lm = output

    @property
    def config(self) -> SingleBackboneConfig:
        """Return the configuration of the backbone."""
        return self.encoder.config

    @property
    def output(self) -> MaskedLMHead | TiedOutput:
        """Return the output layer."""
        return self.masked_lm if hasattr(self, "masked_lm") else self.lm

    @property
    def projection(self) -> tuple[Tensor, Tensor]:
        """Return the word embeddings [V, D] and the bias [V] that turn the vectors of `forward` into logits."""
        return self.encoder.word_embeddings()[0].weight, self.output.bias

    def forward(self, inputs: LanguageInputs) -> Tensor:
        """Return the vectors [M, D] that `projection` turns into logits, at the positions that predict."""
        last = self.encoder(inputs.ids, inputs.segments, inputs.mask).last
        return self.output.states(last.flatten(0, 1)[inputs.picked])

    def logits(self, inputs: LanguageInputs) -> Tensor:
        """Return the logits of the next token at the positions that predict [M, V]."""
        return nn.functional.linear(self(inputs), *self.projection)

    @property
    def architecture(self) -> str:
        """Return a class of transformers where one computes the model, else our own name."""
        return family_of(self.config).language_architecture(self.config)

    def inputs(self, batch: Any) -> LanguageInputs:
        """Return NumPy rows as tensors."""
        return language_inputs(batch, self.config)

    def losses(self, inputs: LanguageInputs, *, z_weight: float = 0.0) -> Terms:
        """Return the loss of all predictions."""
        losses = running_losses(self(inputs), *self.projection, inputs.labels, z_weight=z_weight)
        return loss_terms("lm", losses, z_weight=z_weight)

    def counts(self, inputs: LanguageInputs) -> dict[str, float]:
        """Return the number of predictions."""
        return {"predictions": float(len(inputs.labels))}

    def flops(self, inputs: LanguageInputs) -> float:
        """Return the FLOPs of the backbone and the output layer."""
        rows, length = inputs.ids.shape
        width = self.config.hidden
        transform = width if isinstance(self.output, MaskedLMHead) else 0
        head = 2 * len(inputs.labels) * width * (self.config.vocab_size + transform)
        return 3.0 * (rows * self.encoder.flops(length, length) + head)

    def metrics(
        self,
        batches: Iterable[Any],
        further: Iterable[Any] = (),
        *,
        characters: np.ndarray | None = None,
        ranks: Ranks = SINGLE_PROCESS,
    ) -> dict[str, float]:
        """Return loss (nats per token), accuracy and perplexity over all predictions, and bits per character."""
        lengths = torch.zeros(self.config.vocab_size) if characters is None else torch.from_numpy(characters)
        lengths = lengths.to(module_device(self))
        sums = self.sums(batches, self.inputs, lambda inputs: self._evaluated(inputs, lengths), ranks)
        loss = sums["nats"] / (sums["predictions"] or 1.0)
        metrics = {
            "lm_loss": loss,
            "lm_accuracy": sums["right"] / (sums["predictions"] or 1.0),
            "lm_perplexity": math.exp(min(loss, 700.0)),
        }
        if sums["characters"]:
            metrics["bits_per_character"] = bits_per_character(sums["text_nats"], sums["characters"])
        return metrics | {name: int(sums[name]) for name in ("rows", "predictions")}

    def _evaluated(self, inputs: LanguageInputs, lengths: Tensor) -> dict[str, float]:
        """Return the sums of a batch for `metrics`; lengths: number of characters of each piece [V], -1 for no text."""
        losses, right = token_losses(self(inputs), *self.projection, inputs.labels)
        sizes = lengths[inputs.labels]
        return {
            "nats": float(losses.sum()),
            "right": float(right.sum()),
            "predictions": len(losses),
            "rows": len(inputs.ids),
            "text_nats": float(losses[sizes >= 0].sum()),
            "characters": float(sizes.clamp(min=0).sum()),
        }


def language_inputs(batch: TokenBatch, config: SingleBackboneConfig) -> LanguageInputs:
    """Return NumPy rows as tensors; a position predicts where it and its target hold tokens and no padding."""
    ids = torch.from_numpy(batch.ids)
    length = ids.shape[1]
    mask = torch.arange(length) < torch.from_numpy(batch.lengths)[:, None]
    is_followed = torch.zeros_like(mask)
    is_followed[:, :-1] = mask[:, 1:]  # True for a token before another token
    first = is_followed.flatten().nonzero().squeeze(1)  # [M]
    picked, targets = (first, first + 1) if config.attends == "left" else (first + 1, first)
    return LanguageInputs(ids, torch.from_numpy(batch.segments), mask, picked, ids.flatten()[targets].long())


def open_language_model(saved: SavedModel) -> LanguageModel:
    """Return the language model of a folder in evaluation mode; InputError for another model."""
    config = saved.config
    refuse_random(saved)
    if not isinstance(config, SingleBackboneConfig) or config.attends == "both":
        raise InputError(f"{saved.source}: expected a language model, which predicts the next token")
    model = LanguageModel(config)
    load_weights(model, saved)
    return model.eval()
