"""gradients → updates: Muon, whose update of a matrix is its averaged gradient with all singular values near one.

After K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), with their constants. Where
Adam weighs each number by itself, a rare direction of a matrix moves here as far as a common one.

Shapes: S matrices of the same shape, N outputs, M inputs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bertwright.training.distributed import filled, whole

MOMENTUM = 0.95
_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Of the iteration x → ax + bx³ + cx⁵, which takes what lies between 0 and 1 to between 0.7 and 1.2."""
_ITERATIONS = 5
_TOGETHER = 2**22
"""Numbers of matrices that are computed together, or one matrix: what that takes is five times as much."""


def matrices(blocks: Iterable[nn.Module]) -> dict[Tensor, int]:
    """The matrices of the linear maps in `blocks`, and how many stand in each above one another.

    A map that is several in one product says so by its attribute `stacked`.
    """
    maps = (part for block in blocks for part in block.modules() if isinstance(part, nn.Linear))
    return {part.weight: int(getattr(part, "stacked", 1)) for part in maps if part.weight.requires_grad}


def orthogonal(updates: Tensor) -> Tensor:
    """Each of `updates` [S, N, M] with its singular values taken to between 0.7 and 1.2, but for the least of them."""
    is_tall = updates.shape[-2] > updates.shape[-1]
    wide: Tensor = updates.mT if is_tall else updates
    # Row by row first: over a whole float32 matrix torch adds up squares one after the other.
    wide = wide / wide.norm(dim=-1, keepdim=True).norm(dim=-2, keepdim=True).clamp(min=1e-7)
    a, b, c = _QUINTIC
    for _ in range(_ITERATIONS):
        gram = wide @ wide.mT
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide.mT if is_tall else wide


def step(group: Mapping[str, Any], state: Mapping[Tensor, Mapping[str, Tensor]]) -> None:
    """Update the parameters of one group in place; small ones of the same shape are computed together.

    The rate of the group is the length of the step in each direction of an N x M matrix, times √(N/M) where N is
    the larger. The momentum [N x S, M] is the state of each.
    """
    alike: dict[torch.Size, list[nn.Parameter]] = {}
    for parameter in group["params"]:
        if parameter.grad is not None:
            alike.setdefault(parameter.shape, []).append(parameter)
    for shape, found in alike.items():
        at_once = max(1, _TOGETHER // shape.numel())
        for first in range(0, len(found), at_once):
            _apply(found[first : first + at_once], group, state)


def _apply(
    parameters: Sequence[nn.Parameter], group: Mapping[str, Any], state: Mapping[Tensor, Mapping[str, Tensor]]
) -> None:
    """Update parameters of one shape."""
    parts = group["stacked"]
    turned = orthogonal(
        torch.cat([_ahead(one, state[one]["momentum"]).unflatten(0, (parts, -1)) for one in parameters])
    )
    outputs, inputs = turned.shape[1:]
    rate = group["lr"] * math.sqrt(max(1.0, outputs / inputs))
    for parameter, update in zip(parameters, turned.split(parts), strict=True):
        parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
        parameter.sub_(filled(parameter, update.flatten(0, 1)), alpha=rate)


def _ahead(parameter: nn.Parameter, momentum: Tensor) -> Tensor:
    """The gradient averaged into the momentum, and where that goes next (Nesterov), whole."""
    assert parameter.grad is not None
    momentum.lerp_(parameter.grad, 1.0 - MOMENTUM)
    return whole(torch.lerp(parameter.grad, momentum, MOMENTUM))
