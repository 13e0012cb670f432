"""RoBERTa with published tokenizers and every kind of task: overfitted to eight records → saved → the same answers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bertwright.finetuning.evaluate import evaluate_task
from bertwright.finetuning.run import finetune
from bertwright.model.backbones import build_backbone
from bertwright.model.encoder import init_weights
from bertwright.model.families.roberta import RobertaConfig
from bertwright.model.folder import save_model
from bertwright.serving.predictor import load
from bertwright.tasks.spec import get_spec
from bertwright.text.open_tokenizer import open_tokenizer_folder
from tests.conformance.test_systems import SETTINGS, TASKS
from tests.support.published_tokenizers import WRITERS
from tests.support.task_examples import example_data

pytestmark = pytest.mark.usefixtures("measured_once")


def _each() -> list[Any]:
    """Return both tokenizers with every task; all but two are slow tests."""
    quick = {("byte pairs", "ner"), ("unigram", "squad2")}
    return [
        pytest.param(kind, task, id=f"{kind}-{task}", marks=() if (kind, task) in quick else pytest.mark.slow)
        for kind in WRITERS
        for task in TASKS
    ]


@pytest.mark.parametrize(("kind", "task"), _each())
def test_a_roberta_learns_saves_and_reloads_every_kind_of_task(kind: str, task: str, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path / "tok")
    tokenizer = open_tokenizer_folder(tmp_path / "tok")
    config = RobertaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden=64,
        layers=2,
        heads=1,
        intermediate=256,
        max_positions=128,
        pad_id=tokenizer.pad_id,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    model = torch.nn.ModuleDict({"encoder": build_backbone(config)})
    init_weights(model, 0.05, torch.Generator().manual_seed(4))
    save_model(tmp_path / "m", model, config=config, tokenizer=tmp_path / "tok", architecture="BertModel")
    spec = get_spec(task)
    example = example_data(spec, tmp_path)
    # whole batches: with half of the records in each, it is luck that all eight numbers are ranked
    settings = SETTINGS.model_copy(update={"max_length": 128, "batch_size": 8, "epochs": 80})
    result = finetune(settings, spec, model=str(tmp_path / "m"), data=example.data, out=tmp_path / "run")
    assert result["mean"] == pytest.approx(example.perfect)
    figures = evaluate_task(spec, model=str(tmp_path / "run"), data=example.data)
    assert figures[result["metric"]] == pytest.approx(result["mean"])
    ready = load(tmp_path / "run", precision="fp32")
    assert example.answers_of(ready(example.inputs)) == example.right
