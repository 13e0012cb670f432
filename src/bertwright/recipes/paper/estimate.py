"""plan → how long what is left of it will take, by what was measured in the same folder; nothing where it was not."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bertwright.recipes.paper.jobs import Model, Tuning
from bertwright.recipes.paper.plan import Job, Plan
from bertwright.recipes.paper.scores import seconds_spent
from bertwright.recipes.runs import clock, read_run


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
        return f"to be computed: {done}; about {clock(self.seconds)}{rest}"


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
