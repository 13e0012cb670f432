"""Steps of training in bf16, each in one pass: exponentials and sums of the vocabulary loss.

`training_kernels.cpp` is built with `kernels.cpp`. Without a C++ compiler torch computes the same in several
passes (objectives/vocabulary_loss.py).

Shapes: N rows, W columns.
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
