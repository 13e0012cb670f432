"""encoder → task: GPT-1's auxiliary loss, the next token of the task's own texts beside the task (GPT paper §3.2).

Shapes: B rows, T tokens, N tokens that follow another, D hidden, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bertwright.model.backbones import Backbone, EncoderOutput
from bertwright.model.config import BackboneConfig, EncoderConfig, SingleBackboneConfig
from bertwright.model.encoder import gather_rows
from bertwright.model.folder import SavedModel
from bertwright.model.heads import BiasedOutput, MaskedLMHead, TiedOutput
from bertwright.objectives.vocabulary_loss import running_loss
from bertwright.tasks.binding import Work
from bertwright.training.distributed import Trainable

TERM, COUNT = "language", "next_tokens"
"""What the loss is called in a run's metrics, and what it is divided by."""


@dataclass(frozen=True)
class Heard:
    """One call of a body: `ids`, `mask` [B, T] and all last states [B, T, D]."""

    ids: Tensor
    mask: Tensor
    last: Tensor


def predicts_next(config: BackboneConfig) -> bool:
    """Whether a body's states can be asked for the next token: whether they know none that stands behind them."""
    return isinstance(config, SingleBackboneConfig) and config.attends == "left"


def with_language(work: Work[Any], saved: SavedModel, weight: float) -> Work[Any]:
    """The task with a second term: `weight` times the mean cross entropy of every token that follows another.

    What the model predicted tokens with in pre-training goes on: a transform and a bias, or a bias, and the word
    embeddings. Where it has nothing of its own, as GPT-1, it is the embeddings alone. The body is computed once.
    """
    stored = {name.partition(".")[0] for name in saved.weights or ()}

    def build(shape: BackboneConfig) -> nn.Module:
        model = work.build(shape)
        if "masked_lm" in stored and isinstance(shape, EncoderConfig):
            model.add_module("masked_lm", MaskedLMHead(shape))
        else:
            model.add_module("lm", BiasedOutput(shape) if "lm" in stored else TiedOutput(shape))
        return model

    return replace(work, build=build, trainable=lambda model: _trainable(work.trainable(model), model, weight))


def _trainable(task: Trainable[Any], model: nn.Module, weight: float) -> Trainable[Any]:
    body: Any = model.get_submodule("encoder")
    config: SingleBackboneConfig = body.config

    def step(batch: Any) -> dict[str, tuple[Tensor, str]]:
        with overheard(body) as heard:
            terms = dict(task.step(batch))
        total = torch.stack([language_loss(model, call) for call in heard]).sum()
        return {**terms, TERM: (weight * total, COUNT)}

    def predicted(batch: Any) -> float:
        return float(batch.mask[:, 1:].sum())

    return replace(
        task,
        step=step,
        counts=lambda batch: {**task.counts(batch), COUNT: predicted(batch)},
        flops=lambda batch: (
            3.0 * len(batch.mask) * body.flops(batch.mask.shape[1], batch.mask.shape[1])
            + 6.0 * predicted(batch) * config.hidden * config.vocab_size
        ),
    )


def language_loss(model: nn.Module, heard: Heard) -> Tensor:
    """The summed cross entropy of each real token but the first of its row, from the state before it."""
    places = heard.mask[:, 1:]
    states, labels = heard.last[:, :-1][places], heard.ids[:, 1:][places].long()  # [N, D], [N]
    parts: Any = dict(model.named_children())
    output = parts["masked_lm"] if "masked_lm" in parts else parts["lm"]
    return running_loss(output.states(states), parts["encoder"].words()[0].weight, output.bias, labels)


@contextmanager
def overheard(body: Backbone) -> Iterator[list[Heard]]:
    """Within it the body computes every place whichever are asked for, and what it was called with is listed."""
    plain: Any = body.forward
    calls: list[Heard] = []

    def forward(ids: Tensor, segments: Tensor, mask: Tensor, *, at: Tensor | None = None, **more: Any) -> EncoderOutput:
        found: EncoderOutput = plain(ids, segments, mask, **more)
        calls.append(Heard(ids, mask, found.last))
        return found if at is None else EncoderOutput(gather_rows(found.last, at), found.hidden)

    body.__dict__["forward"] = forward
    try:
        yield calls
    finally:
        del body.__dict__["forward"]
