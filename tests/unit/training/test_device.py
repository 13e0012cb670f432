"""Every tensor is on the device of the model. Most machines have no GPU: torch's `meta` device, which has shapes and no
numbers, replaces it, and reports a tensor on another device as a GPU does.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from bertwright.cli import main
from bertwright.errors import InputError, RunFailed
from bertwright.files import read_json
from bertwright.finetuning import memory
from bertwright.finetuning import run as finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.config import size_config
from bertwright.model.cpu.encoder import PackedEncoder
from bertwright.model.encoder import Encoder
from bertwright.model.folder import open_model
from bertwright.model.system import SYSTEMS, System
from bertwright.pretraining import measure
from bertwright.pretraining import run as pretraining_run
from bertwright.pretraining.settings import PretrainSettings
from bertwright.registry import find
from bertwright.tasks.binding import BoundTask, open_tokenizer
from bertwright.tasks.feature_based import frozen_encoder
from bertwright.tasks.frozen_features import FrozenHead, predicted, states_for
from bertwright.tasks.inference import choose
from bertwright.tasks.kinds import kind_of
from bertwright.tasks.spec import TaskSpec
from bertwright.training.distributed import Engine, refuse_shared
from bertwright.training.hardware import (
    choose_precision,
    module_device,
    move_to_device,
    resolve_device,
    resolve_numerics,
)
from bertwright.training.run_folder import RunFolder, start_run
from bertwright.training.run_lock import session
from tests.support import tiny_run
from tests.support.encoders import write_encoder
from tests.support.task_examples import example_data

ELSEWHERE = torch.device("meta")
TASKS = find("bertwright.tasks", TaskSpec)
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1 MiB")


@dataclass(frozen=True)
class Outer:
    inner: Any
    numbers: Any
    count: int = 2


def test_all_tensors_of_a_batch_are_moved() -> None:
    inner = Outer(torch.zeros(2), None)
    moved = move_to_device(Outer(inner, torch.ones(3)), ELSEWHERE)
    assert moved.numbers.device == moved.inner.inner.device == ELSEWHERE
    assert (moved.inner.numbers, moved.count) == (None, 2)
    assert move_to_device(inner, torch.device("cpu")).inner is inner.inner  # nothing is copied


def computed_elsewhere(trainable: Any, batch: Any) -> None:
    """Assert that a step on a batch in main memory, and its gradients, are computed on the meta device."""
    engine = Engine(trainable, compiled=False, device=ELSEWHERE)
    assert module_device(trainable.module) == ELSEWHERE
    terms = engine.losses(batch)
    total = torch.stack([sum_ for sum_, _ in terms.values()]).sum()
    assert total.device == ELSEWHERE
    engine.backward(total, counts=True)
    gradients = [parameter.grad for parameter in trainable.module.parameters() if parameter.grad is not None]
    assert len(gradients) > 2
    assert all(gradient.device == ELSEWHERE and not gradient.is_sparse for gradient in gradients)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_step_leaves_no_tensor_behind(system: System, tmp_path: Path) -> None:
    model = tiny_run.system_model(system, torch.float32).train()
    batch = tiny_run.system_batches(tmp_path, model, system, 8)(0)[0]
    computed_elsewhere(model.trainable(), batch)


def test_the_meta_device_reports_a_tensor_on_another_device() -> None:
    """The meta device would report an error in the tests below."""
    model = tiny_run.built(kind=torch.float32).to(ELSEWHERE)
    with pytest.raises(RuntimeError, match="device"):
        model.encoder.layers[0](torch.zeros(2, 3, 16), torch.ones(2, 1, 1, 3, dtype=torch.bool))


@pytest.mark.parametrize("system", SYSTEMS)
def test_validation_metrics_are_computed_on_the_models_device(system: System, tmp_path: Path) -> None:
    model, batch = tiny_run.system_model(system, torch.float32), tiny_run.system_rows(tmp_path, system).step_batch(0, 8)
    model.to(ELSEWHERE).eval()
    with torch.inference_mode(), pytest.raises(RuntimeError, match="meta tensors"):  # only at the figure itself
        model.metrics([batch])


@pytest.fixture(scope="module")
def dropout_encoder(tmp_path_factory: pytest.TempPathFactory, places_tokenizer: Path) -> str:
    """A model folder with a small random encoder, and dropout."""
    folder = tmp_path_factory.mktemp("encoder") / "m"
    return write_encoder(folder, places_tokenizer, hidden_dropout=0.1, attention_dropout=0.1)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_task_is_trained_and_evaluated_on_the_models_device(name: str, dropout_encoder: str, tmp_path: Path) -> None:
    saved = open_model(dropout_encoder)
    example = example_data(TASKS[name], tmp_path)
    work = kind_of(TASKS[name]).prepare(TASKS[name], example.data, open_tokenizer(saved), saved.config, 40)
    model = work.build(saved.config).train()
    encoder_of: Any = model.get_submodule("encoder")
    for words in encoder_of.word_embeddings():
        words.sparse = True  # which is for processors
    computed_elsewhere(work.trainable(model), work.batch(np.arange(len(work.lengths))))
    with pytest.raises(NotImplementedError, match="copy out of meta"):  # answers go back to numpy, which has none
        work.evaluate(model)


@pytest.mark.parametrize("name", ["sst2", "ner"])
def test_features_are_computed_and_read_on_the_models_device(name: str, dropout_encoder: str, tmp_path: Path) -> None:
    saved, example = open_model(dropout_encoder), example_data(TASKS[name], tmp_path)
    kind = kind_of(TASKS[name])
    bound = kind.prepare(TASKS[name], example.data, open_tokenizer(saved), saved.config, 40)
    positions = kind.feature_positions(*bound.train)
    states = states_for(frozen_encoder(saved), positions, [0, 1, 2])
    head = FrozenHead(saved.config, "elmo", outputs=2, width=8, each=kind.feature_unit == "position").to(ELSEWHERE)
    for compute in (
        lambda: states_for(frozen_encoder(saved).to(ELSEWHERE), positions, [0, 1, 2]),
        lambda: predicted(head, states),
    ):
        with pytest.raises(NotImplementedError, match="copy out of meta"):
            compute()


def test_features_are_learned_in_bf16(dropout_encoder: str, tmp_path: Path) -> None:
    """`auto` chooses bf16 on nearly every GPU."""
    task, example = TASKS["sst2"], example_data(TASKS["sst2"], tmp_path)
    settings = FinetuneSettings(epochs=1, batch_size=8, max_length=40, threads=1, precision="bf16", features="last")
    result = finetune.finetune(settings, task, model=dropout_encoder, data=example.data, out=tmp_path / "run")
    assert result["task"] == "sst2"
    assert read_json(tmp_path / "run" / "run.json")["resolved"]["precision"] == "bf16"


def test_a_missing_gpu_is_an_error(
    tmp_path: Path, own_corpus: Path, dropout_encoder: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rows = tmp_path / "rows.tsv"
    rows.write_text("sentence\tlabel\n" + "good\t1\nbad\t0\n" * 20)
    options = ["--model", dropout_encoder, "--device", "cuda"]
    for command in (
        ["finetune", "sst2", *options, "--data", str(rows), "--out", str(tmp_path / "run"), "--max-length", "40"],
        ["evaluate", "sst2", *options, "--data", str(rows)],
        ["predict", *options, "--input", str(rows), "--output", str(tmp_path / "out.tsv")],
        ["pretrain", "--corpus", str(own_corpus), "--out", str(tmp_path / "run"), "--steps", "2", "--device", "cuda"],
        ["paper", "table1", "--scale", "smoke", "--device", "cuda", "--out", str(tmp_path / "run")],
    ):
        assert main(command) == 2, command
        assert "torch finds no GPU" in capsys.readouterr().err
    assert not list(tmp_path.glob("run")) + list(tmp_path.glob("out.tsv"))
    with pytest.raises(InputError, match="--device cpu computes on the processors"):
        resolve_device("cuda")


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    for rank, device in (("0", "cuda:0"), ("1", "cuda:1")):
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert str(resolve_device("cuda")) == device
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(InputError, match=r"got 3 processes and 2 GPU\(s\); --nproc-per-node 2"):
        resolve_device("cuda")
    store = dist.HashStore()
    refuse_shared(store, "GPU-1")
    refuse_shared(store, "GPU-2")
    with pytest.raises(InputError, match=r"two of the processes have the same GPU \(GPU-1\)"):
        refuse_shared(store, "GPU-1")


def test_eight_bits_are_for_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match="--precision int8 needs --device cpu"):
        choose("int8", size_config("tiny", 100), device="cuda")


def test_an_apple_gpu_serves_one_process_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InputError, match="--device mps: torch finds no Apple GPU; --device cpu computes"):
        resolve_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("mps") == torch.device("mps")
    assert choose_precision({"fp32": 1.0, "bf16": 9.0}, device="mps") == "fp32"
    with pytest.raises(InputError, match="--precision bf16 needs --device cpu or cuda; with --device mps use fp32"):
        resolve_numerics("bf16", device="mps")
    with pytest.raises(InputError, match="--precision bf16 needs --device cpu or cuda; with --device mps use fp32"):
        choose("bf16", size_config("tiny", 100), device="mps")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="an Apple GPU serves one process; start the command without torchrun"):
        resolve_device("mps")


def test_a_run_resumes_with_other_numerics_only_where_they_are_allowed(tmp_path: Path, capsys: Any) -> None:
    begun = PretrainSettings(steps=3)
    start_run(tmp_path / "run", kind="pretrain", settings=begun, data={}, resume=False)
    other = begun.model_copy(update={"device": "cuda", "micro_tokens": 1024})
    again: Any = {"kind": "pretrain", "data": {}, "resume": True}
    with pytest.raises(InputError, match=r"micro_tokens is 8192 there and 1024 here; device is 'cpu' there.*--allow"):
        start_run(tmp_path / "run", settings=other, **again)
    resumed = start_run(tmp_path / "run", settings=other, allow_other_numerics=True, **again)
    assert resumed.record["settings"] == begun.model_dump(mode="json")  # another process may work on it
    with pytest.raises(InputError, match="refused"), session(resumed):
        raise InputError("refused")
    assert read_json(tmp_path / "run" / "run.json")["settings"] == begun.model_dump(mode="json")
    with session(resumed):
        assert resumed.record["settings"] == other.model_dump(mode="json")
    assert "resumes with other numerics: micro_tokens is 8192 there and 1024 here" in capsys.readouterr().err
    start_run(tmp_path / "run", settings=other, **again)  # what the run goes on with now
    with pytest.raises(InputError, match="device is 'cuda' there and 'cpu' here"):
        start_run(tmp_path / "run", settings=begun, **again)
    longer = other.model_copy(update={"steps": 4})
    with pytest.raises(InputError, match="steps is 3 there and 4 here"):
        start_run(tmp_path / "run", settings=longer, allow_other_numerics=True, **again)


def test_the_rows_that_fit_into_a_gpu_are_found_by_halving() -> None:
    tried = []

    def compute(rows: int) -> None:
        tried.append(rows)
        if rows > 5:
            raise FULL

    assert measure.most_fitting_rows(64, compute) == 4
    assert tried == [64, 32, 16, 8, 4]
    assert measure.most_fitting_rows(3, compute) == 3
    assert measure.most_fitting_rows(1, lambda _: compute(6)) == 0


def as_if_begun_on_a_gpu(folder: Path) -> None:
    record = json.loads((folder / "run.json").read_text())
    numerics = record["resolved"].get("numerics", record["resolved"])
    record["settings"]["device"] = numerics["device"] = "cuda"
    numerics["processor"] = "a GPU, torch 2"
    (folder / "run.json").write_text(json.dumps(record))


@pytest.mark.slow
def test_a_full_gpu_stops_a_pretraining_with_advice_on_the_micro_batch(
    tmp_path: Path, own_corpus: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise FULL

    def step_seconds(*_: Any, rows: int, **__: Any) -> float:
        if rows > 3:
            raise FULL
        return 0.0

    monkeypatch.setattr(measure, "step_seconds", step_seconds)
    monkeypatch.setattr(pretraining_run, "train", full)
    options = [*"--steps 2 --batch-size 8 --lengths 16:0.5,32:0.5 --evaluations 0 --threads 1".split()]
    command = ["pretrain", "--corpus", str(own_corpus), "--out", str(tmp_path / "run"), *options]
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "CUDA out of memory: --micro-tokens 32 fits; --resume --allow-other-numerics continues a run" in said
    assert main([*command, "--resume", "--micro-tokens", "32", "--allow-other-numerics"]) == 1
    assert "CUDA out of memory: the rows of a step fit, so an evaluation or another" in capsys.readouterr().err
    monkeypatch.undo()
    as_if_begun_on_a_gpu(tmp_path / "run")
    assert main([*command, "--resume", "--micro-tokens", "32"]) == 2
    assert main([*command, "--resume", "--micro-tokens", "32", "--allow-other-numerics"]) == 0
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [record["settings"]["device"], record["resolved"]["numerics"]["device"]] == ["cpu", "cpu"]


@pytest.mark.slow
def test_a_full_gpu_stops_a_fine_tuning_with_advice_on_the_batch(
    tmp_path: Path, dropout_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = TASKS["sst2"]
    example = example_data(task, tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise FULL

    fits = 2

    def seconds(_: Any, batches: Any, **__: Any) -> float:
        if len(batches(0)[0]) > fits:
            raise FULL
        return 0.0

    monkeypatch.setattr(finetune, "train", full)
    monkeypatch.setattr(memory, "measure_step_seconds", seconds)
    settings = FinetuneSettings(epochs=1, batch_size=8, max_length=40, threads=1, precision="fp32")
    where: Any = {"model": dropout_encoder, "data": example.data, "out": tmp_path / "run"}
    with pytest.raises(
        RunFailed, match=r"--activation-checkpointing needs less memory; .* or start again with --batch-size 2, whose"
    ):
        finetune.finetune(settings, task, **where)
    less = settings.model_copy(update={"activation_checkpointing": True})
    with pytest.raises(RunFailed, match="memory: start again with --batch-size 2, whose"):
        finetune.finetune(less, task, **where, resume=True, allow_other_numerics=True)
    fits = 0
    with pytest.raises(RunFailed, match="memory: start again with a smaller --max-length: no row fits"):
        finetune.finetune(less, task, **where, resume=True)
    fits = 8
    with pytest.raises(RunFailed, match="memory: the rows of a step fit, so an evaluation or another program took"):
        finetune.finetune(less, task, **where, resume=True)
    monkeypatch.undo()
    as_if_begun_on_a_gpu(tmp_path / "run")
    with pytest.raises(InputError, match="device is 'cuda' there and 'cpu' here; --allow-other-numerics resumes"):
        finetune.finetune(less, task, **where, resume=True)
    finetune.finetune(less, task, **where, resume=True, allow_other_numerics=True)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["settings"]["device"] == record["resolved"]["device"] == "cpu"
    assert record["resolved"]["ranks"] == 1


def test_a_fine_tuning_notes_the_processor_that_it_resumes_on(tmp_path: Path) -> None:
    settings, together = FinetuneSettings(epochs=3, batch_size=32, threads=1, precision="fp32"), finetune.Processes()
    run = start_run(tmp_path / "run", kind="finetune", settings={}, data={}, resume=False)
    begun, _ = finetune._resolved(settings, run, together, False, allow_other=False)
    settled = run.record["resolved"]
    run.note(resolved={**settled, "processor": "another"})
    with pytest.raises(InputError, match="started with another, this machine has"):
        finetune._resolved(settings, run, together, False, allow_other=False)
    assert run.record["resolved"]["processor"] == "another"
    resolved, _ = finetune._resolved(settings, run, together, False, allow_other=True)
    assert resolved.processor == begun.processor
    assert {**run.record["resolved"], "peak_flops": 0.0} == {**settled, "peak_flops": 0.0}
    assert finetune._resolved(settings, run, together, False, allow_other=False)[0] == resolved


def test_an_epoch_with_other_metrics_after_resuming_keeps_metrics_and_weights_together(
    tmp_path: Path, dropout_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is killed between the save of the best epoch and the next checkpoint; resumed, its metrics differ."""
    task = TASKS["sst2"]
    measured: list[float] = []

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BoundTask, "metrics", lambda *_: {"accuracy": measured.pop(0)})
    settings = FinetuneSettings(epochs=3, batch_size=8, max_length=40, threads=1, precision="fp32", seeds=1)
    where: Any = {"model": dropout_encoder, "data": example_data(task, tmp_path).data, "out": tmp_path / "run"}
    log = RunFolder.log
    monkeypatch.setattr(RunFolder, "log", lambda run, line: (log if len(measured) > 1 else killed)(run, line))
    measured += [0.5, 0.75, 0.25]
    with pytest.raises(KeyboardInterrupt):
        finetune.finetune(settings, task, **where)
    monkeypatch.setattr(RunFolder, "log", log)
    second = (tmp_path / "run" / "seed-0" / "model" / "model.safetensors").read_bytes()
    measured[:] = [0.625, 0.6875, 0.5]
    result = finetune.finetune(settings, task, **where, resume=True)
    assert (result["scores"], result["seeds"][0]["epoch"]) == ([0.75], 2)
    assert [epoch["accuracy"] for epoch in result["seeds"][0]["epochs"]] == [0.625, 0.6875, 0.5]  # as trained last
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == second


def test_a_search_resumes_on_another_device_where_that_is_allowed(
    tmp_path: Path, dropout_encoder: str, capsys: Any
) -> None:
    data = example_data(TASKS["sst2"], tmp_path).data
    command = ["finetune", "sst2", "--model", dropout_encoder, "--data", str(data), "--out", str(tmp_path / "run")]
    command += ["--epochs", "1", "--max-length", "40", "--threads", "1", "--seeds", "1", "--grid", "batch-size=4,8"]
    assert main(command) == 0
    record = json.loads((tmp_path / "run" / "grid.json").read_text())
    record["settings"]["device"] = "cuda"
    (tmp_path / "run" / "grid.json").write_text(json.dumps(record))
    assert main([*command, "--resume"]) == 2
    assert "device ('cuda' there, 'cpu' now)" in capsys.readouterr().err
    assert main([*command, "--resume", "--allow-other-numerics"]) == 0


def test_a_full_gpu_is_an_error_without_traceback_in_evaluation(
    tmp_path: Path, dropout_encoder: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = example_data(TASKS["sst2"], tmp_path).data
    settings = FinetuneSettings(epochs=1, batch_size=32, max_length=40, threads=1, precision="fp32")
    finetune.finetune(settings, TASKS["sst2"], model=dropout_encoder, data=data, out=tmp_path / "run")

    def full(*_: Any, **__: Any) -> None:
        raise FULL

    for encoder in (Encoder, PackedEncoder):  # which of them answers depends on the processor
        monkeypatch.setattr(encoder, "forward", full)
    options = ["--model", str(tmp_path / "run")]
    assert main(["evaluate", "sst2", *options, "--data", str(data)]) == 1
    assert "CUDA out of memory: --device cpu computes it on the processors" in capsys.readouterr().err
