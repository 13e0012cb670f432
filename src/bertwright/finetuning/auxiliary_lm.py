"""bound task → bound task with GPT-1's auxiliary loss: it also predicts the next token of its texts (GPT paper §3.2).

Shapes: B rows, T tokens, N tokens with a predecessor, D hidden, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bertwright.model.backbones import Backbone, EncoderOutput
from bertwright.model.config import BackboneConfig, EncoderConfig
from bertwright.model.encoder import gather_rows
from bertwright.model.folder import SavedModel
from bertwright.model.heads import MaskedLMHead, TiedOutput
from bertwright.objectives.vocabulary_loss import running_loss
from bertwright.tasks.binding import BoundTask
from bertwright.training.distributed import Trainable

TERM, COUNT = "language", "next_tokens"
"""Names of the loss in a run's metrics and of the count that divides it."""


@dataclass(frozen=True)
class BackboneCall:
    """Call of a backbone: `ids`, `mask` [B, T] and all last states [B, T, D]."""

    ids: Tensor
    mask: Tensor
    last: Tensor


@dataclass(frozen=True)
class LanguageTask(BoundTask):
    """A bound task with a second loss: `weight` times the mean cross entropy of every token after the first.

    The output layer is that of pre-training: the word embeddings and a bias. BERT's has a transform before them, and
    GPT-1's has no bias.

    stored      names of the top-level parts of the saved model
    num_pieces  number of pieces of the vocabulary; a padded table has more rows, which are never predicted
    """

    weight: float
    stored: frozenset[str]
    num_pieces: int

    def build(self, config: BackboneConfig) -> nn.Module:
        """Build the model with the output layer that predicts tokens."""
        model = super().build(config)
        if "masked_lm" in self.stored and isinstance(config, EncoderConfig):
            model.add_module("masked_lm", MaskedLMHead(config))
        else:
            model.add_module("lm", TiedOutput(config, bias="lm" in self.stored))
        return model

    def trainable(self, model: nn.Module) -> Trainable[Any]:
        """Return what the training loop trains; the backbone is computed once for both losses."""
        task = super().trainable(model)
        backbone: Any = model.get_submodule("encoder")
        hidden: int = backbone.config.hidden

        def step(batch: Any) -> dict[str, tuple[Tensor, str]]:
            with recorded(backbone) as calls:
                terms = dict(task.step(batch))
            total = torch.stack([language_loss(model, call, num_pieces=self.num_pieces) for call in calls]).sum()
            return {**terms, TERM: (self.weight * total, COUNT)}

        def count(batch: Any) -> float:
            return float(batch.mask[:, 1:].sum())

        return replace(
            task,
            step=step,
            counts=lambda batch: {**task.counts(batch), COUNT: count(batch)},
            flops=lambda batch: (
                3.0 * len(batch.mask) * backbone.flops(batch.mask.shape[1], batch.mask.shape[1])
                + 6.0 * count(batch) * hidden * self.num_pieces
            ),
        )


def with_language(bound: BoundTask, saved: SavedModel, *, weight: float, num_pieces: int) -> LanguageTask:
    """Return the bound task with the next-token loss of a saved model, whose vocabulary has `num_pieces` pieces."""
    stored = frozenset(name.partition(".")[0] for name in saved.weights or ())
    return LanguageTask(**vars(bound), weight=weight, stored=stored, num_pieces=num_pieces)


def language_loss(model: nn.Module, call: BackboneCall, *, num_pieces: int) -> Tensor:
    """Return the summed cross entropy of each real token but the first of its row, from the state before it."""
    real = call.mask[:, 1:]
    states, labels = call.last[:, :-1][real], call.ids[:, 1:][real].long()  # [N, D], [N]
    parts: Any = dict(model.named_children())
    output = parts["masked_lm"] if "masked_lm" in parts else parts["lm"]
    words, bias = parts["encoder"].word_embeddings()[0].weight, output.bias
    if num_pieces < len(words):
        words, bias = words[:num_pieces], bias[:num_pieces]
    return running_loss(output.states(states), words, bias, labels)


@contextmanager
def recorded(backbone: Backbone) -> Iterator[list[BackboneCall]]:
    """Record the calls of a backbone. Within the context it computes all positions, also where few are requested."""
    plain: Any = backbone.forward
    calls: list[BackboneCall] = []

    def forward(ids: Tensor, segments: Tensor, mask: Tensor, *, at: Tensor | None = None, **more: Any) -> EncoderOutput:
        output: EncoderOutput = plain(ids, segments, mask, **more)
        calls.append(BackboneCall(ids, mask, output.last))
        return output if at is None else EncoderOutput(gather_rows(output.last, at), output.hidden)

    backbone.__dict__["forward"] = forward
    try:
        yield calls
    finally:
        del backbone.__dict__["forward"]
