"""heads → loss: the vocabulary projection and its cross entropy, tile by tile in the processor's cache.

The logits of a batch (rows x 30,522) are the largest array of a small BERT's step, and moving it is what costs. Here a
few hundred columns at a time are projected, raised to powers of e and multiplied back onto the word embeddings before
they leave the cache; the powers are kept once, for the gradient of the word embeddings. Softmax divides by a sum over
all columns, which is known only at the end: every row is divided by its own then, before or after its products. Same
numbers as `F.cross_entropy(F.linear(…))`, in the precision of the matrix products.

Shapes: M rows, D hidden, V vocabulary, C columns of a tile.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.model.heads import for_loss

_COLUMNS: Final = 384
"""Of a tile: with 600 rows, about what the second-level cache of one core holds."""
_LARGEST: Final = 1e20
"""A sum of powers above this, or below its inverse, is left to the plain way, which subtracts the largest logit."""


@dataclass(frozen=True)
class _Powers:
    """powers: e^logits tile after tile, [M x C] each; shares [M]: what makes a row's powers its probabilities.

    loss: the sum. to_states [M, D]: the gradient for the rows.
    """

    powers: Tensor
    shares: Tensor
    loss: Tensor
    to_states: Tensor


def projected_loss(states: Tensor, words: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Summed cross entropy of `states` [M, D] against word embeddings [V, D] and `bias` [V] for `labels` [M]."""
    is_bf16 = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    tiled = states.dtype == torch.float32 and states.device.type == "cpu" and not torch.compiler.is_compiling()
    if tiled and torch.is_grad_enabled():
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            found = _powers(states, words, bias, labels, torch.bfloat16 if is_bf16 else torch.float32)
        if found:
            loss: Tensor = _ProjectedLoss.apply(states, words, bias, labels, found)  # type: ignore[no-untyped-call]
            return loss
    return F.cross_entropy(for_loss(F.linear(states, words, bias)), labels, reduction="sum")


def _powers(states: Tensor, words: Tensor, bias: Tensor, labels: Tensor, kind: torch.dtype) -> _Powers | None:
    """One walk over the tiles; None where a float cannot hold the powers."""
    rows, given = len(states), states.to(kind)
    powers = torch.empty(rows * len(words), dtype=kind)
    sums, to_states = torch.zeros(rows), torch.zeros_like(states)
    for tile, columns in _tiles(powers, rows, len(words)):
        part = words[columns].to(kind)
        torch.addmm(bias[columns].to(kind), given, part.t(), out=tile)
        tile.exp_()
        sums += tile.sum(1, dtype=torch.float32)
        if kind == torch.float32:
            to_states.addmm_(tile, part)
        else:
            to_states += torch.mm(tile, part)  # a tile's products in bf16, their sum in fp32
    if not bool(((sums < _LARGEST) & (sums > 1 / _LARGEST)).all()):
        return None
    own = words[labels]  # [M, D]
    chosen = (states * own).sum(1) + bias[labels]
    shares = sums.reciprocal()
    return _Powers(powers, shares, (sums.log() - chosen).sum(), to_states.mul_(shares[:, None]).sub_(own))


def _tiles(powers: Tensor, rows: int, size: int) -> Iterator[tuple[Tensor, slice]]:
    """The tiles [M, C] and the entries of the vocabulary that each stands for."""
    for begin in range(0, size, _COLUMNS):
        end = min(begin + _COLUMNS, size)
        yield powers[rows * begin : rows * end].view(rows, end - begin), slice(begin, end)


class _ProjectedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, words: Tensor, bias: Tensor, labels: Tensor, found: _Powers) -> Tensor:
        ctx.save_for_backward(states, words, labels)
        ctx.found = found
        return found.loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        states, words, labels = ctx.saved_tensors
        powers, shares = ctx.found.powers, ctx.found.shares * scale
        scaled, weights = (states * shares[:, None]).to(powers.dtype), shares.to(powers.dtype)
        to_words = torch.empty(words.shape, dtype=powers.dtype)
        to_bias = torch.empty(len(words), dtype=powers.dtype)
        for tile, columns in _tiles(powers, len(states), len(words)):
            torch.mm(tile.t(), scaled, out=to_words[columns])
            torch.mv(tile.t(), weights, out=to_bias[columns])
        to_words, to_bias = to_words.float(), to_bias.float()
        to_words.index_add_(0, labels, states * -scale)
        to_bias.index_add_(0, labels, -scale.expand(len(labels)))
        to_states = ctx.found.to_states * scale
        ctx.found = None
        return to_states, to_words, to_bias, None, None
