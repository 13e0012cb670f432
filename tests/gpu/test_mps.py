"""An Apple GPU computes what processors compute. These tests skip elsewhere, and say so.

BERTWRIGHT_TEST_DEVICE=cpu runs them on processors, as a check of the tests themselves.
"""

import json
import os
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from bertwright.cli import main
from bertwright.finetuning.evaluate import evaluate_task
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.registry import find
from bertwright.tasks.spec import TaskSpec
from bertwright.training.settings import Device
from tests.support.encoders import write_encoder
from tests.support.folders import read_jsonl
from tests.support.task_examples import example_data

DEVICE = cast(Device, os.environ.get("BERTWRIGHT_TEST_DEVICE", "mps"))
IS_ABSENT = DEVICE == "mps" and not torch.backends.mps.is_available()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(IS_ABSENT, reason="needs an Apple GPU (macOS, torch with mps)"),
]
TASK = find("bertwright.tasks", TaskSpec)["sst2"]


def test_pre_training_has_the_losses_of_processors(own_corpus: Path, tmp_path: Path) -> None:
    losses = {}
    for device in ("cpu", DEVICE):
        options = f"--steps 20 --batch-size 8 --lengths 32 --dropout 0 --log-every 1 --precision fp32 --device {device}"
        run = tmp_path / f"run-{len(losses)}"
        out = ["--size", "1x64", "--out", str(run)]
        assert main(["pretrain", "--corpus", str(own_corpus), *options.split(), *out]) == 0
        losses[device] = [line["mlm"] for line in read_jsonl(run / "metrics.jsonl") if "mlm" in line]
        assert json.loads((run / "run.json").read_text("utf-8"))["settings"]["device"] == device
    assert len(losses[DEVICE]) == 20
    assert losses[DEVICE] == pytest.approx(losses["cpu"], abs=1e-2)


def test_a_task_is_learned_there_and_answered_alike_here(places_tokenizer: Path, tmp_path: Path) -> None:
    example = example_data(TASK, tmp_path)
    encoder = write_encoder(tmp_path / "encoder", places_tokenizer, initializer_range=0.1)
    settings: Any = {"epochs": 30, "batch_size": 4, "learning_rate": 3e-3, "max_length": 40, "precision": "fp32"}
    result = finetune(
        FinetuneSettings(**settings, device=DEVICE), TASK, model=encoder, data=example.data, out=tmp_path / "run"
    )
    for device in (DEVICE, "cpu"):
        metrics = evaluate_task(TASK, model=str(tmp_path / "run"), data=example.data, precision="fp32", device=device)
        assert metrics[result["metric"]] == pytest.approx(result["mean"], abs=1e-4)
