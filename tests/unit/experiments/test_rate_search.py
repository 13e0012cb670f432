"""Learning rates and equal time from made-up speeds and records: steps, rates, the page, and trials that diverge."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertwright.errors import Diverged, Stopped
from bertwright.experiments import page, run
from bertwright.experiments.corpora import Corpora, CorpusFacts
from bertwright.experiments.plan import ExperimentPlan, with_arms
from bertwright.experiments.rate_search import speeds_path, timed_models, with_rates
from bertwright.experiments.rates import DIVERGED
from bertwright.experiments.run import ExperimentRun
from bertwright.experiments.scales import SCALES
from bertwright.experiments.spec import RateSearch
from bertwright.experiments.tables.columns import BLIMP_ACCURACY, CHARACTER_BITS
from bertwright.experiments.tables.families import FAMILIES

EQUAL_TIME = RateSearch(minutes=10.0, rate_share=0.2)
STEPS = {"bert": 0.1, "electra": 0.25, "modernbert": 0.2}
"""Made-up seconds of a step; those of long rows are twice as many."""


def base_plan(out: Path, *names: str) -> ExperimentPlan:
    """Return a plan of arms of the experiment at scale tiny, without tasks: bits a character and minimal pairs."""
    kind, corpus = ("wordpiece", "documents"), Path("wiki")
    plan = ExperimentPlan(
        experiment=FAMILIES,
        scale=SCALES["tiny"],
        out=out,
        seeds=1,
        pretraining_seeds=3,
        arms=(),
        columns=(BLIMP_ACCURACY, CHARACTER_BITS),
        data={},
        models={},
        jobs={},
        left_out=(),
        waiting={},
        corpora=Corpora({kind: corpus}, {corpus: CorpusFacts("wiki", "abc", 1000, 10, 8192)}, {}),
    )
    return with_arms(plan, [arm for arm in FAMILIES.arms(plan.scale) if arm.name in names])


def write_speeds(plan: ExperimentPlan) -> None:
    path = speeds_path(plan)
    path.parent.mkdir(parents=True)
    speeds = {
        name: {"steps": [STEPS[model.settings.system], 2 * STEPS[model.settings.system]]}
        | {"evaluation": 1.0, "checkpoint": 0.5, "threads": 2}
        for name, model in timed_models(plan, 10.0).items()
    }
    path.write_text(json.dumps({"speeds": speeds}))


def finish(folder: Path, held_out: Mapping[str, float]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    record = {"finished": True, "result": {"held_out": held_out}, "data": {"corpus": "abc"}}
    (folder / "run.json").write_text(json.dumps(record))


def finish_trials(plan: ExperimentPlan, losses: Mapping[float, float]) -> None:
    assert plan.rates is not None
    for trial in plan.rates.trials:
        finish(trial.model.folder, {"mlm_loss": losses[trial.factor], "rtd_loss": losses[trial.factor]})


def test_every_arm_fills_the_same_minutes_with_its_own_steps(tmp_path: Path) -> None:
    base = base_plan(tmp_path, "bert", "electra", "modernbert")
    write_speeds(base)
    finish_trials(with_rates(base, EQUAL_TIME), {0.5: 3.0, 1.0: 2.0, 2.0: 2.5})
    plan = with_rates(base, EQUAL_TIME)
    for name, seconds in STEPS.items():
        settings = [model.settings for (model,) in plan.models[name]]
        assert [each.seed for each in settings] == [0, 1, 2]
        (steps,) = {each.steps for each in settings}
        assert steps is not None
        # a fifth of the steps has long rows; 5 evaluations and 3 checkpoints are paid from the same minutes
        assert steps * 1.2 * seconds + 5 * 1.0 + 3 * 0.5 == pytest.approx(600.0, abs=1.2 * seconds)
        assert all(each.minutes is None for each in settings)


def test_the_rate_of_an_arm_is_that_of_its_best_trial_and_before_it_the_settings_name_the_minutes(
    tmp_path: Path,
) -> None:
    base = base_plan(tmp_path, "bert", "electra")
    unmeasured = with_rates(base, EQUAL_TIME)
    assert unmeasured.rates is not None
    (model,) = unmeasured.models["bert"][0]
    assert (model.settings.minutes, model.settings.steps) == (10.0, None)
    assert {trial.model.settings.minutes for trial in unmeasured.rates.trials} == {2.0}
    write_speeds(base)
    untried = with_rates(base, EQUAL_TIME)
    assert untried.rates is not None
    assert not untried.rates.is_settled("bert")
    assert untried.models["bert"][0][0].settings.minutes == 10.0
    trials = untried.rates.arms["bert"].trials
    assert {trial.model.settings.steps for trial in trials} == {round(0.2 * (untried.rates.arms["bert"].steps or 0))}
    rates = [(each.model.settings.optimizer.learning_rate, each.model.settings.optimizer.muon_rate) for each in trials]
    assert rates == [(1e-3, 3e-3), (2e-3, 6e-3), (4e-3, 12e-3)]
    assert {trial.model.settings.seed for trial in trials} == {100}
    finish_trials(untried, {0.5: 3.0, 1.0: 2.5, 2.0: 2.0})
    settled = with_rates(base, EQUAL_TIME)
    optimizer = settled.models["bert"][2][0].settings.optimizer
    assert (optimizer.learning_rate, optimizer.muon_rate) == (4e-3, 12e-3)


def test_other_minutes_and_a_later_arm_keep_the_measured_speeds(tmp_path: Path) -> None:
    write_speeds(base_plan(tmp_path, "bert"))
    longer = with_rates(base_plan(tmp_path, "bert", "electra"), replace(EQUAL_TIME, minutes=20.0))
    assert longer.rates is not None
    assert longer.rates.arms["electra"].speed is None
    assert longer.rates.arms["bert"].steps == pytest.approx((1200 - 5 - 5 * 0.5) / (1.2 * 0.1), abs=1)


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "draw_forest", lambda *_: False)


def page_of(plan: ExperimentPlan) -> str:
    return page.write_page(plan, command="bertwright paper families", failed={}).read_text("utf-8")


def test_the_page_has_speeds_steps_rates_and_what_does_not_apply(tmp_path: Path) -> None:
    base = base_plan(tmp_path, "bert", "electra", "modernbert")
    assert "| BERT | … | … | … | … | … | … |" in page_of(with_rates(base, EQUAL_TIME))
    write_speeds(base)
    finish_trials(with_rates(base, EQUAL_TIME), {0.5: 3.0, 1.0: 2.5, 2.0: 2.75})
    plan = with_rates(base, EQUAL_TIME)
    for name, (bits, accuracy) in {"bert": (1.5, 0.6), "electra": (1.2, 0.5), "modernbert": (1.4, 0.7)}.items():
        for seed, (model,) in enumerate(plan.models[name]):
            finish(model.folder, {"mlm_loss": 2.0, "mlm_bits_per_character": bits + 0.001 * seed})
            scores = model.folder / "minimal-pairs" / "blimp"
            scores.mkdir(parents=True)
            (scores / "metrics.json").write_text(json.dumps({"accuracy": accuracy + 0.001 * seed}))
    text = page_of(plan)
    assert "Minutes take the place of its number of tokens." in text
    assert "Every pre-training has the steps of 10 minutes on 2 threads." in text
    assert "| BERT (`bert`) | 60.1 ± 0.1 | 150.1 ± 0.1 |" in text
    assert "| ELECTRA (`electra`) | does not apply | does not apply |" in text
    assert "| BERT | 100 / 200 | 4,946 | 24.3 M | 3.000 | **2.500** | 2.750 |" in text
    assert "| ELECTRA | 250 / 500 | 1,978 |" in text
    assert "At the edge" not in text
    assert "**Supported.** BLiMP +10.0" in text
    assert "**Supported.** bits a character, x 100 +10.0" in text
    assert "| trials of learning rates | 9 |" in text
    assert "A claim whose δ is another number has it above its table." in text
    assert "start `random`; δ 2." in text
    assert "Not in points, but in its own unit: bits a character, x 100." in text
    finish_trials(plan, {0.5: 2.0, 1.0: 2.5, 2.0: 2.75})
    edges = "At the edge of the rates that were tried, so that a better one may lie beyond: BERT, ELECTRA, ModernBERT."
    assert edges in page_of(with_rates(base, EQUAL_TIME))


def test_a_trial_that_diverges_is_kept_as_that_and_the_arm_gets_another_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = base_plan(tmp_path, "bert")
    write_speeds(base)

    def pretrain(settings: Any, *, out: Path, **_: Any) -> dict[str, Any]:
        (out / "model").mkdir(parents=True)
        if settings.optimizer.learning_rate > 2e-3:
            raise Diverged("step 7: the loss is nan")
        finish(out, {"mlm_loss": 1e3 * settings.optimizer.learning_rate})
        return {"stopped": False}

    monkeypatch.setattr(run, "pretrain", pretrain)
    work = ExperimentRun(with_rates(base, EQUAL_TIME), "", "cpu", allow_other_numerics=False)
    work.search_rates(base, EQUAL_TIME)
    assert work.plan.rates is not None
    assert (work.failed, work.plan.rates.arms["bert"].factor) == ({}, 0.5)
    assert len(list(tmp_path.glob(f"pretrained/*/{DIVERGED}"))) == 1
    assert not list(tmp_path.glob("pretrained/*/model"))
    assert "| 1.000 | 2.000 | diverged |" in page_of(work.plan).replace("**", "")


def test_an_arm_whose_last_trial_another_process_finishes_waits_for_the_next_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = base_plan(tmp_path, "bert")
    write_speeds(base)
    plan = with_rates(base, EQUAL_TIME)
    finish_trials(plan, {0.5: 3.0, 1.0: 2.0, 2.0: 2.5})
    trained = []
    monkeypatch.setattr(run, "pretrain", lambda settings, **_: trained.append(settings) or {"stopped": True})
    ExperimentRun(plan, "", "cpu", allow_other_numerics=False).carry_out()
    assert trained == []  # its settings name the minutes, which would be measured here once more
    with pytest.raises(Stopped):
        ExperimentRun(with_rates(base, EQUAL_TIME), "", "cpu", allow_other_numerics=False).carry_out()
    assert [settings.minutes for settings in trained] == [None]


def test_without_minutes_every_arm_has_the_steps_of_the_scale_and_a_rate_of_its_own(tmp_path: Path) -> None:
    base = base_plan(tmp_path, "bert", "electra")
    search = RateSearch(rate_share=0.5)
    untried = with_rates(base, search)
    assert untried.rates is not None
    assert {trial.model.settings.steps for trial in untried.rates.trials} == {800}
    (model,) = untried.models["bert"][0]
    finish(model.folder, {"mlm_loss": 2.5, "mlm_bits_per_character": 1.5})  # of an experiment with the scale's rate
    table = page_of(untried)
    assert "| BERT (`bert`) | … | … |" in table
    assert "| BERT | 1,600 | … | … | … | … |" in table
    finish_trials(untried, {0.5: 2.0, 1.0: 2.5, 2.0: 2.75})
    settled = with_rates(base, search)
    (model,) = settled.models["bert"][0]
    assert (model.settings.steps, model.settings.optimizer.learning_rate) == (1600, 1e-3)
    finish(model.folder, {"mlm_loss": 2.4, "mlm_bits_per_character": 1.25})
    text = page_of(settled)
    assert re.search(r"\| BERT \(`bert`\) \| … \| 125\.0 … \(1 of 3\) \|", text)
    assert "| BERT | 1,600 | 7.9 M | **2.000** | 2.500 | 2.750 |" in text
    assert "lowest validation loss after 50% of the steps" in text
    assert "Every pre-training has the steps of" not in text
