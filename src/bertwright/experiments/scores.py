"""folders → metrics, cost and remaining time of an experiment's pre-trainings and jobs."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from bertwright.errors import InputError
from bertwright.experiments.jobs import BLIMP, Finetuning, PairsJob, PretrainedModel, system_and_size
from bertwright.experiments.plan import ExperimentPlan, Job, metric_applies
from bertwright.experiments.spec import Arm, Column
from bertwright.experiments.statistics import ArmScores, SeedPair
from bertwright.files import read_object
from bertwright.reports.runs import duration, read_run
from bertwright.training.run_files import run_record

COST = "cost.json"
"""File in the folder of a pre-training that holds its peak memory."""


@dataclass(frozen=True)
class Cell:
    """Metrics of an arm in a column.

    values         metric by pair of seeds, in the paper's unit
    wanted         number of values when everything is finished
    is_constant    True for a baseline: its one value is that of every pair of seeds
    applies        False where the models of the arm cannot have the metric
    """

    values: Mapping[SeedPair, float]
    wanted: int
    is_constant: bool = False
    applies: bool = True


def table_cells(plan: ExperimentPlan) -> dict[tuple[str, str], Cell]:
    """Return the metrics of the finished pre-trainings and jobs by (arm, column)."""
    last_epoch = scores_last_epoch(plan)
    return {
        (arm.name, column.name): _cell(plan, arm, column, last_epoch=last_epoch)
        for arm in plan.arms
        for column in plan.columns
    }


def scores_last_epoch(plan: ExperimentPlan) -> bool:
    """Return True where the records of all finished fine-tunings of a plan have the metrics of the last epoch.

    Otherwise those of the best epoch are used for all: the two are never mixed.
    """
    finished = [job for job in plan.all_jobs if isinstance(job, Finetuning) and job.is_finished]
    return bool(finished) and all(job.last_metrics for job in finished)


def arm_scores(plan: ExperimentPlan, cell: Cell, column: Column) -> ArmScores:
    """Return the scores of a cell by pre-training, as means over the fine-tuning seeds; a higher score is better."""
    sign = -1.0 if column.is_lower_better else 1.0
    by_seed: dict[int, list[float]] = defaultdict(list)
    for (pretraining, _), value in cell.values.items():
        by_seed[pretraining].append(sign * value)
    complete = plan.seeds if column.task is not None and not cell.is_constant else 1
    units = {seed: statistics.fmean(values) for seed, values in by_seed.items() if len(values) == complete}
    return ArmScores(units, is_constant=cell.is_constant)


def _cell(plan: ExperimentPlan, arm: Arm, column: Column, *, last_epoch: bool) -> Cell:
    """Return the cell of an arm and a column.

    Two joined models have no metric of a pre-training, and an arm has no metric before its learning rate is chosen.
    """
    if plan.rates and not plan.rates.is_settled(arm.name):
        return Cell({}, 1, applies=metric_applies(arm, column))
    if column.task is None:
        by_seed = enumerate(plan.models.get(arm.name, ()))
        if not metric_applies(arm, column):
            return Cell({}, 0, applies=False)
        values = {(seed, 0): _pretraining_metric(models[0], column) for seed, models in by_seed if len(models) == 1}
        return Cell(_known(values), len(values) if arm.is_trained else 0)
    jobs = plan.jobs[arm.name, column.name]
    values = {pair: _task_metric(job, column, last_epoch=last_epoch) for pair, job in jobs.items()}
    return Cell(_known(values), len(jobs), is_constant=arm.baseline is not None)


def _known(values: Mapping[SeedPair, float | None]) -> dict[SeedPair, float]:
    return {pair: value for pair, value in values.items() if value is not None}


def _task_metric(job: Job, column: Column, *, last_epoch: bool) -> float | None:
    """Return the column's metric of a job in the paper's unit; None where the job is not finished."""
    if not job.is_finished:
        return None
    metrics = job.last_metrics if last_epoch and isinstance(job, Finetuning) else job.metrics
    if column.metric not in metrics:
        raise InputError(f"{job.folder}: expected the metric {column.metric}, got {', '.join(metrics)}")
    return column.factor * metrics[column.metric]


def _pretraining_metric(model: PretrainedModel, column: Column) -> float | None:
    """Return the column's metric of a pre-training in the paper's unit; None where it is unknown or not finished."""
    if not (model.is_trained and model.is_finished):
        return None
    value = _METRICS[column.metric](model)
    return None if value is None else column.factor * value


def _perplexity(model: PretrainedModel) -> float | None:
    """Return the validation perplexity of the masked pieces, or of all pieces of a language model."""
    metrics = model.result["held_out"]
    loss = metrics.get("mlm_loss", metrics.get("lm_loss"))
    return None if loss is None else math.exp(loss)


def _bits_per_character(model: PretrainedModel) -> float | None:
    """Return the bits of the masked pieces of validation text, by their characters; None where they were not kept."""
    value = model.result["held_out"].get("mlm_bits_per_character")
    return None if value is None else float(value)


def _minimal_pairs(model: PretrainedModel) -> float | None:
    """Return the accuracy on minimal pairs, the mean of the paradigms; None where they are not scored."""
    job = PairsJob(model, None)
    return job.metrics[BLIMP] if job.is_finished else None


def _seconds_per_million_tokens(model: PretrainedModel) -> float | None:
    """Return the seconds of training per million tokens."""
    speed = read_run(model.folder).speed
    return 1e6 / speed.tokens_per_second if speed else None


def _peak_memory(model: PretrainedModel) -> float | None:
    """Return the peak memory of a pre-training in bytes; None where it is unknown."""
    path = model.folder / COST
    return float(read_object(path)["peak_bytes"]) if path.is_file() else None


_METRICS: Final[Mapping[str, Callable[[PretrainedModel], float | None]]] = {
    "perplexity": _perplexity,
    "bits": _bits_per_character,
    BLIMP: _minimal_pairs,
    "seconds": _seconds_per_million_tokens,
    "memory": _peak_memory,
}


def seconds_spent(folder: Path) -> float:
    """Return the seconds of all sessions of a run that have ended, from its run.json."""
    sessions: list[Mapping[str, Any]] = run_record(folder).get("sessions", [])
    return sum(
        (datetime.fromisoformat(each["ended"]) - datetime.fromisoformat(each["started"])).total_seconds()
        for each in sessions
        if "ended" in each
    )


def numerics_of(folder: Path) -> tuple[str, str] | None:
    """Return device and precision of the last session of a run; None where nothing was trained.

    Records of other versions of the program may have other values beside these two.
    """
    resolved = run_record(folder).get("resolved", {})
    resolved = resolved.get("numerics", resolved)
    return (resolved.get("device", "cpu"), resolved["precision"]) if "precision" in resolved else None


@dataclass(frozen=True)
class RemainingWork:
    """Work that is left of an experiment.

    models, all_models    numbers of unfinished pre-trainings and of all pre-trainings
    jobs, all_jobs        numbers of unfinished jobs and of all jobs
    seconds               estimate for the unfinished parts whose speed is known
    unknown               number of unfinished parts whose speed is not known
    """

    models: int
    all_models: int
    jobs: int
    all_jobs: int
    seconds: float
    unknown: int

    def text(self, *, is_page: bool = False) -> str:
        """Return text that lists the remaining work and its time. is_page: nothing of it will be computed now."""
        if not self.models and not self.jobs:
            return f"everything is computed: {self.all_models} pre-trainings, {self.all_jobs} measurements on tasks"
        counts = (
            f"{self.models} of {self.all_models} pre-trainings and {self.jobs} of {self.all_jobs} measurements on tasks"
        )
        word = "missing" if is_page else "to compute"
        if self.unknown and not self.seconds:
            return f"{word}: {counts}; the time is unknown until the first of them is finished"
        unknown = f", and an unknown time for {self.unknown} of them" if self.unknown else ""
        return f"{word}: {counts}; about {duration(self.seconds)}{' to compute them' if is_page else ''}{unknown}"


def remaining_work(plan: ExperimentPlan) -> RemainingWork:
    """Return the remaining work of a plan; its time is that of similar finished parts in the same folder."""
    models = [model for model in plan.all_models if not model.is_finished]
    jobs = [job for job in plan.all_jobs if not job.is_finished]
    times = [*training_seconds(plan, models), *job_seconds(jobs, plan)]
    known = [seconds for seconds in times if seconds is not None]
    return RemainingWork(
        len(models), len(plan.all_models), len(jobs), len(plan.all_jobs), sum(known), len(times) - len(known)
    )


def training_seconds(plan: ExperimentPlan, models: Iterable[PretrainedModel]) -> list[float | None]:
    """Return the remaining seconds of models of a plan: those of equal time, or by `model_seconds`."""
    if plan.rates is None or plan.rates.search.minutes is None:
        return model_seconds(models, plan.out / "pretrained")
    return [max(0.0, plan.rates.seconds(model) - seconds_spent(model.folder)) for model in models]


def model_seconds(models: Iterable[PretrainedModel], folder: Path) -> list[float | None]:
    """Return the remaining seconds of each model, by the mean speed of runs with the same system and size.

    None: no such run has a speed yet.
    """
    speeds = _speeds(folder)
    seconds: list[float | None] = []
    for model in models:
        speed = speeds.get(system_and_size(model.folder.name))
        total = model.tokens * model.computed_fraction / speed if speed else None
        left = None if total is None else max(0.0, total - seconds_spent(model.folder))
        seconds.append(left if model.is_trained else 0.0)
    return seconds


def _speeds(folder: Path) -> Mapping[str, float]:
    """Return the mean tokens per second of the runs in a folder, for each system and size."""
    speeds = defaultdict(list)
    for path in folder.glob("*/run.json"):
        speed = read_run(path.parent).speed
        if speed:
            speeds[system_and_size(path.parent.name)].append(speed.tokens_per_second)
    return {kind: statistics.fmean(values) for kind, values in speeds.items()}


def job_seconds(jobs: Iterable[Job], plan: ExperimentPlan) -> list[float | None]:
    """Return the expected seconds of each fine-tuning; None where none on its task is finished.

    The estimate is the mean over the finished fine-tunings on its task: those of its system and size, or else all.
    """
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for job in plan.all_jobs:
        if isinstance(job, Finetuning) and job.is_finished:
            seconds = seconds_spent(job.folder)
            times[job.folder.parent.name, system_and_size(job.folder.name)].append(seconds)
            times[job.folder.parent.name, ""].append(seconds)
    estimates: list[float | None] = []
    for job in jobs:
        if isinstance(job, Finetuning):
            task = job.folder.parent.name
            similar = times.get((task, system_and_size(job.folder.name))) or times.get((task, ""))
            estimates.append(statistics.fmean(similar) if similar else None)
    return estimates
