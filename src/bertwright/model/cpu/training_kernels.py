"""Steps of training, each in one pass: dropout, rotary positions, gated GELU, and in bf16 sums of the vocabulary loss.

`training_kernels.cpp` is built with `kernels.cpp`. Without a C++ compiler torch computes the same in several
passes (model/attention.py, objectives/vocabulary_loss.py, model/modern_encoder.py).

Shapes: N rows, W columns, I inner width, B batch, T tokens, H heads, K head width.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from bertwright.model.cpu import kernels
from bertwright.model.cpu.kernels import at, sizes


def are_usable(tensor: Tensor) -> bool:
    """Return True where the functions of this file are built and fit a tensor: bf16 or fp32, on a processor.

    The sums of the vocabulary loss are for bf16 alone.
    """
    return (
        tensor.dtype in (torch.bfloat16, torch.float32)
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


def turn_pairs(parts: Sequence[Tensor], turn: Tensor, *, back: bool = False) -> Tensor:
    """Return queries, keys and values, each [B, T, H, K], as [B, T, 3, H, K], the first two turned by their positions.

    turn: cosine and sine of the angles [2, T, K], fp32; dimensions k and k + K/2 have the same. back: True to turn by
    the opposite angles, which is the gradient. It is computed in fp32.
    """
    parts = [part if part.stride(-1) == 1 else part.contiguous() for part in parts]
    batch, length, heads, width = parts[0].shape
    out = parts[0].new_empty(batch, length, 3, heads, width)
    pointers = (ctypes.c_void_p * 3)(*(part.data_ptr() for part in parts))
    steps = (ctypes.c_int64 * 9)(*(step for part in parts for step in part.stride()[:3]))
    shape = map(ctypes.c_int64, (length, heads, width))
    sign = ctypes.c_float(-1.0 if back else 1.0)
    count, _, threads = sizes(out.view(batch * length, 3 * heads * width))
    kernels.library().turn(pointers, steps, at(turn), at(out), *shape, sign, _is_half(out), count, threads)
    return out


def drop(values: Tensor, bits: Tensor, *, least: int, factor: float) -> Tensor:
    """Return values times `factor`, and 0 where their number in `bits`, int16 in their shape, is below `least`."""
    values = values.contiguous()
    out = torch.empty_like(values)
    number = (ctypes.c_int64(least), ctypes.c_float(factor))
    shape = sizes(values.view(-1, values.shape[-1]))
    kernels.library().drop(at(values), at(bits), *number, at(out), _is_half(out), *shape)
    return out


def gate(rows: Tensor) -> Tensor:
    """Return exact GELU of the first half of rows [… 2I] times the second half: [… I]. It is computed in fp32."""
    rows = rows.contiguous()
    out = rows.new_empty(*rows.shape[:-1], rows.shape[-1] // 2)
    kernels.library().gate(at(rows), at(out), _is_half(out), *sizes(out.view(-1, out.shape[-1])))
    return out


def gate_gradient(rows: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of rows [… 2I] from that of `gate` [… I]."""
    rows, gradient = rows.contiguous(), gradient.contiguous()
    out = torch.empty_like(rows)
    shape = sizes(gradient.view(-1, gradient.shape[-1]))
    kernels.library().gate_gradient(at(rows), at(gradient), at(out), _is_half(out), *shape)
    return out


def _is_half(tensor: Tensor) -> ctypes.c_int:
    return ctypes.c_int(tensor.dtype == torch.bfloat16)
