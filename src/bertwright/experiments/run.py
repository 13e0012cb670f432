"""plan → runs → page: compute the missing parts of an experiment, and write its page.

Every part, a pre-training or a job, is a run of its own that resumes where it was stopped. So an experiment can be
stopped at any point. Several processes may work in one folder: each skips the parts that another one computes.
"""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bertwright.console import say
from bertwright.errors import Diverged, InputError, MissingExtra, RunFailed, Stopped
from bertwright.experiments.constant import constant_answer
from bertwright.experiments.forecast import forecast_experiment
from bertwright.experiments.inputs import (
    refuse_empty,
    refuse_foreign_files,
    refuse_other_corpus,
    refuse_other_pairs,
    write_notes,
)
from bertwright.experiments.jobs import RESULT, BaselineJob, PairsJob, PretrainedModel
from bertwright.experiments.lock import write_lock
from bertwright.experiments.page import write_page
from bertwright.experiments.plan import ExperimentPlan, ExperimentRequest, Job, PlanUse, make_plan
from bertwright.experiments.rate_search import speeds_path, timed_models, with_rates
from bertwright.experiments.rates import DIVERGED, RateTrial
from bertwright.experiments.scores import COST, remaining_work
from bertwright.experiments.spec import Experiment, RateSearch
from bertwright.experiments.speeds import measure_speeds
from bertwright.experiments.starting_models import starting_model
from bertwright.files import read_object_if_there, write_json
from bertwright.finetuning.baselines import bag_of_words_baseline
from bertwright.finetuning.run import TuneRequest, tune
from bertwright.objectives.masked_lm import GENERATOR_FOLDER
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.setup import prepare_pretraining
from bertwright.scoring.evaluate import measure_minimal_pairs
from bertwright.stores.cache import url_of_copy
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.tasks.metrics import by_file
from bertwright.training.hardware import resolve_device
from bertwright.training.memory import peak_bytes, reset_peak
from bertwright.training.run_files import run_record
from bertwright.training.run_lock import LOCK, is_locked, locked
from bertwright.training.settings import Device

_STOPPED = "stopped; the same command resumes the experiment"


@dataclass
class ExperimentRun:
    """Execution of a plan.

    failed       folder of a part that failed → reason
    elsewhere    folders of parts that another process computes
    waiting      folders of pre-trainings that extend a run which another process computes
    said         messages that were printed, so that none is printed twice
    """

    plan: ExperimentPlan
    command: str
    device: Device
    allow_other_numerics: bool
    failed: dict[Path, str] = field(default_factory=dict)
    elsewhere: set[Path] = field(default_factory=set)
    waiting: set[Path] = field(default_factory=set)
    said: set[str] = field(default_factory=set)

    def search_rates(self, base: ExperimentPlan, search: RateSearch) -> None:
        """Measure the speeds and try the learning rates that are missing; then the plan has steps and rates.

        base: the plan whose arms have the scale's steps and rates.
        """
        if search.minutes is not None:
            measure_speeds(speeds_path(base), timed_models(base, search.minutes), device=self.device)
        self.plan = with_rates(base, search)
        assert self.plan.rates is not None
        for name, searched in self.plan.rates.arms.items():
            for trial in searched.trials:
                if trial.loss is None:
                    say(f"{name}: trial of the learning rate x {trial.factor:g}")
                    self.attempt(trial.model, partial(self._try_rate, trial))
        self.plan = with_rates(base, search)

    def carry_out(self) -> None:
        """Compute the missing parts, seed by seed and arm by arm, and write the page after each arm."""
        rates = self.plan.rates
        for name in rates.arms if rates else ():
            if rates and not rates.is_settled(name):
                say(f"{name}: left out, because not every trial of its learning rates is finished, or all diverged")
        for seed in range(self.plan.pretraining_seeds):
            for arm in self.plan.arms:
                if rates and not rates.is_settled(arm.name):
                    continue
                jobs = [job for job in self.plan.jobs_of(arm, seed) if not job.is_finished]
                models = self.plan.models[arm.name][seed] if arm.models else ()
                missing = [model for model in models if not model.is_finished]
                if not (jobs or missing):
                    continue
                say(f"{arm.title}, {self.plan.unit} seed {seed}")
                for model in missing:
                    self.attempt(model, partial(self._pretrain, model))
                if jobs and all(self._has_weights(model, arm.fraction) for model in models):
                    for job in jobs:
                        self.attempt(job, partial(self._measure, job))
                self.page()

    def _has_weights(self, model: PretrainedModel, fraction: float) -> bool:
        """Return whether a model can be fine-tuned. A finished model without weights counts as failed."""
        if not model.is_finished:
            return False
        has_weights = model.folder_after(fraction).is_dir()
        if not has_weights:
            self._fail(
                model.folder, "expected the weights of a finished run, got none; remove the folder to train it again"
            )
        return has_weights

    def page(self) -> Path:
        """Write the page from the finished parts and return its path."""
        return write_page(self.plan, command=self.command, failed=self.failed)

    def attempt(self, part: PretrainedModel | Job, compute: Callable[[], None]) -> None:
        """Compute one part. If it fails, its folder and the reason are kept, and the experiment continues.

        A part that failed is not computed again by this process.
        """
        if part.is_finished or part.folder in self.failed:  # finished by another process since the parts were listed
            return
        if is_locked(part.folder):
            self._skip(part.folder)
            return
        try:
            compute()
        except MissingExtra:
            raise
        except (RunFailed, InputError) as error:
            if is_locked(part.folder):  # another process was a moment earlier
                self._skip(part.folder)
            else:
                self._fail(part.folder, str(error))

    def _skip(self, folder: Path) -> None:
        say(f"{folder}: skipped, because another process computes it")
        self.elsewhere.add(folder)

    def _fail(self, folder: Path, reason: str) -> None:
        say(f"{folder}: {reason}")
        self.failed[folder] = reason

    def _pretrain(self, model: PretrainedModel) -> None:
        """Pre-train a model, or save it with its first weights if it is not to be trained."""
        if not model.is_trained:
            prepared, _ = prepare_pretraining(
                model.settings, corpus=model.corpus, out=model.folder, held_out=None, init_from=None, write_plans=False
            )
            prepared.save(model.folder / "model", prepared.model.state_dict(), steps=0, of=0, metrics={})
            return
        if model.extends and not model.extends.is_finished:
            shorter = model.extends.folder
            self.attempt(model.extends, partial(self._pretrain, model.extends))
            if shorter in self.failed:
                raise RunFailed(f"the run that it extends failed: {shorter}")
            if not model.extends.is_finished:
                say(f"{model.folder}: waits for {shorter}, which another process computes")
                self.waiting.add(model.folder)
                return
        reset_peak(self.device)
        try:
            result = pretrain(
                model.settings.model_copy(update={"device": self.device}),
                corpus=model.corpus,
                out=model.folder,
                extend=model.extends.folder if model.extends else None,
                resume=True,
                allow_other_numerics=self.allow_other_numerics,
            )
        finally:
            if not is_locked(model.folder):  # otherwise another process trains there
                _note_memory(model.folder, self.device)
        if result["stopped"] or result.get("signalled"):
            raise Stopped(_STOPPED)
        shutil.rmtree(model.folder / "checkpoints", ignore_errors=True)  # three times as large as the model

    def _try_rate(self, trial: RateTrial) -> None:
        """Pre-train with one learning rate. Only the record stays, or the reason where the training diverged."""
        folder = trial.model.folder
        try:
            self._pretrain(trial.model)
        except Diverged as error:
            say(f"{folder}: {error}; this learning rate is not chosen")
            write_json(folder / DIVERGED, {"reason": str(error)})
        for name in ("checkpoints", "model", GENERATOR_FOLDER):
            shutil.rmtree(folder / name, ignore_errors=True)

    def _measure(self, job: Job) -> None:
        """Fine-tune a model, score minimal pairs, or compute a baseline."""
        if isinstance(job, BaselineJob):
            _measure_baseline(job)
            return
        if isinstance(job, PairsJob):
            self._score_pairs(job)
            return
        source = starting_model(job, self.plan.out)
        _remove_outdated(job.folder, source)
        _, signalled = tune(
            job.settings.model_copy(update={"device": self.device, "learning_rate": job.learning_rate}),
            job.task,
            TuneRequest(
                model=str(source),
                data=job.subset.folder,
                out=job.folder,
                resume=True,
                allow_other_numerics=self.allow_other_numerics,
            ),
            printed=self.said,
        )
        for folder in (job.folder / "model", *job.folder.glob("seed-*/model")):
            shutil.rmtree(folder, ignore_errors=True)  # hundreds of fine-tunings; only their metrics are needed
        if signalled:
            raise Stopped(_STOPPED)

    def _score_pairs(self, job: PairsJob) -> None:
        """Score minimal pairs with a pre-trained model; the paradigms that a stopped job scored are kept."""
        assert job.data is not None
        job.folder.mkdir(exist_ok=True)
        with locked(job.folder):
            model = str(job.model.folder / "model")
            measure_minimal_pairs(model, job.data, out=job.scores, precision="fp32", device=self.device)


def run_experiment(
    experiment: Experiment,
    request: ExperimentRequest,
    *,
    command: str,
    use: PlanUse,
    device: Device = "cpu",
    allow_other_numerics: bool,
) -> dict[str, Any]:
    """Compute the missing parts of an experiment and write its page; return the page, failures and remaining parts.

    use: "page" computes nothing; "plan" computes and writes nothing, and returns models to train, hours and disk.
    device: device that computes the missing parts; parts that another device has computed are kept. Raises InputError
    for bad input, and Stopped where a person stops it: the same call resumes it.
    """
    if use == "page":
        refuse_empty(request.out)
    else:
        resolve_device(device)
    if use != "plan":
        refuse_foreign_files(experiment, request.out)
    base = make_plan(experiment, request, use=use)
    search = request.rate_search or experiment.rate_search
    plan = with_rates(base, search) if search else base
    if use == "plan":
        return forecast_experiment(plan, device=device)
    is_page = use == "page"
    refuse_other_pairs(plan)
    if is_page:
        refuse_other_corpus(plan)
    write_notes(plan)
    say(remaining_work(plan).text(is_page=is_page))
    run = ExperimentRun(plan, command, device, allow_other_numerics)
    try:
        if use == "run":
            write_lock(plan)
            if search:
                run.search_rates(base, search)
            run.carry_out()
    finally:
        page = run.page()
    left = remaining_work(run.plan)
    return {
        "page": str(page),
        "left": {"pretrainings": left.models, "measurements": left.jobs},
        "failed": {str(folder): reason for folder, reason in run.failed.items()},
        "elsewhere": sorted(map(str, run.elsewhere)),
        "waiting": sorted(map(str, run.waiting)),
        "left_out": list(plan.left_out),
        "exit_code": 1 if run.failed else 0,
        "text": "\n".join([*_incidents(run), left.text(is_page=is_page), str(page)]),
    }


def _incidents(run: ExperimentRun) -> Iterable[str]:
    """Yield a line for each part that failed or was skipped. The reasons were printed when the parts failed."""
    yield from (f"failed: {folder}" for folder in run.failed)
    if run.failed:
        yield "The reasons are above and on the page."
    yield from (f"skipped, because another process computes it: {folder}" for folder in sorted(run.elsewhere))
    for folder in sorted(run.waiting):
        yield f"waits for a shorter run, which another process computes; repeat the command after it: {folder}"


def _note_memory(folder: Path, device: Device) -> None:
    """Write the peak memory of a run in bytes: the largest of this process and earlier ones on the same device."""
    path = folder / COST
    if (folder / "run.json").is_file():
        cost = read_object_if_there(path)
        earlier = cost.get("peak_bytes", 0) if cost.get("device", "cpu") == device else 0
        write_json(path, {"peak_bytes": max(earlier, peak_bytes(device)), "device": device})


def _remove_outdated(folder: Path, source: Path) -> None:
    """Remove an unfinished fine-tuning whose model had another path, because the experiment was moved meanwhile.

    It cannot be resumed, and computing it again takes minutes. Raises InputError where another process computes it.
    """
    if not (folder / "run.json").is_file():
        return
    with locked(folder):
        record = run_record(folder)
        noted = record.get("data", {}).get("model")
        if record.get("finished") or noted == (url_of_copy(source) or str(source)):
            return
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()


def _measure_baseline(job: BaselineJob) -> None:
    """Compute a baseline and write its metrics, under the same names as those of a fine-tuning."""
    job.folder.mkdir(parents=True, exist_ok=True)
    if job.baseline == "majority":
        metrics = constant_answer(job.task, job.subset.folder)
    elif isinstance(job.task, ClassificationTask):
        data = CLASSIFICATION.read(job.task, job.subset.folder)
        metrics = by_file(
            {name: bag_of_words_baseline(data.task, data.train, part) for name, part in data.validation.items()}
        )
    else:
        raise RunFailed(f"{job.baseline}: expected a task on sentences or pairs, got {job.task.name}")
    write_json(job.folder / RESULT, {"task": job.task.name, "scores": metrics})
