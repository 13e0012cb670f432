"""vectors of a batch → loss: softmax over the cosines of the batch's texts, or CoSENT for pairs with scores.

Shapes: A anchors, P passages (positives and hard negatives), B pairs, D width of the vectors.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.model.heads import for_loss


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosines [A, P] of vectors [A, D] and [P, D]; not in bf16, whose cosines have two digits."""
    device = first.device.type if torch.amp.is_autocast_available(first.device.type) else "cpu"
    with torch.autocast(device, enabled=False):
        return F.normalize(for_loss(first), dim=-1) @ F.normalize(for_loss(second), dim=-1).T


def in_batch_softmax(scores: Tensor, targets: Tensor, blocked: Tensor, *, temperature: float) -> Tensor:
    """Return the cross entropy of finding each pair's positive among the passages, summed over pairs.

    scores    [B, P] cosines of each pair's anchor and every passage
    targets   [B] the passage that is the pair's positive
    blocked   [B, P] True for a passage that matches the anchor; only the pair's own positive is then kept
    """
    others = blocked.scatter(1, targets[:, None], False)
    return F.cross_entropy((scores / temperature).masked_fill(others, -torch.inf), targets, reduction="sum")


def cosent(scores: Tensor, targets: Tensor, *, temperature: float) -> Tensor:
    """Return CoSENT's loss of a batch: log(1 + Σ exp((cosine_i - cosine_j) / temperature)) where i should be below j.

    scores    [B] cosine of each pair
    targets   [B] number of each pair; only their order has an effect
    """
    differences = (scores[:, None] - scores[None, :]) / temperature  # [B, B]
    differences = differences[targets[:, None] < targets[None, :]]
    return torch.logsumexp(torch.cat([differences.new_zeros(1), differences]), dim=0)


def mean_over_widths(
    loss: Callable[[Tensor, Tensor], Tensor], sides: tuple[Tensor, Tensor], widths: Sequence[int]
) -> Tensor:
    """Return the mean of a loss over the first numbers of the vectors: Matryoshka (Kusupati et al. 2022).

    sides    vectors [A, D] and [P, D]
    widths   numbers of components; empty: all of them at once
    """
    losses = [loss(sides[0][:, :width], sides[1][:, :width]) for width in widths or (sides[0].shape[1],)]
    return torch.stack(losses).mean()
