"""experiment → what of it can be done here, and what is left of that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.experiments.corpora import make_corpora
from bertwright.experiments.data import TASKS, PaperTask, Source, Subset, find_source, make_subset
from bertwright.experiments.jobs import Ground, Model, Tuning, Without, kinds_of, unique
from bertwright.experiments.spec import Arm, Column, Experiment, Scale
from bertwright.experiments.statistics import Pair

Job = Tuning | Without


@dataclass(frozen=True)
class Asked:
    """What a person wants of an experiment: all of it where nothing is named."""

    scale: Scale
    out: Path
    data: Path
    corpus: tuple[str, ...] = ()
    seeds: int | None = None
    pretraining_seeds: int | None = None
    arms: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Data:
    """The files of a task: where they are from, and which rows were taken."""

    task: PaperTask
    source: Source
    subset: Subset


@dataclass(frozen=True)
class Plan:
    """An experiment as it can be carried out here.

    models      arm → a pre-training, or two, for each pre-training seed
    jobs        (arm, column) → what gives the figure, by pair of seeds
    left_out    what cannot be done here, and what to do about it
    """

    experiment: Experiment
    scale: Scale
    out: Path
    seeds: int
    pretraining_seeds: int
    arms: tuple[Arm, ...]
    columns: tuple[Column, ...]
    data: Mapping[str, Data]
    models: Mapping[str, tuple[tuple[Model, ...], ...]]
    jobs: Mapping[tuple[str, str], Mapping[Pair, Job]]
    left_out: tuple[str, ...]

    @property
    def all_models(self) -> list[Model]:
        """Each once."""
        return unique([model for seeds in self.models.values() for models in seeds for model in models])

    @property
    def all_jobs(self) -> list[Job]:
        """Each once."""
        return unique([job for jobs in self.jobs.values() for job in jobs.values()])

    def jobs_of(self, arm: Arm, seed: int) -> list[Job]:
        """What follows the pre-training of an arm with a seed; baselines have seed 0 alone."""
        own = [jobs for (name, _), jobs in self.jobs.items() if name == arm.name]
        return unique([job for jobs in own for (pretraining, _), job in jobs.items() if pretraining == seed])


def make_plan(experiment: Experiment, asked: Asked, *, make: bool) -> Plan:
    """The plan; the rows of its tasks are written where they are not there yet, its corpora only where `make`.

    InputError for arms and tasks that the experiment does not have, and where nothing of it can be done.
    """
    scale = asked.scale
    arms = _named(experiment.arms(scale), asked.arms, "--arms", experiment.name)
    columns = _columns(experiment, asked.tasks)
    left_out: list[str] = []
    data = _data(columns, asked, left_out)
    columns = tuple(column for column in columns if column.task is None or column.task in data)
    if not columns:
        raise _nothing(experiment, left_out)
    for line in left_out:
        say(f"left out: {line}")
    kinds = [kind for arm in arms for kind in kinds_of(arm)]
    corpora = make_corpora(asked.corpus, asked.out / "corpora", vocabulary=scale.vocabulary, wanted=kinds, make=make)
    lacking: dict[str, list[str]] = {}
    for arm in arms:
        reasons = [corpora.missing[kind] for kind in kinds_of(arm) if kind in corpora.missing]
        if reasons:
            lacking.setdefault(reasons[0], []).append(arm.title)
    without_corpus = [f"{', '.join(titles)}: {why}" for why, titles in lacking.items()]
    left_out += without_corpus
    arms = tuple(arm for arm in arms if not any(kind in corpora.missing for kind in kinds_of(arm)))
    if not arms:
        raise _nothing(experiment, left_out)
    for line in without_corpus:
        say(f"left out: {line}")
    ground = Ground(
        asked.out,
        scale,
        corpora,
        {name: one.subset for name, one in data.items()},
        {name: TASKS[name] for name in data},
    )
    seeds = asked.seeds or scale.seeds
    pretraining_seeds = asked.pretraining_seeds or scale.pretraining_seeds
    models = {
        arm.name: tuple(ground.models(arm, seed) for seed in range(pretraining_seeds))
        for arm in arms
        if arm.baseline is None
    }
    jobs = {
        (arm.name, column.name): _jobs(ground, arm, column, models.get(arm.name, ()), seeds)
        for arm in arms
        for column in columns
        if column.task is not None
    }
    return Plan(
        experiment, scale, asked.out, seeds, pretraining_seeds, arms, columns, data, models, jobs, tuple(left_out)
    )


def _nothing(experiment: Experiment, left_out: Sequence[str]) -> InputError:
    return InputError(f"{experiment.name}: nothing of it can be computed here; {'; '.join(left_out)}")


def _jobs(
    ground: Ground, arm: Arm, column: Column, models: Sequence[tuple[Model, ...]], seeds: int
) -> Mapping[Pair, Job]:
    if arm.baseline is not None:
        return {(0, 0): ground.without(arm, column)}
    return {
        (pretraining, seed): ground.tuning(arm, column, one, seed)
        for pretraining, one in enumerate(models)
        for seed in range(seeds)
    }


def _named(arms: tuple[Arm, ...], wanted: tuple[str, ...], option: str, experiment: str) -> tuple[Arm, ...]:
    known = [arm.name for arm in arms]
    for name in wanted:
        if name not in known:
            raise InputError(f"{option} {name}: the arms of {experiment} are {', '.join(known)}")
    return tuple(arm for arm in arms if not wanted or arm.name in wanted)


def _columns(experiment: Experiment, wanted: tuple[str, ...]) -> tuple[Column, ...]:
    known = list(dict.fromkeys(column.task for column in experiment.columns if column.task))
    for name in wanted:
        if name not in known:
            raise InputError(f"--tasks {name}: the tasks of {experiment.name} are {', '.join(known) or 'none'}")
    return tuple(column for column in experiment.columns if not wanted or column.task in (None, *wanted))


def _data(columns: Sequence[Column], asked: Asked, left_out: list[str]) -> dict[str, Data]:
    """What there is of the tasks' data; for the others a message is added to `left_out`."""
    found: dict[str, Data] = {}
    for name in dict.fromkeys(column.task for column in columns if column.task):
        task = TASKS[name]
        there = find_source(task, asked.data)
        if there is None:
            left_out.append(f"{task.title}: its files are not in {asked.data}; fetch {task.fetch}")
            continue
        limits = asked.scale.rows_of.get(name, asked.scale.rows)
        found[name] = Data(task, there[0], make_subset(task, there[1], limits, asked.out / "tasks"))
    return found
