"""folders → figures: what the finished runs of an experiment found, and what they cost."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from bertwright.errors import InputError
from bertwright.experiments.jobs import Model, Tuning, Without
from bertwright.experiments.plan import Job, Plan
from bertwright.experiments.spec import Arm, Column
from bertwright.experiments.statistics import Pair
from bertwright.files import read_object
from bertwright.reports.runs import duration, read_run
from bertwright.training.hardware import Numerics

COST = "cost.json"
"""In the folder of a pre-training: what it held in memory at most."""


@dataclass(frozen=True)
class Cell:
    """The figures of an arm in a column, by pair of seeds, as the paper writes them; `wanted`: how many there will be.

    is_constant: there are no seeds, and the one figure stands beside any.
    """

    values: Mapping[Pair, float]
    wanted: int
    is_constant: bool = False


def cells_of(plan: Plan) -> dict[tuple[str, str], Cell]:
    """(arm, column) → its figures so far."""
    return {(arm.name, column.name): _cell(plan, arm, column) for arm in plan.arms for column in plan.columns}


def scores_of(plan: Plan, cells: Mapping[tuple[str, str], Cell], arm: str) -> dict[str, dict[Pair, float]]:
    """column → pair → score of an arm, higher is better; what has no seeds is there for every pair."""
    pairs = [(p, f) for p in range(plan.pretraining_seeds) for f in range(plan.seeds)]
    found = {}
    for column in plan.columns:
        cell = cells.get((arm, column.name))
        if cell is None:
            continue
        sign = -1.0 if column.is_lower_better else 1.0
        values = dict.fromkeys(pairs, cell.values[0, 0]) if cell.is_constant and cell.values else cell.values
        found[column.name] = {pair: sign * value for pair, value in values.items()}
    return found


def _cell(plan: Plan, arm: Arm, column: Column) -> Cell:
    if column.task is None:
        models = plan.models.get(arm.name, ())
        values = {(seed, 0): _figure_of(one[0], column) for seed, one in enumerate(models) if len(one) == 1}
        there = {pair: value for pair, value in values.items() if value is not None}
        return Cell(there, len(values) if arm.is_trained else 0)
    jobs = plan.jobs[arm.name, column.name]
    values = {pair: _score(job, column) for pair, job in jobs.items()}
    there = {pair: value for pair, value in values.items() if value is not None}
    return Cell(there, len(jobs), is_constant=arm.baseline is not None)


def _score(job: Tuning | Without, column: Column) -> float | None:
    if not job.is_finished:
        return None
    scores = job.scores
    if column.metric not in scores:
        raise InputError(f"{job.folder}: has no figure {column.metric}; there are: {', '.join(scores)}")
    return column.times * scores[column.metric]


def _figure_of(model: Model, column: Column) -> float | None:
    if not (model.is_trained and model.is_finished):
        return None
    found = _FIGURES[column.metric](model)
    return None if found is None else column.times * found


def _perplexity(model: Model) -> float | None:
    """Of masked pieces, or of all in a language model."""
    figures = model.result["held_out"]
    loss = figures.get("mlm_loss", figures.get("lm_loss"))
    return None if loss is None else math.exp(loss)


def _seconds(model: Model) -> float | None:
    """Of training, for a million tokens."""
    speed = read_run(model.folder).speed
    return 1e6 / speed.tokens_per_second if speed else None


def _memory(model: Model) -> float | None:
    path = model.folder / COST
    return float(read_object(path)["peak_bytes"]) if path.is_file() else None


_FIGURES: Final[Mapping[str, Callable[[Model], float | None]]] = {
    "perplexity": _perplexity,
    "seconds": _seconds,
    "memory": _memory,
}


def seconds_spent(folder: Path) -> float:
    """How long processes worked on a run, by what its run.json notes of them."""
    path = folder / "run.json"
    sessions: list[Mapping[str, Any]] = read_object(path).get("sessions", []) if path.is_file() else []
    ended = [one for one in sessions if "ended" in one]
    return sum(
        (datetime.fromisoformat(one["ended"]) - datetime.fromisoformat(one["started"])).total_seconds() for one in ended
    )


def numerics_of(folder: Path) -> Numerics | None:
    """What computed a run, or the last part of it, and how precisely; None where nothing was trained."""
    path = folder / "run.json"
    settled = dict(read_object(path).get("resolved", {})) if path.is_file() else {}
    settled = settled.get("numerics", settled)
    return Numerics.model_validate({key: settled[key] for key in settled if key != "ranks"}) if settled else None


# plan → how long what is left of it will take, by what was measured in the same folder; nothing where it was not.


@dataclass(frozen=True)
class Left:
    """What is to be done. seconds: of those whose pace is known; `unknown`: how many are not among them."""

    models: int
    all_models: int
    jobs: int
    all_jobs: int
    seconds: float
    unknown: int

    @property
    def text(self) -> str:
        """In words."""
        if not self.models and not self.jobs:
            return f"all is computed: {self.all_models} pre-trainings, {self.all_jobs} measurements on tasks"
        done = (
            f"{self.models} of {self.all_models} pre-trainings and {self.jobs} of {self.all_jobs} measurements on tasks"
        )
        if self.unknown and not self.seconds:
            return f"to be computed: {done}; how long that takes is known when the first of them is done"
        rest = f", and {self.unknown} of which nothing like it was measured yet" if self.unknown else ""
        return f"to be computed: {done}; about {duration(self.seconds)}{rest}"


def what_is_left(plan: Plan) -> Left:
    """Unfinished jobs; the time of those like which some have been."""
    models = [model for model in plan.all_models if not model.is_finished]
    jobs = [job for job in plan.all_jobs if not job.is_finished]
    times = [*_of_models(models, plan.out / "pretrained"), *_of_jobs(jobs, plan)]
    known = [seconds for seconds in times if seconds is not None]
    return Left(len(models), len(plan.all_models), len(jobs), len(plan.all_jobs), sum(known), len(times) - len(known))


def _of_models(models: Iterable[Model], folder: Path) -> list[float | None]:
    """By the tokens per second of any run of the same system and size."""
    paces = _paces(folder)
    found: list[float | None] = []
    for model in models:
        pace = paces.get(_kind(model.folder.name))
        whole = model.tokens / pace if pace else None
        left = None if whole is None else max(0.0, whole - seconds_spent(model.folder))
        found.append(left if model.is_trained else 0.0)
    return found


def _paces(folder: Path) -> Mapping[str, float]:
    paces = defaultdict(list)
    for path in folder.glob("*/run.json"):
        speed = read_run(path.parent).speed
        if speed:
            paces[_kind(path.parent.name)].append(speed.tokens_per_second)
    return {kind: statistics.fmean(values) for kind, values in paces.items()}


def _of_jobs(jobs: Iterable[Job], plan: Plan) -> list[float | None]:
    """By the mean of finished ones on the same task, of the same system and size where there are such."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for job in plan.all_jobs:
        if isinstance(job, Tuning) and job.is_finished:
            seconds = seconds_spent(job.folder)
            times[job.folder.parent.name, _kind(job.folder.name)].append(seconds)
            times[job.folder.parent.name, ""].append(seconds)
    found: list[float | None] = []
    for job in jobs:
        if isinstance(job, Tuning):
            task = job.folder.parent.name
            like = times.get((task, _kind(job.folder.name))) or times.get((task, ""))
            found.append(statistics.fmean(like) if like else None)
    return found


def _kind(name: str) -> str:
    """System and size, as a folder's name begins."""
    return name.partition("-seed")[0]
