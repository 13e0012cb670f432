"""experiment → its page: pre-trains, fine-tunes and measures what is missing, and writes down what was found.

Every part is a run of its own that goes on where it was stopped, so the whole can be stopped at any point. Several
processes may work in one folder: what another one is at is left to it.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertwright.console import say
from bertwright.errors import InputError, MissingExtra, RunFailed, Stopped
from bertwright.experiments.jobs import RESULT, Model, Tuning, Without
from bertwright.experiments.page import write_page
from bertwright.experiments.plan import Asked, Job, Plan, make_plan
from bertwright.experiments.scores import COST, what_is_left
from bertwright.experiments.spec import Experiment
from bertwright.files import read_object, write_json
from bertwright.finetuning.run import tune
from bertwright.pretraining.elmo import join
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.setup import prepare
from bertwright.tasks.baselines import bag_of_words_baseline, majority_baseline
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.training.hardware import Device, own_device
from bertwright.training.memory import forget_peak, peak_bytes
from bertwright.training.run_lock import is_locked


@dataclass
class Work:
    """What happens to a plan: runs that failed by their folders, and those that another process is at."""

    plan: Plan
    command: str
    device: Device
    allow_other_numerics: bool
    failed: dict[Path, str] = field(default_factory=dict)
    elsewhere: set[Path] = field(default_factory=set)
    said: set[str] = field(default_factory=set)

    def carry_out(self) -> None:
        """Everything that is missing, arm by arm, the first seed of each before the second; the page after each."""
        for seed in range(self.plan.pretraining_seeds):
            for arm in self.plan.arms:
                jobs = [job for job in self.plan.jobs_of(arm, seed) if not job.is_finished]
                models = self.plan.models[arm.name][seed] if arm.baseline is None else ()
                missing = [model for model in models if not model.is_finished]
                if not (jobs or missing):
                    continue
                say(f"{arm.title}, pre-training seed {seed}")
                for model in missing:
                    self.attempt(model, lambda model=model: self._pretrain(model))
                if jobs and all(self._is_there(model, arm.at) for model in models):
                    for job in jobs:
                        self.attempt(job, lambda job=job: self._measure(job))
                self.page()

    def _is_there(self, model: Model, at: float) -> bool:
        """Whether tasks can be learned from a model; where its record alone is there, what to do is said and noted."""
        if not model.is_finished:
            return False
        has_weights = model.at(at).is_dir()
        if not has_weights:
            self.failed[model.folder] = "holds its record and no weights; remove the folder to train it anew"
            say(f"{model.folder}: {self.failed[model.folder]}")
        return has_weights

    def page(self) -> Path:
        """Write the page as it stands."""
        return write_page(self.plan, command=self.command, failed=self.failed)

    def attempt(self, part: Model | Job, work: Any) -> None:
        """Do one part; one that fails is noted, and the others go on."""
        folder = part.folder
        if part.is_finished:  # by another process, since the parts of the arm were listed
            return
        if not is_locked(folder):
            try:
                work()
            except MissingExtra:
                raise
            except (RunFailed, InputError) as error:
                if not is_locked(folder):
                    say(f"{folder}: {error}")
                    self.failed[folder] = str(error)
                    return
            else:
                return
        say(f"{folder}: another process is at it")  # from before, or since a moment ago
        self.elsewhere.add(folder)

    def _pretrain(self, model: Model) -> None:
        if not model.is_trained:
            trained, _ = prepare(
                model.settings, corpus=model.corpus, out=model.folder, held_out=None, init_from=None, write_plans=False
            )
            trained.save(model.folder / "model", trained.model.state_dict(), steps=0, of=0, figures={})
            return
        forget_peak(self.device)
        try:
            found = pretrain(
                model.settings.model_copy(update={"device": self.device}),
                corpus=model.corpus,
                out=model.folder,
                resume=True,
                allow_other_numerics=self.allow_other_numerics,
            )
        finally:
            if not is_locked(model.folder):  # otherwise it is another process that trains there
                _note_memory(model.folder, self.device)
        if found["stopped"] or found.get("signalled"):
            raise Stopped("stopped; the same command goes on")
        shutil.rmtree(model.folder / "checkpoints", ignore_errors=True)  # three times the model, and of no more use

    def _measure(self, job: Job) -> None:
        if isinstance(job, Without):
            _measure_without(job)
            return
        source = _model_of(job, self.plan.out)
        _drop_moved(job.folder, source)
        _, signalled = tune(
            job.settings.model_copy(update={"device": self.device}),
            job.task,
            model=str(source),
            data=job.subset.folder,
            out=job.folder,
            tokenizer=None,
            resume=True,
            allow_other_numerics=self.allow_other_numerics,
            printed=self.said,
        )
        for folder in (job.folder / "model", *job.folder.glob("seed-*/model")):
            shutil.rmtree(folder, ignore_errors=True)  # of hundreds of fine-tunings only the figures are of use
        if signalled:
            raise Stopped("stopped; the same command goes on")


def run_experiment(
    experiment: Experiment,
    asked: Asked,
    *,
    command: str,
    only_page: bool,
    device: Device = "cpu",
    allow_other_numerics: bool,
) -> dict[str, Any]:
    """Carry out what is missing of an experiment and write its page; returns what was found and what is left.

    only_page: compute nothing. device: what computes; what another has computed is taken as it is. InputError for
    bad input, Stopped where a person stops it: the same call goes on.
    """
    if not only_page:
        own_device(device)
    plan = make_plan(experiment, asked, make=not only_page)
    left = what_is_left(plan)
    say(left.text)
    work = Work(plan, command, device, allow_other_numerics)
    try:
        if not only_page:
            work.carry_out()
    finally:
        page = work.page()
    left = what_is_left(plan)
    return {
        "page": str(page),
        "left": {"pretrainings": left.models, "measurements": left.jobs},
        "failed": {str(folder): why for folder, why in work.failed.items()},
        "elsewhere": sorted(map(str, work.elsewhere)),
        "left_out": list(plan.left_out),
        "exit_code": 1 if work.failed else 0,
        "text": "\n".join([*_rest(work), left.text, str(page)]),
    }


def _rest(work: Work) -> Iterable[str]:
    yield from (f"failed: {folder}: {why}" for folder, why in work.failed.items())
    yield from (f"left to another process: {folder}" for folder in sorted(work.elsewhere))


def _model_of(job: Tuning, out: Path) -> Path:
    """The model folder that a fine-tuning starts from; two models are joined where they are not yet."""
    places = [model.at(job.at) for model in job.models]
    if len(places) == 1:
        return places[0]
    name = "+".join(model.folder.name for model in job.models)
    folder = out / "joined" / (name if job.at == 1.0 else f"{name}-{places[0].name}")
    if not folder.exists():
        try:
            join(str(places[0]), str(places[1]), folder)
        except (InputError, OSError):
            if not folder.exists():  # otherwise another process was the first to join them
                raise
    return folder


def _note_memory(folder: Path, device: Device) -> None:
    """The most that was held while the run in `folder` trained, in this process or an earlier one."""
    path = folder / COST
    if (folder / "run.json").is_file():
        before = read_object(path) if path.is_file() else {}
        is_same = before.get("device", "cpu") == device  # otherwise it was another memory
        earlier = before.get("peak_bytes", 0) if is_same else 0
        write_json(path, {"peak_bytes": max(earlier, peak_bytes(device)), "device": device})


def _drop_moved(folder: Path, source: Path) -> None:
    """Begin a half-finished fine-tuning anew whose model lay elsewhere: all was moved since, and it takes minutes."""
    path = folder / "run.json"
    if path.is_file() and read_object(path).get("data", {}).get("model") != str(source):
        shutil.rmtree(folder)


def _measure_without(job: Without) -> None:
    """A baseline's figures, by the names that a fine-tuning's have."""
    from bertwright.tasks.classification.task import CLASSIFICATION

    if not isinstance(job.task, ClassificationTask):
        raise RunFailed(f"{job.baseline} answers tables of sentences and pairs alone, and {job.task.name} is none")
    data = CLASSIFICATION.read(job.task, job.subset.folder)
    task, train, dev = data.task, data.train, data.validation
    baseline = majority_baseline if job.baseline == "majority" else bag_of_words_baseline
    figures = {name: baseline(task, train, part) for name, part in dev.items()}
    scores = {
        f"{name}.{metric}" if len(dev) > 1 else metric: value
        for name, found in figures.items()
        for metric, value in found.items()
    }
    job.folder.mkdir(parents=True, exist_ok=True)
    write_json(job.folder / RESULT, {"task": task.name, "scores": scores})
