"""Warm-up, stable, decay: its learning rates, and a longer run that equals one of that length from the start."""

import json
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.files import read_object
from bertwright.pretraining import extend
from bertwright.pretraining.extend import extended_settings, stable_checkpoint
from bertwright.training.checkpoint import list_checkpoints
from bertwright.training.optimizer import rate_at
from bertwright.training.settings import stable_steps
from tests.support.folders import read_jsonl


def options(corpus: Path, out: Path, steps: int, **more: str) -> list[str]:
    named = {"size": "1x64", "lengths": "16", "batch-size": "4", "threads": "1", "precision": "fp32", "warmup": "0"}
    named |= {"schedule": "wsd", "second-sentence": "none", "steps": str(steps), "log-every": "2", **more}
    return [
        "pretrain",
        "--corpus",
        str(corpus),
        "--out",
        str(out),
        *(f"--{name}={value}" for name, value in named.items()),
    ]


def test_the_rate_stays_at_its_peak_up_to_the_decay() -> None:
    rates = [rate_at(step, 20, 0.1, "wsd", 0.2) for step in range(20)]
    assert rates[:2] == [0.0, 0.5]
    assert rates[2:17] == [1.0] * 15
    assert rates[17:] == [0.75, 0.5, 0.25]
    assert stable_steps(20, 0.2) == 16
    assert rate_at(19, 20, 0.0, "wsd", 0.0) == 1.0


@pytest.mark.slow
def test_a_longer_run_equals_one_of_that_length(
    own_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where its first start was stopped before the checkpoint was copied."""
    short, longer, whole = tmp_path / "short", tmp_path / "longer", tmp_path / "whole"
    assert main(options(own_corpus, short, 5)) == 0
    assert [path.name for path in list_checkpoints(short / "stable")] == ["step-000000004"]
    command = ["pretrain", "--extend", str(short), "--corpus", str(own_corpus), "--out", str(longer), "--steps", "10"]
    with monkeypatch.context() as patched:
        patched.setattr(extend, "copy_folder", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(command) != 0
    assert main(["pretrain", "--corpus", str(own_corpus), "--out", str(longer), "--steps", "10", "--resume"]) == 2
    assert "was stopped before it had a checkpoint; give --extend RUN again" in capsys.readouterr().err
    assert main([*command, "--resume"]) == 0
    assert main([*command, "--resume"]) == 0  # the finished run says so
    assert main(options(own_corpus, whole, 10)) == 0
    same: list[Any] = [(run / "model" / "model.safetensors").read_bytes() for run in (longer, whole)]
    assert same[0] == same[1]
    losses = [[line["mlm"] for line in read_jsonl(run / "metrics.jsonl")] for run in (longer, whole)]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_the_masks_of_a_schedule_keep_their_steps_in_a_longer_run(own_corpus: Path, tmp_path: Path) -> None:
    short, longer, whole = tmp_path / "short", tmp_path / "longer", tmp_path / "whole"
    assert main(options(own_corpus, short, 5, **{"mask-schedule": "0.4:0.4,0.1:0.6"})) == 0
    with pytest.raises(InputError, match="has a --mask-schedule; expected the length of the longer run as --steps"):
        extended_settings(short, {"epochs": 2.0})
    extended = extended_settings(short, {"steps": 10})
    assert [(phase.masked, phase.share) for phase in extended.mask_schedule] == [(0.4, 0.2), (0.1, 0.8)]
    command = ["pretrain", "--extend", str(short), "--corpus", str(own_corpus), "--out", str(longer), "--steps", "10"]
    assert main(command) == 0
    assert main(options(own_corpus, whole, 10, **{"mask-schedule": "0.4:0.2,0.1:0.8"})) == 0
    same = [(run / "model" / "model.safetensors").read_bytes() for run in (longer, whole)]
    assert same[0] == same[1]


def test_the_plan_of_a_longer_run_counts_the_time_of_its_own_steps(
    own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    phases = {"lengths": "16:0.5,24:0.5", "held-out": "0.2", "evaluations": "5"}
    assert main(options(own_corpus, run, 10, **phases)) == 0
    printed, warnings = capsys.readouterr().err, read_object(run / "run.json")["warnings"]
    assert all(f"warning: {text}\n" in printed for text in warnings)
    assert any("pieces of the vocabulary" in text for text in warnings)
    more = ["--corpus", str(own_corpus), "--out", str(out), "--held-out", "0.2", "--steps", "20", "--plan"]
    assert main(["pretrain", "--extend", str(run), *more, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["steps_done"], plan["steps"]) == (8, 20)
    assert [(phase["steps"], phase["left"]) for phase in plan["phases"]] == [(10, 2), (10, 10)]
    seconds = sum(phase["left"] * phase["step_seconds"] for phase in plan["phases"])
    assert plan["seconds"]["training"] == pytest.approx(seconds)
    assert main(["pretrain", "--extend", str(run), *more]) == 0
    assert "begin    at step 8; the times are those of the other 12 steps" in capsys.readouterr().out
    assert not out.exists()
    assert main(["pretrain", "--extend", str(run), *[word for word in more if word != "--plan"]]) == 0
    printed = capsys.readouterr().err
    assert "are missing" not in printed  # evaluations that only a run of 20 steps from the start has
    assert "there is no validation data" not in printed
    assert read_object(out / "run.json")["settings"]["evaluations"] == 5
    evaluated = [line["step"] for line in read_jsonl(out / "metrics.jsonl") if "held_out" in line]
    assert evaluated == [2, 4, 6, 8, 12, 16, 20]
    record = read_object(out / "run.json")
    record["settings"]["evaluations"] = 20  # as an earlier version began it
    (out / "run.json").write_text(json.dumps(record))
    words = [word for word in more if word != "--plan"]
    assert main(["pretrain", "--extend", str(run), *words, "--resume"]) == 0


def test_a_run_that_cannot_be_extended_is_refused(
    own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    assert main(options(own_corpus, run, 5)) == 0
    for typed, message in (
        ({}, "give the length of the longer run"),
        ({"minutes": 3.0}, "give the length of the longer run"),
        ({"steps": 9, "batch_size": 8}, "batch_size cannot change: the steps so far were made with it"),
    ):
        with pytest.raises(InputError, match=message):
            extended_settings(run, typed)
    extend = ["pretrain", "--extend", str(run), "--corpus", str(own_corpus), "--out", str(out)]
    assert main([*extend, "--steps", "4"]) == 2
    assert "is at step 4; expected more steps than that, got 4" in capsys.readouterr().err
    assert main([*extend, "--steps", "4", "--plan"]) == 2
    assert "is at step 4; expected more steps than that, got 4" in capsys.readouterr().err
    stable_checkpoint(run, read_object(run / "run.json")["data"], 20, warmup=0.2)
    assert "warm-up" not in capsys.readouterr().err
    stable_checkpoint(run, read_object(run / "run.json")["data"], 50, warmup=0.2)
    assert "10 steps, ends after step 4, where it begins: the learning rate falls to 0.40" in capsys.readouterr().err
    assert not out.exists()
    for typed in ("--no-bias-correction", "--no_bias_correction"):
        assert main([*extend, "--steps", "9", typed]) == 2
        assert "optimizer cannot change: the steps so far were made with it" in capsys.readouterr().err
    uncorrected, again = tmp_path / "uncorrected", ["pretrain", "--corpus", str(own_corpus), "--out", str(out)]
    assert main([*options(own_corpus, uncorrected, 5), "--no-bias-correction"]) == 0
    assert main([*again, "--extend", str(uncorrected), "--steps", "9", "--bias-correction"]) == 2  # the usual default
    assert "optimizer cannot change: the steps so far were made with it" in capsys.readouterr().err
    assert main([*extend, "--steps", "9", "--recipe", "paper-base"]) == 2
    assert "--recipe paper-base: with --extend the settings are those of the run" in capsys.readouterr().err
    linear = tmp_path / "linear"
    assert main(options(own_corpus, linear, 2, schedule="linear")) == 0
    with pytest.raises(InputError, match="expected a run with --schedule wsd, got one with --schedule linear"):
        extended_settings(linear, {"steps": 9})
