"""heads → loss: the vocabulary projection and its cross entropy with half the memory traffic.

The logits of a batch (rows x 30,522) are the largest array of a small BERT's step, and moving it is what costs. Here
softmax overwrites the logits, the labels are subtracted in place to give the gradient, and the bias gradient is another
column in the matrix product of the weight gradient. Same numbers as `F.cross_entropy(F.linear(…))`.

Shapes: M rows, D hidden, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.model.heads import for_loss

_ALIGNED = 16
"""Columns beside the states that hold the ones of the bias gradient; a multiple that matrix products like."""
_FAINT = 1e-30
"""Below it a probability has lost digits, and its logarithm is computed anew."""


def projected_loss(states: Tensor, words: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Summed cross entropy of `states` [M, D] against word embeddings [V, D] and `bias` [V] for `labels` [M]."""
    plain = states.dtype != torch.float32 or states.device.type != "cpu" or torch.compiler.is_compiling()
    if plain or torch.is_autocast_enabled("cpu"):
        return F.cross_entropy(for_loss(F.linear(states, words, bias)), labels, reduction="sum")
    loss: Tensor = _ProjectedLoss.apply(states, words, bias, labels)  # type: ignore[no-untyped-call]
    return loss


class _ProjectedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, words: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        shares = torch.addmm(bias, states, words.t())  # [M, V] logits
        torch.softmax(shares, dim=1, out=shares)
        at = torch.arange(len(labels))
        chosen = shares[at, labels]
        losses = -chosen.log()
        faint = (chosen < _FAINT).nonzero().squeeze(1)
        if len(faint):
            again = torch.addmm(bias, states[faint], words.t())
            losses[faint] = F.cross_entropy(again, labels[faint], reduction="none")
        shares[at, labels] -= 1.0  # the gradient of the logits
        ctx.save_for_backward(states, words)
        ctx.gradient = shares
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        states, words = ctx.saved_tensors
        width = states.shape[1]
        beside = torch.zeros(len(states), width + _ALIGNED)
        beside[:, :width] = states
        beside[:, width] = 1.0
        both = ctx.gradient.t() @ (beside * scale)  # [V, D + 16]
        to_states = (ctx.gradient @ words) * scale
        ctx.gradient = None
        return to_states, both[:, :width].contiguous(), both[:, width].contiguous(), None
