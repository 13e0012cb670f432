"""heads → loss: masked next-token prediction beside the causal loss, in one model (GPT-BERT, arXiv 2410.24159, §2).

A fraction of the rows is causal: attention goes to the left, and every token after the first is predicted from the
state before it. In the other rows attention goes to both sides, and pieces are masked. A masked piece is predicted from
the state before it too, so that both objectives have the same output layer. The loss is the mean of each objective,
times the fraction of its rows.

The choice of the causal rows is a pure function of seed, epoch and row.

Shapes: B batch, T tokens, P predictions per row, M masked pieces, N predicted tokens of causal rows, D hidden.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertwright.model.backbones import EncoderOutput
from bertwright.model.config import EncoderConfig, encoder_shape, predicts_ahead
from bertwright.model.folder import SavedModel, load_weights, refuse_random
from bertwright.objectives.dataset import Examples, PretrainingBatch
from bertwright.objectives.language_model import LanguageModel
from bertwright.objectives.masked_lm import Inputs, PretrainingModel
from bertwright.objectives.settings import CAUSAL_SHARE
from bertwright.objectives.vocabulary_loss import Z_LOSS, loss_terms, projected_losses, running_losses
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, Terms

_CAUSAL = 0xCA05
"""Purpose in the keys of the streams."""
_COUNTS = ("rows", "predictions")


@dataclass(frozen=True)
class MixedBatch(PretrainingBatch):
    """Rows with masks, and causal rows without them."""

    causal: np.ndarray  # bool [B]: True for a causal row


class MixedRows(Examples):
    """Rows for masked LM, of which the fraction `causal_share` of the settings is causal."""

    def _planned_batch(self, epoch: int, rows: np.ndarray, planned: np.ndarray) -> MixedBatch:
        from bertwright.objectives.sampling import probability, row_draws, stream_key

        batch = super()._planned_batch(epoch, rows, planned)
        drawn = row_draws(rows, 1, stream_key(self._seed, epoch, _CAUSAL))[:, 0]
        causal = drawn < int(probability(self.settings.causal_share))
        unmasked = causal[:, None] & (batch.weights > 0)
        ids, (row, column) = batch.ids.copy(), unmasked.nonzero()
        ids[row, batch.positions[row, column]] = batch.labels[row, column]
        without: dict[str, Any] = {
            name: np.where(causal[:, None], 0, getattr(batch, name)).astype(getattr(batch, name).dtype)
            for name in ("positions", "labels", "weights")
        }
        return MixedBatch(**{**vars(batch), **without, "ids": ids}, causal=causal)


@dataclass(frozen=True)
class MixedInputs(Inputs):
    """A MixedBatch as tensors.

    at: all positions [B, T]. picked: indices in B·T of the predicted tokens [M+N]: the masked pieces, then the tokens
    of causal rows. labels: ids of the masked pieces [M]. next_labels: ids of the tokens of causal rows [N].
    causal: True for a causal row [B].
    """

    next_labels: Tensor
    causal: Tensor


def mixed_inputs(batch: MixedBatch) -> MixedInputs:
    """Return NumPy rows as tensors; in a causal row each token before the padding is predicted, but the first."""
    ids, causal = torch.from_numpy(batch.ids), torch.from_numpy(batch.causal)
    rows, length = ids.shape
    mask = torch.arange(length) < torch.from_numpy(batch.lengths)[:, None]
    is_next = mask & causal[:, None]
    is_next[:, 0] = False
    row, column = (batch.weights > 0).nonzero()
    masked = torch.from_numpy(row * length + batch.positions[row, column])
    following = is_next.flatten().nonzero().squeeze(1)
    return MixedInputs(
        ids=ids,
        segments=torch.from_numpy(batch.segments),
        mask=mask,
        at=torch.arange(length).expand(rows, length).contiguous(),
        picked=torch.cat((masked, following)),
        labels=torch.from_numpy(batch.labels[row, column]).long(),
        is_random=torch.from_numpy(batch.is_random).long(),
        next_labels=ids.flatten()[following].long(),
        causal=causal,
    )


class MixedModel(PretrainingModel):
    """An encoder and one head, for masked pieces and for the next token.

    causal_share: fraction of the training rows that are causal, by which the loss is weighted.
    """

    def __init__(self, config: EncoderConfig, *, causal_share: float = CAUSAL_SHARE) -> None:
        super().__init__(config, second_sentence="none")
        self.causal_share = causal_share

    def encoded(self, inputs: Inputs, at: Tensor | None) -> EncoderOutput:
        """Return the states at the positions `at` [B, Q], or at all, with attention to the left in causal rows."""
        causal = inputs.causal if isinstance(inputs, MixedInputs) else None
        out: EncoderOutput = self.encoder(inputs.ids, inputs.segments, inputs.mask, at=at, causal=causal)
        return out

    def language_model(self) -> LanguageModel:
        """Return the model as a language model, which shares all weights with this one."""
        with torch.device("meta"):
            model = LanguageModel(causal_config(self.encoder.config))
        model.encoder.embeddings, model.encoder.layers = self.encoder.embeddings, self.encoder.layers
        model.masked_lm = self.masked_lm
        return model

    def inputs(self, batch: Any) -> MixedInputs:
        """Return NumPy rows as tensors."""
        return mixed_inputs(batch)

    def losses(self, inputs: Any, *, z_weight: float = 0.0) -> Terms:
        """Return the losses of both kinds of rows."""
        states, head = self.masked_lm.states(self(inputs)[0]), self.masked_lm
        masked, following = states.split([len(inputs.labels), len(inputs.next_labels)])
        projection = self.encoder.embeddings.word.weight, head.bias
        of_masks = projected_losses(masked, *projection, inputs.labels, z_weight=z_weight)
        of_next, z_loss = running_losses(following, *projection, inputs.next_labels, z_weight=z_weight)
        terms = {**loss_terms("mlm", of_masks, z_weight=z_weight), "lm": (of_next, "next_tokens")}
        return {**terms, f"lm_{Z_LOSS}": (z_loss, "next_tokens")} if z_weight else terms

    def counts(self, inputs: Any) -> dict[str, float]:
        """Return the numbers of masked pieces and of the tokens that causal rows predict."""
        return {"predictions": float(len(inputs.labels)), "next_tokens": float(len(inputs.next_labels))}

    def flops(self, inputs: Any) -> float:
        """Return the FLOPs of the encoder and of both kinds of predictions."""
        width, vocab_size = self.encoder.config.hidden, self.encoder.config.vocab_size
        return super().flops(inputs) + 6.0 * len(inputs.next_labels) * width * (width + vocab_size)

    @property
    def loss_weights(self) -> Mapping[str, float]:
        """Return the fraction of the rows of each kind."""
        return {"mlm": 1.0 - self.causal_share, "lm": self.causal_share}

    def metrics(
        self,
        batches: Iterable[Any],
        further: Iterable[Any] = (),
        *,
        characters: np.ndarray | None = None,
        ranks: Ranks = SINGLE_PROCESS,
    ) -> dict[str, float]:
        """Return the metrics of masked LM, and those of the language model on `further`, rows without masks.

        The numbers of rows and predictions are those of masked LM. Where `further` is empty, the metrics of the
        language model are left out.
        """
        masked, causal_batches = super().metrics(batches, characters=characters, ranks=ranks), list(further)
        options: Any = {"characters": characters, "ranks": ranks}
        causal = self.language_model().metrics(causal_batches, **options) if causal_batches else {}
        return {**_without_counts(masked), **_without_counts(causal), **{name: masked[name] for name in _COUNTS}}


def causal_config(config: EncoderConfig) -> EncoderConfig:
    """Return the configuration of the language model with the same weights."""
    return config.model_copy(update={"attends": "left"})


def as_language_model(saved: SavedModel) -> SavedModel:
    """Return a saved GPT-BERT as the language model that it is too; every other model is returned as it is."""
    return replace(saved, config=causal_config(saved.config)) if predicts_ahead(saved.config) else saved


def _without_counts(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name not in _COUNTS}


def open_mixed(saved: SavedModel) -> MixedModel:
    """Return the model of a folder in evaluation mode. Raises InputError where its weights or its head are missing."""
    refuse_random(saved)
    model = MixedModel(encoder_shape(saved.config, saved.source))
    load_weights(model, saved)
    return model.eval()
