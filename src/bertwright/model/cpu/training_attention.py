"""queries, keys, values → context: attention of training in bf16, forward and backward in one pass each.

`training_attention.cpp` is built with `kernels.cpp`. Probabilities are kept in bf16 for the gradient; sums are fp32.
model/attention.py computes the same step by step where this one is not built.

Shapes: B batch, H heads, Q queries, T keys, K head width.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.model.cpu import kernels
from bertwright.model.cpu.kernels import at

COLUMNS = 32
"""Number of keys of a block; the width of a head must be a multiple of it."""


def is_usable(query: Tensor, key: Tensor, keep: Tensor) -> bool:
    """Return True where `trained_attention` is built and fits the tensors: bf16, on a processor that multiplies in it.

    With AMX the products are left to torch, as those of answers are.
    """
    return (
        query.dtype == key.dtype == torch.bfloat16
        and query.device.type == "cpu"
        and query.shape[-1] % COLUMNS == 0
        and key.shape[:2] == query.shape[:2]
        and keep.dtype == torch.bool
        and keep.shape[1] == 1
        and not torch.compiler.is_compiling()
        and kernels.has_half_products()
    )


def trained_attention(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor, *, bits: Tensor | None, least: int, factor: float
) -> Tensor:
    """Return the context [B, H, Q, K] of queries [B, H, Q, K] and keys and values [B, H, T, K]; it has a gradient.

    keep: True for keys that may be attended to, [B, 1, Q, T] or with 1 in place of Q. A query without any key attends
    to all alike. bits: int16 [B, H, Q, T]; a probability is dropped where its number is below `least`, and multiplied
    by `factor` elsewhere; None for no dropout.
    """
    # torch's `apply` has no types.
    context: Tensor = _Attention.apply(query, key, value, keep, bits, least, factor)  # type: ignore[no-untyped-call]
    return context


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        query, key, value, keep, bits, ctx.least, ctx.factor = arguments
        query, key, value = (_rows(part) for part in (query, key, value))
        batch, heads, queries, width = query.shape
        tokens = key.shape[2]
        keep = keep.expand(batch, 1, keep.shape[2], tokens)
        keep = (keep if keep.stride(-1) == 1 else keep.contiguous()).expand(batch, 1, queries, tokens)
        padded = -(-tokens // COLUMNS) * COLUMNS
        probabilities = query.new_empty(batch, heads, queries, padded)
        context = query.new_empty(batch, queries, heads, width).transpose(1, 2)
        _call("attend_forward", (query, key, value, context), keep, bits, ctx.least, ctx.factor, probabilities)
        ctx.save_for_backward(query, key, value, keep, bits, probabilities)
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arrived: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, keep, bits, probabilities = ctx.saved_tensors
        gradients = [
            part.new_empty(part.shape[0], part.shape[2], part.shape[1], part.shape[3]).transpose(1, 2)
            for part in (query, key, value)
        ]
        tensors = (query, key, value, _rows(arrived), *gradients)
        _call("attend_backward", tensors, keep, bits, ctx.least, ctx.factor, probabilities)
        return (*gradients, None, None, None, None)


def _rows(part: Tensor) -> Tensor:
    """Return [B, H, T, K] with the numbers of each row side by side."""
    return part if part.stride(-1) == 1 else part.contiguous()


def _call(
    name: str,
    tensors: Sequence[Tensor],
    keep: Tensor,
    bits: Tensor | None,
    least: int,
    factor: float,
    probabilities: Tensor,
) -> None:
    """Call a function of training_attention.cpp with queries, keys, values and further tensors [B, H, T, K]."""
    query, key = tensors[:2]
    batch, heads, queries, width = query.shape
    sizes = (ctypes.c_int64 * 5)(batch, heads, queries, key.shape[2], width)
    pointers = (ctypes.c_void_p * len(tensors))(*(part.data_ptr() for part in tensors))
    steps = (ctypes.c_int64 * (3 * len(tensors)))(*(step for part in tensors for step in part.stride()[:3]))
    keep_steps = (ctypes.c_int64 * 2)(keep.stride(0), keep.stride(2))
    numbers = (ctypes.c_int64(least), ctypes.c_float(factor))
    function = getattr(kernels.library(), name)
    function(
        sizes,
        pointers,
        steps,
        at(keep),
        keep_steps,
        at(bits),
        *numbers,
        at(probabilities),
        ctypes.c_int(torch.get_num_threads()),
    )
