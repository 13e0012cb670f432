"""The relations of queries, keys and values equal a plain loop, for models of different widths and heads."""

import math

import numpy as np
import pytest
import torch

from bertwright.distillation.relations import relation_heads, relation_loss
from bertwright.model.config import EncoderConfig
from bertwright.model.encoder import Encoder, init_weights

ROWS, TOKENS = 3, 6
LENGTHS = (6, 4, 1)


def relation(vectors: np.ndarray, heads: int, head: int, query: int, length: int) -> list[float]:
    """Return the relation of a token with all tokens, from its vectors [T, D]."""
    width = vectors.shape[1] // heads
    part = vectors[:, head * width : (head + 1) * width]
    scores = [sum(float(a * b) for a, b in zip(part[query], part[key], strict=True)) for key in range(length)]
    powers = [math.exp(score / math.sqrt(width)) for score in scores]
    return [power / sum(powers) for power in powers]


def plain_loss(student: np.ndarray, teacher: np.ndarray, heads: int) -> float:
    total = 0.0
    for row, length in enumerate(LENGTHS):
        for kind in range(3):
            sides = [
                side[row][:, kind * side.shape[2] // 3 : (kind + 1) * side.shape[2] // 3] for side in (student, teacher)
            ]
            for head in range(heads):
                for query in range(length):
                    learned, wanted = (relation(side, heads, head, query, length) for side in sides)
                    total += sum(p * math.log(p / q) for p, q in zip(wanted, learned, strict=True))
    return total / heads


@pytest.mark.parametrize(("widths", "heads"), [((8, 24), 4), ((24, 24), 3), ((12, 8), 2), ((8, 8), 1)])
def test_the_loss_equals_a_plain_loop(widths: tuple[int, int], heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (
        torch.randn(ROWS, TOKENS, 3 * width, dtype=torch.float64, generator=generator) for width in widths
    )
    mask = torch.arange(TOKENS) < torch.tensor(LENGTHS)[:, None]
    loss = float(relation_loss(student, teacher, mask, heads=heads))
    assert loss == pytest.approx(plain_loss(student.numpy(), teacher.numpy(), heads), rel=1e-9)
    assert float(relation_loss(student, student.clone(), mask, heads=heads)) == pytest.approx(0.0, abs=1e-12)


def test_padding_has_no_gradient_and_no_effect() -> None:
    generator = torch.Generator().manual_seed(1)
    student = torch.randn(ROWS, TOKENS, 24, generator=generator, requires_grad=True)
    teacher = torch.randn(ROWS, TOKENS, 48, generator=generator)
    mask = torch.arange(TOKENS) < torch.tensor(LENGTHS)[:, None]
    loss = relation_loss(student, teacher, mask, heads=2)
    loss.backward()
    assert student.grad is not None
    assert bool(student.grad.isfinite().all())
    assert not student.grad[~mask].any()
    changed = torch.where(mask[:, :, None], student.detach(), torch.full_like(student, 9.0))
    assert float(relation_loss(changed, teacher, mask, heads=2)) == pytest.approx(float(loss.detach()), rel=1e-6)


@pytest.mark.parametrize(
    ("student", "teacher", "most", "heads"), [(128, 384, 12, 8), (384, 384, 12, 12), (256, 384, 12, 8), (48, 32, 2, 2)]
)
def test_relation_heads_divide_both_widths(student: int, teacher: int, most: int, heads: int) -> None:
    assert relation_heads(student, teacher, most=most) == heads
    assert student % heads == teacher % heads == 0


def test_the_projections_are_those_with_which_the_last_layer_attends() -> None:
    config = EncoderConfig(vocab_size=20, hidden=8, layers=2, heads=2, intermediate=16, max_positions=8)
    encoder = Encoder(config).eval()
    init_weights(encoder, 0.5, torch.Generator().manual_seed(0))
    seen: list[torch.Tensor] = []
    encoder.layers[-1].attention.qkv.register_forward_hook(lambda *parts: seen.append(parts[2]))
    ids = torch.arange(10).view(2, 5)
    out = encoder(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool), all_hidden=True)
    assert torch.equal(encoder.last_projections(out.hidden[-2]), seen[0])
