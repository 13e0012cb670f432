"""bf16 compute against fp32, gradient by gradient."""

from pathlib import Path

import pytest
import torch

from bertwright.model.config import size_config
from bertwright.model.encoder import init_weights
from bertwright.objectives.masked_lm import Inputs, PretrainingModel
from bertwright.training.hardware import DTYPES, Numerics, Precision
from bertwright.training.loop import autocast
from tests.support import tiny_run


def gradients_in(model: PretrainingModel, inputs: Inputs, kind: Precision) -> dict[str, torch.Tensor]:
    numerics = Numerics(precision=kind, compiled=False, threads=1, peak_flops=1.0)
    model.train().zero_grad(set_to_none=True)
    with autocast(numerics):
        terms = model.losses(inputs)
    (terms["mlm"][0] / len(inputs.labels) + terms["nsp"][0] / len(inputs.ids)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_alike(model: PretrainingModel, inputs: Inputs) -> None:
    plain, fast = (gradients_in(model, inputs, kind) for kind in DTYPES)
    assert set(plain) == set(fast)
    for name, gradient in plain.items():
        assert fast[name].dtype == torch.float32
        cosine = torch.nn.functional.cosine_similarity(gradient.flatten(), fast[name].flatten(), dim=0)
        assert float(cosine) >= 0.999, (name, float(cosine))


def test_bf16_gradients_point_where_fp32s_do() -> None:
    config = size_config("tiny", 400, hidden_dropout=0.0, attention_dropout=0.0, initializer_range=0.05)
    model = PretrainingModel(config)
    init_weights(model, 0.05, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    inputs = Inputs(
        ids=torch.randint(5, 400, (8, 24), generator=generator),
        segments=(torch.arange(24) > 12).long().expand(8, -1),
        mask=torch.ones(8, 24, dtype=torch.bool),
        at=torch.tensor([[0, 3, 9, 17]]).expand(8, -1),
        picked=torch.tensor([4 * row + position for row in range(8) for position in (1, 2, 3)]),
        labels=torch.randint(5, 400, (24,), generator=generator),
        is_random=torch.randint(0, 2, (8,), generator=generator),
    )
    assert_alike(model, inputs)


@pytest.mark.slow
def test_they_still_do_after_a_thousand_steps(tmp_path: Path) -> None:
    model = tiny_run.built(kind=torch.float32, hidden=32, intermediate=128)
    batches = tiny_run.micro_batches(tiny_run.examples(tmp_path))
    log = tiny_run.losses_of(model, batches, tmp_path / "run", steps=1000)
    assert log[-1]["mlm"] < log[0]["mlm"]
    assert_alike(model, batches(1000)[0])
