"""A schedule of rows: the stages of a run, their rows, budgets and memory, and runs that are stopped or made longer."""

import signal
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from bertwright.errors import InputError
from bertwright.pretraining import dry_run
from bertwright.pretraining.choose import plain_settings
from bertwright.pretraining.extend import extended_settings
from bertwright.pretraining.measure import Timings, affordable_steps
from bertwright.pretraining.resources import estimate_memory
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.schedules import parse_batch_schedule, parse_lengths, parse_mask_schedule, share_bounds
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.setup import Pretraining, encoder_config, prepare_pretraining
from tests.support.folders import read_jsonl

BASE: dict[str, Any] = {
    "size": "1x64",
    "phases": parse_lengths("16"),
    "threads": 1,
    "precision": "fp32",
    "compile": "off",
    "log_every": 1,
    "examples": {"second_sentence": "none"},
}
RAMP = parse_batch_schedule("2:0.5,4:0.25,8:0.25")


def settings_with(**changes: Any) -> PretrainSettings:
    return PretrainSettings.model_validate({**BASE, **changes})


def prepared(corpus: Path, out: Path, **changes: Any) -> Pretraining:
    return prepare_pretraining(settings_with(**changes), corpus=corpus, out=out, held_out=None, init_from=None)[0]


def contents(run: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """The bytes of the weights, and the lines of metrics.jsonl without their times."""
    timed = {"seconds", "data_share", "tokens_per_second", "mfu"}
    lines = read_jsonl(run / "metrics.jsonl")
    kept = [{name: value for name, value in line.items() if name not in timed} for line in lines]
    return (run / "model" / "model.safetensors").read_bytes(), kept


def test_stages_begin_with_each_phase_of_the_three_schedules() -> None:
    masks = parse_mask_schedule("0.4:0.75,0.2:0.25")
    settings = settings_with(steps=8, phases=parse_lengths("16:0.5,32:0.5"), batch_schedule=RAMP, mask_schedule=masks)
    stages = [(stage.length, stage.batch_size, stage.masked, stage.share) for stage in settings.stages]
    assert stages == [(16, 2, 0.4, 0.5), (32, 4, 0.4, 0.25), (32, 8, 0.2, 0.25)]
    assert settings.batch_size == 8
    assert settings.batch_text == "2 to 8"
    assert settings.tokens_per_step == 0.5 * 2 * 16 + 0.25 * 4 * 32 + 0.25 * 8 * 32
    thirds = settings_with(steps=9, phases=parse_lengths("16:0.1,32:0.2,64:0.7"), batch_size=8)
    alone = settings_with(
        steps=9, phases=parse_lengths("16:0.1,32:0.2,64:0.7"), batch_schedule=[{"rows": 8, "share": 1}]
    )
    assert alone.stages == thirds.stages


def test_each_row_is_taken_once_and_in_order(own_corpus: Path, tmp_path: Path) -> None:
    """Steps of 2, 2, 2, 2, 4, 4, 8 and 8 rows have the first 32 rows; with lengths, those of each length."""
    run = prepared(own_corpus, tmp_path / "run", steps=8, batch_schedule=RAMP, micro_tokens=48)
    batches = [run.batches(8)(step) for step in range(8)]
    assert [len(part.ids) for batch in batches for part in batch] == [2] * 4 + [3, 1] * 2 + [3, 3, 2] * 2
    run.processes = 2  # a step has at least as many micro-batches
    assert [len(part.ids) for step in (0, 4, 7) for part in run.batches(8)(step)] == [1, 1, 2, 2, 3, 3, 2]
    ids = [row.tolist() for batch in batches for part in batch for row in part.ids]
    plain = prepared(own_corpus, tmp_path / "run", steps=8, batch_size=32)
    assert ids == plain.batches(8)(0)[0].ids.tolist()
    assert run.exposure.epochs(8, 8) == [32 / run.phase_rows[0].num_rows(0)]
    assert run.exposure.epochs(5, 8) == [12 / run.phase_rows[0].num_rows(0)]
    both = prepared(own_corpus, tmp_path / "run", steps=8, batch_schedule=RAMP, phases=parse_lengths("16:0.75,32:0.25"))
    of_second = both.batches(8)(4)[0].ids.tolist()  # 16 tokens still, after the 8 rows of the first four steps
    assert of_second == plain.batches(8)(0)[0].ids[8:12].tolist()
    assert both.batches(8)(6)[0].ids.shape == (8, 32)
    assert run.work_left(4, 8) == (2 * 4 + 2 * 8) * 16 / 8


def test_rows_of_several_corpora_go_on_where_the_last_step_ended(own_corpus: Path, tmp_path: Path) -> None:
    options: Any = {"out": tmp_path / "run", "held_out": None, "init_from": None}
    corpora = {own_corpus: 3.0, copytree(own_corpus, tmp_path / "corpus"): 1.0}
    run, _ = prepare_pretraining(settings_with(steps=8, batch_schedule=RAMP), corpus=corpora, **options)
    rows = sorted(row.tolist() for step in range(8) for part in run.batches(8)(step) for row in part.ids)
    whole, _ = prepare_pretraining(settings_with(steps=1, batch_size=32), corpus=corpora, **options)
    assert rows == sorted(row.tolist() for row in whole.batches(1)(0)[0].ids)


@pytest.mark.parametrize("budget", [{"words": 2_000}, {"epochs": 0.25}])
def test_a_budget_has_the_steps_that_see_no_more(budget: dict[str, Any], own_corpus: Path, tmp_path: Path) -> None:
    run = prepared(own_corpus, tmp_path / "run", batch_schedule=RAMP, **budget)
    assert run.steps

    def seen(steps: int) -> float:
        rows = sum((end - begin) * size for (begin, end), size in zip(run.phase_bounds(steps), (2, 4, 8), strict=True))
        epochs = rows / run.phase_rows[0].num_rows(0)
        return epochs if "epochs" in budget else epochs * (run.corpus.manifest.words or 0)

    (most,) = budget.values()
    assert seen(run.steps) <= most * 1.01
    assert seen(run.steps + 1) > most * 0.99


def test_plan_minutes_and_memory_count_the_rows_of_each_stage(
    own_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timings = Timings(steps=(1.0, 2.0, 4.0), evaluation=0.0, checkpoint=0.0)
    timed = prepared(own_corpus, tmp_path / "run", minutes=3.5, save_minutes=9.0, batch_schedule=RAMP)
    assert affordable_steps(timed.settings, timings) == 105  # half of 1 s, a quarter of 2 s and of 4 s are 2 s a step
    monkeypatch.setattr(dry_run, "measure_timings", lambda *_, **__: timings)
    options: Any = {"corpus": own_corpus, "out": tmp_path / "run"}
    plan = dry_run.plan_pretraining(settings_with(steps=8, batch_schedule=RAMP), **options)
    phases = [(phase["steps"], phase["batch_size"], phase["rows"]) for phase in plan["phases"]]
    assert phases == [(4, 2, 8), (2, 4, 8), (2, 8, 16)]
    assert (plan["rows"], plan["seconds"]["training"]) == (32, 16.0)

    def activations(**changes: Any) -> int:
        settings = settings_with(steps=8, **changes)
        return estimate_memory(settings, encoder_config(settings, 300), precision="fp32").activations

    assert activations(batch_schedule=RAMP) == activations(batch_size=8)
    assert activations(batch_schedule=RAMP) > activations(batch_size=4)
    masks = parse_mask_schedule("0.4:0.5,0.15:0.5")
    assert activations(batch_size=8, mask_schedule=masks) > activations(batch_size=8)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"batch_schedule": parse_batch_schedule("2:0.5,4:0.4")}, "batch_schedule: expected fractions of the steps"),
        ({"batch_schedule": parse_batch_schedule("4:0.5,2:0.5")}, "expected numbers of rows that grow, got 4, 2"),
        ({"batch_schedule": parse_batch_schedule("4:0.5,4:0.5")}, "expected numbers of rows that grow, got 4, 4"),
        ({"batch_schedule": RAMP, "batch_size": 4}, "ends with 8 rows per step, and batch_size is 4: expected one"),
        ({"batch_schedule": [{"rows": 0, "share": 1}]}, "greater than 0"),
        ({"batch_schedule": [{"share": 1}]}, "Field required"),
    ],
)
def test_contradictions_are_refused(typed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings_with(steps=8, **typed)
    for text in ("2", "2:0.5,x:0.5", ""):
        with pytest.raises(InputError, match="expected ROWS:FRACTION-OF-STEPS"):
            parse_batch_schedule(text)


def test_chosen_settings_leave_the_rows_to_the_schedule(own_corpus: Path, tmp_path: Path) -> None:
    typed = {"batch_schedule": RAMP, "steps": 8, "size": "1x64", "threads": 1, "precision": "fp32"}
    settings, _ = plain_settings(typed, corpus={own_corpus: 1.0}, out=tmp_path / "run")
    assert (settings.batch_size, settings.batch_text) == (8, "2 to 8")


def test_one_size_equals_the_plain_run_and_a_resumed_ramp_the_uninterrupted_one(
    own_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ramp is stopped within each of its stages; it has a z-loss, of which metrics.jsonl has a line."""

    def run(name: str, *, resume: bool = False, **changes: Any) -> Path:
        settings = settings_with(steps=8, micro_tokens=64, **changes)
        pretrain(settings, corpus=own_corpus, out=tmp_path / name, resume=resume)
        return tmp_path / name

    plain = contents(run("plain", batch_size=4))
    assert contents(run("one", batch_schedule=[{"rows": 4, "share": 1.0}], z_loss=0.0)) == plain
    assert "z" not in plain[1][0]
    ramp: Any = {"batch_schedule": RAMP, "z_loss": 0.01}
    whole = contents(run("whole", **ramp))
    assert 0.01 < whole[1][0]["z"] < 0.01 * 100  # (log Z)² of a new model is about (log V)², that of 300 pieces 33
    assert whole[1][0]["mlm"] == pytest.approx(plain[1][0]["mlm"], rel=0.1)
    micro_batches, stops = Pretraining.micro_batches, [2 * 2, 8 + 4, 16 + 8]  # rows before the steps 2, 5 and 7

    def interrupted(self: Pretraining, phase: int, first: int, **options: Any) -> Any:
        if stops and first == stops[0]:
            stops.pop(0)
            signal.raise_signal(signal.SIGINT)
        return micro_batches(self, phase, first, **options)

    monkeypatch.setattr(Pretraining, "micro_batches", interrupted)
    for resume in (False, True, True, True):
        cut = run("cut", resume=resume, **ramp)
    assert not stops
    assert contents(cut) == whole


def test_a_longer_run_keeps_the_steps_of_each_size(own_corpus: Path, tmp_path: Path) -> None:
    short, longer = tmp_path / "short", tmp_path / "longer"
    optimizer = {"schedule": "wsd", "warmup": 0.0}
    settings = settings_with(steps=5, batch_schedule=parse_batch_schedule("2:0.4,4:0.6"), optimizer=optimizer)
    pretrain(settings, corpus=own_corpus, out=short)
    for changes, message in (
        ({"epochs": 3.0}, "has a --batch-schedule; expected the length of the longer run as --steps"),
        ({"steps": 10, "batch_schedule": parse_batch_schedule("2:0.2,4:0.8")}, "batch_schedule cannot change"),
    ):
        with pytest.raises(InputError, match=message):
            extended_settings(short, changes)
    extended = extended_settings(short, {"steps": 10})
    assert extended == extended_settings(short, {"steps": 10, "batch_schedule": settings.batch_schedule})
    assert share_bounds([stage.share for stage in extended.stages], 10) == [(0, 2), (2, 10)]
    pretrain(extended, corpus=own_corpus, out=longer, extend=short)
    whole = settings_with(steps=10, batch_schedule=parse_batch_schedule("2:0.2,4:0.8"), optimizer=optimizer)
    pretrain(whole, corpus=own_corpus, out=tmp_path / "whole")
    assert contents(longer) == contents(tmp_path / "whole")
