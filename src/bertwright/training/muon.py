"""Gradients → updates of matrices: Muon, which sets all singular values of the averaged gradient close to one.

After K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), with their constants. Adam
scales each number by itself; with Muon a rare direction of a matrix moves as far as a common one.

Shapes: S matrices of the same shape, N outputs, M inputs.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bertwright.training.distributed import full_tensor, shard_like

MOMENTUM = 0.95
_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of the iteration x → ax + bx³ + cx⁵, which takes values between 0 and 1 to between 0.7 and 1.2."""
_ITERATIONS = 5
_NUMBERS_AT_ONCE = 2**22
"""Numbers of the matrices that are computed together, or one matrix. The computation takes five times that memory."""


def matrices(blocks: Iterable[nn.Module]) -> dict[Tensor, int]:
    """Return {weight: number of matrices stacked in it} for the linear maps in `blocks`.

    A linear map that computes several products at once has an attribute `stacked` with their number.
    """
    maps = (part for block in blocks for part in block.modules() if isinstance(part, nn.Linear))
    return {part.weight: int(getattr(part, "stacked", 1)) for part in maps if part.weight.requires_grad}


def orthogonalise(updates: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return each matrix of `updates` [S, N, M] with singular values between 0.7 and 1.2, but for the smallest.

    dtype: type of the numbers in the products, that of `updates` by default. In bf16, as in the published code, the
    result differs by about 1 %.
    """
    is_tall = updates.shape[-2] > updates.shape[-1]
    wide: Tensor = updates.mT if is_tall else updates
    # Norms of rows first: over a whole float32 matrix torch adds up the squares one after the other.
    wide = (wide / wide.norm(dim=-1, keepdim=True).norm(dim=-2, keepdim=True).clamp(min=1e-7)).to(
        dtype or updates.dtype
    )
    a, b, c = _QUINTIC
    for _ in range(_ITERATIONS):
        gram = wide @ wide.mT
        wide = torch.baddbmm(wide, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    wide = wide.to(updates.dtype)
    return wide.mT if is_tall else wide


def bf16_function(iterate: Callable[[Tensor, Sequence[float], int], Tensor | None]) -> Callable[[Tensor], Tensor]:
    """Return `orthogonalise` in bf16: by `iterate` of updates, coefficients and iterations, or by torch for None."""

    def orthogonalised(updates: Tensor) -> Tensor:
        done = iterate(updates, _QUINTIC, _ITERATIONS)
        return orthogonalise(updates, torch.bfloat16) if done is None else done

    return orthogonalised


def step(
    group: Mapping[str, Any],
    state: Mapping[Tensor, Mapping[str, Tensor]],
    orthogonalise: Callable[[Tensor], Tensor] = orthogonalise,
) -> None:
    """Update the parameters of one group in place; small parameters of the same shape are computed together.

    The group's rate is the length of the step in each direction of an N x M matrix, times √(N/M) where N is larger.
    The state of each parameter is its momentum [S · N, M].
    """
    by_shape: dict[torch.Size, list[nn.Parameter]] = {}
    for parameter in group["params"]:
        if parameter.grad is not None:
            by_shape.setdefault(parameter.shape, []).append(parameter)
    for shape, parameters in by_shape.items():
        at_once = max(1, _NUMBERS_AT_ONCE // shape.numel())
        for first in range(0, len(parameters), at_once):
            _update(parameters[first : first + at_once], group, state, orthogonalise)


def _update(
    parameters: Sequence[nn.Parameter],
    group: Mapping[str, Any],
    state: Mapping[Tensor, Mapping[str, Tensor]],
    orthogonalise: Callable[[Tensor], Tensor],
) -> None:
    """Update parameters of one shape in place."""
    stacked = group["stacked"]
    updates = orthogonalise(
        torch.cat(
            [_nesterov(parameter, state[parameter]["momentum"]).unflatten(0, (stacked, -1)) for parameter in parameters]
        )
    )
    outputs, inputs = updates.shape[1:]
    rate = group["lr"] * math.sqrt(max(1.0, outputs / inputs))
    for parameter, update in zip(parameters, updates.split(stacked), strict=True):
        parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
        parameter.sub_(shard_like(parameter, update.flatten(0, 1)), alpha=rate)


def _nesterov(parameter: nn.Parameter, momentum: Tensor) -> Tensor:
    """Average the gradient into the momentum; return the Nesterov gradient as a full tensor."""
    assert parameter.grad is not None
    momentum.lerp_(parameter.grad, 1.0 - MOMENTUM)
    return full_tensor(torch.lerp(parameter.grad, momentum, MOMENTUM))
