"""heads → loss: a generator fills masks, and a discriminator finds the tokens that it replaced (ELECTRA, §2 and §3.1).

The generator is a small masked LM. A piece is sampled from its softmax for each masked position, and takes the place of
the mask. The discriminator says of every token whether it is another one than in the text. The loss is that of masked
LM plus 50 times that of the discriminator. No gradient flows through the sampling. Both models have the same tables of
embeddings.

The random numbers of the sampling are pure functions of the row: each mask has a number of the stream of its row. The
probabilities are whole multiples of 2**-30, whose sums are exact in any order.

Shapes: B batch, T tokens, P predictions per row, M real predictions in the batch, D hidden, E width of the embeddings,
V vocabulary.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.model.backbones import build_backbone
from bertwright.model.config import HEAD_WIDTH, EncoderConfig, encoder_shape
from bertwright.model.encoder import Encoder
from bertwright.model.families.electra import DISCRIMINATOR, GENERATOR
from bertwright.model.folder import SavedModel, load_weights, open_model, save_model
from bertwright.model.heads import ReplacedTokenHead, for_loss
from bertwright.objectives.dataset import Examples, PretrainingBatch
from bertwright.objectives.masked_lm import (
    GENERATOR_FOLDER,
    Inputs,
    PretrainingModel,
    to_inputs,
)
from bertwright.objectives.settings import GENERATOR_WIDTH
from bertwright.objectives.system_model import SystemModel
from bertwright.objectives.vocabulary_loss import is_bf16, loss_terms, projected_losses
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, Terms

WEIGHT: Final = 50.0
"""Factor of the discriminator's loss (λ in §2)."""
_PREFIX = "generator."
_TABLES = ("word", "position", "segment")
_SAMPLING = 0x5A3B
"""Purpose in the keys of the streams."""
_ROWS: Final = 128
"""Number of rows whose probabilities are in memory at a time."""
_PARTS: Final = 2.0**30
"""Probabilities are whole multiples of one over this number."""


@dataclass(frozen=True)
class SampledBatch(PretrainingBatch):
    """Rows with masks, and a random number for each prediction."""

    draws: np.ndarray  # int64 [B, P]: random numbers from 0 to 2**32 - 1


class SampledRows(Examples):
    """Rows for masked LM, with the random numbers by which the generator's pieces are sampled."""

    def _planned_batch(self, epoch: int, rows: np.ndarray, planned: np.ndarray) -> SampledBatch:
        from bertwright.objectives.sampling import row_draws, stream_key

        batch = super()._planned_batch(epoch, rows, planned)
        draws = row_draws(rows, self.max_predictions, stream_key(self._seed, epoch, _SAMPLING))
        return SampledBatch(**vars(batch), draws=draws)


@dataclass(frozen=True)
class GeneratorInputs(Inputs):
    """A SampledBatch as tensors; `draws` are the random numbers of the real predictions [M]."""

    draws: Tensor


def sampled_inputs(batch: SampledBatch) -> GeneratorInputs:
    """Return NumPy rows as tensors."""
    return GeneratorInputs(**vars(to_inputs(batch)), draws=torch.from_numpy(batch.draws[batch.weights > 0]))


def generator_config(config: EncoderConfig, width: float) -> EncoderConfig:
    """Return the generator's configuration: the same layers, with states `width` times as wide (§3.2).

    Heads are about 64 wide, and the feed-forward layer is four times as wide as the states.
    """
    hidden = max(1, round(config.hidden * width))
    heads = next(heads for heads in range(max(1, hidden // HEAD_WIDTH), 0, -1) if hidden % heads == 0)
    return config.model_copy(update={"hidden": hidden, "heads": heads, "intermediate": 4 * hidden})


class ReplacedTokenModel(SystemModel):
    """A discriminator, and the generator that replaces tokens of its input."""

    encoder: Encoder

    def __init__(self, config: EncoderConfig, *, generator_width: float = GENERATOR_WIDTH) -> None:
        super().__init__()
        encoder = build_backbone(config)
        assert isinstance(encoder, Encoder)
        self.encoder = encoder
        self.replaced_token = ReplacedTokenHead(config)
        self.generator = PretrainingModel(generator_config(config, generator_width), second_sentence="none")
        _share_tables(self.generator.encoder.embeddings, encoder.embeddings)

    def forward(self, inputs: GeneratorInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Return the generator's vectors [M, E] before the vocabulary, logits of the tokens [B, T], and which of them
        are replaced [B, T]."""
        output, table = self.generator.masked_lm, self.encoder.embeddings.word.weight
        vectors = output.states(self.generator(inputs)[0])
        fixed = (part.detach() for part in (vectors, table, output.bias))
        pieces = sample_pieces(*fixed, inputs.draws, is_bf16(vectors.device))
        ids, replaced = with_pieces(inputs, pieces)
        return vectors, self.replaced_token(self.encoder(ids, inputs.segments, inputs.mask).last), replaced

    @property
    def architecture(self) -> str:
        """Return the class of the discriminator."""
        return DISCRIMINATOR

    def inputs(self, batch: Any) -> GeneratorInputs:
        """Return NumPy rows as tensors."""
        return sampled_inputs(batch)

    def losses(self, inputs: GeneratorInputs, *, z_weight: float = 0.0) -> Terms:
        """Return the losses of both models; the discriminator has no sum over the vocabulary, and so no z-loss."""
        vectors, logits, replaced = self(inputs)
        table, bias = self.encoder.embeddings.word.weight, self.generator.masked_lm.bias
        losses = projected_losses(vectors, table, bias, inputs.labels, z_weight=z_weight)
        detecting = {"rtd": (_summed_loss(logits, replaced, inputs.mask), "tokens")}
        return loss_terms("mlm", losses, z_weight=z_weight) | detecting

    def counts(self, inputs: GeneratorInputs) -> dict[str, float]:
        """Return the numbers of masked pieces and of real tokens."""
        return {"predictions": float(len(inputs.labels)), "tokens": float(inputs.mask.sum())}

    def flops(self, inputs: GeneratorInputs) -> float:
        """Return the FLOPs of both models, without the sampling."""
        rows, length = inputs.ids.shape
        width = self.encoder.config.hidden
        detecting = rows * (self.encoder.flops(length, length) + 2 * length * width * (width + 1))
        return self.generator.flops(inputs) + 3.0 * detecting

    @property
    def loss_weights(self) -> Mapping[str, float]:
        """Return the factor of the discriminator's loss."""
        return {"rtd": WEIGHT}

    def blocks(self) -> Sequence[nn.Module]:
        """Return the layers of both models."""
        return (*self.encoder.blocks(), *self.generator.encoder.blocks())

    def metrics(
        self,
        batches: Iterable[Any],
        further: Iterable[Any] = (),
        *,
        characters: np.ndarray | None = None,
        ranks: Ranks = SINGLE_PROCESS,
    ) -> dict[str, float]:
        """Return the generator's metrics of masked LM, and the discriminator's loss, accuracy, precision and recall.

        Precision and recall are those of replaced tokens, at a probability of one half; 0 where a denominator is 0.
        """
        every = list(batches)
        metrics = self.generator.metrics(every, characters=characters, ranks=ranks)
        sums = self.sums(every, self.inputs, self._detected, ranks)
        return {
            **{name: value for name, value in metrics.items() if name not in ("rows", "predictions")},
            "rtd_loss": sums["loss"] / sums["tokens"],
            "rtd_accuracy": sums["right"] / sums["tokens"],
            "rtd_precision": sums["found"] / max(1.0, sums["said"]),
            "rtd_recall": sums["found"] / max(1.0, sums["replaced"]),
            "rows": metrics["rows"],
            "predictions": metrics["predictions"],
        }

    def _detected(self, inputs: GeneratorInputs) -> dict[str, float]:
        """Return the discriminator's sums of a batch for `metrics`."""
        _, logits, replaced = self(inputs)
        said, is_replaced = logits[inputs.mask] > 0, replaced[inputs.mask]
        return {
            "loss": float(_summed_loss(logits, replaced, inputs.mask)),
            "right": float((said == is_replaced).sum()),
            "tokens": len(said),
            "said": float(said.sum()),
            "found": float((said & is_replaced).sum()),
            "replaced": float(is_replaced.sum()),
        }


def _share_tables(embeddings: nn.Module, shared: nn.Module) -> None:
    """Put tables of embeddings in the place of those of `embeddings` (in place).

    They are not registered there, so that a checkpoint has them once.
    """
    for name in _TABLES:
        if isinstance(getattr(embeddings, name), nn.Embedding):
            delattr(embeddings, name)
            vars(embeddings)[name] = getattr(shared, name)


def with_pieces(inputs: Inputs, pieces: Tensor) -> tuple[Tensor, Tensor]:
    """Return ids [B, T] with `pieces` [M] at the masked positions, and True for those that are not the text's [B, T].

    A piece that equals that of the text is no replacement.
    """
    rows = inputs.picked.div(inputs.at.shape[1], rounding_mode="floor")
    places = rows * inputs.ids.shape[1] + inputs.at.flatten()[inputs.picked]
    ids = inputs.ids.flatten().scatter(0, places, pieces.to(inputs.ids.dtype))
    replaced = torch.zeros_like(ids, dtype=torch.bool).scatter(0, places, pieces != inputs.labels)
    return ids.view_as(inputs.ids), replaced.view_as(inputs.ids)


# A custom operator: torch.compile does not trace into its loop, whose length is that of the batch.
@torch.library.custom_op("bertwright::sample_pieces", mutates_args=())
def sample_pieces(states: Tensor, embeddings: Tensor, bias: Tensor, draws: Tensor, in_bf16: bool) -> Tensor:
    """Return a piece for each of the `states` [M, E], sampled from the softmax of its logits: int64 [M].

    embeddings [V, E] and bias [V] turn states into logits. draws: a number from 0 to 2**32 - 1 for each state [M].
    """
    pieces = torch.empty_like(draws)
    with torch.autocast(states.device.type, enabled=False):
        kind = torch.bfloat16 if in_bf16 else for_loss(states).dtype
        table = embeddings.to(kind).t()
        for begin in range(0, len(states), _ROWS):
            block = slice(begin, begin + _ROWS)
            logits = for_loss(states[block].to(kind) @ table) + bias
            sums = (logits.softmax(1) * _PARTS).long().cumsum(1)  # [_ROWS, V]
            at = (draws[block] * sums[:, -1]) >> 32
            chosen = torch.searchsorted(sums, at[:, None], right=True)[:, 0]
            pieces[block] = chosen.clamp_(max=len(embeddings) - 1)  # logits that are no numbers have no sums
    return pieces


@sample_pieces.register_fake
def _(states: Tensor, embeddings: Tensor, bias: Tensor, draws: Tensor, in_bf16: bool) -> Tensor:
    return torch.empty_like(draws)


def _summed_loss(logits: Tensor, replaced: Tensor, mask: Tensor) -> Tensor:
    """Return the binary cross entropy of real tokens, summed."""
    logits = for_loss(logits)
    losses = F.binary_cross_entropy_with_logits(logits, replaced.to(logits.dtype), reduction="none")
    return losses.masked_fill(~mask, 0.0).sum()


def weights_of_discriminator(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the model folder that a run keeps."""
    return {name: tensor for name, tensor in weights.items() if not name.startswith(_PREFIX)}


def save_generator(folder: Path, weights: Mapping[str, Tensor], *, config: EncoderConfig, tokenizer: Path) -> None:
    """Write the generator's model folder, with the tables of embeddings of the discriminator.

    weights: those of both models. config: that of the discriminator. tokenizer: folder whose files are copied.
    """
    inner = {name.removeprefix(_PREFIX): part for name, part in weights.items() if name.startswith(_PREFIX)}
    shape = generator_config(config, inner["masked_lm.transform.weight"].shape[1] / config.hidden)
    tables = {name: weights[name] for name in _table_names()}
    save_model(folder, tables | inner, config=shape, tokenizer=tokenizer, architecture=GENERATOR)


def _table_names() -> tuple[str, ...]:
    return tuple(f"encoder.embeddings.{name}.weight" for name in _TABLES)


def with_generator(saved: SavedModel) -> SavedModel:
    """Return a discriminator with the weights of the generator beside it in a run folder, if there is one.

    Their names begin with "generator.". Raises InputError for a generator, and for one that was not trained with it.
    """
    if saved.architecture == GENERATOR:
        raise InputError(
            f"{saved.source}: expected ELECTRA's discriminator (ElectraForPreTraining), got its generator "
            "(ElectraForMaskedLM); name the folder of the discriminator"
        )
    folder = Path(saved.source).with_name(GENERATOR_FOLDER)
    if saved.weights is None or Path(saved.source).name != "model" or not (folder / "config.json").is_file():
        return saved
    generator = open_model(str(folder))
    mine, weights = encoder_shape(saved.config, saved.source), generator.weights or {}
    is_fitting = generator.architecture == GENERATOR and generator.config == generator_config(
        mine, generator.config.hidden / mine.hidden
    )
    if not is_fitting or not all(torch.equal(weights[name], saved.weights[name]) for name in _table_names()):
        raise InputError(
            f"{folder}: expected the generator with which {saved.source} was trained, with the same embeddings, got "
            "another model; remove it, or put both back"
        )
    inner = {name: part for name, part in weights.items() if name not in _table_names()}
    return replace(saved, weights={**saved.weights, **{f"{_PREFIX}{name}": part for name, part in inner.items()}})


def generator_hidden(saved: SavedModel) -> int | None:
    """Return the width of the generator's states; None for a model without a generator."""
    weight = (saved.weights or {}).get(f"{_PREFIX}masked_lm.transform.weight")
    return None if weight is None else weight.shape[1]


def open_replaced_tokens(saved: SavedModel) -> ReplacedTokenModel:
    """Return the two models of `with_generator` in evaluation mode. Raises InputError where one of them is missing."""
    hidden = generator_hidden(saved)
    if hidden is None or saved.architecture != DISCRIMINATOR:
        raise InputError(
            f"{saved.source}: expected a run of --system electra, with the discriminator in model/ and the generator "
            f"that replaces its tokens in {GENERATOR_FOLDER}/ beside it, got a {saved.architecture} without one"
        )
    config = encoder_shape(saved.config, saved.source)
    model = ReplacedTokenModel(config, generator_width=hidden / config.hidden)
    load_weights(model, saved)
    return model.eval()
