"""A fine-tuning run: an output folder that cannot be used is refused first; training ends where patience does."""

from pathlib import Path
from typing import Any

import pytest

from bertwright.errors import InputError
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.tasks.binding import BoundTask
from bertwright.tasks.spec import get_spec
from bertwright.training.run_folder import RunFolder


def test_a_used_folder_is_refused_before_model_and_data_are_read(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").touch()
    with pytest.raises(InputError, match="out: is not empty and holds no run; choose another --out"):
        finetune(FinetuneSettings(), get_spec("sst2"), model="absent", data=tmp_path / "absent", out=out)


@pytest.mark.parametrize("best", ["dev.accuracy", "f1x", "accuracy.dev"])
def test_a_metric_that_no_epoch_has_is_refused_before_the_first_step(
    tmp_path: Path, own_tokenizer: Path, best: str
) -> None:
    for name in ("train", "dev"):
        rows = "".join(f"{'good' if n % 2 else 'bad'} number {n}\t{n % 2}\n" for n in range(16))
        (tmp_path / f"{name}.tsv").write_text(f"sentence\tlabel\n{rows}")
    settings = FinetuneSettings(epochs=1, max_length=16, threads=1, precision="fp32", best=best)
    where: Any = {"model": "random:tiny", "data": tmp_path, "tokenizer": own_tokenizer, "out": tmp_path / "run"}
    with pytest.raises(InputError, match=f"--best {best}: expected a metric of this task: accuracy.*Then remove .*run"):
        finetune(settings, get_spec("sst2"), **where)
    assert not (tmp_path / "run" / "seed-0" / "metrics.jsonl").exists()


def test_a_seed_ends_where_no_epoch_was_better_for_long(
    tmp_path: Path, own_tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two seeds; the first is killed after its last measurement, the next start ends it after the same epoch."""
    (tmp_path / "data").mkdir()
    for name in ("train", "dev"):
        rows = "".join(f"{'good' if n % 2 else 'bad'} number {n}\t{n % 2}\n" for n in range(16))
        (tmp_path / "data" / f"{name}.tsv").write_text(f"sentence\tlabel\n{rows}")
    settings = FinetuneSettings(
        epochs=8, patience=2, seeds=2, batch_size=16, max_length=16, threads=1, precision="fp32"
    )
    where: Any = {
        "model": "random:tiny",
        "data": tmp_path / "data",
        "tokenizer": own_tokenizer,
        "out": tmp_path / "run",
    }
    measured = [0.5, 0.6, 0.55, 0.6, 0.7, 0.5, 0.4, 0.3, 0.2]
    monkeypatch.setattr(BoundTask, "metrics", lambda *_: {"accuracy": measured.pop(0)})
    noted = RunFolder.note

    def killed(run: RunFolder, **values: Any) -> None:
        if "finished" in values:
            raise KeyboardInterrupt
        noted(run, **values)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "note", killed)
        with pytest.raises(KeyboardInterrupt):
            finetune(settings, get_spec("sst2"), **where)
    assert len(measured) == 5
    result = finetune(settings, get_spec("sst2"), **where, resume=True)
    assert len(measured) == 2
    first, second = result["seeds"]
    assert [first["epoch"], *(epoch["accuracy"] for epoch in first["epochs"])] == [2, 0.5, 0.6, 0.55, 0.6]
    assert [second["epoch"], *(epoch["accuracy"] for epoch in second["epochs"])] == [1, 0.7, 0.5, 0.4]
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "epochs trained, by seed: 4, 3 of 8 (patience 2)" in card
    assert "seed 0: best epoch 2 of 4, no better one in the last 2, accuracy 0.6000" in capsys.readouterr().err
    assert finetune(settings, get_spec("sst2"), **where, resume=True)["scores"] == [0.6, 0.7]
    assert "metrics.jsonl" not in capsys.readouterr().err  # no line is missing
