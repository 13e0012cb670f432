"""experiment, request → plan: the pre-trainings and jobs that can be computed here, and those that cannot."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.experiments.corpora import Corpora, check_text, make_corpora
from bertwright.experiments.data import (
    PAPER_TASKS,
    FileSource,
    Limits,
    PaperTask,
    Subset,
    find_source,
    make_subset,
    noted_subsets,
)
from bertwright.experiments.jobs import (
    BLIMP,
    BaselineJob,
    Finetuning,
    PairsJob,
    PretrainedModel,
    UsedModel,
    Workspace,
    corpus_kinds,
    unique,
)
from bertwright.experiments.rates import SearchedRates
from bertwright.experiments.spec import Arm, Column, Experiment, RateSearch, Scale
from bertwright.experiments.statistics import SeedPair
from bertwright.experiments.tables.arms import MAJORITY
from bertwright.model.system import MASKED_LM_SYSTEMS, REPLACED_TOKEN_SYSTEMS

Job = Finetuning | BaselineJob | PairsJob
"""Measurement of an arm on a task or on minimal pairs."""
_BITS: Final = "bits"
LM_METRICS: Final = (_BITS, BLIMP)
"""Metrics of pre-training that need a model with a head of masked LM or of a language model."""
PlanUse = Literal["run", "page", "plan"]
"""Use of a plan: to compute it, to write the page of what is there, or to print it without writing a file."""


@dataclass(frozen=True)
class ExperimentRequest:
    """Request to compute an experiment.

    out                         folder of the experiment
    data                        folder with the files of the tasks
    corpus                      texts or corpus folders to pre-train on
    seeds, pretraining_seeds    numbers of seeds; None: the numbers of the scale
    arms, tasks                 names of those to compute; all where empty
    rate_search                 learning rates that are tried for each arm; None: those of the experiment
    blimp                       folder of BLiMP's minimal pairs
    used_model                  model that is used, for an experiment whose arms are uses of one model
    """

    scale: Scale
    out: Path
    data: Path
    corpus: tuple[str, ...] = ()
    seeds: int | None = None
    pretraining_seeds: int | None = None
    arms: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    rate_search: RateSearch | None = None
    blimp: Path | None = None
    used_model: UsedModel | None = None


@dataclass(frozen=True)
class TaskData:
    """Data of a task: the source of its files, the rows that are taken from them, and the limits of their number."""

    task: PaperTask
    source: FileSource
    subset: Subset
    limits: Limits


@dataclass(frozen=True)
class ExperimentPlan:
    """The parts of an experiment that can be computed with the corpora and data that are here.

    models      arm → pre-trainings for each pre-training seed: one, or two that are joined
    jobs        (arm, column) → job for each pair of seeds
    left_out    messages about arms and tasks that cannot be computed, with what is missing
    waiting     of a plan that is only printed: message about a task without data → number of its measurements
    corpora     the corpora of the models
    blimp       folder of BLiMP's minimal pairs, None where none is named
    rates       steps and trials of learning rates, where the experiment searches for rates
    used_model  model that is used; then each fine-tuning seed is a "pre-training seed" with one fine-tuning
    """

    experiment: Experiment
    scale: Scale
    out: Path
    seeds: int
    pretraining_seeds: int
    arms: tuple[Arm, ...]
    columns: tuple[Column, ...]
    data: Mapping[str, TaskData]
    models: Mapping[str, tuple[tuple[PretrainedModel, ...], ...]]
    jobs: Mapping[tuple[str, str], Mapping[SeedPair, Job]]
    left_out: tuple[str, ...]
    waiting: Mapping[str, int]
    corpora: Corpora
    blimp: Path | None = None
    rates: SearchedRates | None = None
    used_model: UsedModel | None = None

    @property
    def unit(self) -> str:
        """Observation of the statistical test, in words."""
        return "fine-tuning" if self.used_model else "pre-training"

    @property
    def all_models(self) -> list[PretrainedModel]:
        """All pre-trainings, without repetitions; the trials of learning rates are the last ones."""
        trials = [trial.model for trial in self.rates.trials] if self.rates else []
        return unique([*(model for seeds in self.models.values() for models in seeds for model in models), *trials])

    @property
    def all_jobs(self) -> list[Job]:
        """All jobs, without repetitions."""
        return _unique_jobs(self.jobs)

    def jobs_of(self, arm: Arm, seed: int) -> list[Job]:
        """Return the jobs of an arm with a pre-training seed; a baseline has seed 0 only."""
        by_pair = [jobs for (name, _), jobs in self.jobs.items() if name == arm.name]
        return unique([job for jobs in by_pair for (pretraining, _), job in jobs.items() if pretraining == seed])


def make_plan(experiment: Experiment, request: ExperimentRequest, *, use: PlanUse) -> ExperimentPlan:
    """Return the plan of an experiment.

    To compute it, the rows of its tasks are written and its corpora are built. Where data or a corpus are not there, a
    page takes the notes of an earlier run.

    Raises InputError for arms and tasks that the experiment does not have, and where nothing can be computed.
    """
    scale = request.scale
    arms = _choose_arms(experiment, scale, request.arms)
    chosen = _choose_columns(experiment, request.tasks)
    data, without_data = _find_data(chosen, request, use=use)
    without_data |= _without_pairs(chosen, request, use=use)
    columns = tuple(
        column for column in chosen if (column.task in data if column.task else column.metric not in without_data)
    )
    waiting = tuple(column for column in chosen if column.task and column not in columns) if use == "plan" else ()
    _check_not_empty(experiment, (*columns, *waiting), list(without_data.values()))
    for name, message in without_data.items():
        if name not in {column.task for column in waiting}:
            say(f"left out: {message}")
    corpora = _find_corpora(arms, request, use=use)
    without_corpus = _without_corpus(arms, corpora)
    left_out = [*without_corpus, *without_data.values()]
    arms = tuple(arm for arm in arms if not any(kind in corpora.missing for kind in corpus_kinds(arm)))
    _check_not_empty(experiment, arms, left_out)
    if any(column.task for column in (*columns, *waiting)):
        arms = (MAJORITY, *arms)  # the floor of every table, which costs nothing
    for message in without_corpus:
        say(f"left out: {message}")
    subsets = {name: Subset(request.out / "tasks" / name, "", {}) for name in without_data}
    subsets |= {name: task_data.subset for name, task_data in data.items()}
    workspace = Workspace(request.out, scale, corpora, subsets, request.used_model)
    seeds = request.seeds or scale.seeds
    pretraining_seeds = request.pretraining_seeds or max(scale.pretraining_seeds, experiment.pretraining_seeds)
    if request.used_model:
        seeds, pretraining_seeds = 1, request.seeds or experiment.pretraining_seeds
    models = _models_of(workspace, arms, pretraining_seeds)
    counts = (pretraining_seeds, seeds)
    jobs = partial(_jobs_of, workspace, arms, models=models, seeds=counts, blimp=request.blimp)
    return ExperimentPlan(
        experiment=experiment,
        scale=scale,
        out=request.out,
        seeds=seeds,
        pretraining_seeds=pretraining_seeds,
        arms=arms,
        columns=columns,
        data=data,
        models=models,
        jobs=jobs(columns),
        left_out=tuple(left_out),
        waiting={
            message: len(_unique_jobs(jobs([column for column in waiting if column.task == name])))
            for name, message in (without_data if waiting else {}).items()
            if name in {column.task for column in waiting}
        },
        corpora=corpora,
        blimp=request.blimp,
        used_model=request.used_model,
    )


def workspace_of(plan: ExperimentPlan) -> Workspace:
    """Return the inputs from which the models and the jobs of a plan follow."""
    subsets = {name: data.subset for name, data in plan.data.items()}
    return Workspace(plan.out, plan.scale, plan.corpora, subsets, plan.used_model)


def with_arms(plan: ExperimentPlan, arms: Sequence[Arm]) -> ExperimentPlan:
    """Return the plan with other settings of its arms, from which its models and its jobs follow."""
    workspace = workspace_of(plan)
    models = _models_of(workspace, arms, plan.pretraining_seeds)
    counts = (plan.pretraining_seeds, plan.seeds)
    jobs = _jobs_of(workspace, arms, plan.columns, models=models, seeds=counts, blimp=plan.blimp)
    return replace(plan, arms=tuple(arms), models=models, jobs=jobs)


def metric_applies(arm: Arm, column: Column) -> bool:
    """Return whether the models of an arm have a metric; all have those of tasks.

    ELECTRA's discriminator predicts no piece, and a left-to-right model has no bits of masked pieces. A model that is
    joined, or has another head, is not the one whose pre-training has the metric.
    """
    if column.task is not None:
        return True
    if arm.head or arm.joined_with is not None:
        return False
    systems = [changes.get("system", "bert") for changes in arm.models]
    if column.metric == _BITS and not all(system in MASKED_LM_SYSTEMS for system in systems):
        return False
    return not (column.metric in LM_METRICS and any(system in REPLACED_TOKEN_SYSTEMS for system in systems))


def _models_of(
    workspace: Workspace, arms: Sequence[Arm], pretraining_seeds: int
) -> dict[str, tuple[tuple[PretrainedModel, ...], ...]]:
    """Return the pre-trainings of each arm for each pre-training seed; baselines and used models have none."""
    return {
        arm.name: tuple(workspace.models(arm, seed) for seed in range(pretraining_seeds)) for arm in arms if arm.models
    }


def _find_corpora(arms: Sequence[Arm], request: ExperimentRequest, *, use: PlanUse) -> Corpora:
    """Return the corpora of arms; to compute them, corpora are built. For a plan, those that a run builds count too."""
    folder = request.out / "corpora"
    corpora = make_corpora(
        request.corpus,
        folder,
        vocab_size=request.scale.vocabulary,
        kinds=[kind for arm in arms for kind in corpus_kinds(arm)],
        build=use == "run",
        use_notes=use == "page",
    )
    if use == "plan" and corpora.to_build:
        check_text(corpora.texts, folder)
        kept = {kind: reason for kind, reason in corpora.missing.items() if kind not in corpora.to_build}
        corpora = replace(corpora, missing=kept)
    return corpora


def _jobs_of(
    workspace: Workspace,
    arms: Sequence[Arm],
    columns: Sequence[Column],
    *,
    models: Mapping[str, Sequence[tuple[PretrainedModel, ...]]],
    seeds: SeedPair,
    blimp: Path | None,
) -> dict[tuple[str, str], Mapping[SeedPair, Job]]:
    """Return the jobs of each arm and column with a task, and those of minimal pairs.

    models: those of an arm for each pre-training seed; seeds: numbers of pre-training and fine-tuning seeds.
    """
    return {
        (arm.name, column.name): _jobs(workspace, arm, column, models.get(arm.name, ()), seeds)
        if column.task
        else {(seed, 0): PairsJob(model, blimp) for seed, (model,) in enumerate(models[arm.name])}
        for arm in arms
        for column in columns
        if column.task or (column.metric == BLIMP and arm.name in models and metric_applies(arm, column))
    }


def _unique_jobs(jobs: Mapping[tuple[str, str], Mapping[SeedPair, Job]]) -> list[Job]:
    """Return all jobs of arms and columns, without repetitions."""
    return unique([job for by_seeds in jobs.values() for job in by_seeds.values()])


def _check_not_empty(experiment: Experiment, axis: Sequence[Arm | Column], left_out: Iterable[str]) -> None:
    """Raise InputError where no arm or no column of the experiment is left."""
    if not axis:
        lines = "".join(f"\n  {message}" for message in left_out)
        raise InputError(f"{experiment.name}: nothing of it can be computed here:{lines}")


def _without_corpus(arms: Sequence[Arm], corpora: Corpora) -> list[str]:
    """Return a message for each missing corpus, with the arms that need it."""
    titles: dict[str, list[str]] = {}
    for arm in arms:
        reasons = [corpora.missing[kind] for kind in corpus_kinds(arm) if kind in corpora.missing]
        if reasons:
            titles.setdefault(reasons[0], []).append(arm.title)
    return [f"{', '.join(names)}: {reason}" for reason, names in titles.items()]


def _jobs(
    workspace: Workspace, arm: Arm, column: Column, models: Sequence[tuple[PretrainedModel, ...]], seeds: SeedPair
) -> Mapping[SeedPair, Job]:
    """Return the jobs of an arm and a column by their seeds; models: those of the arm for each pre-training seed."""
    if arm.baseline is not None:
        return {(0, 0): workspace.baseline(arm, column)}
    if arm.uses_model:
        assert workspace.used_model is not None
        return {(seed, 0): workspace.finetuning(arm, column, (workspace.used_model,), seed) for seed in range(seeds[0])}
    return {
        (pretraining, seed): workspace.finetuning(arm, column, parts, seed)
        for pretraining, parts in enumerate(models)
        for seed in range(seeds[1])
    }


def _choose_arms(experiment: Experiment, scale: Scale, names: tuple[str, ...]) -> tuple[Arm, ...]:
    arms = experiment.arms(scale)
    known = [arm.name for arm in arms]
    for name in names:
        if name not in known:
            raise InputError(f"--arms: expected arms of {experiment.name}, {', '.join(known)}; got {name!r}")
    return tuple(arm for arm in arms if not names or arm.name in names)


def _choose_columns(experiment: Experiment, tasks: tuple[str, ...]) -> tuple[Column, ...]:
    known = list(dict.fromkeys(column.task for column in experiment.columns if column.task))
    for name in tasks:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise InputError(f"--tasks: expected tasks of {experiment.name}, {allowed}; got {name!r}")
    return tuple(column for column in experiment.columns if not tasks or column.task in (None, *tasks))


def _find_data(
    columns: Sequence[Column], request: ExperimentRequest, *, use: PlanUse
) -> tuple[dict[str, TaskData], dict[str, str]]:
    """Return the data of the tasks whose files are there, and a message for each other task, both by its name.

    A page takes the rows that an earlier run has noted, where the files are not there or are others.
    """
    data: dict[str, TaskData] = {}
    left_out = {}
    for name in dict.fromkeys(column.task for column in columns if column.task):
        task = PAPER_TASKS[name]
        limits = request.scale.rows_of.get(name, request.scale.rows)
        folder = request.out / "tasks"
        noted = noted_subsets(task, limits, folder) if use == "page" else []
        present = find_source(task, request.data)
        if present:
            source, files = present
            subset = make_subset(task, files, limits, folder, write=use == "run")
            if not noted or subset.digest in {each.digest for _, each in noted}:
                data[name] = TaskData(task, source, subset, limits)
                continue
            say(f"{task.title}: the files in {request.data} are not those of the records; the page has the rows noted")
        if noted:
            data[name] = TaskData(task, *noted[0], limits)
        else:
            left_out[name] = f"{task.title}: its files are not in {request.data}; fetch {task.fetch}"
    return data, left_out


def _without_pairs(columns: Sequence[Column], request: ExperimentRequest, *, use: PlanUse) -> dict[str, str]:
    """Return the message about minimal pairs that cannot be scored, by their metric; empty where they can.

    A page needs the metrics of an earlier run in place of the pairs.
    """
    if not any(column.metric == BLIMP for column in columns):
        return {}
    has_records = any((request.out / "pretrained").glob(f"*/*/{BLIMP}/metrics.json"))
    if request.blimp is None and not (use == "page" and has_records):
        return {BLIMP: "BLiMP: name the folder of its paradigms with --blimp"}
    return {}
