"""heads → loss: a language model, which predicts the next token at every place (paper §5.1; GPT paper §3.1; ELMo).

The next one is the one behind, or before, as the body sees the tokens before it, or behind.

Shapes: B batch, T tokens, M predictions in the batch, D hidden, V vocabulary.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.model.backbones import RecurrentBackbone, build_backbone
from bertwright.model.config import EncoderConfig, GPTConfig, LSTMConfig, SingleBackboneConfig, system_of
from bertwright.model.encoder import Encoder
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.heads import BiasedOutput, MaskedLMHead, TiedOutput
from bertwright.model.hf_config import ARCHITECTURE as GPT_MODEL
from bertwright.model.hf_config import LANGUAGE_MODEL
from bertwright.objectives.batches import TokenBatch
from bertwright.objectives.vocabulary_loss import bits_per_character, judged, running_loss
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, Trainable
from bertwright.training.hardware import module_device, move_to_device

OWN_MODEL = "BertwrightLanguageModel"
"""What config.json calls one that no class of transformers computes."""


@dataclass(frozen=True)
class Tokens:
    """A TokenBatch as tensors. `picked` [M]: the places among B·T that predict; `labels` [M]: what follows there."""

    ids: Tensor
    segments: Tensor
    mask: Tensor
    picked: Tensor
    labels: Tensor


class LanguageModel(nn.Module):
    """A body that looks to one side, and the output of its kind: BERT's for masked LM, a bias, or nothing.

    All compare with the word embeddings of the body.
    """

    def __init__(self, config: SingleBackboneConfig) -> None:
        """ValueError for a body that sees both sides: it would see what it is to predict."""
        super().__init__()
        if config.attends == "both":
            raise ValueError("a language model's tokens attend to one side")
        body = build_backbone(config)
        assert isinstance(body, Encoder | RecurrentBackbone)
        self.encoder = body
        if isinstance(config, LSTMConfig):
            self.lm: BiasedOutput | TiedOutput = BiasedOutput(config)
        elif isinstance(config, GPTConfig):
            self.lm = TiedOutput(config)
        else:
            self.masked_lm = MaskedLMHead(config)

    @property
    def config(self) -> SingleBackboneConfig:
        """The body's shape."""
        return self.encoder.config

    @property
    def output(self) -> MaskedLMHead | BiasedOutput | TiedOutput:
        """What makes states comparable with word embeddings, by its `states` and its `bias`."""
        return self.masked_lm if hasattr(self, "masked_lm") else self.lm

    def forward(self, tokens: Tokens) -> Tensor:
        """What is compared with the word embeddings, at the places that predict [M, D]."""
        last = self.encoder(tokens.ids, tokens.segments, tokens.mask).last
        return self.output.states(last.flatten(0, 1)[tokens.picked])

    def logits(self, tokens: Tokens) -> Tensor:
        """Of the next token, at the places that predict [M, V]."""
        return nn.functional.linear(self(tokens), self.encoder.words()[0].weight, self.output.bias)


def to_tokens(batch: TokenBatch, config: SingleBackboneConfig) -> Tokens:
    """Numpy rows → tensors. Every real place that has a next one predicts it; places of a row stand together."""
    ids = torch.from_numpy(batch.ids)
    length = ids.shape[1]
    mask = torch.arange(length) < torch.from_numpy(batch.lengths)[:, None]
    both = torch.zeros_like(mask)
    both[:, :-1] = mask[:, 1:]  # a real place with a real one behind it
    ahead = both.flatten().nonzero().squeeze(1)  # [M]
    asking, asked = (ahead, ahead + 1) if config.attends == "left" else (ahead + 1, ahead)
    return Tokens(ids, torch.from_numpy(batch.segments), mask, asking, ids.flatten()[asked].long())


def language_losses(model: LanguageModel, tokens: Tokens) -> dict[str, tuple[Tensor, str]]:
    """The summed loss with the name of what it is divided by."""
    loss = running_loss(model(tokens), model.encoder.words()[0].weight, model.output.bias, tokens.labels)
    return {"lm": (loss, "predictions")}


def language_flops(model: LanguageModel, tokens: Tokens) -> float:
    """Floating-point work of forward and backward over a batch: matrix products alone, as they are computed."""
    rows, length = tokens.ids.shape
    config, width = model.config, model.config.hidden
    transform = width if isinstance(model.output, MaskedLMHead) else 0
    head = 2 * len(tokens.labels) * width * (config.vocab_size + transform)
    return 3.0 * (rows * model.encoder.flops(length, length) + head)


def language_task(model: LanguageModel) -> Trainable[Tokens]:
    """What the loop trains."""
    return Trainable(
        module=model,
        blocks=model.encoder.blocks(),
        step=lambda tokens: language_losses(model, tokens),
        counts=lambda tokens: {"predictions": float(len(tokens.labels))},
        flops=lambda tokens: language_flops(model, tokens),
        tokens=lambda tokens: int(tokens.mask.sum()),
    )


def language_figures(
    model: LanguageModel,
    batches: Iterable[TokenBatch],
    characters: np.ndarray | None = None,
    *,
    ranks: Ranks = SINGLE_PROCESS,
) -> dict[str, float]:
    """Loss (nats a token), accuracy and perplexity over all predictions, and bits for each character of the text.

    characters [V]: of each piece, 0 for special tokens, which are no text and do not count there. The caller puts the
    model in evaluation mode. Several ranks, which all get the same batches, share them out.
    """
    sums = dict.fromkeys(("nats", "right", "predictions", "rows", "text_nats", "characters"), 0.0)
    place = module_device(model)
    lengths = torch.zeros(model.config.vocab_size) if characters is None else torch.from_numpy(characters)
    lengths = lengths.to(place)
    for _, batch, counts in ranks.partition(list(batches)):
        tokens = move_to_device(to_tokens(batch, model.config), place)
        losses, right = judged(model(tokens), model.encoder.words()[0].weight, model.output.bias, tokens.labels)
        if not counts:
            continue
        sizes = lengths[tokens.labels]
        sums["nats"] += float(losses.sum())
        sums["right"] += float(right.sum())
        sums["predictions"] += len(losses)
        sums["rows"] += len(batch.ids)
        sums["text_nats"] += float(losses[sizes > 0].sum())
        sums["characters"] += float(sizes.sum())
    sums = dict(zip(sums, ranks.sum(list(sums.values())), strict=True))
    loss = sums["nats"] / (sums["predictions"] or 1.0)
    figures = {
        "lm_loss": loss,
        "lm_accuracy": sums["right"] / (sums["predictions"] or 1.0),
        "lm_perplexity": math.exp(min(loss, 700.0)),
    }
    if sums["characters"]:
        figures["bits_per_character"] = bits_per_character(sums["text_nats"], sums["characters"])
    return figures | {"rows": sums["rows"], "predictions": sums["predictions"]}


def language_architecture(config: SingleBackboneConfig) -> str:
    """The class that config.json names: transformers' where one computes the same."""
    if isinstance(config, GPTConfig):
        return GPT_MODEL
    return LANGUAGE_MODEL if isinstance(config, EncoderConfig) and config.attends == "left" else OWN_MODEL


def open_language_model(saved: SavedModel) -> LanguageModel:
    """The model of a folder, ready to be measured; InputError for one that is none."""
    config = saved.config
    if saved.weights is None:
        raise InputError(f"{saved.place}: random weights have learned nothing; name a pre-trained model")
    if system_of(config) in (None, "bert") or not isinstance(config, SingleBackboneConfig):
        raise InputError(f"{saved.place}: is no language model, which predicts the next token; this needs one")
    model = LanguageModel(config)
    load_weights(model, saved)
    return model.eval()
