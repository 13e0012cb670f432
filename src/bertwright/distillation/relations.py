"""queries, keys and values of teacher and student → the loss of their relations (Wang et al. 2021, MiniLMv2, §3).

The queries of a layer are divided into relation heads, whatever the number of its attention heads. The relation of a
head is the softmax of the scaled products of its queries with each other; those of keys and values are made in the same
way. So a student learns from a teacher of another width and another number of heads. MiniLM (2020) compares the
attention probabilities and the value relations, which needs the same number of heads.

Shapes: B batch, T tokens, R relation heads, D and d widths of teacher and student.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def relation_heads(student: int, teacher: int, *, most: int) -> int:
    """Return the largest number of relation heads, `most` at most, that divides the widths of both."""
    common = math.gcd(student, teacher)
    return max(number for number in range(1, most + 1) if common % number == 0)


def relation_loss(student: Tensor, teacher: Tensor, mask: Tensor, *, heads: int) -> Tensor:
    """Return the Kullback-Leibler divergence of the student's relations from the teacher's.

    It is the mean over the relation heads, summed over the tokens and over queries, keys and values. Padding is left
    out.

    student, teacher: queries, keys and values side by side, [B, T, 3·d] and [B, T, 3·D]. mask: True for tokens [B, T].
    """
    total = student.new_zeros(())
    for part, wanted in zip(student.chunk(3, dim=-1), teacher.chunk(3, dim=-1), strict=True):
        target, learned = _relations(wanted, mask, heads), _relations(part, mask, heads)  # [B, R, T, T]
        divergence = F.kl_div(learned, target, reduction="none", log_target=True)
        total = total + (divergence * (mask[:, None, :, None] & mask[:, None, None, :])).sum()
    return total / heads


def _relations(projected: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Return the logarithms of the relations [B, R, T, T] of `projected` [B, T, D]."""
    parts = projected.unflatten(-1, (heads, -1)).transpose(1, 2)  # [B, R, T, D/R]
    parts = parts.to(torch.promote_types(parts.dtype, torch.float32))
    with torch.autocast(parts.device.type, enabled=False):
        scores = (parts / math.sqrt(parts.shape[-1])) @ parts.transpose(-1, -2)
        return torch.log_softmax(scores.masked_fill(~mask[:, None, None, :], -1e9), dim=-1)
