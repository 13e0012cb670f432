"""plan, search for rates → the same plan with steps and learning rate of each arm, as far as they are known."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertwright.experiments.details import markdown_table
from bertwright.experiments.jobs import PretrainedModel, Workspace
from bertwright.experiments.plan import ExperimentPlan, with_arms, workspace_of
from bertwright.experiments.rates import TRIAL_SEED, ArmRates, RateTrial, SearchedRates, choose_factor
from bertwright.experiments.spec import Arm, RateSearch
from bertwright.experiments.speeds import read_speeds
from bertwright.pretraining.measure import Timings, affordable_steps
from bertwright.pretraining.settings import PretrainSettings, merged


def speeds_path(plan: ExperimentPlan) -> Path:
    """Return the path of the measured speeds of an experiment at a scale."""
    return plan.out / "locks" / f"{plan.experiment.name}-{plan.scale.name}-speeds.json"


def timed_models(plan: ExperimentPlan, minutes: float) -> dict[str, PretrainedModel]:
    """Return a model of each arm to be timed, by its name in the file of speeds; arms with equal settings share one.

    plan: the plan whose arms have the scale's steps.
    """
    workspace = workspace_of(plan)
    arms = [arm for arm in plan.arms if arm.models]
    return {_timed_name(workspace, arm): _model(workspace, arm, _for_minutes(minutes), seed=0) for arm in arms}


def with_rates(plan: ExperimentPlan, search: RateSearch) -> ExperimentPlan:
    """Return a plan whose arms have their own learning rates, and steps for the minutes of a search that has some.

    plan: the plan whose arms have the scale's steps and rates. Where the speed of an arm is not measured, its settings
    name the minutes. Where its rate is not chosen, they have the scale's.
    """
    workspace, speeds = workspace_of(plan), read_speeds(speeds_path(plan))
    arms, searched, threads = [], {}, {}
    for arm in plan.arms:
        if not arm.models:
            arms.append(arm)
            continue
        speed, threads[arm.name] = speeds.get(_timed_name(workspace, arm), (None, 0))
        searched[arm.name] = _arm_rates(workspace, arm, search, speed)
        arms.append(_settled(workspace, arm, search, searched[arm.name]))
    return replace(with_arms(plan, arms), rates=SearchedRates(search, searched, threads))


def _arm_rates(workspace: Workspace, arm: Arm, search: RateSearch, speed: Timings | None) -> ArmRates:
    """Return steps and trials of an arm; without its speed, the settings of the trials name their minutes."""
    settings = _model(workspace, arm, _whole_length(search), seed=0).settings
    steps = affordable_steps(settings, speed) if speed else settings.steps
    if steps is not None:
        length: dict[str, Any] = {"steps": max(1, round(search.rate_share * steps))}
    else:
        length = _for_minutes(search.rate_share * (search.minutes or 0.0))
    trials = [
        RateTrial(factor, _model(workspace, arm, {**rates(settings, factor), **length, "evaluations": 1}, TRIAL_SEED))
        for factor in search.factors
    ]
    factor = choose_factor({trial.factor: trial.loss for trial in trials})
    return ArmRates(speed, steps, tuple(trials), factor)


def _settled(workspace: Workspace, arm: Arm, search: RateSearch, searched: ArmRates) -> Arm:
    """Return an arm with its steps and its learning rate where both are known, and else as it is in the search."""
    if searched.steps is None or searched.factor is None:
        return _changed(arm, _whole_length(search))
    settings = _model(workspace, arm, {}, seed=0).settings
    return _changed(arm, {"steps": searched.steps, **rates(settings, searched.factor)})


def rates(settings: PretrainSettings, factor: float) -> dict[str, Any]:
    """Return the learning rates of settings times a factor, with three digits; with Muon also that of its matrices."""
    optimizer = settings.optimizer
    names = ("learning_rate", "muon_rate") if optimizer.method == "muon" else ("learning_rate",)
    return {"optimizer": {name: float(f"{factor * getattr(optimizer, name):.3g}") for name in names}}


def _whole_length(search: RateSearch) -> dict[str, Any]:
    """Return the length of a pre-training as settings: the minutes of the search, or nothing for the scale's steps."""
    return {} if search.minutes is None else _for_minutes(search.minutes)


def _for_minutes(minutes: float) -> dict[str, Any]:
    """Return settings of a run of minutes; the scale's steps are taken away."""
    return {"steps": None, "minutes": minutes}


def _changed(arm: Arm, changes: Mapping[str, Any]) -> Arm:
    return replace(arm, pretraining=merged(arm.pretraining, changes))


def _model(workspace: Workspace, arm: Arm, changes: Mapping[str, Any], seed: int) -> PretrainedModel:
    """Return the one model of an arm with changed settings."""
    (model,) = workspace.models(_changed(arm, changes), seed)
    return model


def _timed_name(workspace: Workspace, arm: Arm) -> str:
    """Return the name of an arm's model in the file of speeds: all settings and the corpus decide it, not minutes."""
    return _model(workspace, arm, _for_minutes(1.0), seed=0).folder.name


def rate_lines(plan: ExperimentPlan) -> Iterator[str]:
    """Yield how the time was divided and the rates were chosen, with a table of speed, steps and trials of each arm."""
    if plan.rates is None:
        return
    search = plan.rates.search
    if search.minutes is not None:
        yield _equal_time(plan, plan.rates)
    yield (
        f"Each arm got the one of {len(search.factors)} learning rates with the lowest validation loss after "
        f"{search.rate_share:.0%} of the {'steps' if search.minutes is None else 'minutes'}, with a seed of its own. "
        "The loss is that of masked LM; for ELECTRA it is that of the discriminator. The losses are in nats; that of "
        "the chosen rate is bold. A rate is a factor of the scale's. Compare the losses of one row only."
    )
    factors = sorted(search.factors)
    lengths = " / ".join(str(phase.length) for phase in plan.all_models[0].settings.phases)
    speed = [] if search.minutes is None else [f"ms a step (rows of {lengths})"]
    head = ("", *speed, "steps", "tokens", *(f"rate x {factor:g}" for factor in factors))
    titles = {arm.name: arm.title for arm in plan.arms}
    rows = [(titles[name], *_cells(plan, name, each, factors)) for name, each in plan.rates.arms.items()]
    yield from ("", *markdown_table(head, rows), "")
    yield from _edges(plan.rates, titles)


def _equal_time(plan: ExperimentPlan, searched: SearchedRates) -> str:
    """Return the sentences on the steps of a number of minutes."""
    threads = " or ".join(map(str, sorted({number for number in searched.threads.values() if number})))
    on = f" on {threads} thread{'' if threads == '1' else 's'}" if threads else ""
    return (
        f"Every pre-training has the steps of {searched.search.minutes:g} minutes{on}. They follow from the speed of "
        "the arm's own steps, evaluations and checkpoints, measured before the first run "
        f"(`locks/{speeds_path(plan).name}`). A run on another machine or a GPU has the same steps, and takes another "
        "time."
    )


def _cells(plan: ExperimentPlan, name: str, searched: ArmRates, factors: list[float]) -> list[str]:
    """Return the cells of an arm in the table of rates; … where a part is not computed."""
    assert plan.rates is not None
    speed = [" / ".join(f"{1000 * seconds:.0f}" for seconds in searched.speed.steps) if searched.speed else "…"]
    steps = "…" if searched.steps is None else f"{searched.steps:,}"
    tokens = f"{plan.models[name][0][0].tokens / 1e6:,.1f} M" if plan.rates.is_settled(name) else "…"
    by_factor = {trial.factor: trial.loss for trial in searched.trials}
    losses = [_loss_text(by_factor[factor], is_chosen=factor == searched.factor) for factor in factors]
    return [*(speed if plan.rates.search.minutes is not None else []), steps, tokens, *losses]


def _loss_text(loss: float | None, *, is_chosen: bool) -> str:
    if loss is None:
        return "…"
    text = f"{loss:.3f}" if math.isfinite(loss) else "diverged"
    return f"**{text}**" if is_chosen else text


def _edges(searched: SearchedRates, titles: Mapping[str, str]) -> Iterator[str]:
    """Yield the arms whose chosen rate is the smallest or the largest that was tried."""
    tried = searched.search.factors
    edges = [titles[name] for name, each in searched.arms.items() if each.factor in (min(tried), max(tried))]
    if edges and len(tried) > 1:
        yield f"At the edge of the rates that were tried, so that a better one may lie beyond: {', '.join(edges)}."
