"""heads → loss: masked LM and a second objective about pairs together, losses added (paper §3.1, A.2).

Shapes: B batch, T tokens, P predictions per row, M real predictions in the batch, D hidden, V vocabulary.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.model.config import NAMES, EncoderConfig, encoder_shape, need_segments, system_of
from bertwright.model.encoder import Encoder, Pooler
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.heads import MaskedLMHead, NextSentenceHead, for_loss
from bertwright.objectives.dataset import PretrainingBatch
from bertwright.objectives.settings import SecondSentence
from bertwright.objectives.vocabulary_loss import bits_per_character, projected_loss
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, Trainable
from bertwright.training.hardware import module_device, move_to_device

_TERMS = {"next": "nsp", "order": "sop"}
"""What the second loss and its figures are called, by objective."""


@dataclass(frozen=True)
class Inputs:
    """A PretrainingBatch as tensors.

    `at` [B, 1+P]: [CLS] and the masked positions; `picked` [M]: the real ones among B·(1+P); `labels` [M].
    """

    ids: Tensor
    segments: Tensor
    mask: Tensor
    at: Tensor
    picked: Tensor
    labels: Tensor
    is_random: Tensor


class PretrainingModel(nn.Module):
    """Encoder, pooler and both heads.

    second_sentence: what the second head learns: whether B follows A (next), whether A and B were swapped (order), or
    nothing: then `next_sentence`, the head, is None. In model folders it is the same head, with the same two labels.
    """

    def __init__(self, config: EncoderConfig, *, second_sentence: SecondSentence = "next") -> None:
        super().__init__()
        if second_sentence != "none":
            need_segments(config, f"second_sentence {second_sentence}")
        self.encoder = Encoder(config)
        self.pooler = Pooler(config)
        self.masked_lm = MaskedLMHead(config)
        self.second_sentence = second_sentence
        self.next_sentence = None if second_sentence == "none" else NextSentenceHead(config)
        if self.next_sentence is None:
            self.pooler.requires_grad_(False)  # nothing reads it: ranks would wait for its gradient

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Encoder states at the masked positions [M, D] and the second head's logits [B, 2] (None without it)."""
        out = self.encoder(inputs.ids, inputs.segments, inputs.mask, at=inputs.at)
        rows = out.last.flatten(0, 1)[inputs.picked]  # [M, D]
        return rows, self.next_sentence(self.pooler(out.last[:, 0])) if self.next_sentence else None

    def logits(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Masked-LM logits [M, V] and the second head's logits [B, 2] (None without it)."""
        rows, pair = self(inputs)
        return self.masked_lm(rows, self.encoder.embeddings.word.weight), pair


def to_inputs(batch: PretrainingBatch) -> Inputs:
    """Numpy rows → tensors; padded predictions stay in `at` but are not picked."""
    rows, width = batch.positions.shape
    at = torch.zeros(rows, width + 1, dtype=torch.int64)
    at[:, 1:] = torch.from_numpy(batch.positions)
    real = torch.zeros(rows, width + 1, dtype=torch.bool)
    real[:, 1:] = torch.from_numpy(batch.weights > 0)
    length = batch.ids.shape[1]
    return Inputs(
        ids=torch.from_numpy(batch.ids),
        segments=torch.from_numpy(batch.segments),
        mask=torch.arange(length) < torch.from_numpy(batch.lengths)[:, None],
        at=at,
        picked=real.flatten().nonzero().squeeze(1),
        labels=torch.from_numpy(batch.labels[batch.weights > 0]).long(),
        is_random=torch.from_numpy(batch.is_random).long(),
    )


def pretraining_losses(model: PretrainingModel, inputs: Inputs) -> dict[str, tuple[Tensor, str]]:
    """Summed losses with the name of what they are divided by."""
    rows, pair = model(inputs)
    head = model.masked_lm
    loss = projected_loss(head.states(rows), model.encoder.embeddings.word.weight, head.bias, inputs.labels)
    terms = {"mlm": (loss, "predictions")}
    if pair is not None:
        terms[_TERMS[model.second_sentence]] = (
            F.cross_entropy(for_loss(pair), inputs.is_random, reduction="sum"),
            "rows",
        )
    return terms


def pretraining_flops(body: Encoder, inputs: Inputs) -> float:
    """Floating-point work of forward and backward over a batch: matrix products alone, as they are computed."""
    rows, length = inputs.ids.shape
    config, width = body.config, body.config.hidden
    heads = 2 * len(inputs.labels) * (width**2 + width * config.vocab_size) + 2 * rows * width**2
    return 3.0 * (rows * body.flops(length, inputs.at.shape[1]) + heads)


def pretraining_task(model: PretrainingModel) -> Trainable[Inputs]:
    """What the loop trains: masked LM and, where the model has its head, the second objective."""
    return Trainable(
        module=model,
        blocks=model.encoder.blocks(),
        step=lambda inputs: pretraining_losses(model, inputs),
        counts=lambda inputs: {"predictions": float(len(inputs.labels)), "rows": float(len(inputs.ids))},
        flops=lambda inputs: pretraining_flops(model.encoder, inputs),
        tokens=lambda inputs: int(inputs.mask.sum()),
    )


def held_out_figures(
    model: PretrainingModel,
    batches: Iterable[PretrainingBatch],
    ordered: Iterable[PretrainingBatch] = (),
    characters: np.ndarray | None = None,
    *,
    ranks: Ranks = SINGLE_PROCESS,
) -> dict[str, float]:
    """Masked-LM loss (nats), accuracy and perplexity, loss and accuracy of the second objective, over fixed rows.

    batches: rows for masked LM and next-sentence prediction. ordered: rows for sentence order, read where the model
    learned that. characters [V]: of each piece, for the bits that a masked character costs. The caller puts the model
    in evaluation mode. Figures are means over all predictions and all rows, not over batches. Several ranks, which all
    get the same batches, share them out.
    """
    place = module_device(model)
    masked = dict.fromkeys(("mlm", "mlm_right", "predictions", "rows", "characters"), 0.0)
    second = dict.fromkeys(("loss", "right", "pairs"), 0.0)
    for _, batch, counts in ranks.partition(list(batches)):
        inputs = move_to_device(to_inputs(batch), place)
        logits, pair = model.logits(inputs)
        if not counts:
            continue
        masked["mlm"] += float(F.cross_entropy(for_loss(logits), inputs.labels, reduction="sum"))
        masked["mlm_right"] += float((logits.argmax(1) == inputs.labels).sum())
        masked["predictions"] += len(inputs.labels)
        masked["rows"] += len(inputs.ids)
        masked["characters"] += 0.0 if characters is None else float(characters[inputs.labels.cpu().numpy()].sum())
        if model.second_sentence == "next":
            _add_pairs(second, pair, inputs)
    if model.second_sentence == "order":
        for _, batch, counts in ranks.partition(list(ordered)):
            inputs = move_to_device(to_inputs(batch), place)
            pair = model(inputs)[1]
            if counts:
                _add_pairs(second, pair, inputs)
    masked, second = (dict(zip(part, ranks.sum(list(part.values())), strict=True)) for part in (masked, second))
    loss = masked["mlm"] / masked["predictions"]
    figures = {
        "mlm_loss": loss,
        "mlm_accuracy": masked["mlm_right"] / masked["predictions"],
        "mlm_perplexity": math.exp(min(loss, 700.0)),
    }
    if masked["characters"]:
        figures["mlm_bits_per_character"] = bits_per_character(masked["mlm"], masked["characters"])
    if second["pairs"]:
        name, pairs = _TERMS[model.second_sentence], second["pairs"]
        figures |= {f"{name}_loss": second["loss"] / pairs, f"{name}_accuracy": second["right"] / pairs}
    return figures | {"rows": masked["rows"], "predictions": masked["predictions"]}


def _add_pairs(sums: dict[str, float], pair: Tensor | None, inputs: Inputs) -> None:
    """Summed loss, right answers and rows of the second head's logits [B, 2]."""
    assert pair is not None
    sums["loss"] += float(F.cross_entropy(for_loss(pair), inputs.is_random, reduction="sum"))
    sums["right"] += float((pair.argmax(1) == inputs.is_random).sum())
    sums["pairs"] += len(inputs.ids)


def open_pretrained(
    saved: SavedModel, *, second_sentence: SecondSentence = "none", fills: bool = True
) -> PretrainingModel:
    """The model with its masked-LM head where it `fills`, and the second head where one is wanted.

    InputError without them. Published models have the parts alone that their use reads; the others stay random here.
    """
    if saved.weights is None:
        raise InputError(f"{saved.place}: random weights have learned nothing; name a pre-trained model")
    system = system_of(saved.config)
    if system not in (None, "bert"):
        raise InputError(f"{saved.place}: is a {NAMES[system]}, which predicts the next token and fills no [MASK]")
    model = PretrainingModel(encoder_shape(saved.config, saved.place), second_sentence=second_sentence)
    unread = (*(() if fills else ("masked_lm",)), *(("pooler",) if second_sentence == "none" else ()))
    load_weights(model, saved, fresh=unread)
    return model.eval()


def second_objective(saved: SavedModel) -> SecondSentence:
    """What the second head of a saved model was trained for; a folder that does not say so learned the original's."""
    if "next_sentence.linear.weight" not in (saved.weights or {}):
        return "none"
    named: SecondSentence = saved.extra.get("second_sentence", "next")
    if named not in get_args(SecondSentence):
        allowed = ", ".join(get_args(SecondSentence))
        raise InputError(f"{saved.place}: config.json: second_sentence is {named!r}; allowed are {allowed}")
    return named
