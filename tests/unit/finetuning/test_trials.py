"""Trials that Optuna proposes: the defaults first, the best kept, bad ones ended early, interrupted ones continued."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.errors import InputError, MissingExtra, RunFailed, Stopped
from bertwright.finetuning import trials as module
from bertwright.finetuning.run import TuneRequest, finetune
from bertwright.finetuning.schedule import ScheduledSettings
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.trials import TrialBudget, search_by_trials, space_around
from bertwright.model.system import system_config
from bertwright.tasks.classification.spec import get_task

SST2 = get_task("sst2")
BERT = system_config("bert", "2x64", 100)
FAST = FinetuneSettings(epochs=4, batch_size=8, max_length=16, threads=1, precision="fp32", warmup=0.1, weight_decay=0)
Tune = Callable[..., tuple[dict[str, Any], bool]]


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[float]]:
    """Metrics after each epoch of a trial, by its number. Trials without an entry get 0.5 in all epochs.

    The trials are not trained: their runs report these metrics and leave a model folder of one file.
    """
    planned: dict[int, list[float]] = {}

    def tune(settings: FinetuneSettings, _: object, request: TuneRequest, *, after_epoch: Any, **__: object) -> Any:
        out = request.out
        number = int(out.name.removeprefix("trial-"))
        (out / "model").mkdir(parents=True, exist_ok=True)
        (out / "model" / "config.json").write_text(str(number))
        values = planned.get(number, [0.5] * 4)
        for epoch, value in enumerate(values, start=1):
            after_epoch(settings.first_seed, epoch / len(values), value)
        best = max(values)
        seeds = {"scores": [best], "collapsed": [], "baselines": None, "model": str(out / "model")}
        return {"metric": "accuracy", "mean": best, "sd": 0.0, **seeds}, False

    monkeypatch.setattr(module, "tune", tune)
    return planned


def states(result: dict[str, Any]) -> dict[int, str]:
    """Return the state of each trial by its number."""
    return {row["trial"]: row["state"] for row in sorted(result["rows"], key=lambda row: row["trial"])}


def test_the_first_trial_has_the_defaults_and_the_best_model_is_kept(
    search_arguments: dict[str, Any], tmp_path: Path
) -> None:
    settings = FAST.model_copy(update={"epochs": 1, "layer_decay": 1.0})
    plain = finetune(settings, SST2, out=tmp_path / "plain", **search_arguments)
    result = search_by_trials(
        settings, SST2, TrialBudget(trials=2), TuneRequest(out=tmp_path / "s", **search_arguments)
    )
    rows = {row["trial"]: row for row in result["rows"]}
    assert rows[0]["settings"] == {"learning_rate": 5e-4}
    assert rows[0]["scores"] == plain["scores"]
    assert 1e-4 <= rows[1]["settings"]["learning_rate"] <= 2.5e-3
    assert [row["mean"] for row in result["rows"]] == sorted((row["mean"] for row in rows.values()), reverse=True)
    best = result["rows"][0]
    assert [path.name for path in tmp_path.glob("s/trial-*")] == [f"trial-{best['trial']}"]
    kept, weights = Path(result["model"]), "model.safetensors"
    assert (kept / weights).read_bytes() == (Path(best["model"]) / weights).read_bytes()
    assert "The first was chosen on dev" in result["text"]


def test_what_is_given_is_not_tried() -> None:
    chosen = ScheduledSettings(epochs=3, batch_size=16, learning_rate=1e-4, warmup=0.1)
    assert space_around(FinetuneSettings(), chosen, BERT) == {
        "learning_rate": (2e-5, 5e-4),
        "batch_size": (8, 16, 32),
        "epochs": (2, 3, 6),
        "warmup": (0.02, 0.1, 0.2),
        "weight_decay": (0.0, 0.01, 0.1),
        "layer_decay": (0.8, 0.9, 1.0),
    }
    assert space_around(FAST, chosen, BERT).keys() == {"learning_rate", "layer_decay"}
    assert "layer_decay" not in space_around(FinetuneSettings(features="last"), chosen, BERT)
    assert "layer_decay" not in space_around(FinetuneSettings(), chosen, system_config("albert", "4x64", 100))
    decided = {name: getattr(chosen, name) for name in ("epochs", "batch_size", "learning_rate", "warmup")}
    with pytest.raises(InputError, match=r"--search: all settings that it tries are given .* leave out one of them"):
        space_around(FinetuneSettings(**decided, weight_decay=0, layer_decay=1), chosen, BERT)


def test_a_bad_trial_ends_early(
    search_arguments: dict[str, Any], tmp_path: Path, metrics: dict[int, list[float]]
) -> None:
    metrics |= {0: [0.6, 0.7, 0.8, 0.8], 3: [0.6, 0.7, 0.7, 0.9], 4: [0.56, 0.57, 0.9, 0.9], 5: [0.8, 0.8, 0.8, 0.95]}
    result = search_by_trials(FAST, SST2, TrialBudget(trials=6), TuneRequest(out=tmp_path / "s", **search_arguments))
    assert states(result) == {0: "complete", 1: "complete", 2: "complete", 3: "complete", 4: "pruned", 5: "complete"}
    assert [row["trial"] for row in result["rows"]] == [5, 3, 0, 1, 2, 4]
    pruned = result["rows"][-1]
    assert (pruned["reports"], pruned["note"]) == ({"1": 0.56, "2": 0.57}, "pruned after 50% of its training")
    assert [path.name for path in tmp_path.glob("s/trial-*")] == ["trial-5"]
    assert (tmp_path / "s" / "model" / "config.json").read_text() == "5"


def test_an_interrupted_search_proposes_what_the_whole_one_proposes(
    search_arguments: dict[str, Any], tmp_path: Path, metrics: dict[int, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = {number: [0.5, 0.6, 0.6 + 0.03 * ((number * 5) % 7), 0.7] for number in range(8)}
    metrics |= planned
    whole = search_by_trials(FAST, SST2, TrialBudget(trials=8), TuneRequest(out=tmp_path / "whole", **search_arguments))
    really: Tune = module.tune

    def killed(
        changed: Any, task: Any, request: TuneRequest, *, after_epoch: Any, **named: Any
    ) -> tuple[dict[str, Any], bool]:
        if request.out.name != "trial-6":
            return really(changed, task, request, after_epoch=after_epoch, **named)
        request.out.mkdir()
        for epoch, value in enumerate(planned[6][:2], start=1):
            after_epoch(0, epoch / 4, value)
        raise Stopped("stopped")

    out = tmp_path / "s"
    with monkeypatch.context() as patched:
        patched.setattr(module, "tune", killed)
        with pytest.raises(Stopped, match="stopped in trial 6; continue with the same command and --resume"):
            search_by_trials(FAST, SST2, TrialBudget(trials=8), TuneRequest(out=out, **search_arguments))
    with pytest.raises(InputError, match="already has a search; continue it with --resume or choose another --out"):
        search_by_trials(FAST, SST2, TrialBudget(trials=8), TuneRequest(out=out, **search_arguments))
    other = FAST.model_copy(update={"max_length": 32})
    with pytest.raises(InputError, match=r"has a search with other max_length \(16 there, 32 now\)"):
        search_by_trials(other, SST2, TrialBudget(trials=8), TuneRequest(out=out, resume=True, **search_arguments))
    columns = SST2.model_copy(update={"long": "windows"})
    with pytest.raises(InputError, match=r"has a search with other task: long \(.* there, 'windows' now\)"):
        search_by_trials(FAST, columns, TrialBudget(trials=8), TuneRequest(out=out, resume=True, **search_arguments))
    record = json.loads((out / "search.json").read_text())
    del record["task_settings"]  # of an earlier version
    (out / "search.json").write_text(json.dumps(record))
    table = search_arguments["data"] / "train.tsv"
    rows = table.read_text()
    table.write_text(rows + "another row\t1\n")
    with pytest.raises(InputError, match="has a search with other data"):
        search_by_trials(FAST, SST2, TrialBudget(trials=8), TuneRequest(out=out, resume=True, **search_arguments))
    table.write_text(rows)
    again = search_by_trials(FAST, SST2, TrialBudget(trials=8), TuneRequest(out=out, resume=True, **search_arguments))
    for row in (*whole["rows"], *again["rows"]):
        row |= {"seconds": None, "model": None}
    assert again["rows"] == whole["rows"]
    assert len({row["settings"]["learning_rate"] for row in whole["rows"]}) == 8
    more = search_by_trials(FAST, SST2, TrialBudget(trials=9), TuneRequest(out=out, resume=True, **search_arguments))
    assert len(more["rows"]) == 9


def test_no_settings_are_tried_twice(
    search_arguments: dict[str, Any], tmp_path: Path, metrics: dict[int, list[float]], capsys: Any
) -> None:
    """Three batch sizes are all that is left open, so the search ends after three trials."""
    settings = FAST.model_copy(update={"learning_rate": 1.23e-4, "layer_decay": 1.0})
    settings = FinetuneSettings.model_validate(
        {name: getattr(settings, name) for name in settings.model_fields_set - {"batch_size"}}
    )
    settings = settings.model_copy(update={"first_seed": 2**40})  # larger than the seeds of NumPy
    result = search_by_trials(
        settings, SST2, TrialBudget(trials=9), TuneRequest(out=tmp_path / "s", **search_arguments)
    )
    assert sorted(row["settings"]["batch_size"] for row in result["rows"]) == [4, 8, 16]
    assert "3 trials: no other settings were proposed 50 times in a row; the search ends" in capsys.readouterr().err
    free = FAST.model_copy(update={"layer_decay": 1.0})
    with pytest.MonkeyPatch.context() as patched:  # a rate of three digits is not rounded for the trial of the defaults
        patched.setattr(module, "scheduled", lambda *_, **__: ScheduledSettings(**dict(settings, batch_size=8)))
        first = search_by_trials(free, SST2, TrialBudget(trials=1), TuneRequest(out=tmp_path / "t", **search_arguments))
    assert first["rows"][0]["settings"] == {"learning_rate": 1.23e-4}


def test_the_minutes_end_a_search_in_a_trial_which_a_longer_one_continues(
    search_arguments: dict[str, Any], tmp_path: Path, metrics: dict[int, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock moves by 20 seconds whenever it is read."""
    ticks = iter(range(0, 10**6, 20))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(ticks)))
    metrics[0] = [0.7] * 4
    first = search_by_trials(FAST, SST2, TrialBudget(minutes=3), TuneRequest(out=tmp_path / "s", **search_arguments))
    assert states(first) == {0: "complete", 1: "running"}
    assert "not ended" in first["text"]
    longer = search_by_trials(
        FAST, SST2, TrialBudget(minutes=6), TuneRequest(out=tmp_path / "s", resume=True, **search_arguments)
    )
    assert states(longer)[1] == "complete"


def test_a_trial_whose_last_epoch_ends_with_the_minutes_counts(
    search_arguments: dict[str, Any], tmp_path: Path, metrics: dict[int, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trial 0 and each epoch but the last of trial 1 take no time; the last one takes an hour."""
    seconds = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: seconds[0])
    metrics |= {0: [0.7] * 4, 1: [0.8] * 4}
    really: Tune = module.tune

    def slow(
        changed: Any, task: Any, request: TuneRequest, *, after_epoch: Any, **named: Any
    ) -> tuple[dict[str, Any], bool]:
        def counted(seed: int, done: float, metric: float) -> None:
            seconds[0] += 3600.0 * (request.out.name == "trial-1" and done == 1.0)
            after_epoch(seed, done, metric)

        return really(changed, task, request, after_epoch=counted, **named)

    monkeypatch.setattr(module, "tune", slow)
    result = search_by_trials(FAST, SST2, TrialBudget(minutes=3), TuneRequest(out=tmp_path / "s", **search_arguments))
    assert states(result) == {0: "complete", 1: "complete"}
    assert result["rows"][0]["trial"] == 1


def test_a_trial_that_fails_is_noted_and_the_search_goes_on(
    search_arguments: dict[str, Any], tmp_path: Path, metrics: dict[int, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    really: Tune = module.tune

    fails = {"trial-1"}

    def failing(changed: Any, task: Any, request: TuneRequest, **named: Any) -> tuple[dict[str, Any], bool]:
        if request.out.name in fails:
            raise RunFailed(f"step 3: the loss is not finite; the last good checkpoint is in {request.out}")
        return really(changed, task, request, **named)

    monkeypatch.setattr(module, "tune", failing)
    result = search_by_trials(FAST, SST2, TrialBudget(trials=3), TuneRequest(out=tmp_path / "s", **search_arguments))
    assert states(result) == {0: "complete", 1: "failed", 2: "complete"}
    assert "step 3: the loss is not finite" in result["text"]
    assert "the last good checkpoint" not in result["text"]  # the folder of a trial that failed is removed
    fails.add("trial-0")
    with pytest.raises(RunFailed, match=r"all 2 trials failed, the last one with: step 3: .* another --out"):
        search_by_trials(FAST, SST2, TrialBudget(trials=2), TuneRequest(out=tmp_path / "none", **search_arguments))


def test_wrong_options_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    command = ["finetune", "sst2", "--model", "random:tiny", "--data", str(tmp_path), "--out", str(tmp_path / "s")]
    for options, words in (
        (["--search", "0"], "--search: expected a positive number, got 0"),
        (["--search-minutes", "nan"], "--search-minutes: expected a positive number, got nan"),
        (["--search", "2", "--grid", "paper"], "--grid and --search: both choose the settings; leave out one of them"),
    ):
        assert main([*command, *options]) == 2
        assert words in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"--search needs the extra 'optuna': pip install 'bertwright\[optuna\]'"):
        search_by_trials(
            FAST, SST2, TrialBudget(trials=2), TuneRequest(model="random:tiny", data=tmp_path, out=tmp_path / "s")
        )
    assert not (tmp_path / "s").exists()


def test_the_command_draws_a_picture_and_a_report(
    search_arguments: dict[str, Any], tmp_path: Path, capsys: Any
) -> None:
    options = [f"--{name}={value}" for name, value in search_arguments.items()]
    fast = ["--epochs=1", "--max-length=16", "--threads=1", "--precision=fp32", "--search=1", "--json"]
    assert main(["finetune", "sst2", *options, f"--out={tmp_path / 's'}", *fast]) == 0
    result = json.loads(capsys.readouterr().out)
    assert Path(result["picture"]).read_bytes().startswith(b"\x89PNG")
    assert (Path(result["rows"][0]["model"]).parent / "report.html").exists()
