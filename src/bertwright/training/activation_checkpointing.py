"""blocks → the same blocks, which keep their inputs alone and compute activations again in the backward pass."""

from collections.abc import Iterable
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def checkpoint_activations(blocks: Iterable[nn.Module]) -> None:
    """Turn activation checkpointing on for the blocks, in place: backward keeps their inputs alone.

    Backward computes the activations inside a block again. Dropout draws the same numbers, so results stay the same.
    """
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
