"""Muon's iteration in one call against that of torch and against float64."""

import pytest
import torch

from bertwright.model.cpu import kernels
from bertwright.model.cpu.muon_iteration import muon_iteration
from bertwright.training import muon

HOW = (muon._QUINTIC, muon._ITERATIONS)
SHAPES = [(4, 128, 128), (3, 512, 128), (2, 128, 512), (3, 40, 24), (1, 1, 7), (5, 33, 100), (2, 192, 256)]


@pytest.fixture(autouse=True)
def _with_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernels.has_half_products():
        pytest.skip("Muon is left to torch here: no C++ compiler, no bf16 instructions of AVX-512, or AMX")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def iterated(updates: torch.Tensor) -> torch.Tensor:
    result = muon_iteration(updates, *HOW)
    assert result is not None
    return result


def distance(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_as_near_to_float64_as_torch_is(shape: tuple[int, int, int]) -> None:
    updates = random(*shape)
    exact = muon.orthogonalise(updates.double())
    by_torch = distance(muon.orthogonalise(updates, torch.bfloat16), exact)
    assert distance(iterated(updates), exact) < max(0.01, 1.2 * by_torch)


def test_threads_and_neighbours_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = random(5, 96, 160)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    expected = iterated(updates)
    assert torch.equal(iterated(updates[3:4]), expected[3:4])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert torch.equal(iterated(updates), expected)


def test_any_order_of_memory_and_any_scale() -> None:
    updates = random(3, 128, 64)
    assert torch.equal(iterated(updates.mT.contiguous().mT), iterated(updates))
    assert distance(iterated(1e-12 * updates), muon.orthogonalise(1e-12 * updates.double())) < 0.02
    assert distance(iterated(1e12 * updates), muon.orthogonalise(updates.double())) < 0.02


def test_zeros_stay_zero_and_infinity_is_not_hidden() -> None:
    assert torch.equal(iterated(torch.zeros(2, 64, 64)), torch.zeros(2, 64, 64))
    broken = random(2, 64, 64)
    broken[1, 3, 5] = torch.inf
    result = iterated(broken)
    assert result[0].isfinite().all()
    assert not result[1].isfinite().all()


def test_large_matrices_and_too_few_for_the_threads_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert muon_iteration(torch.zeros(2, 1024, 2048), *HOW) is None
    updates = random(5, 32, 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert muon_iteration(updates, *HOW) is None
    assert torch.equal(muon.bf16_function(muon_iteration)(updates), muon.orthogonalise(updates, torch.bfloat16))
    assert muon_iteration(random(6, 32, 64), *HOW) is not None
