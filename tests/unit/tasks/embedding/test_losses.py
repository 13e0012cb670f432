"""The losses of vectors beside plain loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bertwright.tasks.embedding.losses import cosent, cosines, in_batch_softmax, mean_over_widths


@pytest.fixture
def sides() -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(3)
    return torch.from_numpy(random.normal(size=(4, 6))), torch.from_numpy(random.normal(size=(7, 6)))


def cosine(first: Any, second: Any) -> float:
    dot = sum(a * b for a, b in zip(first, second, strict=True))
    return float(dot / math.sqrt(sum(a * a for a in first)) / math.sqrt(sum(b * b for b in second)))


def test_the_softmax_is_that_of_a_loop_over_pairs(sides: tuple[Tensor, Tensor]) -> None:
    targets, temperature = [2, 0, 6, 3], 0.1
    blocked = torch.zeros(4, 7, dtype=torch.bool)
    blocked[0, 2] = blocked[0, 5] = blocked[3, 0] = True  # a pair's own positive is kept though it matches
    expected = 0.0
    for row, target in enumerate(targets):
        scores = [cosine(sides[0][row].tolist(), text.tolist()) / temperature for text in sides[1]]
        kept = [score for text, score in enumerate(scores) if text == target or not blocked[row, text]]
        expected += math.log(sum(math.exp(score) for score in kept)) - scores[target]
    loss = in_batch_softmax(cosines(*sides), torch.tensor(targets), blocked, temperature=temperature)
    assert float(loss) == pytest.approx(expected, rel=1e-12)


def test_a_text_that_matches_the_anchor_gets_no_gradient(sides: tuple[Tensor, Tensor]) -> None:
    seconds = sides[1].clone().requires_grad_()
    blocked = torch.zeros(4, 7, dtype=torch.bool)
    blocked[:, 5] = True
    in_batch_softmax(cosines(sides[0], seconds), torch.tensor([0, 1, 2, 3]), blocked, temperature=0.1).backward()
    assert seconds.grad is not None
    assert not seconds.grad[5].any()
    assert seconds.grad[4].any()


def test_cosent_is_that_of_a_loop_over_ordered_pairs() -> None:
    scores, targets = [0.9, 0.2, 0.5, 0.4], [1.0, 3.0, 3.0, 0.5]
    total = 1.0
    for low in range(4):
        for high in range(4):
            if targets[low] < targets[high]:
                total += math.exp((scores[low] - scores[high]) / 0.05)
    loss = cosent(torch.tensor(scores, dtype=torch.float64), torch.tensor(targets), temperature=0.05)
    assert float(loss) == pytest.approx(math.log(total), rel=1e-12)
    assert float(cosent(torch.tensor([0.5]), torch.tensor([1.0]), temperature=0.05)) == 0.0


def test_matryoshka_is_the_mean_over_vectors_that_are_cut(sides: tuple[Tensor, Tensor]) -> None:
    def loss(firsts: Tensor, seconds: Tensor) -> Tensor:
        return cosines(firsts, seconds).square().sum()

    whole, half = loss(*sides), loss(sides[0][:, :3], sides[1][:, :3])
    assert float(mean_over_widths(loss, sides, ())) == pytest.approx(float(whole))
    assert float(mean_over_widths(loss, sides, (6, 3))) == pytest.approx(float(whole + half) / 2)
