"""Steps of training in bf16, each in one pass: sums of the vocabulary loss, rotary positions, gated GELU.

`training_kernels.cpp` is built with `kernels.cpp`. Without a C++ compiler torch computes the same in several
passes (objectives/vocabulary_loss.py, model/modern_encoder.py).

Shapes: N rows, W columns, I inner width, B batch, T tokens, H heads, K head width.
"""

import ctypes

import torch
from torch import Tensor

from bertwright.model.cpu import kernels
from bertwright.model.cpu.kernels import at, sizes


def are_usable(tensor: Tensor) -> bool:
    """Return whether the functions of this file can compute with a tensor: bf16 on a processor, and they are built."""
    return (
        tensor.dtype == torch.bfloat16
        and tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and kernels.library() is not None
    )


def exponentials(tile: Tensor, bias: Tensor, labels: Tensor, sums: Tensor, *, first: int) -> None:
    """Turn logits without bias [N, W] into e^(logit + bias), 0 for labels; add each row's sum to `sums` (in place).

    bias [W] and sums [N]: fp32. labels [N]: column of each row's label, where the tile begins at `first`.
    A logit above 88 counts as 88; NaN is not kept.
    """
    kernels.library().exponentials(at(tile), at(bias), at(labels), at(sums), ctypes.c_int64(first), *sizes(tile))


def column_sums(tile: Tensor, weights: Tensor) -> Tensor:
    """Return the sums over the rows of a tile [N, W], each row times its weight [N], which is fp32: fp32 [W]."""
    sums = weights.new_empty(tile.shape[1])
    kernels.library().column_sums(at(tile), at(weights), at(sums), *sizes(tile))
    return sums


def turn_pairs(projected: Tensor, turn: Tensor, *, back: bool = False) -> Tensor:
    """Return queries, keys and values [B, T, 3, H, K], the first two turned by the angles of their positions.

    turn: cosine and sine of the angles [2, T, K], fp32; dimensions k and k + K/2 have the same. back: True to turn by
    the opposite angles, which is the gradient. It is computed in fp32.
    """
    _, length, _, heads, width = projected.shape
    rows = projected.flatten(2).flatten(0, 1).contiguous()  # [B T, 3 H K]
    out = torch.empty_like(rows)
    count, _, threads = sizes(rows)
    shape = map(ctypes.c_int64, (length, heads, width))
    sign = ctypes.c_float(-1.0 if back else 1.0)
    kernels.library().turn(at(rows), at(turn), at(out), *shape, sign, count, threads)
    return out.view(projected.shape)


def gate(rows: Tensor) -> Tensor:
    """Return exact GELU of the first half of rows [… 2I] times the second half: [… I]. It is computed in fp32."""
    rows = rows.contiguous()
    out = rows.new_empty(*rows.shape[:-1], rows.shape[-1] // 2)
    kernels.library().gate(at(rows), at(out), *sizes(out.view(-1, out.shape[-1])))
    return out


def gate_gradient(rows: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of rows [… 2I] from that of `gate` [… I]."""
    rows, gradient = rows.contiguous(), gradient.contiguous()
    out = torch.empty_like(rows)
    shape = sizes(gradient.view(-1, gradient.shape[-1]))
    kernels.library().gate_gradient(at(rows), at(gradient), at(out), *shape)
    return out
