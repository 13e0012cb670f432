"""queries, keys, values → context: multi-head self-attention (paper §3), and dropout.

Shapes: B batch, T tokens, Q positions that are computed, D hidden, H heads, K head width.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bertwright.model.cpu import training_attention, training_kernels


@torch.library.custom_op("bertwright::random_bits", mutates_args=())
def random_bits(like: Tensor) -> Tensor:
    """Return uniform int16 numbers in the shape of `like`, from torch's default generator."""
    size = like.numel()
    numbers = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(2**63), None)
    bits: Tensor = numbers.view(torch.int16)[:size].view(like.shape)
    return bits


@random_bits.register_fake
def _(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=torch.int16, device=like.device)


def dropout(values: Tensor, probability: float, training: bool) -> Tensor:
    """Zero each value with a probability and divide the others by 1 minus it; return the values in evaluation.

    On processors each 64-bit random number decides about four values, so the probability is rounded to 1/65536. The
    dropout of torch draws a number for each value on a single thread, which took longer than the matrix products of a
    small model.
    """
    if not training or probability == 0.0:
        return values
    if values.device.type != "cpu":
        return F.dropout(values, probability)
    bits: Tensor = random_bits(values)
    if values.numel() and values.dim() and training_kernels.are_usable(values):
        dropped: Tensor = _Dropped.apply(values, bits, probability)  # type: ignore[no-untyped-call]
        return dropped
    return values * ((bits >= _least_kept(probability)).to(values.dtype) / (1.0 - probability))


class _Dropped(torch.autograd.Function):
    """Dropout in one pass, with the numbers of the passes of torch. A dropped number is 0, also where it was NaN."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, bits: Tensor, probability: float) -> Tensor:
        ctx.save_for_backward(bits)
        ctx.least, ctx.factor = _least_kept(probability), float(values.new_ones(()) / (1.0 - probability))
        return training_kernels.drop(values, bits, least=ctx.least, factor=ctx.factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (bits,) = ctx.saved_tensors
        return training_kernels.drop(gradient, bits, least=ctx.least, factor=ctx.factor), None, None


def _least_kept(probability: float) -> int:
    """Return the least of the numbers of `random_bits` whose values are kept."""
    return min(round(probability * 65536), 65535) - 32768  # 65,536 does not fit into int16


class KeyValues:
    """Keys and values [B, H, T, K] of the tokens that a layer has read, for text that grows token by token."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def add(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep those of further tokens [B, H, N, K] too, and return all."""
        if self.keys is not None and self.values is not None:
            keys, values = torch.cat((self.keys, keys), dim=2), torch.cat((self.values, values), dim=2)
        self.keys, self.values = keys, values
        return keys, values


class Stacked(nn.Linear):
    """The maps to queries, keys and values as one matrix; Muon, which updates whole matrices, treats it as three."""

    stacked = 3


class SelfAttention(nn.Module):
    """Multi-head self-attention (paper §3): a fused projection to queries, keys, values, and an output projection."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = Stacked(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(
        self, hidden: Tensor, keep: Tensor, rows: Tensor | None = None, past: KeyValues | None = None
    ) -> Tensor:
        """Attend from `rows` [B, Q, D] (`hidden` where None) to `hidden` [B, T, D]; return [B, Q, D].

        keep: True for keys that may be attended to, [B, 1, 1, T]; [B, 1, Q, T] where each query has its own keys.
        past: keys and values of the tokens before `hidden`, which T of `keep` includes; those of `hidden` are added.
        """
        width = hidden.shape[-1]
        if rows is None:
            query, key, value = self.qkv(hidden).split(width, dim=-1)  # 3 x [B, T, D]
        else:
            query = F.linear(rows, self.qkv.weight[:width], self.qkv.bias[:width])  # [B, Q, D]
            key, value = F.linear(hidden, self.qkv.weight[width:], self.qkv.bias[width:]).split(width, dim=-1)
        keys, values = self._split(key), self._split(value)
        if past is not None:
            keys, values = past.add(keys, values)
        context = attention_context(
            self._split(query), keys, values, keep, dropout_p=self.dropout if self.training else 0.0
        )
        merged: Tensor = self.output(context.transpose(1, 2).flatten(2))  # [B, Q, D]
        return merged

    def probabilities(self, hidden: Tensor, keep: Tensor) -> Tensor:
        """Return the attention probabilities of the tokens of `hidden` [B, T, D], without dropout: [B, H, T, T]."""
        query, key, _ = self.qkv(hidden).split(hidden.shape[-1], dim=-1)  # 3 x [B, T, D]
        return attention_probabilities(self._split(query), self._split(key), keep)

    def _split(self, rows: Tensor) -> Tensor:
        parts: Tensor = rows.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, H, T, K]
        return parts


def attention_context(query: Tensor, key: Tensor, value: Tensor, keep: Tensor, *, dropout_p: float) -> Tensor:
    """Return the context [B, H, Q, K]: by our own or torch's fused attention, or step by step.

    On processors torch's fused attention has no dropout, and its gradient in bf16 takes 1.3 to 5 times as long as that
    of the steps (docs/log.md, "Attention in bf16"). Ours has both in bf16, see `training_attention.is_usable`.
    """
    has_gradient = query.dtype == torch.bfloat16 and torch.is_grad_enabled()
    if query.device.type != "cpu" or not (dropout_p or has_gradient):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=keep, dropout_p=dropout_p)
    if has_gradient and training_attention.is_usable(query, key, keep):
        bits = random_bits(query.new_empty(*query.shape[:3], key.shape[2])) if dropout_p else None
        factor, least = 1.0 / (1.0 - dropout_p), _least_kept(dropout_p)
        return training_attention.trained_attention(query, key, value, keep, bits=bits, least=least, factor=factor)
    kept = dropout(attention_probabilities(query, key, keep), dropout_p, training=True)
    context: Tensor = kept @ value  # [B, H, Q, K]
    return context


def attention_probabilities(query: Tensor, key: Tensor, keep: Tensor) -> Tensor:
    """Return the probabilities [B, H, Q, T] of queries [B, H, Q, K] and keys [B, H, T, K]; `keep` as in attention."""
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)  # [B, H, Q, T]
    return torch.softmax(scores.masked_fill(~keep, torch.finfo(scores.dtype).min), dim=-1)
