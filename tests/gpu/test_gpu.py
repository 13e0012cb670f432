"""Tests that need a GPU: `make gpu`, on a machine with one. tests/unit/training/test_device.py tests the placement of
tensors without a GPU.

BERTWRIGHT_TEST_DEVICE=cpu runs those that a processor can run, as a check of the tests themselves.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from bertwright.cli import main
from bertwright.finetuning.evaluate import evaluate_task, predict_file
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.encoder import gather_rows
from bertwright.model.system import SYSTEMS, System
from bertwright.registry import find
from bertwright.tasks.spec import TaskSpec
from bertwright.training.hardware import Numerics
from bertwright.training.loop import Plan, train
from bertwright.training.run_folder import start_run
from bertwright.training.settings import Device
from tests.support import tiny_run
from tests.support.encoders import write_encoder
from tests.support.ranked_run import SETTINGS
from tests.support.task_examples import example_data

pytestmark = pytest.mark.gpu
DEVICE = cast(Device, os.environ.get("BERTWRIGHT_TEST_DEVICE", "cuda"))
TASKS = find("bertwright.tasks", TaskSpec)


def losses(system: System, folder: Path, device: Device) -> list[list[float]]:
    """Return the losses of each of 50 steps, in fp32 and without dropout."""
    model = tiny_run.system_model(system, torch.float32)
    batches: Any = tiny_run.system_batches(folder / "rows", model, system, 3)
    run = start_run(folder / device, kind="test", settings={}, data={}, resume=False)
    numerics = Numerics(precision="fp32", threads=1, peak_flops=1e9, device=device)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with tiny_run.deterministic():
        plan = Plan(steps=tiny_run.STEPS, seed=1, optimizer=SETTINGS, log_every=1)
        train(model.trainable(), batches, plan=plan, numerics=numerics, run=run, quiet=True)
    return [[line[name] for name in tiny_run.LOSSES if name in line] for line in run.metrics()]


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_learns_there_as_on_processors(system: System, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    there, here = losses(system, tmp_path, DEVICE), losses(system, tmp_path / "here", "cpu")
    assert len(there) == tiny_run.STEPS
    assert there[0]
    assert [loss for line in there for loss in line] == pytest.approx(
        [loss for line in here for loss in line], abs=1e-3
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_that_was_stopped_ends_in_the_same_bytes(own_corpus: Path, tmp_path: Path, precision: str) -> None:
    options = ["--steps", "40", "--batch-size", "8", "--lengths", "16:0.5,32:0.5", "--held-out", "0.2"]
    options += [*"--evaluations 2 --log-every 1 --device".split(), DEVICE, "--precision", precision, "--threads", "1"]
    command = [sys.executable, "-m", "bertwright", "pretrain", "--corpus", str(own_corpus), *options]
    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True)
    stopped = [*command, "--out", str(tmp_path / "stopped"), "--save-minutes", "1e-6"]
    with subprocess.Popen(stopped) as process:
        log = tmp_path / "stopped" / "metrics.jsonl"
        while process.poll() is None and not (log.exists() and len(log.read_bytes().splitlines()) > 5):
            time.sleep(0.01)
        process.kill()
    settings = json.loads((tmp_path / "stopped" / "run.json").read_text())
    assert not settings.get("finished")
    subprocess.run([*stopped, "--resume"], check=True)
    one, other = (tmp_path / name / "model" / "model.safetensors" for name in ("whole", "stopped"))
    assert one.read_bytes() == other.read_bytes()


@pytest.fixture(scope="module")
def gpu_encoder(tmp_path_factory: pytest.TempPathFactory, places_tokenizer: Path) -> str:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "m", places_tokenizer, initializer_range=0.1)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_is_learned_there_and_answered_alike_here(name: str, gpu_encoder: str, tmp_path: Path) -> None:
    task, example = TASKS[name], example_data(TASKS[name], tmp_path)
    settings = FinetuneSettings(
        epochs=30, batch_size=4, learning_rate=3e-3, max_length=40, precision="fp32", warmup=0.05, device=DEVICE
    )
    result = finetune(settings, task, model=gpu_encoder, data=example.data, out=tmp_path / "run")
    assert result["mean"] == pytest.approx(example.perfect)
    for device in (DEVICE, "cpu"):
        figures = evaluate_task(task, model=str(tmp_path / "run"), data=example.data, precision="fp32", device=device)
        assert figures[result["metric"]] == pytest.approx(result["mean"], abs=1e-4)
        if not example.predicts:
            continue
        (tmp_path / device).mkdir(exist_ok=True)
        predict_file(
            str(tmp_path / "run"), str(example.input_file), str(tmp_path / device / example.output), device=device
        )
        assert example.answers(tmp_path / device / example.output) == example.right


WAYS: dict[str, dict[str, Any]] = {
    "features": {"features": "elmo", "lstm_width": 48, "learning_rate": 1e-2},
    "bilstm": {"bilstm": 32},
    "activation_checkpointing": {"activation_checkpointing": True},
}


@pytest.mark.parametrize("task", ["sst2", "ner"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("way", WAYS)
def test_other_ways_are_learned_there(way: str, precision: Any, task: str, gpu_encoder: str, tmp_path: Path) -> None:
    example = example_data(TASKS[task], tmp_path)
    changes = {"epochs": 40, "batch_size": 4, "learning_rate": 3e-3, "max_length": 40, "warmup": 0.05, **WAYS[way]}
    settings = FinetuneSettings.model_validate({**changes, "precision": precision, "device": DEVICE})
    result = finetune(settings, TASKS[task], model=gpu_encoder, data=example.data, out=tmp_path / "run")
    assert result["mean"] == pytest.approx(example.perfect)


def test_rows_are_picked_there_as_on_processors() -> None:
    states, at = torch.randn(3, 5, 4), torch.tensor([[0, 4], [2, 2], [1, 3]])
    here, there = states.clone().requires_grad_(), states.to(DEVICE).requires_grad_()
    (gather_rows(here, at) ** 2).sum().backward()
    (gather_rows(there, at.to(DEVICE)) ** 2).sum().backward()
    assert here.grad is not None
    assert there.grad is not None
    assert torch.equal(there.grad.cpu(), here.grad)


def test_the_peak_is_reset_before_the_first_tensor_is_there() -> None:
    """A processor counts the whole process, and a GPU its tensors."""
    code = (
        f"from bertwright.training import memory\nmemory.reset_peak('{DEVICE}')\nprint(memory.peak_bytes('{DEVICE}'))"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert (int(printed) > 0) == (DEVICE == "cpu")


@pytest.mark.skipif(DEVICE == "cpu", reason="a processor has no memory of its own")
def test_a_full_memory_is_reported_with_the_batch_that_fits(own_corpus: Path, tmp_path: Path, capsys: Any) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(2**30 / total)
    try:
        options = ["--steps", "3", "--size", "mini", "--batch-size", "4096", "--micro-tokens", str(2**19)]
        options += ["--lengths", "128", "--evaluations", "0", "--device", DEVICE]
        command = ["pretrain", "--corpus", str(own_corpus), "--out", str(tmp_path / "run"), *options]
        assert main(command) == 1
        said = capsys.readouterr().err
        assert "out of memory" in said
        fitting = said.partition("--micro-tokens ")[2].split()[0]
        assert main([*command, "--resume", "--allow-other-numerics", "--micro-tokens", fitting]) == 0
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.skipif(DEVICE == "cpu" or torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("sharding", ["ddp", "fsdp2"])
def test_two_gpus_learn_what_one_learns(sharding: str, tmp_path: Path) -> None:
    runs = []
    for count in (1, 2):
        folder = tmp_path / str(count)
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), "-m"]
        options = [str(folder), "--kind", "float64", "--sharding", sharding, "--device", DEVICE]
        subprocess.run([*launch, "tests.support.ranked_run", *options], check=True)
        runs.append(load_file(folder / "weights.safetensors"))
    for name, weight in runs[0].items():
        torch.testing.assert_close(runs[1][name], weight, rtol=0, atol=1e-9)
