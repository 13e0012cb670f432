"""plan, budget of minutes → the same plan with steps and learning rate of each arm, as far as they are known."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertwright.experiments.details import markdown_table
from bertwright.experiments.jobs import PretrainedModel, Workspace
from bertwright.experiments.plan import ExperimentPlan, with_arms, workspace_of
from bertwright.experiments.rates import TRIAL_SEED, ArmTime, EqualTime, RateTrial, choose_factor
from bertwright.experiments.spec import Arm, TimeBudget
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
    arms = [arm for arm in plan.arms if arm.baseline is None]
    return {_timed_name(workspace, arm): _model(workspace, arm, _for_minutes(minutes), seed=0) for arm in arms}


def at_equal_time(plan: ExperimentPlan, budget: TimeBudget) -> ExperimentPlan:
    """Return a plan whose arms train for the minutes of a budget; plan: that whose arms have the scale's steps.

    Where the speed of an arm is not measured or its learning rate is not chosen, its settings name the minutes.
    """
    workspace, speeds = workspace_of(plan), read_speeds(speeds_path(plan))
    arms, times, threads = [], {}, {}
    for arm in plan.arms:
        if arm.baseline is not None:
            arms.append(arm)
            continue
        speed, threads[arm.name] = speeds.get(_timed_name(workspace, arm), (None, 0))
        times[arm.name] = _arm_time(workspace, arm, budget, speed)
        arms.append(_settled(workspace, arm, budget, times[arm.name]))
    return replace(with_arms(plan, arms), time=EqualTime(budget, times, threads))


def _arm_time(workspace: Workspace, arm: Arm, budget: TimeBudget, speed: Timings | None) -> ArmTime:
    """Return steps and trials of an arm; without its speed, the settings of the trials name their minutes."""
    settings = _model(workspace, arm, _for_minutes(budget.minutes), seed=0).settings
    steps = affordable_steps(settings, speed) if speed else None
    length: dict[str, Any] = _for_minutes(budget.rate_share * budget.minutes)
    if steps is not None:
        length = {"steps": max(1, round(budget.rate_share * steps))}
    trials = [
        RateTrial(factor, _model(workspace, arm, {**rates(settings, factor), **length, "evaluations": 1}, TRIAL_SEED))
        for factor in budget.factors
    ]
    factor = choose_factor({trial.factor: trial.loss for trial in trials})
    return ArmTime(speed, steps, tuple(trials), factor)


def _settled(workspace: Workspace, arm: Arm, budget: TimeBudget, time: ArmTime) -> Arm:
    """Return an arm with its steps and its learning rate where both are known, and else with its minutes."""
    if time.steps is None or time.factor is None:
        return _changed(arm, _for_minutes(budget.minutes))
    settings = _model(workspace, arm, {}, seed=0).settings
    return _changed(arm, {"steps": time.steps, **rates(settings, time.factor)})


def rates(settings: PretrainSettings, factor: float) -> dict[str, Any]:
    """Return the learning rates of settings times a factor, with three digits; with Muon also that of its matrices."""
    optimizer = settings.optimizer
    names = ("learning_rate", "muon_rate") if optimizer.method == "muon" else ("learning_rate",)
    return {"optimizer": {name: float(f"{factor * getattr(optimizer, name):.3g}") for name in names}}


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


def time_lines(plan: ExperimentPlan) -> Iterator[str]:
    """Yield how the time was divided: a table with speed, steps and trials of each arm, and how its rate was chosen."""
    time = plan.time
    if time is None:
        return
    budget = time.budget
    threads = " or ".join(map(str, sorted({number for number in time.threads.values() if number})))
    on = f" on {threads} thread{'' if threads == '1' else 's'}" if threads else ""
    yield (
        f"Every pre-training has the steps of {budget.minutes:g} minutes{on}. They follow from the speed of the arm's "
        "own steps, evaluations and checkpoints, measured before the first run "
        f"(`locks/{speeds_path(plan).name}`). A run on another machine or a GPU has the same steps, and takes another "
        "time."
    )
    yield (
        f"Each arm got the one of {len(budget.factors)} learning rates with the lowest validation loss after "
        f"{budget.rate_share:.0%} of the minutes, with a seed of its own. The loss is that of masked LM; for ELECTRA "
        "it is that of the discriminator. The losses are in nats; that of the chosen rate is bold. A rate is a factor "
        "of the scale's. Compare the losses of one row only."
    )
    factors = sorted(budget.factors)
    lengths = " / ".join(str(phase.length) for phase in plan.all_models[0].settings.phases)
    head = ("", f"ms a step (rows of {lengths})", "steps", "tokens", *(f"rate x {factor:g}" for factor in factors))
    titles = {arm.name: arm.title for arm in plan.arms}
    rows = [(titles[name], *_time_cells(plan, name, each, factors)) for name, each in time.arms.items()]
    yield from ("", *markdown_table(head, rows), "")
    yield from _edges(time, titles)


def _time_cells(plan: ExperimentPlan, name: str, time: ArmTime, factors: list[float]) -> list[str]:
    """Return the cells of an arm in the table of time; … where a part is not computed."""
    speed = " / ".join(f"{1000 * seconds:.0f}" for seconds in time.speed.steps) if time.speed else "…"
    steps = "…" if time.steps is None else f"{time.steps:,}"
    is_settled = plan.time is not None and plan.time.is_settled(name)
    tokens = f"{plan.models[name][0][0].tokens / 1e6:,.1f} M" if is_settled else "…"
    by_factor = {trial.factor: trial.loss for trial in time.trials}
    losses = [_loss_text(by_factor[factor], is_chosen=factor == time.factor) for factor in factors]
    return [speed, steps, tokens, *losses]


def _loss_text(loss: float | None, *, is_chosen: bool) -> str:
    if loss is None:
        return "…"
    text = f"{loss:.3f}" if math.isfinite(loss) else "diverged"
    return f"**{text}**" if is_chosen else text


def _edges(time: EqualTime, titles: Mapping[str, str]) -> Iterator[str]:
    """Yield the arms whose chosen rate is the smallest or the largest that was tried."""
    tried = time.budget.factors
    edges = [titles[name] for name, each in time.arms.items() if each.factor in (min(tried), max(tried))]
    if edges and len(tried) > 1:
        yield f"At the edge of the rates that were tried, so that a better one may lie beyond: {', '.join(edges)}."
