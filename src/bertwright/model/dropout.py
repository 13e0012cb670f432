"""Dropout that costs little on a CPU: four decisions from each 64-bit random number, the rest fused by the compiler.

torch's own CPU dropout draws one number per element on one thread: longer than a small model's matrix products took.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.library.custom_op("bertwright::random_bits", mutates_args=())
def random_bits(like: Tensor) -> Tensor:
    """Uniform int16 numbers in the shape of `like`, from torch's default generator (so `torch.manual_seed` decides)."""
    size = like.numel()
    words = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(2**63), None)
    bits: Tensor = words.view(torch.int16)[:size].view(like.shape)
    return bits


@random_bits.register_fake
def _(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=torch.int16, device=like.device)


def dropout(values: Tensor, share: float, training: bool) -> Tensor:
    """Zero a `share` of `values` (to 1/65536) and scale the rest by 1/(1-share); identity when not training."""
    if not training or share == 0.0:
        return values
    if values.device.type != "cpu":
        return F.dropout(values, share)
    bits: Tensor = random_bits(values)
    keep = bits >= min(round(share * 65536), 65535) - 32768  # 65,536 would be no int16
    return values * (keep.to(values.dtype) / (1.0 - share))
