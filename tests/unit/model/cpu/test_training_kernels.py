"""The compiled steps of training against torch."""

from typing import cast

import pytest
import torch

from bertwright.model import attention
from bertwright.model.cpu import training_kernels
from bertwright.model.modern_config import ModernBertConfig
from bertwright.model.modern_encoder import ModernLayer, View, turned, turns
from bertwright.model.system import system_config

KINDS = {torch.bfloat16: 2**-8, torch.float32: 2**-20}
"""Kinds of numbers, and the relative difference that their rounding allows."""


def tile_of(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logits without bias in bf16, a bias, and labels around columns that begin at 100."""
    generator = torch.Generator().manual_seed(rows)
    labels = torch.randint(100 - columns, 100 + 2 * columns, (rows,), generator=generator)
    logits = 4 * torch.randn(rows, columns, generator=generator)
    return logits.bfloat16(), torch.randn(columns, generator=generator), labels


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (37, 45), (600, 384)])
@pytest.mark.parametrize("threads", [1, 2])
def test_exponentials_leave_out_the_label(rows: int, columns: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    tile, bias, labels = tile_of(rows, columns)
    exact = (tile.double() + bias).exp()
    inside = (labels >= 100) & (labels < 100 + columns)
    exact[inside, labels[inside] - 100] = 0.0
    sums = torch.full((rows,), 3.0)
    training_kernels.exponentials(tile, bias, labels, sums, first=100)
    torch.set_num_threads(before)
    torch.testing.assert_close(tile.double(), exact, atol=0, rtol=2**-8)
    torch.testing.assert_close(sums.double(), 3.0 + exact.sum(1), atol=0, rtol=1e-6)


def test_a_logit_that_no_float_can_raise_makes_a_sum_that_is_refused() -> None:
    sums = torch.zeros(1)
    training_kernels.exponentials(
        torch.full((1, 3), 300.0).bfloat16(), torch.zeros(3), torch.tensor([9]), sums, first=0
    )
    assert float(sums) > 1e20


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (37, 45), (600, 384)])
def test_column_sums_have_the_weights_of_the_rows(rows: int, columns: int) -> None:
    tile, _, _ = tile_of(rows, columns)
    weights = torch.rand(rows, generator=torch.Generator().manual_seed(1))
    exact = weights.double() @ tile.double()
    torch.testing.assert_close(training_kernels.column_sums(tile, weights).double(), exact, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (3, 7, 2, 10), (9, 128, 3, 64)])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_queries_and_keys_are_turned_as_in_torch(
    shape: tuple[int, int, int, int], threads: int, kind: torch.dtype
) -> None:
    """The numbers that are rounded differ in their last bits. Values are copied. The parts may lie in any order."""
    batch, length, heads, width = shape
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    rows = torch.randn(batch, length, 3, heads, width, generator=torch.Generator().manual_seed(batch)).to(kind)
    turn = turns(length, width, 1e4, device=rows.device)
    out = training_kernels.turn_pairs(rows.unbind(2), turn)
    back = training_kernels.turn_pairs(rows.unbind(2), turn, back=True)
    by_heads = [part.transpose(1, 2).contiguous().transpose(1, 2) for part in rows.unbind(2)]
    by_width = [part.transpose(1, 3).contiguous().transpose(1, 3) for part in rows.unbind(2)]
    for parts in (by_heads, by_width):
        assert torch.equal(training_kernels.turn_pairs(parts, turn), out)
    torch.set_num_threads(before)
    for result, angles in ((out, turn), (back, turn * torch.tensor([1.0, -1.0])[:, None, None])):
        for part in (0, 1):
            expected = turned(rows[:, :, part].transpose(1, 2), angles).transpose(1, 2)
            tolerances = {"atol": 1e-5, "rtol": 2 * KINDS[kind]}
            torch.testing.assert_close(result[:, :, part].double(), expected.double(), **tolerances)
        assert torch.equal(result[:, :, 2], rows[:, :, 2])


@pytest.mark.parametrize("shape", [(1, 2), (3, 5, 6), (70, 9, 128)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_gate_and_its_gradient_are_those_of_exact_gelu(shape: tuple[int, ...], kind: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(shape[0])
    rows = (4 * torch.randn(shape, generator=generator)).to(kind)
    gradient = torch.randn(*shape[:-1], shape[-1] // 2, generator=generator).to(kind)
    exact = rows.double().requires_grad_()
    values, gates = exact.chunk(2, dim=-1)
    out = torch.nn.functional.gelu(values) * gates
    (expected,) = torch.autograd.grad(out, exact, gradient.double())
    torch.testing.assert_close(training_kernels.gate(rows).double(), out.detach(), atol=1e-5, rtol=KINDS[kind])
    ours = training_kernels.gate_gradient(rows, gradient)
    torch.testing.assert_close(ours.double(), expected, atol=1e-5, rtol=KINDS[kind])


def test_a_gate_takes_no_rows_and_gradients_in_any_order() -> None:
    assert training_kernels.gate(torch.zeros(0, 3, 8).bfloat16()).shape == (0, 3, 4)
    rows, gradient = torch.randn(5, 3, 8).bfloat16(), torch.randn(3, 5, 4).bfloat16().transpose(0, 1)
    ours = training_kernels.gate_gradient(rows, gradient)
    assert torch.equal(ours, training_kernels.gate_gradient(rows, gradient.contiguous()))


@pytest.mark.parametrize(("kind", "difference"), [(torch.bfloat16, 0.02), (torch.float32, 1e-5)])
def test_a_layer_has_the_gradients_of_torch(
    kind: torch.dtype, difference: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bf16 has steps of 0.4 %, and the two ways round at other places."""
    torch.manual_seed(0)
    layer = ModernLayer(cast(ModernBertConfig, system_config("modernbert", "2x128", vocab_size=100)), 1).eval()
    hidden = torch.randn(4, 33, 128, generator=torch.Generator().manual_seed(0))
    view = View(torch.ones(4, 1, 1, 33, dtype=torch.bool), turns(33, 64, 1e4, device=hidden.device))
    states = hidden.requires_grad_()
    weights = (states, layer.attention.qkv.weight, layer.expand.weight, layer.contract.weight)
    assert training_kernels.are_usable(hidden.to(kind))
    results = []
    for is_plain in (False, True):
        if is_plain:
            monkeypatch.setattr(training_kernels, "are_usable", lambda _: False)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == torch.bfloat16):
            out = layer(states, view)
        results.append((out.detach(), *torch.autograd.grad(out.float().square().sum(), weights)))
    for ours, plain in zip(*results, strict=True):
        # The three parts of a weight are those of queries, keys and values.
        for part, expected in zip(ours.chunk(3), plain.chunk(3), strict=True):
            scale = float(expected.abs().max())
            torch.testing.assert_close(part / scale, expected / scale, atol=difference, rtol=0.0)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_dropout_in_one_pass_has_the_bits_of_torch(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(5, 70, 9).to(kind).transpose(1, 2)
    assert training_kernels.are_usable(values)
    results = []
    for is_plain in (False, True):
        if is_plain:
            monkeypatch.setattr(training_kernels, "are_usable", lambda _: False)
        torch.manual_seed(3)
        inputs = values.clone().requires_grad_()
        out = attention.dropout(inputs, 0.1, training=True)
        arrived = torch.linspace(-1, 1, out.numel()).view_as(out).to(kind)
        results.append((out.detach(), *torch.autograd.grad(out, inputs, arrived)))
    for ours, plain in zip(*results, strict=True):
        assert torch.equal(ours, plain)
    assert 0.05 < float((results[0][0] == 0).float().mean()) < 0.15


def test_dropout_of_a_number_and_of_nothing() -> None:
    assert float(attention.dropout(torch.tensor(1.0), 0.5, training=True)) in (0.0, 2.0)
    assert attention.dropout(torch.zeros(5, 0), 0.1, training=True).shape == (5, 0)
