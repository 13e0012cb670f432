"""queries, keys, values → context in a window around each token: of rows of any length, without a [T, T] matrix.

A row is cut into blocks of queries. The keys of a block are those of its own positions and of the positions that its
window reaches on both sides, so that memory grows with the length of the row and not with its square.

Shapes: B batch, T tokens, H heads, K head width, N blocks of a row, S positions of a block, R radius of the window.
"""

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.model.encoder import attention_context

LEAST_BLOCK: Final = 32
"""Smallest number of positions of a block; smaller ones would cost more than they save."""
BLOCKS_OF_LONG: Final = 4
"""Number of blocks from which a row is computed block by block."""


def block_size(radius: int) -> int:
    """Return the number of positions of a block for a window that reaches `radius` positions to each side."""
    return max(radius, LEAST_BLOCK)


def is_long(length: int, radius: int) -> bool:
    """Return True for a row that is computed block by block; a shorter one is computed with a mask [T, T]."""
    return length > BLOCKS_OF_LONG * block_size(radius)


def window_mask(mask: Tensor, radius: int) -> Tensor:
    """Return the keys that each token may attend to, for `mask` [B, T] of real tokens: [B, 1, T, T].

    A token always attends to itself, so that padding has a key.
    """
    positions = torch.arange(mask.shape[1], device=mask.device)
    distance = (positions[:, None] - positions).abs()
    return ((distance <= radius) & mask[:, None, None, :]) | (distance == 0)


def block_mask(mask: Tensor, radius: int) -> Tensor:
    """Return what `window_mask` returns, for the blocks of rows: [B·N, 1, S, S + 2·R]."""
    size, width = block_size(radius), block_size(radius) + 2 * radius
    real = _key_blocks(mask[:, None, :, None], radius)[..., 0].flatten(0, 1)[:, :, None]  # [B·N, 1, 1, S + 2·R]
    keys, queries = (torch.arange(count, device=mask.device) for count in (width, size))
    distance = (keys - queries[:, None] - radius).abs()
    return ((distance <= radius) & real) | (distance == 0)


def attend_in_blocks(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor, *, radius: int, dropout_p: float
) -> Tensor:
    """Return the context [B, H, T, K] of queries, keys and values [B, H, T, K]; `keep` is that of `block_mask`."""
    batch, _, length, _ = query.shape
    size = block_size(radius)
    queries = F.pad(query, (0, 0, 0, -length % size)).unflatten(2, (-1, size))  # [B, H, N, S, K]
    parts = (queries.transpose(1, 2), _key_blocks(key, radius), _key_blocks(value, radius))  # [B, N, H, …, K]
    first, second, third = (part.flatten(0, 1) for part in parts)
    blocks = attention_context(first, second, third, keep, dropout_p=dropout_p)  # [B·N, H, S, K]
    context: Tensor = blocks.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)  # [B, H, N·S, K]
    return context[:, :, :length]


def _key_blocks(rows: Tensor, radius: int) -> Tensor:
    """Return the rows [B, H, T, K] that each block reaches, with zeros beyond the ends: [B, N, H, S + 2·R, K]."""
    size = block_size(radius)
    more = -rows.shape[2] % size
    padded = F.pad(rows, (0, 0, radius, radius + more))
    return padded.unfold(2, size + 2 * radius, size).permute(0, 2, 1, 4, 3)
