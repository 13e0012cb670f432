"""Every backbone with every kind of task: overfitted to eight records → saved → reloaded → the same answers.

LSTMs without pre-training take longer to carry a word to the end of a row than a test may: what they have learned so
far must come back all the same. They learn a shorter task below.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bertwright.finetuning.evaluate import evaluate_task, predict_file
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.backbones import build_backbone
from bertwright.model.config import BackboneConfig, SingleBackboneConfig
from bertwright.model.encoder import init_weights
from bertwright.model.families.bilstm import TopConfig
from bertwright.model.families.elmo import PairConfig
from bertwright.model.folder import open_model, save_model
from bertwright.model.system import SYSTEMS, System, system_config
from bertwright.serving.predictor import load
from bertwright.tasks.kinds import task_of
from bertwright.tasks.spec import get_spec
from bertwright.text.wordpiece import Tokenizer
from tests.support.task_examples import example_data
from tests.support.texts import PLACES

TASKS = ("mrpc", "stsb", "multilabel", "swag", "squad2", "ner")
PAIRS: dict[str, tuple[System, System]] = {
    "two transformers": ("bert-left", "bert-right"),
    "two lstms": ("lstm-left", "lstm-right"),
}
TOPPED: dict[str, System] = {"bilstm on bert-left": "bert-left", "bilstm on lstm-right": "lstm-right"}
ALIKE = ("albert-attention", "albert-feed-forward", "distilbert", "electra", "gpt-bert", "roberta")
"""Systems with BERT's blocks, whose tests are slow ones: their parity with transformers is tested elsewhere."""
LENGTH = 40
SETTINGS = FinetuneSettings(
    epochs=30, batch_size=4, learning_rate=3e-3, max_length=LENGTH, threads=1, precision="fp32", warmup=0.05
)
pytestmark = pytest.mark.usefixtures("measured_once")


def small_system(system: System, vocab_size: int) -> SingleBackboneConfig:
    """Return a backbone of two layers, 64 wide, without dropout."""
    shape = system_config(system, "2x128", vocab_size, max_positions=64, hidden_dropout=0.0)
    smaller: dict[str, Any] = {"hidden": 64, "hidden_dropout": 0.0}
    smaller |= {"cells": 96} if system.startswith("lstm") else {"intermediate": 256, "attention_dropout": 0.0}
    return shape.model_copy(update=smaller)


def _frozen() -> list[Any]:
    """Every system and pair; those with the blocks of another one are slow tests."""
    return [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ()) for name in (*SYSTEMS, *PAIRS)]


def _each() -> list[Any]:
    """Every backbone with every task; most are slow tests, but for one task with each and GPT-1 with every task."""
    names = [*(system for system in SYSTEMS if system != "bert"), *PAIRS, *TOPPED]
    quick = {"gpt": TASKS}
    return [
        pytest.param(
            name,
            task,
            id=f"{name}-{task}",
            marks=() if task in quick.get(name, TASKS[:1]) and name not in ALIKE else pytest.mark.slow,
        )
        for name in names
        for task in TASKS
    ]


@pytest.fixture(scope="module")
def system_folders(tmp_path_factory: pytest.TempPathFactory, places_tokenizer: Path) -> dict[str, str]:
    """A folder with random weights for each system and for each pair."""
    folder = tmp_path_factory.mktemp("models")
    vocab_size = Tokenizer.load(places_tokenizer).vocab_size
    shapes: dict[str, BackboneConfig] = {system: small_system(system, vocab_size) for system in SYSTEMS}
    for name, (left, right) in PAIRS.items():
        shapes[name] = PairConfig(left=small_system(left, vocab_size), right=small_system(right, vocab_size))
    for name, config in shapes.items():
        model = nn.ModuleDict({"encoder": build_backbone(config)})
        init_weights(model, 0.05, torch.Generator().manual_seed(4))
        save_model(folder / name, model, config=config, tokenizer=places_tokenizer, architecture="BertModel")
    return {name: str(folder / name) for name in shapes}


@pytest.mark.parametrize(("name", "task"), _each())
def test_a_backbone_learns_saves_and_reloads_every_kind_of_task(
    name: str, task: str, system_folders: dict[str, str], tmp_path: Path
) -> None:
    spec = get_spec(task)
    example = example_data(spec, tmp_path)
    settings = SETTINGS.model_copy(update={"bilstm": 32 if name in TOPPED else None})
    model = system_folders[TOPPED.get(name, name)]  # type: ignore[call-overload]
    result = finetune(settings, spec, model=model, data=example.data, out=tmp_path / "run")
    if "lstm" not in name:
        assert result["mean"] == pytest.approx(example.perfect)
    # the folder says what it is, and gives the figures that were measured before it was written
    saved = open_model(str(tmp_path / "run"))
    inner = saved.config.inner if isinstance(saved.config, TopConfig) else saved.config
    assert isinstance(saved.config, TopConfig) == (name in TOPPED)
    assert inner == open_model(model).config
    assert type(task_of(saved)) is type(spec)
    figures = evaluate_task(spec, model=str(tmp_path / "run"), data=example.data)
    assert figures[result["metric"]] == pytest.approx(result["mean"])
    # and the answers, in files and in use, all at once and one by one
    predict_file(str(tmp_path / "run"), str(example.input_file), str(tmp_path / example.output))
    ready = load(tmp_path / "run", precision="fp32")
    predicted = example.answers_of(ready(example.inputs))
    assert example.answers_of([ready(one) for one in example.inputs]) == predicted
    answers = example.answers(tmp_path / example.output)
    assert len(answers) == len(predicted) == len(example.right)
    if "lstm" not in name:
        assert answers == predicted == example.right


@pytest.mark.parametrize("task", ["sst2", "ner"])
@pytest.mark.parametrize("name", _frozen())
def test_frozen_states_of_every_backbone_are_read(
    name: str, task: str, system_folders: dict[str, str], tmp_path: Path
) -> None:
    """As in ELMo: the backbone is frozen, and the weights of its layers, the embeddings included, are learned."""
    spec = get_spec(task)
    example = example_data(spec, tmp_path)
    settings = SETTINGS.model_copy(update={"features": "elmo", "lstm_width": 48, "learning_rate": 1e-2})
    result = finetune(settings, spec, model=system_folders[name], data=example.data, out=tmp_path / "run")
    if "lstm" not in name:  # whose random states tell six rows apart by luck alone
        assert result["mean"] == pytest.approx(example.perfect)
    before, after = (open_model(folder).weights or {} for folder in (system_folders[name], str(tmp_path / "run")))
    assert all(torch.equal(after[part], before[part]) for part in before)
    shares = after["head.recurrent.shares"]
    assert len(shares) == open_model(system_folders[name]).config.layers + 1
    assert float(shares.std()) > 0
    ready = load(tmp_path / "run", precision="fp32")
    answers = example.answers_of(ready(example.inputs))
    assert len(answers) == len(example.right)
    if "lstm" not in name:
        assert answers == example.right
    vectors = ready.vectors(["The harbour.", "Near the old bridge"])
    assert vectors.shape == (2, ready.config.hidden)
    assert np.isfinite(vectors).all()


@pytest.mark.parametrize("name", ["lstm-left", "lstm-right", "two lstms", "bilstm on lstm-right"])
def test_lstms_learn(name: str, system_folders: dict[str, str], tmp_path: Path) -> None:
    rows = "".join(f"{'near' if row % 2 else 'far'} the {noun}\t{row % 2}\n" for row, noun in enumerate(PLACES))
    for part in ("train", "dev"):
        (tmp_path / f"{part}.tsv").write_text(f"sentence\tlabel\n{rows}", "utf-8")
    settings = SETTINGS.model_copy(update={"bilstm": 32 if name in TOPPED else None, "learning_rate": 1e-2})
    model = system_folders[TOPPED.get(name, name)]  # type: ignore[call-overload]
    assert finetune(settings, get_spec("sst2"), model=model, data=tmp_path, out=tmp_path / "run")["mean"] == 1.0
