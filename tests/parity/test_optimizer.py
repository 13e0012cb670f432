"""Fifty steps of the real loop against the original's AdamWeightDecay, schedule and clipping, in numpy and float64.

The formula is that of google-research/bert, optimization.py (paper §A.2): no bias correction, decay added to the update
and multiplied by the rate, none on names that hold LayerNorm, layer_norm or bias (so the embeddings decay, and the bias
of the masked-LM head does not), gradients clipped to a global norm of 1, the rate rising over warm-up and falling
linearly from step 0.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from bertwright.model.bert import Bert
from bertwright.model.families.bert import BERT_FAMILY
from bertwright.objectives.masked_lm import Inputs
from bertwright.training.optimizer import build_optimizer
from bertwright.training.settings import OptimizerSettings
from tests.support import tiny_run
from tests.support.tiny_run import STEPS

Arrays = dict[str, NDArray[np.float64]]
PEAK, WARMUP = 2e-2, 5


def decays(name: str) -> bool:
    """By the name of the parameter in a published checkpoint; ours holds queries, keys and values in one."""
    weights = {name: torch.zeros(3, 2) if name.endswith("weight") else torch.zeros(3)}
    published = BERT_FAMILY.weights_to_foreign(weights, "BertForPreTraining")
    excluded = {any(re.search(word, other) for word in ("LayerNorm", "layer_norm", "bias")) for other in published}
    assert len(excluded) == 1
    return not excluded.pop()


def rate(step: int) -> float:
    return PEAK * step / WARMUP if step < WARMUP else PEAK * (1 - step / STEPS)


def plain_gradients(model: Bert, weights: Mapping[str, NDArray[np.float64]], batch: Inputs) -> tuple[float, Arrays]:
    """Loss and gradients at `weights`: everything computed everywhere, one batch."""
    model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights.items()})
    model.zero_grad()
    out = model(batch.ids, batch.segments, batch.mask)
    logits = out["prediction_logits"].gather(1, batch.at[..., None].expand(-1, -1, tiny_run.VOCAB))
    loss = F.cross_entropy(logits.flatten(0, 1)[batch.picked], batch.labels)
    loss = loss + F.cross_entropy(out["seq_relationship_logits"], batch.is_random)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return float(loss.detach()), {name: grad.numpy().copy() for name, grad in gradients.items() if grad is not None}


def original_steps(weights: Arrays, model: Bert, batches: tiny_run.Batches) -> tuple[Arrays, list[dict[str, float]]]:
    """Fifty steps; the weights after them, and loss and gradient norm of each."""
    weights = {name: value.copy() for name, value in weights.items()}
    m = {name: np.zeros_like(value) for name, value in weights.items()}
    v = {name: np.zeros_like(value) for name, value in weights.items()}
    lines = []
    for step in range(STEPS):
        (batch,) = batches(step)
        loss, gradients = plain_gradients(model, weights, batch)
        norm = float(np.sqrt(sum((gradient**2).sum() for gradient in gradients.values())))
        for name, gradient in gradients.items():
            clipped = gradient * 1.0 / max(norm, 1.0)
            m[name] = 0.9 * m[name] + 0.1 * clipped
            v[name] = 0.999 * v[name] + 0.001 * clipped**2
            update = m[name] / (np.sqrt(v[name]) + 1e-6)
            if decays(name):
                update = update + 0.01 * weights[name]
            weights[name] = weights[name] - rate(step) * update
        lines.append({"loss": loss, "gradient_norm": norm, "learning_rate": rate(step)})
    return weights, lines


def test_fifty_steps_of_the_loop_are_the_originals(tmp_path: Path) -> None:
    """Weights, losses, norms and rates to 1e-9; the numpy steps take their gradients at their own weights."""
    batches = tiny_run.micro_batches(tiny_run.examples(tmp_path))
    model = tiny_run.built()
    before = {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}
    plain = Bert(model.encoder.config, "BertForPreTraining").double()
    expected, lines = original_steps(before, plain, batches)
    is_clipped = [line["gradient_norm"] > 1 for line in lines]
    assert 10 < sum(is_clipped) < 40  # both kinds of steps
    settings = OptimizerSettings(learning_rate=PEAK, warmup=WARMUP / STEPS)
    log = tiny_run.losses_of(model, batches, tmp_path / "run", optimizer=settings)
    log = [{"loss": line["mlm"] + line["nsp"], **{name: line[name] for name in list(lines[0])[1:]}} for line in log]
    assert tiny_run.furthest(log, lines) < 1e-9
    for name, parameter in model.named_parameters():
        assert abs(expected[name] - before[name]).max() > 0.1, name  # it has moved far
        np.testing.assert_allclose(parameter.detach().numpy(), expected[name], rtol=0, atol=1e-9, err_msg=name)


def test_what_decays_is_what_the_original_names() -> None:
    model = tiny_run.built()
    groups = build_optimizer(model, OptimizerSettings()).param_groups
    decay_of = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    decay = {name: decay_of[id(parameter)] for name, parameter in model.named_parameters()}
    assert decay == {name: 0.01 if decays(name) else 0.0 for name in decay}
    assert decay["encoder.embeddings.word.weight"] == decay["encoder.embeddings.position.weight"] == 0.01
    assert decay["masked_lm.bias"] == decay["masked_lm.norm.weight"] == decay["encoder.embeddings.norm.weight"] == 0.0
