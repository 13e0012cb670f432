"""A small pre-training through the real loop, for tests that compare one way of computing with another."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bertwright.model.config import EncoderConfig
from bertwright.model.encoder import init_weights
from bertwright.model.families.elmo import LSTMConfig
from bertwright.model.system import USUAL_SECOND_SENTENCE, System, system_config
from bertwright.objectives.batches import split_batch
from bertwright.objectives.dataset import Examples
from bertwright.objectives.masked_lm import Inputs, PretrainingModel, to_inputs
from bertwright.objectives.settings import ExampleSettings
from bertwright.objectives.system_model import SystemModel
from bertwright.pretraining.systems import ExampleRows, example_rows, new_model
from bertwright.training.hardware import Numerics
from bertwright.training.loop import Plan, train
from bertwright.training.run_folder import start_run
from bertwright.training.settings import OptimizerSettings
from tests.support import example_oracle

VOCAB, LENGTH, ROWS, STEPS = 200, 24, 8, 50
CAUSAL_SHARE = 0.25
Batches = Callable[[int], Sequence[Inputs]]


def config(**changes: Any) -> EncoderConfig:
    """Without dropout, which differs between two ways of computing."""
    shape = {"vocab_size": VOCAB, "hidden": 16, "layers": 2, "heads": 2, "intermediate": 32, "max_positions": 40}
    still = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.1}
    return EncoderConfig.model_validate({**shape, **still, **changes})


def built(second_sentence: Any = "next", kind: torch.dtype = torch.float64, **changes: Any) -> PretrainingModel:
    model = PretrainingModel(config(**changes), second_sentence=second_sentence).to(kind)
    init_weights(model, model.encoder.config.initializer_range, torch.Generator().manual_seed(0))
    return model


def system_model(system: System, kind: torch.dtype = torch.float64) -> SystemModel:
    """A small model of a system, without dropout."""
    shape = system_config(system, "2x128", VOCAB, initializer_range=0.1, max_positions=40)
    small: dict[str, Any] = {"hidden": 16, "hidden_dropout": 0.0, "embedding_dropout": 0.0, "embedding_size": 8}
    if isinstance(shape, LSTMConfig):
        small |= {"cells": 24}
    else:
        small |= {"heads": 2, "intermediate": 32 if system == "bert" else 64, "attention_dropout": 0.0}
    small = {name: value for name, value in small.items() if name in type(shape).model_fields}
    config = type(shape).model_validate({**shape.model_dump(), **small})
    model = new_model(config, second_sentence=_row_settings(system).second_sentence, causal_share=CAUSAL_SHARE)
    init_weights(model, 0.1, torch.Generator().manual_seed(0))
    return model.to(kind)


def _row_settings(system: System) -> ExampleSettings:
    usual: Any = "next" if system == "modernbert" else USUAL_SECOND_SENTENCE.get(system, "none")
    return ExampleSettings(second_sentence=usual, causal_share=CAUSAL_SHARE)


def corpus_of(folder: Path) -> Any:
    documents = example_oracle.random_documents(0, num_documents=60, vocab_size=VOCAB, longest=12)
    return example_oracle.FakeCorpus(documents, folder=folder, vocab_size=VOCAB)


def examples(folder: Path, **settings: Any) -> Examples:
    return Examples(corpus_of(folder), ExampleSettings(**settings), length=LENGTH, seed=3)


def system_batches(folder: Path, model: SystemModel, system: System, size: int) -> Callable[[int], Sequence[Any]]:
    """step → the rows of a system, `size` at a time."""
    rows = system_rows(folder, system)
    return lambda step: [model.inputs(part) for part in split_batch(rows.step_batch(step, ROWS), size)]


def system_rows(folder: Path, system: System) -> ExampleRows:
    corpora = [(corpus_of(folder), 1.0)]
    return example_rows(system, corpora, _row_settings(system), length=LENGTH, seed=3)


def micro_batches(rows: Examples, size: int = ROWS) -> Batches:
    """step → its rows, `size` at a time."""
    return lambda step: [to_inputs(part) for part in split_batch(rows.step_batch(step, ROWS), size)]


def losses_of(
    model: PretrainingModel,
    batches: Batches,
    folder: Path,
    *,
    compiled: bool = False,
    optimizer: OptimizerSettings | None = None,
    steps: int = STEPS,
) -> list[dict[str, float]]:
    """Train for `steps` steps; the loop's own log, a line a step: mlm, nsp, gradient_norm, learning_rate."""
    run = start_run(folder, kind="test", settings={}, data={}, resume=False)
    settings = optimizer or OptimizerSettings(learning_rate=5e-3, warmup=0.1)
    plan = Plan(steps=steps, seed=1, optimizer=settings, log_every=1)
    numerics = Numerics(precision="fp32", compiled=compiled, threads=1, peak_flops=1e9)
    with deterministic():
        train(model.trainable(), batches, plan=plan, numerics=numerics, run=run, quiet=True)
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return [{name: line[name] for name in line if name in COMPARED} for line in lines]


LOSSES = ("mlm", "nsp", "sop", "rtd", "lm")
COMPARED = ("mlm", "nsp", "sop", "gradient_norm", "learning_rate")


@contextmanager
def deterministic() -> Iterator[None]:
    """As runs compute."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


def furthest(one: Sequence[dict[str, float]], other: Sequence[dict[str, float]]) -> float:
    """Return the largest difference between two logs of the same metrics."""
    assert len(one) == len(other) > 0
    assert all(mine.keys() == theirs.keys() for mine, theirs in zip(one, other, strict=True))
    return max(abs(mine[name] - theirs[name]) for mine, theirs in zip(one, other, strict=True) for name in mine)
