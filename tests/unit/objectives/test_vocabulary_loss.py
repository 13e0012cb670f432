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
from bertwright.objectives.vocabulary_loss import (
    _BF16_COLUMNS,
    loss_terms,
    projected_losses,
    running_loss,
    running_losses,
    token_losses,
)


def projected_loss(states: Tensor, embeddings: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    return projected_losses(states, embeddings, bias, labels, z_weight=0.0)[0]


def leaves(scale: float = 0.5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    size = 2 * _BF16_COLUMNS + 45  # whole tiles and a part of one
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
    arguments = (states, words, bias, labels, False, 0.03)
    torch.library.opcheck(projection._loss_and_gradients, arguments, test_utils=("test_schema", "test_faketensor"))


# ---------------------------------------------------------------- z-loss

WEIGHT = 0.03
"""Far larger than usual, so that an error in the z-loss shows."""


def losses_by_loop(states: Tensor, words: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy and z-loss, row by row, from the definition in float64."""
    loss, z_loss = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for row, label in zip(states.double(), labels.tolist(), strict=True):
        logits = words.double() @ row + bias.double()
        log_z = logits.max() + (logits - logits.max()).exp().sum().log()
        loss, z_loss = loss + log_z - logits[label], z_loss + WEIGHT * log_z**2
    return loss, z_loss


def in_float64(scale: float) -> list[Tensor]:
    return [part.detach().double().requires_grad_() for part in leaves(scale)[:3]]


def by_definition(scale: float) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    exact = in_float64(scale)
    loss, z_loss = losses_by_loop(*exact, leaves()[3])
    return loss.detach(), z_loss.detach(), torch.autograd.grad(loss + z_loss, exact)


@pytest.mark.parametrize("compute", [projected_losses, running_losses, "sliced"])
@pytest.mark.parametrize("scale", [0.1, 20.0])  # with 20 the exponentials overflow, and the logits are made at once
def test_z_loss_in_float64_is_the_definition(scale: float, compute: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of the slices with their own backward, which a step computes in fp32."""
    monkeypatch.setattr(projection, "_BLOCK", 10)
    tensors, labels = in_float64(scale), leaves()[3]
    if compute == "sliced":
        loss, z_loss, *mine = projection._loss_and_gradients(*tensors, labels, False, WEIGHT)
    else:
        loss, z_loss = compute(*tensors, labels, z_weight=WEIGHT)
        mine = torch.autograd.grad(loss, tensors)
    expected, expected_z, gradients = by_definition(scale)
    torch.testing.assert_close(loss.detach(), expected, atol=0, rtol=1e-9)
    torch.testing.assert_close(z_loss.detach(), expected_z, atol=0, rtol=1e-9)
    for one, other in zip(mine, gradients, strict=True):
        torch.testing.assert_close(one.detach(), other, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("compiler", [False, True])
@pytest.mark.parametrize("compute", [projected_losses, running_losses])
@pytest.mark.parametrize("scale", [0.1, 20.0])
def test_z_loss_in_slices(
    scale: float, compute: Any, compiler: bool, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp32 and in bf16, with kernels and without; `compiler`: True with them."""
    if not compiler:
        monkeypatch.setattr(kernels, "library", lambda: None)
    monkeypatch.setattr(projection, "_BLOCK", 10)
    *tensors, labels = leaves(scale)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss, z_loss = compute(*tensors, labels, z_weight=WEIGHT)
    assert not z_loss.requires_grad
    expected, expected_z, gradients = by_definition(scale)
    close = 1e-2 if bf16 else 1e-5
    torch.testing.assert_close(loss.detach().double(), expected, atol=0, rtol=close)
    torch.testing.assert_close(z_loss.double(), expected_z, atol=0, rtol=close)
    for mine, other in zip(torch.autograd.grad(0.3 * loss, tensors), gradients, strict=True):
        away = float((mine.double() - 0.3 * other).norm() / (0.3 * other).norm())
        assert away < (0.12 if bf16 else 1e-5)


@pytest.mark.parametrize("compute", [projected_losses, running_losses])
def test_without_weight_the_loss_and_gradients_have_the_same_bits(compute: Any) -> None:
    plain = projected_loss if compute is projected_losses else running_loss
    results = []
    for with_weight in (False, True):
        *tensors, labels = leaves()
        loss, z_loss = compute(*tensors, labels, z_weight=0.0) if with_weight else (plain(*tensors, labels), None)
        assert z_loss is None or float(z_loss) == 0.0
        results.append((loss.detach(), *torch.autograd.grad(loss, tensors)))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    assert list(loss_terms("mlm", compute(*leaves(), z_weight=0.0), z_weight=0.0)) == ["mlm"]
    assert list(loss_terms("mlm", compute(*leaves(), z_weight=WEIGHT), z_weight=WEIGHT)) == ["mlm", "z"]
