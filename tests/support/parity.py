"""A batch for models of random weights, and the tolerance of two implementations."""

from functools import partial

import torch
from torch import Tensor

from bertwright.model.bert import ARCHITECTURES

BERT_CLASSES = tuple(kind for kind in ARCHITECTURES if kind.startswith("Bert"))
"""Sets of heads that BERT has."""
assert_close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)


def padded_batch(vocab_size: int, rows: tuple[int, ...] = (4,)) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, segments and mask [*rows, 17], padded on the right; at most six rows in all."""
    ids = torch.randint(5, vocab_size, (*rows, 17), generator=torch.Generator().manual_seed(4))
    lengths = torch.tensor([17, 11, 3, 16, 1, 9])[: ids[..., 0].numel()].view(*rows, 1)
    mask = torch.arange(17) < lengths
    return ids * mask, ((torch.arange(17) >= 8) & mask).long(), mask
