"""What the training loop sees of what it trains: sums of losses and what they are divided by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor, nn

Batch = TypeVar("Batch")
Terms = Mapping[str, tuple[Tensor, str]]


@dataclass(frozen=True)
class Trainable(Generic[Batch]):
    """What the loop trains.

    `step` returns {term: (sum, count name)}; `counts` reads the same counts from the batch before forward; `flops` is
    the floating-point work of forward and backward; `tokens` counts real tokens; `blocks` are the units for sharding.
    """

    module: nn.Module
    blocks: Sequence[nn.Module]
    step: Callable[[Batch], Terms]
    counts: Callable[[Batch], Mapping[str, float]]
    flops: Callable[[Batch], float]
    tokens: Callable[[Batch], int]
