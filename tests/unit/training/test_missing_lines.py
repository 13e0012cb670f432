"""A pre-training and a fine-tuning that are resumed without their log report the missing lines."""

from pathlib import Path
from typing import Any

import pytest

from bertwright.errors import Stopped
from bertwright.finetuning import run as module
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.pretraining.phases import Phase
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.tasks.classification.spec import get_task
from bertwright.training import loop


def test_a_resumed_pretraining_reports_a_missing_log(
    own_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: Any = {"phases": (Phase(length=16, share=1.0),), "steps": 8, "batch_size": 4, "threads": 1}
    settings |= {"precision": "fp32", "compile": "off", "held_out_share": 0.4, "evaluations": 4, "log_every": 2}
    arguments: Any = {
        "settings": PretrainSettings.model_validate(settings),
        "corpus": own_corpus,
        "out": tmp_path / "run",
    }
    really = loop.Loop.sync_decisions
    with monkeypatch.context() as patched:
        patched.setattr(loop.Loop, "is_time_to_save", lambda _, done: done == 5)
        patched.setattr(loop.Loop, "sync_decisions", lambda self, _, save: really(self, save, save))
        assert pretrain(**arguments)["stopped"]
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b"")
    capsys.readouterr()
    assert pretrain(**arguments, resume=True)["steps"] == 8
    assert (
        f"{tmp_path}/run/metrics.jsonl: lines of steps 1 to 4 and evaluations after steps 2, 4 are missing; the run "
        "continues from step 5, and its curve begins after step 4"
    ) in capsys.readouterr().err


def test_a_resumed_fine_tuning_reports_the_missing_log_of_a_finished_seed(
    own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in ("train", "dev"):
        rows = "".join(f"{'good' if n % 2 else 'bad'} number {n}\t{n % 2}\n" for n in range(24))
        (data / f"{name}.tsv").write_text(f"sentence\tlabel\n{rows}")
    settings = FinetuneSettings(epochs=2, batch_size=8, learning_rate=1e-3, max_length=16, threads=1, seeds=2)
    finetuning: Any = {"model": "random:tiny", "data": data, "tokenizer": own_tokenizer, "out": tmp_path / "run"}
    really = module._train_seed

    def stopping(*arguments: Any) -> Any:
        return really(*arguments)[0], True

    with monkeypatch.context() as patched:
        patched.setattr(module, "_train_seed", stopping)
        with pytest.raises(Stopped):
            finetune(settings, get_task("sst2"), **finetuning)
    finetune(settings, get_task("sst2"), **finetuning, resume=True)
    assert "missing" not in capsys.readouterr().err
    (tmp_path / "run" / "seed-0" / "metrics.jsonl").unlink()
    record = tmp_path / "run" / "run.json"
    record.write_text(record.read_text().replace('"finished": true', '"finished": false'))
    finetune(settings, get_task("sst2"), **finetuning, resume=True)
    said = [text for text in capsys.readouterr().err.splitlines() if "missing" in text]
    assert len(said) == 1
    assert said[0].endswith(
        f"{tmp_path}/run/seed-0/metrics.jsonl: lines of steps 1 to 6 and evaluations after steps 3, 6 are missing; "
        "this seed has finished, and its curve begins after step 6"
    )
