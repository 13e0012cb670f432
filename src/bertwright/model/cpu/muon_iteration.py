"""Updates of Muon (training/muon.py) → their matrices with singular values close to one, in bf16 and each in one pass.

`muon_iteration.cpp` is built with `kernels.cpp`. torch computes the same as three batched products in each iteration.
"""

import ctypes
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bertwright.model.cpu import kernels
from bertwright.model.cpu.kernels import at

_MOST_NUMBERS = 2**20
"""Numbers of a matrix; of larger ones too few are computed together to give each thread one (training/muon.py)."""
_GAIN = 1.5
"""Factor by which torch's products take longer than those of threads that have no matrix to wait for."""


def muon_iteration(updates: Tensor, coefficients: Sequence[float], iterations: int) -> Tensor | None:
    """Return each fp32 matrix of `updates` [S, N, M] after Muon's iteration in bf16; None where torch is to compute it.

    coefficients: those of x, x³ and x⁵ in an iteration.
    """
    count, outputs, inputs = updates.shape
    threads = torch.get_num_threads()
    at_once = threads * math.ceil(count / threads)  # matrices in the time that these take
    if outputs * inputs > _MOST_NUMBERS or at_once > _GAIN * count:
        return None
    if updates.device.type != "cpu" or not kernels.has_half_products():
        return None
    updates = updates.contiguous()
    out = torch.empty_like(updates)
    factors = (ctypes.c_float * 3)(*coefficients)
    shape = map(ctypes.c_int64, (iterations, count, outputs, inputs))
    kernels.library().iterate_muon(at(updates), at(out), factors, *shape, ctypes.c_int(threads))
    return out
