"""A batch for models of random weights, the tolerance of two implementations, and their largest differences."""

from collections import defaultdict
from functools import partial

import torch
from torch import Tensor

from bertwright.model.bert import ARCHITECTURES

BERT_CLASSES = tuple(kind for kind in ARCHITECTURES if kind.startswith("Bert"))
"""Sets of heads that BERT has."""
assert_close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)
MEASURES = ("states", "outputs", "loss", "gradients")


class Largest:
    """Largest difference by family and measure; that of a gradient is relative to the norm of all gradients."""

    def __init__(self) -> None:
        self._differences: dict[tuple[str, str], float] = defaultdict(float)

    def note(self, family: str, measure: str, difference: float) -> None:
        """Keep a difference where it is the largest one."""
        self._differences[family, measure] = max(self._differences[family, measure], difference)

    def compare(self, family: str, measure: str, ours: Tensor, theirs: Tensor) -> None:
        """Keep the largest difference of two tensors, and raise AssertionError where they are not close."""
        self.note(family, measure, float((ours - theirs).detach().abs().max()))
        assert_close(ours, theirs)

    def __str__(self) -> str:
        """Return the table of docs/models.md."""
        rows = ["family      " + "".join(f"{measure:>12}" for measure in MEASURES)]
        for family in sorted({family for family, _ in self._differences}):
            rows.append(f"{family:12}" + "".join(f"{self._differences[family, measure]:12.1e}" for measure in MEASURES))
        return "\n".join(rows)


def padded_batch(vocab_size: int, rows: tuple[int, ...] = (4,)) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, segments and mask [*rows, 17], padded on the right; at most six rows in all."""
    ids = torch.randint(5, vocab_size, (*rows, 17), generator=torch.Generator().manual_seed(4))
    lengths = torch.tensor([17, 11, 3, 16, 1, 9])[: ids[..., 0].numel()].view(*rows, 1)
    mask = torch.arange(17) < lengths
    return ids * mask, ((torch.arange(17) >= 8) & mask).long(), mask
