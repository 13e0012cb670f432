"""bf16 compute against fp32, gradient by gradient."""

import torch

from bertwright.model.encoder import init_weights
from bertwright.model.sizes import size_config
from bertwright.objectives.pretraining import Inputs, PretrainingModel, pretraining_losses
from bertwright.training.loop import precision
from bertwright.training.machine import Numerics


def gradients(kind: str) -> dict[str, torch.Tensor]:
    config = size_config("tiny", 400, hidden_dropout=0.0, attention_dropout=0.0, initializer_range=0.05)
    model = PretrainingModel(config)
    init_weights(model, 0.05, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 400, (8, 24), generator=generator)
    at = torch.tensor([[0, 3, 9, 17]]).expand(8, -1)
    inputs = Inputs(
        ids=ids,
        segments=(torch.arange(24) > 12).long().expand(8, -1),
        mask=torch.ones(8, 24, dtype=torch.bool),
        at=at,
        picked=torch.tensor([4 * row + place for row in range(8) for place in (1, 2, 3)]),
        labels=torch.randint(5, 400, (24,), generator=generator),
        is_random=torch.randint(0, 2, (8,), generator=generator),
    )
    numerics = Numerics(precision=kind, compiled=False, threads=1, matrix_rate=1.0)  # type: ignore[arg-type]
    with precision(numerics):
        terms = pretraining_losses(model.train(), inputs)
    (terms["mlm"][0] / 24 + terms["nsp"][0] / 8).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_bf16_gradients_point_where_fp32s_do() -> None:
    plain, fast = gradients("fp32"), gradients("bf16")
    assert set(plain) == set(fast)
    for name, gradient in plain.items():
        assert fast[name].dtype == torch.float32
        cosine = torch.nn.functional.cosine_similarity(gradient.flatten(), fast[name].flatten(), dim=0)
        assert float(cosine) >= 0.999, (name, float(cosine))
