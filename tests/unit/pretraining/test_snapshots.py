"""Snapshots: the model after shares of the steps, also in a run that was stopped before or after them."""

import signal
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.model.folder import open_model
from bertwright.pretraining.phases import Phase
from bertwright.pretraining.resources import estimate_disk
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.snapshots import snapshot_folder, snapshot_steps
from bertwright.reports.report import with_pages
from bertwright.training import loop

SHARES = (0.25, 0.5, 0.75)


def snapshot_settings(**changes: Any) -> PretrainSettings:
    settled: Any = {"phases": (Phase(length=16, share=1.0),), "steps": 8, "batch_size": 4, "threads": 1}
    return PretrainSettings.model_validate({**settled, "precision": "fp32", "compile": "off", **changes})


def snapshots(run: Path) -> dict[str, bytes]:
    return {path.name: (path / "model.safetensors").read_bytes() for path in (run / "snapshots").iterdir()}


def test_the_steps_of_shares() -> None:
    assert snapshot_steps(SHARES, 8) == [2, 4, 6]
    assert snapshot_steps((0.5, 0.01, 0.51, 0.99), 10) == [1, 5]  # no step at all, twice the same, the end


def test_a_snapshot_is_the_model_of_a_run_that_ended_there(own_corpus: Path, tmp_path: Path) -> None:
    pretrain(snapshot_settings(snapshots=SHARES), corpus=own_corpus, out=tmp_path / "run")
    kept = snapshots(tmp_path / "run")
    assert sorted(kept) == ["step-000000002", "step-000000004", "step-000000006"]
    assert len({*kept.values(), (tmp_path / "run/model/model.safetensors").read_bytes()}) == 4
    opened = open_model(str(snapshot_folder(tmp_path / "run", 4)))
    assert opened.config.layers == 2
    assert opened.architecture == "BertForPreTraining"
    pretrain(snapshot_settings(), corpus=own_corpus, out=tmp_path / "without")
    same = [tmp_path / name / "model/model.safetensors" for name in ("run", "without")]
    assert same[0].read_bytes() == same[1].read_bytes()


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_resumed_run_has_all_snapshots(
    own_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """The run stops around a snapshot: with a checkpoint (1), and killed without a newer checkpoint (3, 5)."""
    settings = snapshot_settings(snapshots=SHARES)
    pretrain(settings, corpus=own_corpus, out=tmp_path / "calm")
    really = loop.Loop.step

    def dies(self: Any, step: int, batches: Any) -> None:
        if step == stop:
            raise KeyboardInterrupt
        really(self, step, batches)

    monkeypatch.setattr(loop.Loop, "is_time_to_save", lambda self, done: stop == 1 or done == 2)
    with monkeypatch.context() as patched:
        patched.setattr(loop.Loop, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            pretrain(settings, corpus=own_corpus, out=tmp_path / "torn")
    pretrain(settings, corpus=own_corpus, out=tmp_path / "torn", resume=True)
    assert snapshots(tmp_path / "torn") == snapshots(tmp_path / "calm")


def test_a_signal_at_the_end_is_reported(own_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal during the last step is too late to stop the run; the result reports it to the caller."""
    really = loop.Loop.log

    def interrupted(self: Any, done: int) -> None:
        signal.raise_signal(signal.SIGINT)
        really(self, done)

    monkeypatch.setattr(loop.Loop, "log", interrupted)
    result = pretrain(snapshot_settings(log_every=100), corpus=own_corpus, out=tmp_path / "run")
    assert (result["stopped"], result["signalled"]) == (False, True)
    assert "signalled" not in with_pages(result, tmp_path / "run")  # the printed result


def test_the_disk_of_a_run_includes_snapshots(own_corpus: Path) -> None:
    plain, more = (
        estimate_disk(1000, 2000, tokenizer=own_corpus / "tokenizer", saves=1, keep=2, snapshots=n) for n in (0, 3)
    )
    assert more.peak - plain.peak == 3 * plain.model


@pytest.mark.parametrize("mixture", ["1.5", "0", "half", "0.1;0.5", ""])
def test_what_are_no_shares_is_refused(own_corpus: Path, mixture: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["pretrain", "--corpus", str(own_corpus), "--out", "never", "--steps", "2", "--snapshots", mixture]
    assert main(command) == 2
    assert "expected fractions of the steps between 0 and 1, such as 0.1,0.5" in capsys.readouterr().err


def test_the_command_takes_them(own_corpus: Path, tmp_path: Path) -> None:
    options = ["--steps", "4", "--lengths", "16", "--batch-size", "4", "--threads", "1", "--precision", "fp32"]
    out = tmp_path / "run"
    assert main(["pretrain", "--corpus", str(own_corpus), "--out", str(out), *options, "--snapshots", "0.25,0.5"]) == 0
    assert sorted(snapshots(out)) == ["step-000000001", "step-000000002"]


@pytest.mark.parametrize("system", ["bert", "lstm-left"])
def test_a_model_folder_says_the_dropout_of_fine_tuning(own_corpus: Path, tmp_path: Path, system: str) -> None:
    pretrain(snapshot_settings(dropout=0.0, system=system, snapshots=(0.5,)), corpus=own_corpus, out=tmp_path / "run")
    for folder in (tmp_path / "run", snapshot_folder(tmp_path / "run", 4)):
        config: Any = open_model(str(folder)).config
        assert config.hidden_dropout == 0.1
        assert getattr(config, "attention_dropout", 0.1) == 0.1
