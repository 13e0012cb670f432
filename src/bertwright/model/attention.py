"""batches → encoder: multi-head self-attention over both directions (paper §3; 1/sqrt(K) scaling, keys masked).

Shapes: B batch, T tokens, Q query rows, D hidden, H heads, K head width.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.model.dropout import dropout


class Stacked(nn.Linear):
    """The maps to queries, keys and values above one another: three to whoever treats a matrix as a whole."""

    stacked = 3


class SelfAttention(nn.Module):
    """Queries, keys and values from one fused projection, then the output projection."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = Stacked(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, hidden: Tensor, keep: Tensor, rows: Tensor | None = None) -> Tensor:
        """Attend from `rows` [B, Q, D] (all of `hidden` when None) to `hidden` [B, T, D].

        `keep` [B, 1, 1, T] is True for keys that may be attended to; [B, 1, Q, T] where each query has its own keys.
        Returns [B, Q, D].
        """
        width = hidden.shape[-1]
        if rows is None:
            query, key, value = self.qkv(hidden).split(width, dim=-1)  # 3 x [B, T, D]
        else:
            query = F.linear(rows, self.qkv.weight[:width], self.qkv.bias[:width])  # [B, Q, D]
            key, value = F.linear(hidden, self.qkv.weight[width:], self.qkv.bias[width:]).split(width, dim=-1)
        context = self._attend(self._split(query), self._split(key), self._split(value), keep)
        merged: Tensor = self.output(context.transpose(1, 2).flatten(2))  # [B, Q, D]
        return merged

    def probabilities(self, hidden: Tensor, keep: Tensor) -> Tensor:
        """How much each token of `hidden` [B, T, D] attends to each other, head by head: [B, H, T, T], no dropout."""
        query, key, _ = self.qkv(hidden).split(hidden.shape[-1], dim=-1)  # 3 x [B, T, D]
        return _probabilities(self._split(query), self._split(key), keep)

    def _split(self, rows: Tensor) -> Tensor:
        parts: Tensor = rows.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, H, T, K]
        return parts

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, keep: Tensor) -> Tensor:
        share = self.dropout if self.training else 0.0
        if not share or query.device.type != "cpu":
            return F.scaled_dot_product_attention(query, key, value, attn_mask=keep, dropout_p=share)
        # No fused CPU kernel drops attention probabilities, so training spells the formula out.
        kept = dropout(_probabilities(query, key, keep), self.dropout, training=True)
        context: Tensor = kept @ value  # [B, H, Q, K]
        return context


def _probabilities(query: Tensor, key: Tensor, keep: Tensor) -> Tensor:
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)  # [B, H, Q, T]
    return torch.softmax(scores.masked_fill(~keep, torch.finfo(scores.dtype).min), dim=-1)
