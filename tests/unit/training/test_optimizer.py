"""The optimiser against the original's formula in float64, its schedule and its groups."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from bertwright.training.optimizer import build_optimizer, clip_gradients, rate_at, set_rate
from bertwright.training.settings import OptimizerSettings


def original_adamw_steps(weights: np.ndarray, gradients: np.ndarray, *, rate: float, decay: float) -> np.ndarray:
    """AdamWeightDecay as the original writes it: no bias correction, decay added to the update."""
    m, v, value = np.zeros_like(weights), np.zeros_like(weights), weights.copy()
    for gradient in gradients:
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        value = value - rate * (m / (np.sqrt(v) + 1e-6) + decay * value)
    return value


@pytest.mark.parametrize("decays", [True, False])
def test_fifty_steps_equal_the_originals_formula(decays: bool) -> None:
    random = np.random.default_rng(0)
    shape = (4, 3) if decays else (12,)
    weights, gradients = random.normal(size=shape), random.normal(size=(50, *shape))
    module = nn.Module()
    module.weight = nn.Parameter(torch.from_numpy(weights.copy()))
    optimizer = build_optimizer(module, OptimizerSettings(learning_rate=1e-2))
    for gradient in gradients:
        module.weight.grad = torch.from_numpy(gradient.copy())
        set_rate(optimizer, 1e-2)
        optimizer.step()
    expected = original_adamw_steps(weights, gradients, rate=1e-2, decay=0.01 if decays else 0.0)
    np.testing.assert_allclose(module.weight.detach().numpy(), expected, atol=1e-9)


def test_bias_correction_makes_the_first_step_the_rate_itself() -> None:
    sizes = {}
    for corrected in (True, False):
        module = nn.Module()
        module.weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        optimizer = build_optimizer(module, OptimizerSettings(learning_rate=1.0, bias_correction=corrected))
        module.weight.grad = torch.full((3,), 2.0, dtype=torch.float64)
        optimizer.step()
        sizes[corrected] = -float(module.weight.detach()[0])
    assert sizes[True] == pytest.approx(1.0, rel=1e-5)
    assert sizes[False] == pytest.approx(0.1 / 0.001**0.5, rel=1e-4)  # 3.16: what warm-up hides


def test_rate_rises_then_falls_measured_from_step_zero() -> None:
    assert rate_at(0, 1000, 0.1) == 0.0
    assert rate_at(50, 1000, 0.1) == 0.5
    assert rate_at(100, 1000, 0.1) == pytest.approx(0.9)
    assert rate_at(10_000, 1_000_000, 0.01) == pytest.approx(0.99)
    assert rate_at(1000, 1000, 0.1) == 0.0


def test_the_rate_along_a_cosine_as_gpts() -> None:
    rates = [rate_at(step, 1000, 0.1, "cosine") for step in (50, 100, 500, 750, 1000)]
    shares = [(1 + math.cos(math.pi * share)) / 2 for share in (0.1, 0.5, 0.75, 1.0)]
    assert rates == pytest.approx([0.5, *shares], abs=1e-12)
    assert rates[2] == pytest.approx(0.5)


def test_biases_and_layer_norms_do_not_decay_and_scales_reach_their_parameters() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    optimizer = build_optimizer(module, OptimizerSettings(), scale=lambda name: 0.5 if name.startswith("0.") else 1.0)
    by_parameter = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    decays = {name: by_parameter[id(parameter)]["weight_decay"] for name, parameter in module.named_parameters()}
    assert decays == {"0.weight": 0.01, "0.bias": 0.0, "1.weight": 0.0, "1.bias": 0.0}
    set_rate(optimizer, 2.0)
    assert {by_parameter[id(parameter)]["lr"] for parameter in module[0].parameters()} == {1.0}


def test_clipping_bounds_the_global_norm() -> None:
    module = nn.Linear(3, 3)
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    before = clip_gradients(module.parameters(), 1.0)
    assert float(before) == pytest.approx(2.0 * 12**0.5)
    after = torch.cat(
        [parameter.grad.flatten() for parameter in module.parameters() if parameter.grad is not None]
    ).norm()
    assert float(after) == pytest.approx(1.0, rel=1e-6)
    small = torch.full((3,), 0.5, requires_grad=True)
    small.grad = torch.full((3,), 0.57735)  # a norm of just under 1 stays as it is, to the bit
    assert 0.9999 < float(clip_gradients([small], 1.0)) < 1.0
    assert small.grad.tolist() == torch.full((3,), 0.57735).tolist()


def test_the_norm_of_a_large_vocabularys_gradient_is_exact() -> None:
    """The norm of torch's own function is 7e-5 too small here, so that it clips to more than the limit."""
    table, bias = (torch.zeros(size, requires_grad=True) for size in ((30_000, 128), (30_000,)))
    table.grad = torch.randn(table.shape, generator=torch.Generator().manual_seed(0))
    bias.grad = torch.full_like(bias, 1e-3)
    exact = math.sqrt(sum(float(one.grad.double().square().sum()) for one in (table, bias) if one.grad is not None))
    assert float(clip_gradients([table, bias], 1.0)) == pytest.approx(exact, rel=1e-6)
    after = math.sqrt(sum(float(one.grad.double().square().sum()) for one in (table, bias) if one.grad is not None))
    assert after == pytest.approx(1.0, rel=1e-6)


def test_a_module_without_gradients_has_a_norm_of_nothing() -> None:
    assert float(clip_gradients(nn.Linear(2, 2).parameters(), 1.0)) == 0.0
