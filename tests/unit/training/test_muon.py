"""Muon against exact singular values, against torch's Muon, and in the groups of the optimiser."""

import copy
import math
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import nn

from bertwright.cli import main
from bertwright.model.config import size_config
from bertwright.model.encoder import Encoder
from bertwright.objectives.masked_lm import PretrainingModel
from bertwright.pretraining.settings import PretrainSettings
from bertwright.training import muon
from bertwright.training.checkpoint import load_checkpoint, save_checkpoint
from bertwright.training.hardware import Precision, resolve_numerics
from bertwright.training.loop import Loop, Plan
from bertwright.training.optimizer import AdamW, build_optimizer, set_rate
from bertwright.training.settings import OptimizerSettings

MUON = OptimizerSettings(method="muon", learning_rate=1e-3, muon_rate=0.02, weight_decay=0.1)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Model(nn.Module):
    """An encoder of two blocks, and a head."""

    def __init__(self) -> None:
        super().__init__()
        config = size_config("tiny", vocab_size=50)
        self.inner = Encoder(config)
        self.head = nn.Linear(config.hidden, 3)


def optimizer_of(module: Model, settings: OptimizerSettings = MUON) -> AdamW:
    return build_optimizer(module, settings, blocks=module.inner.blocks())


def take_steps(module: Model, optimizer: AdamW, steps: range) -> None:
    """Steps with gradients that are a function of the step."""
    for step in steps:
        for number, parameter in enumerate(module.parameters()):
            parameter.grad = random(*parameter.shape, seed=1000 * step + number)
        set_rate(optimizer, 1e-3 * (1 - step / 10))
        optimizer.step()


@pytest.mark.parametrize("shape", [(4, 128, 128), (2, 512, 128), (2, 128, 512)])
def test_in_bf16_the_update_differs_by_about_one_percent(shape: tuple[int, int, int]) -> None:
    matrices = random(*shape)
    exact, narrow = muon.orthogonalise(matrices), muon.orthogonalise(matrices, torch.bfloat16)
    assert narrow.dtype == torch.float32
    assert 0.0 < float((narrow - exact).norm() / exact.norm()) < 0.02


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_muon_multiplies_in_the_precision_of_the_run(precision: Precision) -> None:
    matrices = random(4, 128, 128)
    numerics = resolve_numerics("fp32", threads=1).model_copy(update={"precision": precision})
    module = PretrainingModel(size_config("tiny", vocab_size=50))
    loop = Loop(module.trainable(), Plan(steps=1, seed=0, optimizer=MUON), numerics, None)
    exact, result = muon.orthogonalise(matrices), loop.optimizer.orthogonalise(matrices)
    assert torch.equal(result, exact) == (precision == "fp32")
    assert float((result - exact).norm() / exact.norm()) < 0.02


@pytest.mark.parametrize("shape", [(128, 128), (512, 128), (128, 512)])
def test_singular_values_become_about_one_and_directions_stay(shape: tuple[int, int]) -> None:
    matrix = random(*shape).double()
    (directions,) = muon.orthogonalise(matrix[None])
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    turned = left.mT @ directions @ right.mT  # diagonal, where the directions are those of the matrix
    assert float((turned - turned.diag().diag()).abs().max()) < 1e-6
    large = turned.diag()[values > 0.01 * values.norm()]
    assert len(large) > 100
    assert 0.65 < float(large.min()) <= float(large.max()) < 1.25


def test_large_matrices_are_turned_in_float32_as_in_float64() -> None:
    """With torch's own norm of a whole matrix the two are 1.2e-5 apart here."""
    matrices = random(1, 256, 4096)
    exact = muon.orthogonalise(matrices.double())
    assert float((muon.orthogonalise(matrices) - exact).norm() / exact.norm()) < 4e-6


def test_matrices_computed_together_are_those_computed_alone() -> None:
    matrices = random(5, 24, 40)
    torch.testing.assert_close(
        muon.orthogonalise(matrices)[3], muon.orthogonalise(matrices[3:4])[0], atol=1e-5, rtol=1e-5
    )
    assert torch.equal(muon.orthogonalise(torch.zeros(1, 4, 4)), torch.zeros(1, 4, 4))


def test_steps_are_those_of_torchs_muon() -> None:
    """torch's computes in bf16, so singular values agree to some hundredths."""
    ours, theirs = nn.Sequential(nn.Linear(64, 96, bias=False)), nn.Linear(64, 96, bias=False)
    theirs.load_state_dict(ours[0].state_dict())
    before = theirs.weight.detach().clone()
    mine = build_optimizer(ours, MUON, blocks=[ours])
    other = torch.optim.Muon(theirs.parameters(), lr=0.02, weight_decay=0.1, momentum=muon.MOMENTUM)
    for step in range(5):
        ours[0].weight.grad = random(96, 64, seed=step)
        theirs.weight.grad = random(96, 64, seed=step)
        set_rate(mine, 1e-3)
        mine.step()
        other.step()
    moved, expected = ours[0].weight.detach() - before, theirs.weight.detach() - before
    assert float((moved - expected).norm() / expected.norm()) < 0.03
    assert float(expected.norm()) > 0.3


def test_the_blocks_matrices_are_muons_and_all_else_is_adams() -> None:
    module = Model()
    optimizer = optimizer_of(module)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    stacked = {names[id(p)]: group["stacked"] for group in optimizer.param_groups for p in group["params"]}
    of_layers = {name: parts for name, parts in stacked.items() if parts}
    assert {name.split(".", 3)[3]: parts for name, parts in of_layers.items()} == {
        "attention.qkv.weight": 3,
        "attention.output.weight": 1,
        "expand.weight": 1,
        "contract.weight": 1,
    }
    assert len(of_layers) == 8


def test_queries_keys_and_values_are_three_matrices() -> None:
    module = Model()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    take_steps(module, optimizer_of(module), range(1))
    fused = module.inner.blocks()[0].attention.qkv.weight.detach()
    lengths = [float(torch.linalg.matrix_norm(part, 2)) / 0.02 for part in fused.chunk(3)]
    assert all(0.9 < length < 1.25 for length in lengths)
    wide = module.inner.blocks()[0].expand.weight.detach()
    assert 0.9 < float(torch.linalg.matrix_norm(wide, 2)) / (0.02 * math.sqrt(4)) < 1.25


def test_parameters_outside_of_muon_move_as_without_it() -> None:
    with_it, without = Model(), Model()
    without.load_state_dict(with_it.state_dict())
    take_steps(with_it, optimizer_of(with_it), range(3))
    take_steps(without, build_optimizer(without, MUON.model_copy(update={"method": "adamw"})), range(3))
    pairs = zip(with_it.named_parameters(), without.parameters(), strict=True)
    same = {name: torch.equal(one, other) for (name, one), other in pairs}
    assert {name for name, equal in same.items() if not equal} == {
        f"inner.layers.{layer}.{part}.weight"
        for layer in (0, 1)
        for part in ("attention.qkv", "attention.output", "expand", "contract")
    }


def test_a_run_resumes_with_its_momentum(tmp_path: Path) -> None:
    whole = Model()
    first, second = copy.deepcopy(whole), copy.deepcopy(whole)
    take_steps(whole, optimizer_of(whole), range(6))
    optimizer = optimizer_of(first)
    take_steps(first, optimizer, range(3))
    save_checkpoint(tmp_path, first, optimizer, step=3, notes={})
    resumed = optimizer_of(second)
    assert load_checkpoint(tmp_path, second, resumed) == (3, {})
    take_steps(second, resumed, range(3, 6))
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name


def test_a_rate_for_matrices_that_nothing_uses_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"muon_rate 0\.02 is the rate of Muon; it needs --optimizer muon"):
        OptimizerSettings(muon_rate=0.02)
    with pytest.raises(ValidationError, match="Muon trains the matrices of Transformer layers"):
        PretrainSettings(system="lstm-left", steps=1, optimizer=MUON)


def test_the_command_trains_with_muon(own_corpus: Path, tmp_path: Path) -> None:
    options = ["pretrain", "--corpus", str(own_corpus), "--steps", "8", "--lengths", "16", "--batch-size", "4"]
    options += ["--threads", "1", "--compile", "off", "--precision", "fp32", "--learning-rate", "1e-3"]
    runs = {}
    for name, more in (
        ("adamw", ["--optimizer", "adamw"]),
        ("muon", []),
        ("again", ["--optimizer", "muon", "--activation-checkpointing"]),
    ):
        assert main([*options, *more, "--out", str(tmp_path / name)]) == 0
        runs[name] = load_file(tmp_path / name / "model" / "model.safetensors")
    deep = "bert.encoder.layer.1.intermediate.dense.weight"
    assert not torch.allclose(runs["adamw"][deep], runs["muon"][deep], atol=1e-3)
    assert all(torch.equal(tensor, runs["again"][name]) for name, tensor in runs["muon"].items())
    assert "- optimizer.method: muon\n" in (tmp_path / "muon/model/README.md").read_text("utf-8")
