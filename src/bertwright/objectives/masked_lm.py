"""heads → loss: masked LM and a second objective about sentence pairs; the two losses are added (paper §3.1, A.2).

Shapes: B batch, T tokens, P predictions per row, M real predictions in the batch, D hidden, V vocabulary.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.model.backbones import EncoderOutput, build_backbone
from bertwright.model.config import EncoderConfig, attends_both_ways, encoder_shape, need_segments
from bertwright.model.encoder import Pooler, TransformerBackbone, gather_rows
from bertwright.model.families import family_of
from bertwright.model.families.electra import DISCRIMINATOR
from bertwright.model.folder import SavedModel, load_weights, refuse_random
from bertwright.model.heads import MaskedLMHead, NextSentenceHead, for_loss
from bertwright.model.system import NAMES, system_of
from bertwright.objectives.dataset import PretrainingBatch
from bertwright.objectives.settings import SecondSentence
from bertwright.objectives.system_model import SystemModel
from bertwright.objectives.vocabulary_loss import bits_per_character, loss_terms, projected_losses
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, Terms

GENERATOR_FOLDER: Final = "generator"
"""Name of the folder of ELECTRA's generator, which is a masked LM, beside the discriminator in a run folder."""
_TERMS = {"next": "nsp", "order": "sop"}
"""Short name of the second loss and its metrics, by objective."""


@dataclass(frozen=True)
class Inputs:
    """A PretrainingBatch as tensors.

    at: positions of [CLS] and of the masked pieces [B, 1+P]. picked: indices of the real predictions in B·(1+P) [M].
    labels: ids of the masked pieces [M].
    """

    ids: Tensor
    segments: Tensor
    mask: Tensor
    at: Tensor
    picked: Tensor
    labels: Tensor
    is_random: Tensor


class PretrainingModel(SystemModel):
    """Encoder, pooler and two heads: masked LM, and the second objective.

    second_sentence: the second head learns whether B follows A (`next`), or whether A and B are swapped (`order`); it
    is None for `none`. Model folders store both objectives as the head `next_sentence` with two labels. It reads what
    a classifier of that family reads: the state of [CLS] or the mean of all states, after the pooler, or after the
    layer of the masked-LM head where a classifier begins with that one.
    """

    encoder: TransformerBackbone

    def __init__(self, config: EncoderConfig, *, second_sentence: SecondSentence = "next") -> None:
        super().__init__()
        if second_sentence != "none":
            need_segments(config, f"second_sentence {second_sentence}")
        encoder = build_backbone(config)
        assert isinstance(encoder, TransformerBackbone)
        self.encoder = encoder
        has_pooler = config.has_pooler or (second_sentence != "none" and not config.pair_head_shares_layer)
        self.pooler = Pooler(config) if has_pooler else nn.Identity()
        output = family_of(config).output(config)
        assert isinstance(output, MaskedLMHead)
        self.masked_lm = output
        self.second_sentence = second_sentence
        self.next_sentence = None if second_sentence == "none" else NextSentenceHead(config)
        if self.next_sentence is None:
            self.pooler.requires_grad_(False)  # unused: several ranks would wait for a gradient that never comes

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Return states that predict the masked pieces [M, D] and the second head's logits [B, 2] (None without it)."""
        at = state_positions(self.encoder.config, inputs.at)
        last = self.encoded(inputs, None if self.needs_all_states else at).last
        rows = (gather_rows(last, at) if self.needs_all_states else last).flatten(0, 1)[inputs.picked]  # [M, D]
        if self.next_sentence is None:
            return rows, None
        return rows, self.pair_logits(self.encoder.pooled(last, inputs.mask))  # [CLS] is the first of `at`

    def pair_logits(self, state: Tensor) -> Tensor:
        """Return the second head's logits [B, 2] for the states [B, D] that classifiers read."""
        assert self.next_sentence is not None
        shares_layer = self.encoder.config.pair_head_shares_layer
        logits: Tensor = self.next_sentence(self.masked_lm.states(state) if shares_layer else self.pooler(state))
        return logits

    @property
    def needs_all_states(self) -> bool:
        """Return True where the second head reads the mean of all last states."""
        return self.next_sentence is not None and self.encoder.config.pools_all

    def encoded(self, inputs: Inputs, at: Tensor | None) -> EncoderOutput:
        """Return the states at the positions `at` [B, Q], or at all."""
        out: EncoderOutput = self.encoder(inputs.ids, inputs.segments, inputs.mask, at=at)
        return out

    def logits(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Return masked-LM logits [M, V] and the second head's logits [B, 2] (None without it)."""
        rows, pair = self(inputs)
        return self.masked_lm(rows, self.encoder.embeddings.word.weight), pair

    @property
    def architecture(self) -> str:
        """Return the class of transformers with these heads; none has a head for pairs that shares a layer."""
        has_class = self.next_sentence and not self.encoder.config.pair_head_shares_layer
        return "BertForPreTraining" if has_class else "BertForMaskedLM"

    def inputs(self, batch: Any) -> Inputs:
        """Return NumPy rows as tensors."""
        return to_inputs(batch)

    def losses(self, inputs: Any, *, z_weight: float = 0.0) -> Terms:
        """Return the losses of both objectives."""
        rows, pair = self(inputs)
        head, table = self.masked_lm, self.encoder.embeddings.word.weight
        losses = projected_losses(head.states(rows), table, head.bias, inputs.labels, z_weight=z_weight)
        terms = loss_terms("mlm", losses, z_weight=z_weight)
        if pair is not None:
            second_loss = F.cross_entropy(for_loss(pair), inputs.is_random, reduction="sum")
            terms[_TERMS[self.second_sentence]] = (second_loss, "rows")
        return terms

    def counts(self, inputs: Any) -> dict[str, float]:
        """Return the numbers of masked pieces and of rows."""
        return {"predictions": float(len(inputs.labels)), "rows": float(len(inputs.ids))}

    def flops(self, inputs: Any) -> float:
        """Return the FLOPs of encoder and heads."""
        return pretraining_flops(self.encoder, inputs, all_states=self.needs_all_states)

    def metrics(
        self,
        batches: Iterable[Any],
        further: Iterable[Any] = (),
        *,
        characters: np.ndarray | None = None,
        ranks: Ranks = SINGLE_PROCESS,
    ) -> dict[str, float]:
        """Return masked-LM loss (nats), accuracy and perplexity, and loss and accuracy of the second objective.

        Rows may have more tensors than those of masked LM, which are not used.
        """
        sums = self.sums(batches, to_inputs, lambda inputs: self._evaluated(inputs, characters), ranks)
        if self.second_sentence == "order":
            sums |= self.sums(further, to_inputs, lambda inputs: _of_pairs(self(inputs)[1], inputs), ranks)
        loss = sums["mlm"] / sums["predictions"]
        metrics = {
            "mlm_loss": loss,
            "mlm_accuracy": sums["mlm_right"] / sums["predictions"],
            "mlm_perplexity": math.exp(min(loss, 700.0)),
        }
        if sums["characters"]:
            metrics["mlm_bits_per_character"] = bits_per_character(sums["mlm"], sums["characters"])
        if pairs := sums.get("pairs"):
            name = _TERMS[self.second_sentence]
            metrics |= {f"{name}_loss": sums["pair_loss"] / pairs, f"{name}_accuracy": sums["pair_right"] / pairs}
        return metrics | {name: int(sums[name]) for name in ("rows", "predictions")}

    def _evaluated(self, inputs: Inputs, characters: np.ndarray | None) -> dict[str, float]:
        """Return the sums of a batch for `metrics`."""
        logits, pair = self.logits(inputs)
        lengths = 0 if characters is None else characters[inputs.labels.cpu().numpy()].clip(min=0).sum()
        return {
            "mlm": float(F.cross_entropy(for_loss(logits), inputs.labels, reduction="sum")),
            "mlm_right": float((logits.argmax(1) == inputs.labels).sum()),
            "predictions": len(inputs.labels),
            "rows": len(inputs.ids),
            "characters": float(lengths),
            **(_of_pairs(pair, inputs) if self.second_sentence == "next" else {}),
        }


def state_positions(config: EncoderConfig, at: Tensor) -> Tensor:
    """Return the positions of the states that predict masked pieces at `at` [B, Q]: the same, or those before."""
    return (at - 1).clamp(min=0) if config.predicts_ahead else at


def to_inputs(batch: PretrainingBatch) -> Inputs:
    """Return NumPy rows as tensors; padded predictions stay in `at` but are not in `picked`."""
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


def pretraining_flops(backbone: TransformerBackbone, inputs: Inputs, *, all_states: bool = False) -> float:
    """Return the FLOPs of the matrix products in the forward and backward pass of a batch.

    all_states: True where the last layer is computed at all positions.
    """
    rows, length = inputs.ids.shape
    config, width, narrow = backbone.config, backbone.config.hidden, backbone.config.embedding_width
    heads = 2 * len(inputs.labels) * narrow * (width + config.vocab_size) + 2 * rows * width**2
    num_last = length if all_states else inputs.at.shape[1]
    return 3.0 * (rows * backbone.flops(length, num_last) + heads)


def _of_pairs(pair: Tensor | None, inputs: Inputs) -> dict[str, float]:
    """Return the loss, the right answers and the rows of the second head's logits [B, 2]."""
    assert pair is not None
    return {
        "pair_loss": float(F.cross_entropy(for_loss(pair), inputs.is_random, reduction="sum")),
        "pair_right": float((pair.argmax(1) == inputs.is_random).sum()),
        "pairs": len(inputs.ids),
    }


def open_pretrained(
    saved: SavedModel, *, second_sentence: SecondSentence = "none", fills: bool = True
) -> PretrainingModel:
    """Return the model of a folder in evaluation mode, with the weights of the heads that are needed.

    fills: True where the masked-LM head is needed. second_sentence: `none` where the second head is not needed.
    Heads that are not needed keep random weights. Raises InputError where weights of a needed head are missing.
    """
    refuse_random(saved)
    system = system_of(saved.config)
    if fills and saved.architecture == DISCRIMINATOR:
        generator = Path(saved.source).parent / GENERATOR_FOLDER
        raise InputError(
            f"{saved.source}: expected a masked LM, such as ELECTRA's generator (ElectraForMaskedLM), got ELECTRA's "
            "discriminator (ElectraForPreTraining), which finds replaced tokens and fills no [MASK]"
            f"{f'; name the generator beside it, {generator}' if generator.is_dir() else ''}"
        )
    if system and not attends_both_ways(saved.config):
        raise InputError(
            f"{saved.source}: expected a BERT, got a {NAMES[system]}, which predicts the next token and fills no [MASK]"
        )
    model = PretrainingModel(encoder_shape(saved.config, saved.source), second_sentence=second_sentence)
    has_pair = second_sentence != "none"
    reads_output = fills or (has_pair and saved.config.pair_head_shares_layer)
    unread = (*(() if reads_output else ("masked_lm",)), *(() if has_pair else ("pooler",)))
    load_weights(model, saved, fresh=unread)
    return model.eval()


def has_masked_lm(saved: SavedModel) -> bool:
    """Return True where a model folder has the head that fills [MASK]. With one-sided attention no model has one."""
    return attends_both_ways(saved.config) and any(name.startswith("masked_lm.") for name in saved.weights or {})


def second_objective(saved: SavedModel) -> SecondSentence:
    """Return the objective of a saved model's second head; `next`, as in the original, where the folder names none."""
    if "next_sentence.linear.weight" not in (saved.weights or {}):
        return "none"
    named: SecondSentence = saved.extra.get("second_sentence", "next")
    if named not in get_args(SecondSentence):
        allowed = ", ".join(get_args(SecondSentence))
        raise InputError(f"{saved.source}: config.json: second_sentence is {named!r}; allowed are {allowed}")
    return named
