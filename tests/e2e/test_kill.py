"""A pre-training run killed at random moments and resumed ends in the bytes of an undisturbed one."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from tests.support.seeds import drawn_moments

STEPS = 600


def arguments(corpus: Path, out: Path) -> list[str]:
    options = ["--lengths", "32:0.5,48:0.5", "--batch-size", "8", "--learning-rate", "1e-3", "--save-minutes", "0.01"]
    fixed = ["--threads", "1", "--precision", "fp32", "--held-out", "0.2", "--evaluations", "3", "--log-every", "5"]
    return ["pretrain", "--corpus", str(corpus), "--out", str(out), "--steps", str(STEPS), *options, *fixed]


def long_run(corpus: Path, out: Path) -> list[str]:
    """Arguments of a run that does not end by itself."""
    endless = arguments(corpus, out)
    endless[endless.index("--steps") + 1] = "100000"
    return [*endless, "--compile", "off"]  # a run of so many steps would try it first


def complete_lines(out: Path) -> list[dict[str, Any]]:
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True) if (out / "metrics.jsonl").exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def last_step(out: Path) -> int:
    return max((line["step"] for line in complete_lines(out)), default=0)


def wait_for_step(running: subprocess.Popen[bytes], out: Path, step: int) -> None:
    """Wait until `step` was logged; the process that ends before it, or hangs, fails the test."""
    deadline = time.monotonic() + 120
    while last_step(out) < step:
        assert running.poll() is None, f"ended with {running.returncode} before step {step}"
        if time.monotonic() > deadline:
            running.kill()
            running.wait()
            pytest.fail(f"step {step} was not logged in two minutes")
        time.sleep(0.02)


@pytest.mark.slow
def test_three_kills_change_no_byte(tmp_path: Path, own_corpus: Path) -> None:
    command = [sys.executable, "-m", "bertwright"]
    calm, torn = tmp_path / "calm", tmp_path / "torn"
    subprocess.run([*command, *arguments(own_corpus, calm)], check=True, capture_output=True)
    with drawn_moments() as moments:
        restarts = 0
        resumed = [*command, *arguments(own_corpus, torn), "--resume", "--track", "tensorboard"]
        for step in sorted(moments.sample(range(20, STEPS - 100), 3)):
            running = subprocess.Popen(resumed, stderr=subprocess.DEVNULL)
            wait_for_step(running, torn, step)
            time.sleep(moments.uniform(0, 0.1))
            running.send_signal(signal.SIGKILL)
            assert running.wait() == -signal.SIGKILL
            restarts += any((torn / "checkpoints").glob("step-*/state.json"))
        assert restarts, "no restart began from a checkpoint"
        subprocess.run(resumed, check=True, capture_output=True)
        assert (torn / "model" / "model.safetensors").read_bytes() == (
            calm / "model" / "model.safetensors"
        ).read_bytes()
        timed = {"seconds", "data_share", "tokens_per_second", "mfu"}
        logs = [
            [{key: value for key, value in line.items() if key not in timed} for line in complete_lines(out)]
            for out in (calm, torn)
        ]
        assert logs[0] == logs[1]
        assert last_step(torn) == STEPS
        assert losses_in_tensorboard(torn) == [
            (line["step"], pytest.approx(line["mlm"], rel=1e-6)) for line in logs[0] if "mlm" in line
        ]


def losses_in_tensorboard(out: Path) -> list[tuple[int, float]]:
    """Steps and losses of all event files, in the order in which TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(out / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return [(each.step, each.value) for each in events.Scalars("train/mlm")]


@pytest.mark.slow
def test_sigterm_saves_and_exits_zero(tmp_path: Path, own_corpus: Path) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "bertwright", *long_run(own_corpus, tmp_path / "run")], stderr=subprocess.DEVNULL
    )
    wait_for_step(running, tmp_path / "run", 5)
    running.terminate()
    assert running.wait(timeout=60) == 0
    saved = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert int(saved[-1].name.removeprefix("step-")) >= 5


@pytest.mark.slow
def test_a_closed_terminal_saves_and_exits_zero(tmp_path: Path, own_corpus: Path) -> None:
    process, terminal = pty.fork()  # whose terminal is that of its session: closed, it gets SIGHUP
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-m", "bertwright", *long_run(own_corpus, tmp_path / "run")])
    shown = threading.Thread(target=read_all, args=[terminal], daemon=True)
    shown.start()
    deadline = time.monotonic() + 120
    while last_step(tmp_path / "run") < 5:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    saved = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert int(saved[-1].name.removeprefix("step-")) >= 5
    assert json.loads((tmp_path / "run" / "run.json").read_text())["sessions"][-1]["how"] == "stopped"


def read_all(terminal: int) -> None:
    with suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("with_text", [True, False])
def test_quickstart_ends_with_its_table(
    tmp_path: Path, with_text: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertwright.quickstart.run.SEEDS", 2)
    out = tmp_path / "quick"
    text = tmp_path / "text.txt"
    places = ("harbour", "garden", "library", "kitchen", "station", "meadow", "tower", "bridge", "market", "forest")
    animals = ("cat", "dog", "horse", "owl", "fox", "goose", "otter", "mole", "hare", "swan")
    text.write_text(
        "\n\n".join(
            "\n".join(f"On day {day} the {animal} of number {day} walked slowly to the {noun}." for day in range(90))
            for noun, animal in zip(places, animals, strict=True)
        )
    )
    arguments = [
        *"quickstart --minutes 0.5 --out".split(),
        str(out),
        "--json",
        *(["--corpus", str(text)] if with_text else []),
    ]
    assert main(arguments) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(printed["accuracy"]) == {"majority", "bag_of_words", "scratch", "pretrained"}
    assert printed["accuracy"]["bag_of_words"] > printed["accuracy"]["majority"]
    assert len(printed["filled"]) == 3
    assert (out / "pretraining" / "loss.png").is_file()


@pytest.mark.slow
def test_a_compiled_step_has_the_losses_of_the_plain_one(tmp_path: Path, own_corpus: Path) -> None:
    start = ["pretrain", "--corpus", str(own_corpus), "--steps", "6", "--lengths", "32", "--batch-size", "8"]
    options = ["--learning-rate", "1e-3", "--dropout", "0", "--threads", "1", "--precision", "fp32", "--log-every", "1"]
    losses = []
    for name, flags in (("plain", []), ("compiled", ["--compile", "on"])):
        assert main([*start, *options, *flags, "--out", str(tmp_path / name)]) == 0
        losses.append([line["mlm"] + line["nsp"] for line in complete_lines(tmp_path / name) if "mlm" in line])
    assert len(losses[0]) == 6
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)


@pytest.mark.slow
def test_a_stopped_finetuning_resumes_to_the_same_bytes(tmp_path: Path, own_text: Path) -> None:
    assert main(["tokenizer", "train", str(own_text), "--vocab-size", "700", "--out", str(tmp_path / "tok")]) == 0
    table = tmp_path / "table.tsv"
    words = own_text.read_text("utf-8").split()
    rows = [
        f"{' '.join(words[start : start + 12])}\t{'early' if start < len(words) // 2 else 'late'}"
        for start in range(0, len(words) - 12, 6)
    ]
    table.write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    start = [
        sys.executable,
        *"-m bertwright finetune classify --model random:tiny --tokenizer".split(),
        str(tmp_path / "tok"),
    ]
    options = "--epochs 40 --batch-size 32 --seeds 2 --threads 1 --precision fp32 --max-length 24"
    start += ["--data", str(table), *options.split()]
    subprocess.run([*start, "--out", str(tmp_path / "calm")], check=True, capture_output=True)
    torn = tmp_path / "torn"
    running = subprocess.Popen([*start, "--out", str(torn)], stderr=subprocess.DEVNULL)
    wait_for_step(running, torn / "seed-0", 20)
    running.terminate()
    assert running.wait(timeout=60) == 0
    assert not (torn / "model").exists()
    subprocess.run([*start, "--out", str(torn), "--resume"], check=True, capture_output=True)
    for name in ("model", "seed-0/model", "seed-1/model"):
        assert (torn / name / "model.safetensors").read_bytes() == (
            tmp_path / "calm" / name / "model.safetensors"
        ).read_bytes()
