"""Attention of training in bf16 has the numbers of float64, as far as bf16 holds them, and those of the steps."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bertwright.model import attention
from bertwright.model.attention import attention_context, attention_probabilities
from bertwright.model.cpu import training_attention
from bertwright.model.local_attention import window_mask

SHAPES = [(2, 2, 64, 64, 64), (1, 3, 7, 33, 32), (3, 1, 1, 1, 32), (2, 2, 65, 130, 64), (1, 2, 96, 31, 128)]
"""Texts, heads, queries, keys, width of a head."""


@pytest.fixture(autouse=True)
def _built() -> None:
    query = torch.zeros(1, 1, 1, 32, dtype=torch.bfloat16)
    if not training_attention.is_usable(query, query, torch.ones(1, 1, 1, 1, dtype=torch.bool)):
        pytest.skip("needs a processor that multiplies in bf16 (AVX512_BF16)")


def parts(batch: int, heads: int, queries: int, keys: int, width: int) -> list[Tensor]:
    """Return queries, keys, values and a gradient of the context, in bf16."""
    torch.manual_seed(0)
    shapes = [(batch, heads, count, width) for count in (queries, keys, keys, queries)]
    return [torch.randn(shape).bfloat16() for shape in shapes]


def exact(parts: list[Tensor], keep: Tensor, factors: Tensor | None = None) -> list[Tensor]:
    """Return the context and the gradients of queries, keys and values, in float64."""
    *inputs, arrived = (part.double() for part in parts)
    query, key, value = (part.requires_grad_() for part in inputs)
    probabilities = attention_probabilities(query, key, keep)
    context = (probabilities if factors is None else probabilities * factors) @ value
    return [context.detach(), *torch.autograd.grad(context, (query, key, value), arrived)]


def computed(parts: list[Tensor], keep: Tensor, *, dropout_p: float = 0.0) -> list[Tensor]:
    """Return the same by `attention_context`."""
    query, key, value = (part.detach().requires_grad_() for part in parts[:3])
    context = attention_context(query, key, value, keep, dropout_p=dropout_p)
    return [context.detach(), *torch.autograd.grad(context, (query, key, value), parts[3])]


def assert_near(ours: list[Tensor], expected: list[Tensor], *, difference: float = 0.01) -> None:
    """Check that tensors differ by a hundredth of the largest number at most; bf16 has steps of 0.4 %."""
    for tensor, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(tensor.double(), wanted, atol=difference * float(wanted.abs().max()), rtol=0.0)


@pytest.mark.parametrize("shape", SHAPES)
def test_context_and_gradients_are_those_of_float64(shape: tuple[int, ...]) -> None:
    inputs = parts(*shape)
    keep = torch.rand(shape[0], 1, 1, shape[3]) > 0.3
    keep[..., 0] = True
    assert_near(computed(inputs, keep), exact(inputs, keep))


def test_each_query_may_have_keys_of_its_own() -> None:
    inputs = parts(2, 2, 70, 70, 64)
    keep = window_mask(torch.arange(70) < torch.tensor([[70], [41]]), 9)
    assert_near(computed(inputs, keep), exact(inputs, keep))


def test_a_query_without_keys_attends_to_all_alike() -> None:
    inputs = parts(2, 1, 20, 20, 32)
    keep = torch.ones(2, 1, 1, 20, dtype=torch.bool)
    keep[1] = False
    ours = computed(inputs, keep)
    assert_near(ours, exact(inputs, keep))
    assert not ours[1][1].any()
    torch.testing.assert_close(ours[0][1], inputs[2][1].mean(1, keepdim=True).expand(-1, 20, -1), atol=0.01, rtol=0.0)


@pytest.mark.parametrize("queries", [40, 99])
def test_dropout_draws_the_numbers_of_the_steps(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed drops the same probabilities, and the next random number is the same."""
    inputs = parts(2, 2, queries, 50, 64)
    keep = torch.ones(2, 1, 1, 50, dtype=torch.bool)
    keep[1] = False
    torch.manual_seed(1)
    factors = attention.dropout(torch.ones(2, 2, queries, 50, dtype=torch.float64), 0.25, training=True)
    following = torch.rand(3)
    torch.manual_seed(1)
    ours = computed(inputs, keep, dropout_p=0.25)
    assert torch.equal(torch.rand(3), following)
    assert_near(ours, exact(inputs, keep, factors))
    assert 0.2 < float((factors == 0).double().mean()) < 0.3
    monkeypatch.setattr(training_attention, "is_usable", lambda *_: False)
    torch.manual_seed(1)
    steps = computed(inputs, keep, dropout_p=0.25)
    assert_near(ours, [part.double() for part in steps], difference=0.02)  # both round


def test_errors_are_no_larger_than_those_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = parts(4, 2, 64, 64, 64)
    keep = torch.ones(4, 1, 1, 64, dtype=torch.bool)
    expected, ours = exact(inputs, keep), computed(inputs, keep)
    monkeypatch.setattr(training_attention, "is_usable", lambda *_: False)
    for tensor, plain, wanted in zip(ours, computed(inputs, keep), expected, strict=True):
        assert (tensor - wanted).square().mean() <= 1.05 * (plain - wanted).square().mean()


def test_layouts_and_numbers_of_threads_change_no_bit() -> None:
    inputs = parts(3, 2, 33, 33, 64)
    keep = torch.rand(3, 1, 33, 33) > 0.5
    expected = computed(inputs, keep)
    layouts = [part.transpose(1, 2).contiguous().transpose(1, 2) for part in inputs]
    columns = [part.transpose(2, 3).contiguous().transpose(2, 3) for part in inputs]
    transposed = keep.transpose(2, 3).contiguous().transpose(2, 3)
    before = torch.get_num_threads()
    try:
        for threads, (again, kept) in itertools.product(
            (1, 2, 3), [(inputs, keep), (layouts, keep), (columns, transposed)]
        ):
            torch.set_num_threads(threads)
            for tensor, wanted in zip(computed(again, kept), expected, strict=True):
                assert torch.equal(tensor, wanted)
    finally:
        torch.set_num_threads(before)


def test_what_is_not_finite_is_no_probability() -> None:
    """Else a step that diverged would go on with finite numbers."""
    query, key, value, _ = parts(1, 1, 8, 8, 32)
    keep = torch.ones(1, 1, 1, 8, dtype=torch.bool)
    keep[..., 7] = False
    for broken in (float("nan"), float("inf"), 3e38):
        other = key.clone()
        other[0, 0, 7] = broken  # which is not kept
        assert attention_context(query, other, value, keep, dropout_p=0.0).isfinite().all()
        other[0, 0, 3] = broken
        assert not attention_context(query, other, value, keep, dropout_p=0.0).isfinite().any()


def test_empty_and_expanded_tensors() -> None:
    inputs = parts(2, 1, 40, 33, 32)
    one, keep = torch.ones(1, 1, 1, 1, dtype=torch.bool), torch.ones(2, 1, 1, 33, dtype=torch.bool)
    inputs[3] = torch.ones(()).bfloat16().expand(2, 1, 40, 32)  # the gradient of a sum
    for ours, expected in zip(computed(inputs, one), computed(inputs, keep), strict=True):
        assert torch.equal(ours, expected)
    assert_near(computed(inputs, keep), exact(inputs, keep))
    for shape in ((0, 2, 5, 7, 32), (1, 2, 0, 7, 32)):
        context, *gradients = computed(parts(*shape), one)
        assert context.shape == (shape[0], 2, shape[2], 32)
        assert not any(gradient.any() for gradient in gradients)


def test_recomputed_layers_draw_the_same_numbers() -> None:
    query, key, value, arrived = parts(2, 2, 40, 40, 32)
    keep = torch.ones(2, 1, 1, 40, dtype=torch.bool)
    results = []
    for recompute in (False, True):
        torch.manual_seed(2)
        inputs = [part.clone().requires_grad_() for part in (query, key, value)]

        def context(*parts: Tensor) -> Tensor:
            return attention_context(*parts, keep, dropout_p=0.2)

        out = checkpoint(context, *inputs, use_reentrant=False) if recompute else context(*inputs)
        results.append(torch.autograd.grad(out, inputs, arrived))
    for ours, expected in zip(*results, strict=True):
        assert torch.equal(ours, expected)
