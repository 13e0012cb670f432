"""logits of teacher and student → the loss of soft labels (Hinton et al. 2015, §2)."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from bertwright.model.heads import for_loss


def soft_label_loss(
    logits: Tensor,
    answers: Tensor,
    *,
    kind: Literal["classification", "multilabel", "regression"],
    temperature: float,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the loss of `logits` [B, L] for the teacher's `answers` [B, L], summed over rows, each times its weight.

    It is the Kullback-Leibler divergence from the teacher's probabilities at a temperature, times the square of the
    temperature, so that its gradients keep their size. Labels that are independent have one divergence each. Of a
    regression it is the squared error.
    """
    logits, answers = for_loss(logits), for_loss(answers)
    if kind == "regression":
        of_rows = (logits - answers).square().sum(1)
    elif kind == "multilabel":
        on, off = (temperature**2 * _log_divergence(sign * logits, sign * answers, temperature) for sign in (1, -1))
        of_rows = (on + off).sum(1)
    else:
        learned, wanted = (F.log_softmax(part / temperature, dim=1) for part in (logits, answers))
        of_rows = temperature**2 * F.kl_div(learned, wanted, reduction="none", log_target=True).sum(1)
    return (of_rows if weights is None else of_rows * weights).sum()


def _log_divergence(logits: Tensor, answers: Tensor, temperature: float) -> Tensor:
    """Return one side of the divergence of two independent labels [B, L]: p · (log p - log q)."""
    learned, wanted = (F.logsigmoid(part / temperature) for part in (logits, answers))
    return F.kl_div(learned, wanted, reduction="none", log_target=True)
