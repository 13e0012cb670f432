"""heads → loss: the vocabulary projection and its cross entropy, tile by tile in the processor's cache.

The logits of a batch (rows x 30,522) are the largest array of a small BERT's step, and memory traffic dominates its
cost. Here a few hundred columns at a time are projected, exponentiated and multiplied with the word embeddings while
they are in the cache. The exponentials are stored once, for the gradient of the word embeddings. Softmax divides by a
sum over all columns, so each row is divided by its sum after the last tile. The label's column is left out of the
products and added in fp32: where its probability is near 1, rounding would lose the probabilities of all other columns.
The numbers equal `F.cross_entropy(F.linear(…))` in the precision of the matrix products.

A language model predicts at every position, about seven times as many rows as masked LM. Its rows are processed in
blocks. The gradient of a block is computed with its loss, so that only the logits of a single block are in memory.

The z-loss keeps the sum Z over the vocabulary near 1: it is a weight times (log Z)², summed over the rows (PaLM, §5).
It needs no pass of its own, since each probability's gradient is multiplied by 1 + 2 · weight · log Z of its row. So
the gradients of both come with the loss, and the z-loss itself is a number beside it.

A loss in bits per character can be compared between vocabularies whose pieces differ in length.

Shapes: M rows, D hidden, V vocabulary, C columns of a tile.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.model.cpu import training_kernels
from bertwright.model.heads import for_loss
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.published_tokenizer import PublishedTokenizer

_COLUMNS: Final = 384
"""Number of columns of a tile; with 600 rows a tile of fp32 about fills the second-level cache of a core."""
_BF16_COLUMNS: Final = 2048
"""Number of columns of a tile in bf16, where a call costs more than the cache saves (docs/log.md)."""
_BLOCK: Final = 1024
"""Number of rows of a block on processors."""
Z_LOSS: Final = "z"
"""Name of the z-loss in metrics.jsonl, where its weight is a factor of it."""
_LARGEST: Final = 1e20
"""Largest sum of exponentials, and the inverse of the smallest; outside of them the logits are computed all at once."""


@dataclass(frozen=True)
class _Powers:
    """The losses of some rows, and the parts of their gradient.

    powers: e^logits, tile after tile, [M x C] each; 0 for labels. factors: factor that turns the powers of a row into
    the gradients of its logits [M]. missing: the gradient of the label's logit, with the other sign [M]. Without z-loss
    the gradients are probabilities, and `missing` is 1 minus that of the label. loss: cross entropy, summed over the
    rows. z_loss: z-loss, summed over the rows. to_states: gradient for the rows [M, D].
    """

    powers: Tensor
    factors: Tensor
    missing: Tensor
    loss: Tensor
    z_loss: Tensor
    to_states: Tensor


def block_rows(device: str) -> int:
    """Return the number of rows of a block, which is larger on a GPU."""
    return _BLOCK if device == "cpu" else 8 * _BLOCK


def projected_losses(
    states: Tensor, embeddings: Tensor, bias: Tensor, labels: Tensor, *, z_weight: float
) -> tuple[Tensor, Tensor]:
    """Return cross entropy and z-loss of `states` [M, D], word embeddings [V, D] and `bias` [V] for `labels` [M].

    Both are summed; the z-loss is 0 with the weight 0. The cross entropy has the gradient of both together, and the
    z-loss has none of its own.
    """
    in_bf16, states = is_bf16(states.device), for_loss(states)
    tiled = states.dtype == torch.float32 and states.device.type == "cpu" and not torch.compiler.is_compiling()
    if tiled and torch.is_grad_enabled():
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            room = torch.empty(states.shape[0] * len(embeddings), dtype=torch.bfloat16 if in_bf16 else torch.float32)
            powers = _powers(states, embeddings, bias, labels, room, z_weight=z_weight)
        if powers:
            loss: Tensor = _ProjectedLoss.apply(states, embeddings, bias, labels, powers)  # type: ignore[no-untyped-call]
            return loss, powers.z_loss
    return _losses_of_logits(F.linear(states, embeddings, bias), labels, z_weight)


def running_loss(states: Tensor, embeddings: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy of `running_losses`, without a z-loss."""
    return running_losses(states, embeddings, bias, labels, z_weight=0.0)[0]


def running_losses(
    states: Tensor, embeddings: Tensor, bias: Tensor, labels: Tensor, *, z_weight: float
) -> tuple[Tensor, Tensor]:
    """Return the losses of `projected_losses`, with the logits of a single block in memory (of all rows in float64)."""
    in_bf16 = is_bf16(states.device)
    states = for_loss(states)
    if states.dtype != torch.float32:
        return _losses_of_logits(F.linear(states, embeddings, bias), labels, z_weight)
    loss, z_loss, *_ = _loss_and_gradients(states, embeddings, bias, labels, in_bf16, z_weight)
    return loss, z_loss.detach()


def loss_terms(name: str, losses: tuple[Tensor, Tensor], *, z_weight: float) -> dict[str, tuple[Tensor, str]]:
    """Return the terms of a step: the loss under its name, and the z-loss where its weight is not 0."""
    z_loss = {Z_LOSS: (losses[1], "predictions")} if z_weight else {}
    return {name: (losses[0], "predictions"), **z_loss}


def _losses_of_logits(logits: Tensor, labels: Tensor, z_weight: float) -> tuple[Tensor, Tensor]:
    """Return the losses of `projected_losses` from logits [M, V], with the gradients of autograd."""
    logits = for_loss(logits)
    loss = F.cross_entropy(logits, labels, reduction="sum")
    if not z_weight:
        return loss, torch.zeros_like(loss)
    z_loss = z_weight * logits.logsumexp(1).square().sum()
    return loss + (z_loss - z_loss.detach()), z_loss.detach()


def token_losses(states: Tensor, embeddings: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of each row [M], and whether its label is the most probable [M]; computed in blocks of rows."""
    losses, right = [], []
    size = block_rows(states.device.type)
    for rows, targets in zip(states.split(size), labels.split(size), strict=True):
        logits = for_loss(F.linear(rows, embeddings, bias))
        losses.append(F.cross_entropy(logits, targets, reduction="none"))
        right.append(logits.argmax(1) == targets)
    return torch.cat(losses), torch.cat(right)


def is_bf16(device: torch.device) -> bool:
    """Return True where matrix products on the device are computed in bf16 at present."""
    kind = device.type
    if not torch.amp.is_autocast_available(kind):
        return False
    return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16


def _powers(
    states: Tensor, embeddings: Tensor, bias: Tensor, labels: Tensor, powers: Tensor, *, z_weight: float
) -> _Powers | None:
    """Compute the tiles into `powers` [at least M·V].

    Returns None where a float cannot hold the sums, or the bias is not finite.
    """
    rows, kind = len(states), powers.dtype
    narrow = states.to(kind)
    others, to_states = states.new_zeros(rows), torch.zeros_like(states)
    in_one_pass = kind == torch.bfloat16 and training_kernels.are_usable(narrow)
    tiles, (ordered, order) = list(_tiles(powers, rows, len(embeddings))), labels.sort()
    edges = torch.searchsorted(ordered, ordered.new_tensor([columns.start for _, columns in tiles] + [len(embeddings)]))
    for (tile, columns), (begin, end) in zip(tiles, pairwise(edges.tolist()), strict=True):
        part = embeddings[columns].to(kind)
        if in_one_pass:
            torch.mm(narrow, part.t(), out=tile)
            training_kernels.exponentials(tile, bias[columns], labels, others, first=columns.start)
        else:
            torch.addmm(bias[columns].to(kind), narrow, part.t(), out=tile)
            tile.exp_()
            if begin < end:
                tile[order[begin:end], ordered[begin:end] - columns.start] = 0.0
            others += tile.sum(1, dtype=others.dtype)
        if kind == states.dtype:
            to_states.addmm_(tile, part)
        else:
            to_states += torch.mm(tile, part)  # products of a tile in bf16, their sum in fp32
    targets = embeddings[labels]  # [M, D]
    chosen = (states * targets).sum(1) + bias[labels]
    sums = others + chosen.exp()
    is_usable = ((sums < _LARGEST) & (sums > 1 / _LARGEST)).all() & bias.isfinite().all()
    if not bool(is_usable):
        return None
    against = others.log() - chosen
    factors, missing, z_loss = sums.reciprocal(), against.sigmoid(), sums.new_zeros(())
    if z_weight:
        log_sums = sums.log()
        z_loss, slopes = z_weight * log_sums.square().sum(), 2 * z_weight * log_sums
        factors, missing = factors * (1 + slopes), missing - slopes * (-against).sigmoid()
    to_states.mul_(factors[:, None]).addcmul_(targets, missing[:, None], value=-1)
    return _Powers(powers, factors, missing, F.softplus(against).sum(), z_loss, to_states)


def _column_sums(tile: Tensor, weights: Tensor) -> Tensor:
    """Return the sums over the rows of a tile [M, C], each row times its weight [M]: [C] of the weights' dtype."""
    if tile.dtype == torch.bfloat16 and training_kernels.are_usable(tile):
        return training_kernels.column_sums(tile, weights)
    return torch.mv(tile.t(), weights.to(tile.dtype)).to(weights.dtype)


def _tiles(powers: Tensor, rows: int, size: int) -> Iterator[tuple[Tensor, slice]]:
    """Yield each tile [M, C] with the slice of the vocabulary that it covers."""
    width = _BF16_COLUMNS if powers.dtype == torch.bfloat16 else _COLUMNS
    width = width if powers.device.type == "cpu" else size  # a GPU has no such cache, and starting a kernel is slow
    for begin in range(0, size, width):
        end = min(begin + width, size)
        yield powers[rows * begin : rows * end].view(rows, end - begin), slice(begin, end)


class _ProjectedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, embeddings: Tensor, bias: Tensor, labels: Tensor, powers: _Powers) -> Tensor:
        ctx.save_for_backward(states, embeddings, labels)
        ctx.powers = powers
        return powers.loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        states, embeddings, labels = ctx.saved_tensors
        powers, factors = ctx.powers.powers, ctx.powers.factors * scale
        scaled = (states * factors[:, None]).to(powers.dtype)
        to_embeddings = torch.empty(embeddings.shape, dtype=powers.dtype)
        to_bias = states.new_empty(len(embeddings))
        for tile, columns in _tiles(powers, len(states), len(embeddings)):
            torch.mm(tile.t(), scaled, out=to_embeddings[columns])
            to_bias[columns] = _column_sums(tile, factors)
        to_embeddings = to_embeddings.float()
        missing = ctx.powers.missing * -scale
        to_embeddings.index_add_(0, labels, states * missing[:, None])
        to_bias.index_add_(0, labels, missing)
        to_states = ctx.powers.to_states * scale
        ctx.powers = None  # frees the memory of the tiles
        return to_states, to_embeddings, to_bias, None, None


# A custom operator: torch.compile treats it as a single step and does not trace into it.
@torch.library.custom_op("bertwright::loss_and_gradients", mutates_args=())
def _loss_and_gradients(
    states: Tensor, embeddings: Tensor, bias: Tensor, labels: Tensor, in_bf16: bool, z_weight: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the summed loss, the summed z-loss, and the gradients of both for states, embeddings and bias."""
    kind = torch.bfloat16 if in_bf16 else states.dtype
    loss, z_loss, to_states = states.new_zeros(()), states.new_zeros(()), torch.empty_like(states)
    to_embeddings, to_bias = torch.zeros_like(embeddings), torch.zeros_like(bias)
    size = block_rows(states.device.type)
    room = torch.empty(min(size, len(states)) * len(embeddings), dtype=kind, device=states.device)
    with torch.autocast(states.device.type, enabled=False):
        for begin in range(0, len(states), size):
            block = slice(begin, begin + size)
            rows, targets = states[block], labels[block]
            powers = _powers(rows, embeddings, bias, targets, room, z_weight=z_weight)
            if powers is None:
                gradients = to_states[block], to_embeddings, to_bias
                added = _plain_losses(rows, embeddings, bias, targets, gradients, z_weight=z_weight)
                loss, z_loss = loss + added[0], z_loss + added[1]
                continue
            loss, z_loss = loss + powers.loss, z_loss + powers.z_loss
            to_states[block] = powers.to_states
            scaled = (rows * powers.factors[:, None]).to(kind)
            for tile, columns in _tiles(powers.powers, len(rows), len(embeddings)):
                to_embeddings[columns] += torch.mm(tile.t(), scaled)
                to_bias[columns] += _column_sums(tile, powers.factors)
            to_embeddings.index_add_(0, targets, rows * -powers.missing[:, None])
            to_bias.index_add_(0, targets, -powers.missing)
    return loss, z_loss, to_states, to_embeddings, to_bias


def _plain_losses(
    rows: Tensor,
    embeddings: Tensor,
    bias: Tensor,
    labels: Tensor,
    gradients: tuple[Tensor, Tensor, Tensor],
    *,
    z_weight: float,
) -> tuple[Tensor, Tensor]:
    """Return both losses of a block whose exponentials overflow; add their gradients to `gradients` (in place)."""
    logits = F.linear(rows, embeddings, bias)
    errors = logits.softmax(1)
    if z_weight:
        errors *= 1 + 2 * z_weight * logits.logsumexp(1, keepdim=True)
    errors[torch.arange(len(labels), device=labels.device), labels] -= 1
    gradients[0].copy_(errors @ embeddings)
    gradients[1].addmm_(errors.t(), rows)
    gradients[2].add_(errors.sum(0))
    return _losses_of_logits(logits, labels, z_weight)


@_loss_and_gradients.register_fake
def _(
    states: Tensor, embeddings: Tensor, bias: Tensor, labels: Tensor, in_bf16: bool, z_weight: float = 0.0
) -> tuple[Tensor, ...]:
    losses = states.new_empty(()), states.new_empty(())
    return (*losses, torch.empty_like(states), torch.empty_like(embeddings), torch.empty_like(bias))


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[2:])


def _scaled_gradients(ctx: Any, scale: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    return (*(gradient * scale for gradient in ctx.saved_tensors), None, None, None)


_loss_and_gradients.register_autograd(_scaled_gradients, setup_context=_keep_gradients)


_MARKS = ("##", "</w>")
"""Prefix of a WordPiece that continues a word, and suffix of a byte pair that ends a word; neither occurs in text."""


def characters_of(tokenizer: BaseTokenizer) -> np.ndarray:
    """Return the number of characters of text in each piece of the vocabulary: int64 [V], -1 for special tokens.

    White space is not counted. [UNK] counts as a single character, and a character of several bytes by its first one,
    so that a piece of text may have none.
    """
    if isinstance(tokenizer, PublishedTokenizer):
        counts = np.array(tokenizer.characters())
    else:
        counts = np.array([len(piece.removeprefix(_MARKS[0]).removesuffix(_MARKS[1])) for piece in tokenizer.pieces])
    counts[list(tokenizer.special_ids)] = -1
    if tokenizer.unk_id != tokenizer.end_of_text_id:  # GPT-2 has no token of its own for unknown text
        counts[tokenizer.unk_id] = 1
    return counts


def bits_per_character(nats: float, characters: float) -> float:
    """Return the bits per character of a loss in nats, summed over a text of `characters` characters."""
    return nats / math.log(2) / characters
