"""Searching over settings: every combination once, the best kept, going on where it stopped; layers new and frozen."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bertwright import locks
from bertwright.errors import InputError, Stopped
from bertwright.finetuning import grid as module
from bertwright.finetuning.best_epoch import BestEpoch
from bertwright.finetuning.grid import grid_table, parse_grid, search_grid
from bertwright.finetuning.run import TuneRequest, finetune, tune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.folder import open_model
from bertwright.tasks.classification.spec import get_task
from bertwright.training.run_lock import locked
from tests.support.folders import contents
from tests.support.other_weights import put

SST2 = get_task("sst2")
FAST = FinetuneSettings(epochs=1, batch_size=8, learning_rate=1e-3, max_length=16, threads=1, precision="fp32")


def test_the_papers_grid_and_own_ones() -> None:
    paper = parse_grid("paper", FAST)
    assert paper == {"batch_size": (16, 32), "learning_rate": (5e-5, 3e-5, 2e-5), "epochs": (2, 3, 4)}
    assert parse_grid("warmup=0,0.1  new-layers=1", FAST) == {"warmup": (0.0, 0.1), "new_layers": (1,)}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("depth=3", "--grid: unknown setting 'depth'; allowed: batch-size, learning-rate, epochs, warmup,"),
        ("seeds=3", "--grid: unknown setting 'seeds'; allowed: batch-size, learning-rate, epochs, warmup,"),
        ("epochs=2,many", "--grid epochs=2,many: invalid value 'many' of epochs"),
        ("epochs=2.5", r"--grid epochs=2\.5: invalid value '2\.5' of epochs"),
        ("epochs=0", "--grid epochs=0: invalid value '0' of epochs"),
        ("learning-rate=", "--grid learning-rate=: invalid value '' of learning-rate"),
        ("learning-rate=nan", "--grid learning-rate=nan: invalid value 'nan' of learning-rate"),
        ("epochs=1 epochs=2", "--grid: epochs is given twice"),
        ("epochs=1,2,1", "--grid epochs=1,2,1: a value is given twice"),
        ("warmup=0.1,1e-1", r"--grid warmup=0\.1,1e-1: a value is given twice"),
        (" ", "--grid: expected paper, or NAME=VALUE,VALUE … such as 'batch-size=16,32"),
    ],
)
def test_what_is_no_grid_is_refused(wrong: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_grid(wrong, FAST)


def test_every_combination_runs_and_the_best_is_kept(search_arguments: dict[str, Any], tmp_path: Path) -> None:
    grid = parse_grid("learning-rate=1e-3,1e-5 epochs=1,4", FAST)
    result = search_grid(FAST, SST2, grid, TuneRequest(out=tmp_path / "s", **search_arguments))
    assert len(result["rows"]) == 4
    means = [row["mean"] for row in result["rows"]]
    assert means == sorted(means, reverse=True)
    best = result["rows"][0]["settings"]
    assert best["learning_rate"] == 1e-3
    alone = finetune(FAST.model_copy(update=best), SST2, out=tmp_path / "alone", **search_arguments)
    assert alone["scores"] == result["rows"][0]["scores"]
    assert ExactWeights(tmp_path / "s" / "model") == ExactWeights(tmp_path / "alone" / "model")
    assert re.search(r"learning rate +epochs +accuracy on dev\n +0\.001 +[14] +[01]\.", result["text"])
    assert json.loads((tmp_path / "s" / "grid.json").read_text())["result"]["rows"] == result["rows"]


def test_a_search_that_stopped_goes_on(
    search_arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = parse_grid("learning-rate=1e-3,1e-4,1e-5", FAST)
    whole = search_grid(FAST, SST2, grid, TuneRequest(out=tmp_path / "whole", **search_arguments))
    out = tmp_path / "s"
    calls: list[Path] = []

    def stopping(*arguments: Any, **named: Any) -> tuple[dict[str, Any], bool]:
        calls.append(arguments[2].out)
        if len(calls) == 2:
            raise Stopped("stopped")
        return tune(*arguments, **named)

    monkeypatch.setattr(module, "tune", stopping)
    with pytest.raises(Stopped, match="stopped with 1 of 3 settings done; continue with the same command and --resume"):
        search_grid(FAST, SST2, grid, TuneRequest(out=out, **search_arguments))
    assert not (out / "model").exists()
    with pytest.raises(InputError, match="already has a search; continue it with --resume or choose another --out"):
        search_grid(FAST, SST2, grid, TuneRequest(out=out, **search_arguments))
    with pytest.raises(InputError, match="has a search with other grid"):
        search_grid(FAST, SST2, parse_grid("epochs=1", FAST), TuneRequest(out=out, resume=True, **search_arguments))
    result = search_grid(FAST, SST2, grid, TuneRequest(out=out, resume=True, **search_arguments))
    assert [row["scores"] for row in result["rows"]] == [row["scores"] for row in whole["rows"]]
    with pytest.raises(InputError, match=r"has a search with other epochs \(1 there, 3 now\)"):
        search_grid(
            FAST.model_copy(update={"epochs": 3}), SST2, grid, TuneRequest(out=out, resume=True, **search_arguments)
        )
    with pytest.raises(InputError, match="--max-length 1000: random:tiny takes at most 512 tokens"):
        search_grid(
            FAST.model_copy(update={"max_length": 1000}),
            SST2,
            grid,
            TuneRequest(out=tmp_path / "new", **search_arguments),
        )
    assert not (tmp_path / "new").exists()  # a mistake before anything began leaves nothing
    with pytest.raises(InputError, match="is not empty and has no search"):
        search_grid(FAST, SST2, grid, TuneRequest(out=search_arguments["data"], **search_arguments))


def test_the_end_of_a_search_is_looked_at_before_its_beginning(
    search_arguments: dict[str, Any], tmp_path: Path
) -> None:
    for grid, words in (
        ("learning-rate=1e-3,1e-4 new-layers=0,3", "--new-layers 3 and --frozen-layers 0: random:tiny has 2 layers"),
        ("max-length=16,900", "--max-length 900: random:tiny takes at most 512 tokens"),
    ):
        with pytest.raises(InputError, match=words):
            search_grid(FAST, SST2, parse_grid(grid, FAST), TuneRequest(out=tmp_path / "s", **search_arguments))
        assert not (tmp_path / "s").exists()


def test_values_that_hardly_differ_have_folders_of_their_own(search_arguments: dict[str, Any], tmp_path: Path) -> None:
    grid = parse_grid("learning-rate=1e-3,1.0000001e-3", FAST)
    result = search_grid(FAST, SST2, grid, TuneRequest(out=tmp_path / "s", **search_arguments))
    folders = {Path(row["model"]).parent.name for row in result["rows"]}
    assert folders == {"learning-rate=0.001", "learning-rate=0.0010000001"}


def test_a_warning_about_the_data_comes_once(
    search_arguments: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (search_arguments["data"] / "dev.tsv").unlink()
    search_grid(
        FAST,
        SST2,
        parse_grid("learning-rate=1e-3,1e-4,1e-5", FAST),
        TuneRequest(out=tmp_path / "s", **search_arguments),
    )
    stderr = capsys.readouterr().err
    assert stderr.count("rows of train.tsv, chosen by label and text, are kept for validation") == 1
    assert stderr.count("seed 0: best epoch 1") == 3


def test_two_processes_do_not_search_in_one_folder(
    search_arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = parse_grid("learning-rate=1e-3,1e-4", FAST)
    search_grid(FAST, SST2, grid, TuneRequest(out=tmp_path / "s", **search_arguments))
    monkeypatch.setattr(locks, "_PAUSE", 0.0)
    with (
        locked(tmp_path / "s"),
        pytest.raises(InputError, match=r"s: another process works on this run \(process \d+ on .+\); wait for it or"),
    ):
        search_grid(FAST, SST2, grid, TuneRequest(out=tmp_path / "s", resume=True, **search_arguments))


def test_a_signal_at_the_end_of_one_setting_stops_before_the_next(
    search_arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the last epoch of the first setting is measured, there is no step left that could hear of it."""
    really = BestEpoch.evaluate

    def interrupted(self: BestEpoch, step: int) -> dict[str, float]:
        signal.raise_signal(signal.SIGINT)
        return really(self, step)

    grid = parse_grid("learning-rate=1e-3,1e-4", FAST)
    with monkeypatch.context() as patched:
        patched.setattr(BestEpoch, "evaluate", interrupted)
        with pytest.raises(Stopped, match="stopped with 1 of 2 settings done"):
            search_grid(FAST, SST2, grid, TuneRequest(out=tmp_path / "s", **search_arguments))
        result = search_grid(
            FAST, SST2, grid, TuneRequest(out=tmp_path / "s", resume=True, **search_arguments)
        )  # at the very end it is too late
    assert len(result["rows"]) == 2


def test_a_temperature_of_the_kept_model_stays(search_arguments: dict[str, Any], tmp_path: Path) -> None:
    grid = parse_grid("learning-rate=1e-3,1e-5", FAST)
    result = search_grid(FAST, SST2, grid, TuneRequest(out=tmp_path / "s", **search_arguments))
    config = json.loads((path := Path(result["model"]) / "config.json").read_text())
    config["bertwright"]["task"]["temperature"] = 0.5  # as `evaluate --calibrate` writes it
    path.write_text(json.dumps(config))
    kept = contents(tmp_path / "s" / "model")
    search_grid(FAST, SST2, grid, TuneRequest(out=tmp_path / "s", resume=True, **search_arguments))
    assert contents(tmp_path / "s" / "model") == kept


def test_the_kept_model_stays_where_its_run_was_removed(
    search_arguments: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To save space, a person removes the model folders of the runs: the copy is then the only one."""
    grid = parse_grid("learning-rate=1e-3,1e-5", FAST)
    first = search_grid(FAST, SST2, grid, TuneRequest(out=tmp_path / "s", **search_arguments))
    kept = contents(tmp_path / "s" / "model")
    for row in first["rows"]:
        shutil.rmtree(row["model"])
    capsys.readouterr()
    again = search_grid(FAST, SST2, grid, TuneRequest(out=tmp_path / "s", resume=True, **search_arguments))
    assert again["model"] == first["model"]
    assert contents(tmp_path / "s" / "model") == kept
    assert "which was copied from it, stays as it is" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "s" / "model")
    with pytest.raises(InputError, match="there is no such folder; nothing was copied"):
        search_grid(FAST, SST2, grid, TuneRequest(out=tmp_path / "s", resume=True, **search_arguments))
    assert not (tmp_path / "s" / "model").exists()


def test_what_has_finished_is_found_where_it_lies_now(search_arguments: dict[str, Any], tmp_path: Path) -> None:
    """A search is moved after it ended: the same command with resume prints the same, with the new paths."""
    grid = parse_grid("learning-rate=1e-3,1e-5", FAST)
    first = search_grid(FAST, SST2, grid, TuneRequest(out=tmp_path / "s", **search_arguments))
    (tmp_path / "s").rename(tmp_path / "moved")
    again = search_grid(FAST, SST2, grid, TuneRequest(out=tmp_path / "moved", resume=True, **search_arguments))
    assert json.loads(json.dumps(first).replace(str(tmp_path / "s"), str(tmp_path / "moved"))) == again
    before = finetune(FAST, SST2, out=tmp_path / "one", **search_arguments)
    (tmp_path / "one").rename(tmp_path / "other")
    after = finetune(FAST, SST2, out=tmp_path / "other", resume=True, **search_arguments)
    assert json.loads(json.dumps(before).replace(str(tmp_path / "one"), str(tmp_path / "other"))) == after


def test_frozen_layers_stay_and_new_ones_begin_anew(search_arguments: dict[str, Any], tmp_path: Path) -> None:
    finetune(FAST, SST2, out=tmp_path / "first", **search_arguments)
    before = ExactWeights(tmp_path / "first" / "model")
    again = {"model": str(tmp_path / "first"), "data": search_arguments["data"]}
    for frozen, new in ((1, 0), (0, 1), (1, 1), (2, 0)):
        settings = FAST.model_copy(update={"frozen_layers": frozen, "new_layers": new, "learning_rate": 1e-6})
        finetune(settings, SST2, out=tmp_path / f"{frozen}{new}", **again)
        after = ExactWeights(tmp_path / f"{frozen}{new}" / "model")
        for name, tensor in after.items():
            change = float((tensor - before[name]).abs().max())
            layer = int(name.split(".")[3]) if ".layer." in name else -1 if "embeddings" in name else None
            if name.startswith("classifier") or (new and (layer == 1 or "pooler" in name)):
                assert change > 1e-3 or tensor.ndim == 1, name  # biases and norms begin as they were begun
            elif layer is not None and frozen and layer < frozen:
                assert change == 0, name
            else:
                assert change < 1e-3, name
    with pytest.raises(InputError, match=r"--new-layers 2 and --frozen-layers 1: .* has 2 layers in all"):
        finetune(FAST.model_copy(update={"new_layers": 2, "frozen_layers": 1}), SST2, out=tmp_path / "no", **again)


def test_a_frozen_run_that_was_stopped_ends_in_the_same_bytes(search_arguments: dict[str, Any], tmp_path: Path) -> None:
    from bertwright.training import checkpoint
    from bertwright.training.signals import Signals

    settings = FAST.model_copy(update={"frozen_layers": 1, "epochs": 2})
    finetune(settings, SST2, out=tmp_path / "whole", **search_arguments)
    saves = []
    really = checkpoint.save_file

    def interrupting(*arguments: Any, **named: Any) -> None:
        really(*arguments, **named)
        saves.append(1)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Signals, "received", property(lambda self: True, lambda self, value: None), raising=False)
        patched.setattr(checkpoint, "save_file", interrupting)
        with pytest.raises(Stopped):
            finetune(settings, SST2, out=tmp_path / "torn", **search_arguments)
    assert saves
    finetune(settings, SST2, out=tmp_path / "torn", resume=True, **search_arguments)
    whole, torn = ExactWeights(tmp_path / "whole" / "model"), ExactWeights(tmp_path / "torn" / "model")
    assert all(torch.equal(torn[name], tensor) for name, tensor in whole.items())


def test_a_model_without_a_pooler_gets_one_and_it_is_reported(
    search_arguments: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finetune(FAST, SST2, out=tmp_path / "first", **search_arguments)
    model = tmp_path / "first" / "model"
    tensors = load_file(model / "model.safetensors")
    put(model, {name: tensor for name, tensor in tensors.items() if "pooler" not in name})
    capsys.readouterr()
    finetune(FAST, SST2, model=str(tmp_path / "first"), data=search_arguments["data"], out=tmp_path / "second")
    assert "has no pooler, which this task needs; a new one is trained" in capsys.readouterr().err
    assert "pooler.dense.weight" in (open_model(str(tmp_path / "second")).weights or {})


class ExactWeights(dict[str, torch.Tensor]):
    """The tensors of a model folder; two are equal where every bit is."""

    def __init__(self, folder: Path) -> None:
        super().__init__(load_file(folder / "model.safetensors"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and set(self) == set(other) and all(torch.equal(self[k], other[k]) for k in self)

    __hash__ = None  # type: ignore[assignment]


def test_columns_of_long_names_stand_apart() -> None:
    settings = {"activation_checkpointing": True, "head_learning_rate": 0.00123456}
    row = {"settings": settings, "metric": "f1", "mean": 0.5, "sd": 0.25, "scores": [0.25, 0.75], "collapsed": [1]}
    head, line, *_ = grid_table({"rows": [row], "metric": "f1", "model": "m"}).splitlines()
    assert re.split(" {2,}", head.strip()) == ["activation checkpointing", "head learning rate", "f1 on dev"]
    assert re.split(" {2,}", line.strip()) == ["1", "0.00123456", "0.5000 ± 0.2500", "1 of 2 seeds collapsed"]
