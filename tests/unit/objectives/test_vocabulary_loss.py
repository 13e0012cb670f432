"""The vocabulary projection against torch's own linear and cross entropy."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.model.cpu import kernels
from bertwright.objectives import vocabulary_loss as projection
from bertwright.objectives.vocabulary_loss import _COLUMNS, projected_loss, running_loss, token_losses


def leaves(scale: float = 0.5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    size = 2 * _COLUMNS + 45  # whole tiles and a part of one
    states = torch.randn(37, 24, generator=generator)
    words, bias = torch.randn(size, 24, generator=generator) * scale, torch.randn(size, generator=generator)
    labels = torch.randint(0, size, (37,), generator=generator)
    return states.requires_grad_(), words.requires_grad_(), bias.requires_grad_(), labels


def assert_loss_and_gradients_are_torchs(loss_of: Callable[..., Tensor], scale: float) -> None:
    ours, theirs = leaves(scale), leaves(scale)
    loss = loss_of(*ours)
    plain = F.cross_entropy(F.linear(theirs[0], theirs[1], theirs[2]), theirs[3], reduction="sum")
    torch.testing.assert_close(loss, plain, atol=0, rtol=2e-6)
    (loss * 0.3).backward()
    (plain * 0.3).backward()
    for mine, other in zip(ours[:3], theirs[:3], strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("scale", [0.1, 0.5, 20.0])
def test_loss_and_gradients_equal_torchs(scale: float) -> None:
    assert_loss_and_gradients_are_torchs(projected_loss, scale)


@pytest.mark.parametrize("scale", [0.1, 0.5])
def test_in_bf16_it_is_as_near_to_fp32_as_torchs(scale: float) -> None:
    def gradients(bf16: bool, ours: bool) -> tuple[Tensor, list[Tensor]]:
        *learned, labels = leaves(scale)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = None if ours else F.linear(*learned)
            loss = (
                projected_loss(*learned, labels)
                if logits is None
                else F.cross_entropy(logits.float(), labels, reduction="sum")
            )
        loss.backward()
        return loss.detach(), [part.grad for part in learned]  # type: ignore[misc]

    exact, ours, theirs = gradients(False, False), gradients(True, True), gradients(True, False)
    torch.testing.assert_close(ours[0], exact[0], atol=0, rtol=2e-3)
    for true, mine, other in zip(exact[1], ours[1], theirs[1], strict=True):
        away, others = (1 - F.cosine_similarity(true.flatten(), part.flatten(), dim=0) for part in (mine, other))
        assert float(away) < max(2e-5, 1.5 * float(others))


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("compute", [projected_loss, running_loss])
@pytest.mark.parametrize("sure", [6.0, 10.0, 20.0])
def test_what_is_known_by_heart_keeps_its_small_loss_and_gradients(sure: float, compute: Any, bf16: bool) -> None:
    def found(ours: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        states, words, bias, labels = leaves(0.1)
        label_rows = words.detach()[labels]
        with torch.no_grad():
            states += label_rows * sure / label_rows.square().sum(1, keepdim=True)  # so far above the other logits
            bias.zero_()
        if ours:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = compute(states, words, bias, labels)
        else:
            loss = F.cross_entropy(F.linear(states, words, bias), labels, reduction="sum")
        return loss.detach(), torch.autograd.grad(loss, (states, words, bias))

    (exact, true), (loss, mine) = found(False), found(True)
    torch.testing.assert_close(loss, exact, atol=0, rtol=1e-2 if bf16 else 1e-5)
    for one, other in zip(true, mine, strict=True):
        assert float(F.cosine_similarity(one.flatten(), other.flatten(), dim=0)) > 0.999
        assert float(other.norm() / one.norm()) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("compute", [projected_loss, running_loss])
def test_states_in_bf16_are_computed_like_the_same_numbers_in_fp32(compute: Any) -> None:
    """The head's LayerNorm returns bf16 in a step of bf16."""
    states, words, bias, labels = leaves()
    narrow = states.detach().bfloat16()
    gradients = []
    for rows in (narrow, narrow.float()):
        rows.requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            loss = compute(rows, words, bias, labels)
        gradients.append((loss.detach(), *torch.autograd.grad(loss, (words, bias, rows))))
    for mine, other in zip(gradients[0][:3], gradients[1][:3], strict=True):
        assert torch.equal(mine, other)
    assert torch.equal(gradients[0][3], gradients[1][3].bfloat16())


@pytest.mark.parametrize("scale", [0.1, 0.5])
def test_without_a_compiler_the_loss_is_that_of_the_compiled_steps(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernels.library() is not None
    gradients = []
    for built in (kernels.library, lambda: None):
        monkeypatch.setattr(kernels, "library", built)
        tensors = leaves(scale)
        with torch.autocast("cpu", torch.bfloat16):
            loss = projected_loss(*tensors)
        loss.backward()
        gradients.append((loss.detach(), *(part.grad for part in tensors[:3])))
    torch.testing.assert_close(gradients[0][0], gradients[1][0], atol=0, rtol=1e-3)
    for mine, other in zip(gradients[0][1:], gradients[1][1:], strict=True):
        assert float(F.cosine_similarity(mine.flatten(), other.flatten(), dim=0)) > 0.9999


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_number_that_is_not_finite_shows_in_the_loss(part: int, number: float, bf16: bool) -> None:
    tensors = leaves()
    with torch.no_grad():
        tensors[part].flatten()[3] = number  # of a bias, that of a column which is no label
    assert 3 not in tensors[3]
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = projected_loss(*tensors)
    gradients = torch.autograd.grad(loss, tensors[:3])
    assert not all(bool(part.isfinite().all()) for part in (loss.detach(), *gradients))


def test_a_probability_too_small_for_a_float_still_has_its_loss() -> None:
    states, words, bias, labels = leaves(20.0)
    losses = F.cross_entropy(F.linear(states, words, bias), labels, reduction="none")
    assert float(losses.detach().max()) > 100  # exp(-100) is no normal float
    torch.testing.assert_close(projected_loss(states, words, bias, labels), losses.sum(), atol=0, rtol=2e-6)


def test_no_row_is_a_loss_of_zero() -> None:
    states, words, bias, _ = leaves()
    loss = projected_loss(states[:0], words, bias, torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert float(words.grad.abs().max()) == 0.0  # type: ignore[union-attr]


# ---------------------------------------------------------------- a block of rows at a time


@pytest.mark.parametrize("scale", [0.1, 0.5, 20.0])
def test_blocks_of_rows_have_the_loss_and_gradients_of_all(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "_BLOCK", 10)  # 37 rows: three whole ones and a part
    assert_loss_and_gradients_are_torchs(running_loss, scale)


def test_blocks_in_bf16_equal_all_rows_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = []
    for block in (10, 1000):
        monkeypatch.setattr(projection, "_BLOCK", block)
        tensors = leaves(0.5)
        with torch.autocast("cpu", torch.bfloat16):
            loss = running_loss(*tensors)
        loss.backward()
        gradients.append((loss.detach(), *(part.grad for part in tensors[:3])))
    torch.testing.assert_close(gradients[0][0], gradients[1][0], atol=0, rtol=1e-3)
    for mine, other in zip(gradients[0][1:], gradients[1][1:], strict=True):
        assert float(F.cosine_similarity(mine.flatten(), other.flatten(), dim=0)) > 0.9999


def test_no_more_than_a_block_of_logits_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "_BLOCK", 10)
    tensors = leaves()
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda part: kept.append(part.numel()) or part, lambda part: part):
        running_loss(*tensors)
    assert kept
    assert max(kept) <= tensors[1].numel()  # the gradient of the words; all logits would be 37 rows of as many columns
    assert max(kept) < 37 * len(tensors[1])


def test_rows_judged_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "_BLOCK", 10)
    states, words, bias, labels = leaves()
    logits = F.linear(states, words, bias)
    losses, right = token_losses(states, words, bias, labels)
    torch.testing.assert_close(losses, F.cross_entropy(logits, labels, reduction="none"))
    assert torch.equal(right, logits.argmax(1) == labels)


def test_the_operation_is_one_that_torch_can_trust() -> None:
    """Torch's own check of its shapes, its gradients and its use in a compiled graph."""
    states, words, bias, labels = leaves(0.1)
    arguments = (states, words, bias, labels, False)
    torch.library.opcheck(projection._loss_and_gradients, arguments, test_utils=("test_schema", "test_faketensor"))
