"""The loop: sums over counts, micro-batches, resuming, stopping, losses that are not finite."""

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bertwright.errors import InputError, RunFailed
from bertwright.pretraining.settings import PretrainSettings
from bertwright.training import loop
from bertwright.training.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from bertwright.training.distributed import Trainable
from bertwright.training.hardware import Numerics
from bertwright.training.loop import Outcome, Plan, train
from bertwright.training.optimizer import build_optimizer
from bertwright.training.run_folder import RunFolder, start_run
from bertwright.training.settings import OptimizerSettings
from bertwright.training.trial import measure_step_seconds

Batch = tuple[Tensor, Tensor]
NUMERICS = Numerics(precision="fp32", compiled=False, threads=1, peak_flops=1e9)


def linear(seed: int = 0, kind: torch.dtype = torch.float64) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(3, 1).to(kind)


def trainable(module: nn.Linear, noise: float = 0.0) -> Trainable[Batch]:
    def step(batch: Batch) -> dict[str, tuple[Tensor, str]]:
        values = batch[0] + noise * torch.randn(batch[0].shape, dtype=batch[0].dtype)
        return {"loss": (((module(values)[:, 0] - batch[1]) ** 2).sum(), "rows")}

    return Trainable(
        module=module,
        blocks=(),
        step=step,
        counts=lambda batch: {"rows": float(len(batch[0]))},
        flops=lambda batch: 18.0 * len(batch[0]),
        tokens=lambda batch: len(batch[0]),
    )


def linear_rows(step: int, sizes: Sequence[int] = (4,)) -> list[Batch]:
    generator = torch.Generator().manual_seed(step)
    values = torch.randn(sum(sizes), 3, generator=generator, dtype=torch.float64)
    goals = values @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    return list(zip(values.split(list(sizes)), goals.split(list(sizes)), strict=True))


def plan(steps: int = 20, **changes: object) -> Plan:
    return Plan(
        steps=steps, seed=3, optimizer=OptimizerSettings(learning_rate=0.05, warmup=0.1), log_every=3, **changes
    )  # type: ignore[arg-type]


def weight_bytes(module: nn.Module) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in module.state_dict().values())


def test_ragged_micro_batches_give_the_step_of_one_batch() -> None:
    whole, cut = linear(), linear()
    train(trainable(whole), lambda step: linear_rows(step, (8,)), plan=plan(50), numerics=NUMERICS, quiet=True)
    train(trainable(cut), lambda step: linear_rows(step, (1, 5, 2)), plan=plan(50), numerics=NUMERICS, quiet=True)
    torch.testing.assert_close(whole.weight, cut.weight, atol=1e-9, rtol=0)


def test_it_learns() -> None:
    module = linear()
    train(trainable(module), linear_rows, plan=plan(800), numerics=NUMERICS, quiet=True)
    torch.testing.assert_close(module.weight[0], torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), atol=0.05, rtol=0)


@pytest.fixture
def hears_hangups() -> Iterator[None]:
    """Handle SIGHUP as a program that was not started with nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hears_hangups")
def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    calm = linear()
    undisturbed = start_run(tmp_path / "calm", kind="t", settings={}, data={}, resume=False)
    train(trainable(calm, noise=0.1), linear_rows, plan=plan(), numerics=NUMERICS, run=undisturbed, quiet=True)

    def interrupting(step: int) -> list[Batch]:
        if step in (6, 13) and step not in seen:
            seen.add(step)
            os.kill(os.getpid(), signal.SIGTERM if step == 6 else signal.SIGHUP)
        return linear_rows(step)

    seen: set[int] = set()
    outcomes: list[Outcome] = []
    for _ in range(3):
        run = start_run(tmp_path / "torn", kind="t", settings={}, data={}, resume=True)
        module = linear(seed=len(outcomes))  # what it starts from must not matter once there is a checkpoint
        if not outcomes:
            module = linear()
        outcomes.append(
            train(trainable(module, noise=0.1), interrupting, plan=plan(), numerics=NUMERICS, run=run, quiet=True)
        )
    assert [outcome.steps for outcome in outcomes] == [7, 14, 20]
    assert [outcome.finished for outcome in outcomes] == [False, False, True]
    assert weight_bytes(module) == weight_bytes(calm)
    measured = ("data_share", "mfu")
    logged = [
        [{k: v for k, v in entry.items() if "second" not in k and k not in measured} for entry in r.metrics()]
        for r in (undisturbed, run)
    ]
    assert logged[0] == logged[1]


@pytest.mark.parametrize("is_enough", [False, True])
def test_a_signal_while_the_last_checkpoint_is_written_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_enough: bool
) -> None:
    """The run has finished, and the caller begins no other one."""
    really = loop.save_checkpoint

    def interrupted(*values: Any, **named: Any) -> None:
        really(*values, **named)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(loop, "save_checkpoint", interrupted)
    run = start_run(tmp_path / "run", kind="t", settings={}, data={}, resume=False)
    ends: dict[str, Any] = {"is_enough": lambda _: True, "evaluate_at": frozenset({12})} if is_enough else {}
    outcome = train(trainable(linear()), linear_rows, plan=plan(**ends), numerics=NUMERICS, run=run, quiet=True)
    assert (outcome.finished, outcome.signalled) == (True, True)


def test_steps_computed_again_leave_no_line_twice(tmp_path: Path) -> None:
    run = start_run(tmp_path / "r", kind="t", settings={}, data={}, resume=False)
    train(trainable(linear()), linear_rows, plan=plan(save_every=4), numerics=NUMERICS, run=run, quiet=True)
    for path in list_checkpoints(run.checkpoints):
        if path.name != "step-000000016":
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
    with (run.folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 20, "lo')  # a line cut by a crash
    train(trainable(linear()), linear_rows, plan=plan(save_every=4), numerics=NUMERICS, run=run, quiet=True)
    assert [entry["step"] for entry in run.metrics()] == [3, 6, 9, 12, 15, 18, 20]


def kept_lines(run: RunFolder, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Keep some lines of the log; remove the file where none is kept."""
    lines = [json.dumps(entry) + "\n" for entry in run.metrics() if keep(entry)]
    (run.folder / "metrics.jsonl").write_text("".join(lines))
    if not lines:
        (run.folder / "metrics.jsonl").unlink()


@pytest.mark.parametrize(
    ("keep", "says"),
    [
        (lambda _: True, None),
        (
            lambda _: False,
            "lines of steps 1 to 15 and evaluations after steps 5, 10, 15 are missing; the run continues from step 16, "
            "and its curve begins after step 15",
        ),
        (lambda entry: "held_out" in entry, "lines of steps 1 to 15 are missing; .* its curve begins after step 15"),
        (lambda entry: "held_out" not in entry, "evaluations after steps 5, 10, 15 are missing; .* lacks them"),
        (lambda entry: entry["step"] > 7, "lines of steps 1 to 6 and evaluations after steps 5 are .* after step 6"),
        (lambda entry: entry["step"] < 12, "lines of steps 10 to 15 and .* after steps 15 are missing; .* lacks them"),
        (lambda entry: entry["step"] not in (6, 12), "lines of steps 4 to 6, 10 to 12 are missing; .* lacks them"),
    ],
)
def test_lines_that_a_log_lacks_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keep: Callable[[dict[str, Any]], bool], says: str | None
) -> None:
    """The loop logs every third step; a checkpoint holds the sums of the steps that are not logged yet."""
    settings = plan(save_every=16, evaluate=lambda done: {"score": float(done)}, evaluate_at=frozenset({5, 10, 15, 20}))
    run = start_run(tmp_path / "r", kind="t", settings={}, data={}, resume=False)
    train(trainable(linear()), linear_rows, plan=settings, numerics=NUMERICS, run=run, quiet=True)
    shutil.rmtree(run.checkpoints / "step-000000020")
    kept_lines(run, keep)
    capsys.readouterr()
    train(trainable(linear()), linear_rows, plan=settings, numerics=NUMERICS, run=run, quiet=True)
    said = capsys.readouterr().err
    if says is None:
        assert "missing" not in said
    else:
        assert re.search(rf"{re.escape(str(run.folder))}/metrics\.jsonl: {says}", said), said
    assert [entry["step"] for entry in run.metrics() if "held_out" not in entry][-2:] == [18, 20]


def test_missing_lines_of_the_last_steps_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = start_run(tmp_path / "r", kind="t", settings={}, data={}, resume=False)
    train(trainable(linear()), linear_rows, plan=plan(), numerics=NUMERICS, run=run, quiet=True)
    kept_lines(run, lambda entry: entry["step"] < 18)
    train(trainable(linear()), linear_rows, plan=plan(), numerics=NUMERICS, run=run, quiet=True)
    assert "lines of steps 16 to 20 are missing; the run continues from step 20, and" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start_run(tmp_path / "r", kind="t", settings={}, data={}, resume=False)
    done = linear()
    train(trainable(done), linear_rows, plan=plan(save_every=8), numerics=NUMERICS, run=run, quiet=True)
    newest = list_checkpoints(run.checkpoints)[-1] / "model.safetensors"
    data = bytearray(newest.read_bytes())
    data[-3] ^= 1
    newest.write_bytes(data)
    again = linear()
    train(trainable(again), linear_rows, plan=plan(save_every=8), numerics=NUMERICS, run=run, quiet=True)
    assert "model.safetensors is damaged" in capsys.readouterr().err
    assert weight_bytes(again) == weight_bytes(done)
    for path in list_checkpoints(run.checkpoints):
        (path / "optimizer.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="every checkpoint is damaged"):
        train(trainable(linear()), linear_rows, plan=plan(), numerics=NUMERICS, run=run, quiet=True)


def test_every_flipped_bit_of_a_state_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The step decides the next rows; the notes decide the log and the loss guard."""
    module = torch.nn.Linear(2, 2)
    optimizer = build_optimizer(module, OptimizerSettings())
    for step in (11, 12):
        save_checkpoint(tmp_path, module, optimizer, step=step, notes={"usual": 1.5, "skipped": step})
    path = tmp_path / "step-000000012" / "state.json"
    written = path.read_bytes()
    for position in range(8 * len(written)):
        data = bytearray(written)
        data[position // 8] ^= 1 << position % 8
        path.write_bytes(data)
        loaded = load_checkpoint(tmp_path, module, optimizer)
        # a flip in the space between words changes nothing
        assert loaded in ((11, {"usual": 1.5, "skipped": 11}), (12, {"usual": 1.5, "skipped": 12}))
        is_kept = loaded is not None and loaded[0] == 12
        assert is_kept != ("step-000000012/state.json is damaged" in capsys.readouterr().err)


@pytest.mark.parametrize("change", [{"step": 11}, {"notes": {"skipped": 1}}, {"digest": None}])
def test_a_state_that_does_not_match_its_digest_is_damaged(tmp_path: Path, change: dict[str, Any]) -> None:
    module = torch.nn.Linear(2, 2)
    optimizer = build_optimizer(module, OptimizerSettings())
    for step in (11, 12):
        save_checkpoint(tmp_path, module, optimizer, step=step, notes={})
    path = tmp_path / "step-000000012" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert load_checkpoint(tmp_path, module, optimizer) == (11, {})


def test_a_checkpoint_under_the_name_of_another_step_is_damaged(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    optimizer = build_optimizer(module, OptimizerSettings())
    save_checkpoint(tmp_path, module, optimizer, step=11, notes={})
    shutil.copytree(tmp_path / "step-000000011", tmp_path / "step-000000012")
    assert load_checkpoint(tmp_path, module, optimizer) == (11, {})


def test_damaged_checkpoints_of_later_steps_do_not_displace_good_ones(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    optimizer = build_optimizer(module, OptimizerSettings())
    for step in (10, 20, 30):
        save_checkpoint(tmp_path, module, optimizer, step=step, notes={}, keep=3)
    for step in (20, 30):
        (tmp_path / f"step-{step:09d}" / "model.safetensors").write_bytes(b"")
    assert load_checkpoint(tmp_path, module, optimizer) == (10, {})
    save_checkpoint(tmp_path, module, optimizer, step=15, notes={}, keep=1)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-000000015"]
    assert load_checkpoint(tmp_path, module, optimizer) == (15, {})


def test_a_checkpoint_without_its_state_is_named_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "checkpoints"
    module = torch.nn.Linear(2, 2)
    optimizer = build_optimizer(module, OptimizerSettings())
    for step in (1, 2):
        save_checkpoint(folder, module, optimizer, step=step, notes={})
    (folder / "step-000000002" / "state.json").unlink()
    loaded = load_checkpoint(folder, module, optimizer)
    assert loaded is not None
    assert loaded[0] == 1
    assert "step-000000002/state.json is damaged" in capsys.readouterr().err
    (folder / "step-000000001" / "state.json").unlink()
    with pytest.raises(InputError, match="every checkpoint is damaged"):
        load_checkpoint(folder, module, optimizer)


def test_a_loss_that_is_not_finite_stops_before_the_update(tmp_path: Path) -> None:
    def poisoned(step: int) -> list[Batch]:
        ((values, goals),) = linear_rows(step)
        return [(values, goals / (0.0 if step == 10 else 1.0))]

    run = start_run(tmp_path / "r", kind="t", settings={}, data={}, resume=False)
    module = linear()
    with pytest.raises(RunFailed, match=r"step 11: the loss is not finite"):
        train(trainable(module), poisoned, plan=plan(save_every=5), numerics=NUMERICS, run=run, quiet=True)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in module.state_dict().values())
    assert list_checkpoints(run.checkpoints)[-1].name == "step-000000010"


def test_a_gradient_that_is_not_finite_is_reported(tmp_path: Path) -> None:
    def steep(batch: Batch) -> dict[str, tuple[Tensor, str]]:
        loss = module(batch[0]).sum()
        loss.register_hook(lambda gradient: gradient * float("inf"))
        return {"loss": (loss, "rows")}

    module = linear()
    with pytest.raises(RunFailed, match=r"step 1: the gradient is not finite \(loss "):
        train(replace(trainable(module), step=steep), linear_rows, plan=plan(), numerics=NUMERICS, quiet=True)


def spoiled(bad: dict[int, float]) -> Callable[[int], list[Batch]]:
    """Return rows whose goals are multiplied in some steps."""
    return lambda step: [(values, goals * bad.get(step, 1.0)) for values, goals in linear_rows(step)]


def test_bad_steps_are_skipped_and_counted_with_skip_loss_spikes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start_run(tmp_path / "r", kind="t", settings={}, data={}, resume=False)
    module, bad = linear(), {5: float("nan"), 11: 1e6}
    skipping = plan(skip_loss_spikes=True, watch_spikes=True)
    train(trainable(module), spoiled(bad), plan=skipping, numerics=NUMERICS, run=run, quiet=True)
    assert bool(module.weight.isfinite().all())
    said = capsys.readouterr().err
    assert "step 6: the loss is not finite" in said
    assert "step 12: loss spike: " in said
    assert "(2 of at most 10)" in said
    counted = [entry.get("skipped", 0) for entry in run.metrics()]
    assert counted == sorted(counted)
    assert counted[-1] == 2
    assert all(entry["loss"] < 100 for entry in run.metrics())


def test_a_loss_spike_stops_the_run_by_default() -> None:
    leaping = plan(watch_spikes=True)
    with pytest.raises(RunFailed, match=r"step 12: loss spike: .*, after .* on average"):
        train(trainable(linear()), spoiled({11: 1e6}), plan=leaping, numerics=NUMERICS, quiet=True)
    train(
        trainable(linear()), spoiled({11: 1e6}), plan=plan(), numerics=NUMERICS, quiet=True
    )  # other tasks' losses may


def test_weights_with_a_loss_spike_are_not_saved(tmp_path: Path) -> None:
    """An earlier update may be the cause; a run could not continue from the weights after it."""
    run = start_run(tmp_path / "r", kind="t", settings={}, data={}, resume=False)
    leaping = plan(watch_spikes=True, save_every=5)
    with pytest.raises(
        RunFailed, match=r"step 14: .*the last good checkpoint is in .*--skip-loss-spikes continues.*--learning-rate"
    ):
        train(trainable(linear()), spoiled({13: 1e6}), plan=leaping, numerics=NUMERICS, run=run, quiet=True)
    assert list_checkpoints(run.checkpoints)[-1].name == "step-000000010"
    skipping = replace(leaping, skip_loss_spikes=True)
    outcome = train(trainable(linear()), spoiled({13: 1e6}), plan=skipping, numerics=NUMERICS, run=run, quiet=True)
    assert outcome.finished
    always = spoiled(dict.fromkeys(range(5, 20), 1e6))
    with pytest.raises(
        RunFailed, match=r"after 10 skipped steps; if an earlier update caused it.* a lower --learning-rate"
    ):
        train(trainable(linear()), always, plan=skipping, numerics=NUMERICS, quiet=True)
    with pytest.raises(InputError, match=r"expected a checkpoint of at most 10 steps.* its newest one has 20"):
        train(trainable(linear()), linear_rows, plan=plan(10), numerics=NUMERICS, run=run, quiet=True)


def test_lines_are_on_disk_before_the_checkpoint_that_follows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut no lines are missing before the checkpoint from which the run resumes."""
    synced: list[str] = []
    real = os.fsync

    def noted(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        real(handle)

    run = start_run(tmp_path / "r", kind="t", settings={}, data={}, resume=False)
    monkeypatch.setattr(os, "fsync", noted)
    train(trainable(linear()), linear_rows, plan=plan(save_every=4), numerics=NUMERICS, run=run, quiet=True)
    saves = [index for index, name in enumerate(synced) if name == "checkpoints"]
    assert len(saves) == 5
    for before, save in zip([0, *saves], saves, strict=False):
        between = synced[before:save]
        assert between.index("metrics.jsonl") < between.index("state.json")


def test_the_step_that_a_run_continues_from_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = start_run(tmp_path / "r", kind="t", settings={}, data={}, resume=False)
    train(trainable(linear()), linear_rows, plan=plan(10), numerics=NUMERICS, run=run, quiet=True)
    assert capsys.readouterr().err == ""
    train(trainable(linear()), linear_rows, plan=plan(), numerics=NUMERICS, run=run, quiet=True)
    assert f"{run.folder}: continues from step 10" in capsys.readouterr().err
    shutil.rmtree(run.checkpoints)
    run.checkpoints.symlink_to(tmp_path / "disk")
    with pytest.raises(InputError, match=r"checkpoints: links to .*disk, which does not exist"):
        train(trainable(linear()), linear_rows, plan=plan(), numerics=NUMERICS, run=run, quiet=True)
    run.checkpoints.unlink()
    train(trainable(linear()), linear_rows, plan=plan(), numerics=NUMERICS, run=run, quiet=True)
    assert "has no checkpoint, though it reached step 20; starting from step 0" in capsys.readouterr().err


def test_copies_of_checkpoints_under_other_names_stay(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    optimizer = build_optimizer(module, OptimizerSettings())
    save_checkpoint(tmp_path, module, optimizer, step=1, notes={})
    for name in ("step-best", "step-000000001-keep"):
        shutil.copytree(tmp_path / "step-000000001", tmp_path / name)
    for step in (2, 999_999_999, 1_000_000_000, 1_000_000_001):
        save_checkpoint(tmp_path, module, optimizer, step=step, notes={}, keep=2)
    names = {"step-best", "step-000000001-keep", "step-1000000000", "step-1000000001"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert load_checkpoint(tmp_path, module, optimizer) == (1_000_000_001, {})


def test_too_many_bad_steps_stop_the_run() -> None:
    bad = dict.fromkeys(range(3, 20), float("inf"))
    with pytest.raises(RunFailed, match=r"step 14: .*after 10 skipped steps"):
        train(trainable(linear()), spoiled(bad), plan=plan(skip_loss_spikes=True), numerics=NUMERICS, quiet=True)


def test_skipped_steps_and_the_usual_loss_survive_a_restart(tmp_path: Path) -> None:
    bad = {4: float("nan"), 15: 1e6}
    logs = []
    for name, stops in (("calm", ()), ("torn", (9,))):

        def batches(step: int, stops: tuple[int, ...] = stops) -> list[Batch]:
            if step in stops and not (tmp_path / "stopped").exists():
                (tmp_path / "stopped").touch()
                os.kill(os.getpid(), signal.SIGTERM)
            return spoiled(bad)(step)

        for _ in range(1 + len(stops)):
            run = start_run(tmp_path / name, kind="t", settings={}, data={}, resume=True)
            skipping = plan(skip_loss_spikes=True, watch_spikes=True)
            train(trainable(linear()), batches, plan=skipping, numerics=NUMERICS, run=run, quiet=True)
        logs.append([(entry["step"], entry["loss"], entry.get("skipped")) for entry in run.metrics()])
    assert logs[0] == logs[1]
    assert logs[0][-1][2] == 2


def test_an_ignored_signal_stays_ignored() -> None:
    def hung_up(step: int) -> list[Batch]:
        os.kill(os.getpid(), signal.SIGHUP)
        return linear_rows(step)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        outcome = train(trainable(linear()), hung_up, plan=plan(5), numerics=NUMERICS, quiet=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert outcome.finished


def test_trial_steps_restore_the_weights() -> None:
    module = linear()
    before = weight_bytes(module)
    assert measure_step_seconds(trainable(module), linear_rows, plan=plan(100), numerics=NUMERICS, seconds=0.01) > 0
    assert weight_bytes(module) == before


@pytest.mark.parametrize(
    ("compiled", "taken", "expected"),
    [
        (False, [1, 1, 1, 0.5, 0.25, 0.75, 0.5], 0.5),  # three warm up
        (False, [9, 3], 3),  # longer than `seconds`: the first warms up
        (True, [60, 3, 60, 4], 3),
        (True, [60, 0.5, 0.5, 0.5, 60], 0.5),  # a shape that is new to the fifth
    ],
)
def test_compiling_does_not_count_as_the_time_of_a_step(
    compiled: bool, taken: list[float], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    def passing(step: int) -> list[Batch]:
        clock[0] += taken[step]
        return linear_rows(step)

    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    monkeypatch.setattr("bertwright.training.loop.time.perf_counter", lambda: clock[0])
    numerics = NUMERICS.model_copy(update={"compiled": compiled})
    seconds_measured = measure_step_seconds(
        trainable(linear()), passing, plan=plan(100), numerics=numerics, seconds=2.0
    )
    assert seconds_measured == pytest.approx(expected)


def test_evaluations_are_logged_at_their_steps(tmp_path: Path) -> None:
    run = start_run(tmp_path / "r", kind="t", settings={}, data={}, resume=False)
    module = linear()

    def measure(step: int) -> dict[str, float]:
        assert not module.training
        return {"score": float(step)}

    outcome = train(
        trainable(module),
        linear_rows,
        plan=plan(evaluate=measure, evaluate_at=frozenset({5, 20})),
        numerics=NUMERICS,
        run=run,
        quiet=True,
    )
    assert outcome.last == {"score": 20.0}
    assert [entry["held_out"]["score"] for entry in run.metrics() if "held_out" in entry] == [5.0, 20.0]


def test_settings_that_decide_no_result_may_change_on_resuming(tmp_path: Path) -> None:
    start: Any = {"kind": "t", "data": {}}
    start_run(tmp_path / "r", settings=PretrainSettings(steps=5), resume=False, **start)
    start_run(tmp_path / "r", settings=PretrainSettings(steps=5, keep=7, skip_loss_spikes=True), resume=True, **start)
    with pytest.raises(InputError, match="steps is 5 there and 6 here"):
        start_run(tmp_path / "r", settings=PretrainSettings(steps=6, keep=7), resume=True, **start)


def test_a_run_folder_of_another_configuration_is_refused(tmp_path: Path) -> None:
    start_run(tmp_path / "r", kind="t", settings={"a": {"b": 1}}, data={}, resume=False)
    with pytest.raises(InputError, match=r"settings\.a\.b is 1 there and 2 here"):
        start_run(tmp_path / "r", kind="t", settings={"a": {"b": 2}}, data={}, resume=True)
    with pytest.raises(InputError, match="--resume"):
        start_run(tmp_path / "r", kind="t", settings={"a": {"b": 1}}, data={}, resume=False)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="not empty"):
        start_run(tmp_path / "full", kind="t", settings={}, data={}, resume=True)
    assert json.loads((tmp_path / "r" / "run.json").read_text())["settings"] == {"a": {"b": 1}}


def test_a_term_without_a_count_is_left_out_of_the_mean(tmp_path: Path) -> None:
    """Every other step has the second term."""
    module = linear()

    def terms(batch: Batch) -> dict[str, tuple[Tensor, str]]:
        nothing = module.weight.sum() * 0
        return {"a": (nothing + 2 * len(batch[0]), "rows"), "b": (nothing + batch[1].sum(), "others")}

    def rows(step: int) -> list[Batch]:
        return [(torch.ones(4, 3, dtype=torch.float64), torch.full((4,), 5.0 * (step % 2), dtype=torch.float64))]

    def counts(batch: Batch) -> dict[str, float]:
        return {"rows": float(len(batch[0])), "others": float((batch[1] > 0).sum())}

    run = start_run(tmp_path / "run", kind="t", settings={}, data={}, resume=False)
    mixed = replace(trainable(module), step=terms, counts=counts)
    train(mixed, rows, plan=plan(5), numerics=NUMERICS, run=run, quiet=True)
    assert [(line["step"], line["a"], line["b"]) for line in run.metrics()] == [(3, 2.0, 5.0), (5, 2.0, 5.0)]
