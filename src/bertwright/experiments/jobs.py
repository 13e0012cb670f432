"""experiment × scale × seeds → parts: pre-trainings and jobs, each in a folder of its own.

A job measures an arm on a task: it is a fine-tuning or a baseline. The name of a folder ends with a digest of all that
decides its content. So experiments share equal parts, and a part with other settings never resumes an earlier one.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from bertwright.config import Settings
from bertwright.experiments.corpora import Corpora, CorpusKind
from bertwright.experiments.data import PAPER_TASKS, Subset
from bertwright.experiments.spec import Arm, Changes, Column, HeadChange, Scale
from bertwright.files import read_object, read_object_if_there
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.system import MASKED_LM_SYSTEMS, system_config
from bertwright.pretraining.settings import PretrainSettings, merged
from bertwright.pretraining.snapshots import snapshot_folder, snapshot_steps
from bertwright.tasks.errors import PREDICTIONS
from bertwright.tasks.spec import TaskSpec, get_spec
from bertwright.training.run_files import is_finished, run_record
from bertwright.training.settings import stable_steps

RESULT = "result.json"
BLIMP: Final = "blimp"
"""Metric of minimal pairs, and name of the folder of their scores."""
PRETRAINED: Final = "pretrained"
"""Folder of the pre-trainings in that of an experiment."""
USED: Final = "used-"
"""Beginning of the name of a used model."""
_WIDE: Final = 768
"""Width from which models have the paper's learning rate."""
_DIGEST_DEFAULTS: Final[Mapping[str, Any]] = {"epochs": 3, "batch_size": 32}
"""Settings of fine-tuning that are not in a digest where they have these values; other defaults change no digest."""


@dataclass(frozen=True)
class PretrainedModel:
    """A pre-training; or, where `is_trained` is false, a model with its initial weights.

    extends: shorter pre-training from whose last steps at the peak learning rate this one continues; None: it begins
    with the initial weights.
    """

    settings: PretrainSettings
    corpus: Path
    is_trained: bool
    folder: Path
    extends: "PretrainedModel | None" = None

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.folder.name

    @property
    def is_finished(self) -> bool:
        """True where the model has been computed."""
        return is_finished(self.folder) if self.is_trained else (self.folder / "model").is_dir()

    @property
    def result(self) -> Mapping[str, Any]:
        """Result of the finished run, from run.json."""
        result: Mapping[str, Any] = run_record(self.folder)["result"]
        return result

    @property
    def tokens(self) -> int:
        """Number of tokens in all steps, padding included."""
        return round((self.settings.steps or 0) * self.settings.tokens_per_step)

    @property
    def computed_fraction(self) -> float:
        """Fraction of the steps that its own run computes; the steps before are those of the run that it extends."""
        if self.extends is None:
            return 1.0
        shorter = self.extends.settings
        begin = stable_steps(shorter.steps or 0, shorter.optimizer.decay_share)
        return 1.0 - begin / (self.settings.steps or 1)

    def folder_after(self, fraction: float) -> Path:
        """Return the model folder after a fraction of the steps."""
        steps = snapshot_steps([fraction], self.settings.steps or 0)
        return snapshot_folder(self.folder, steps[0]) if steps and self.is_trained else self.folder / "model"


@dataclass(frozen=True)
class UsedModel:
    """A finished model that a person names, with the digest of its weights.

    folder       its folder; for a page that is written without it, its name alone
    shape        its system and size in words
    settings     settings of a pre-training of a model of its shape, for the arithmetic of a plan
    """

    folder: Path
    digest: str
    shape: str
    settings: PretrainSettings
    is_finished: ClassVar[bool] = True

    @property
    def title(self) -> str:
        """Name of the model on a page; a run or a pre-training has its model in a folder `model`."""
        return self.folder.parent.name if self.folder.name == "model" and self.folder.parent.name else self.folder.name

    @property
    def name(self) -> str:
        """Name of the model for the names of folders, in which its weights decide."""
        return f"{USED}{self.digest[:12]}"

    def folder_after(self, _: float) -> Path:
        """Return the model folder; there is none before the end of its pre-training."""
        return self.folder


@dataclass(frozen=True)
class Finetuning:
    """A fine-tuning with one seed.

    models       one pre-training, or two whose models are joined, or the second of which gives a head to the first; or
                 a used model
    fraction     fraction of the pre-training steps after which a model is taken
    head         change of a head of the pre-trained model
    """

    models: tuple[PretrainedModel | UsedModel, ...]
    fraction: float
    task: TaskSpec
    subset: Subset
    settings: FinetuneSettings
    folder: Path
    head: HeadChange | None = None

    @property
    def learning_rate(self) -> float | None:
        """The learning rate of the settings, or the one by width of all recorded experiments.

        None, for the default of `finetune`: with features and for a used model.
        """
        if self.settings.learning_rate or self.settings.features or isinstance(self.models[0], UsedModel):
            return self.settings.learning_rate
        model = self.models[0].settings
        if system_config(model.system, model.size, vocab_size=1000).hidden < _WIDE:
            return 3e-4
        return 6.25e-5 if model.system == "gpt" else 3e-5

    @property
    def is_finished(self) -> bool:
        """True where the fine-tuning has been computed."""
        return is_finished(self.folder)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the best epoch of a finished fine-tuning."""
        metrics: Mapping[str, float] = run_record(self.folder)["result"]["seeds"][0]["scores"]
        return metrics

    @property
    def last_metrics(self) -> Mapping[str, float]:
        """Metrics of the last epoch of a finished fine-tuning; empty where its record has no metrics of each epoch."""
        epochs: list[Mapping[str, float]] = run_record(self.folder)["result"]["seeds"][0].get("epochs", [])
        return epochs[-1] if epochs else {}

    @property
    def row_scores(self) -> Mapping[str, Sequence[float]]:
        """Score of each row of the validation files by name, after the last epoch; empty where it was not kept."""
        path = self.folder / f"seed-{self.settings.first_seed}" / PREDICTIONS
        parts = read_object_if_there(path)
        return {name: part["score"] for name, part in parts.items()}


@dataclass(frozen=True)
class BaselineJob:
    """A baseline without a network on a task."""

    baseline: str
    task: TaskSpec
    subset: Subset
    folder: Path

    @property
    def is_finished(self) -> bool:
        """True where the baseline has been computed."""
        return (self.folder / RESULT).is_file()

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of a finished baseline."""
        metrics: Mapping[str, float] = read_object(self.folder / RESULT)["scores"]
        return metrics


@dataclass(frozen=True)
class PairsJob:
    """Scores of minimal pairs by a pre-trained model; data: folder of the pairs, None where only records are read."""

    model: PretrainedModel
    data: Path | None

    @property
    def folder(self) -> Path:
        """Folder of the job, in that of the pre-training."""
        return self.model.folder / "minimal-pairs"

    @property
    def scores(self) -> Path:
        """Folder of the scores, from which a stopped job continues."""
        return self.folder / BLIMP

    @property
    def is_finished(self) -> bool:
        """True where all pairs have been scored."""
        return (self.scores / "metrics.json").is_file()

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of a finished job: the mean accuracy of the paradigms."""
        return {BLIMP: float(read_object(self.scores / "metrics.json")["accuracy"])}


@dataclass(frozen=True)
class Workspace:
    """Inputs that all parts of an experiment share; it decides the settings and the folder of each part."""

    out: Path
    scale: Scale
    corpora: Corpora
    subsets: Mapping[str, Subset]
    used_model: UsedModel | None = None

    def models(self, arm: Arm, seed: int) -> tuple[PretrainedModel, ...]:
        """Return the pre-trainings of an arm: one or two, or none for a baseline."""
        return tuple(self._model(arm, changes, seed) for changes in arm.models)

    def _model(self, arm: Arm, changes: Changes, seed: int) -> PretrainedModel:
        """Return a pre-training of an arm. One of several lengths extends that of the length before."""
        if not arm.lengths:
            return self._run(arm, changes, seed)
        model = None
        for length in arm.lengths:
            longer = {**changes, "steps": round(length * self.scale.pretraining["steps"])}
            model = self._run(arm, longer, seed, extends=model)
        assert model is not None
        return model

    def _run(self, arm: Arm, changes: Changes, seed: int, *, extends: PretrainedModel | None = None) -> PretrainedModel:
        settings = pretraining_settings(self.scale, changes, seed)
        kind = corpus_kind(arm, changes)
        if kind in self.corpora.to_build:  # a plan: the name of the folder is not known yet
            corpus, fingerprint = self.out / "corpora" / "-".join(kind), "-".join(kind)
        else:
            corpus = self.corpora.folders[kind]
            fingerprint = self.corpora.facts[corpus].fingerprint
        origin = [extends.name] if extends else [] if arm.is_trained else ["untrained"]
        digest = _digest(_decisive(settings), fingerprint, *origin)
        name = f"{changes.get('system', 'bert')}-{settings.size}-seed{seed}-{digest}"
        return PretrainedModel(settings, corpus, arm.is_trained, self.out / PRETRAINED / name, extends)

    def finetuning(
        self, arm: Arm, column: Column, models: tuple[PretrainedModel, ...] | tuple[UsedModel], seed: int
    ) -> Finetuning:
        """Return the fine-tuning of an arm for a column."""
        task, subset, folder = self._task(column)
        settings = finetuning_settings(self.scale, column, arm.finetuning, task, seed)
        names = [model.name for model in models]
        decisive = _decisive_of_finetuning(settings)
        kind = "+".join(map(system_and_size, names))
        changed = [arm.head] if arm.head else []
        digest = _digest(names, task.model_dump(mode="json"), subset.digest, decisive, arm.fraction, *changed)
        seeds = f"{seed}.0" if arm.uses_model else f"{models[0].settings.seed}.{seed}"  # the unit first
        name = f"{kind}-seed{seeds}-{digest}"
        return Finetuning(models, arm.fraction, task, subset, settings, folder / name, arm.head)

    def baseline(self, arm: Arm, column: Column) -> BaselineJob:
        """Return the baseline of an arm for a column."""
        task, subset, folder = self._task(column)
        name = f"{arm.baseline}-{_digest(task.model_dump(mode='json'), subset.digest)}"
        return BaselineJob(str(arm.baseline), task, subset, folder / name)

    def _task(self, column: Column) -> tuple[TaskSpec, Subset, Path]:
        """Return the task of a column with the scale's settings, its rows, and the folder of its jobs."""
        assert column.task is not None
        spec = get_spec(PAPER_TASKS[column.task].task)
        task = type(spec).model_validate({**dict(spec), **self.scale.tasks.get(column.task, {})})
        return task, self.subsets[column.task], self.out / "tuned" / column.task


def corpus_kind(arm: Arm, changes: Changes) -> CorpusKind:
    """Return the kind of corpus that a model of an arm is pre-trained on; GPT-1 takes byte pairs."""
    return ("bytepair" if changes.get("system") == "gpt" else "wordpiece"), arm.text


def corpus_kinds(arm: Arm) -> list[CorpusKind]:
    """Return the kinds of corpora that an arm needs, one for each of its models."""
    return [corpus_kind(arm, changes) for changes in arm.models]


def pretraining_settings(scale: Scale, changes: Changes, seed: int) -> PretrainSettings:
    """Return the scale's settings without those that the arm's system does not support, overridden by the arm's."""
    base = dict(scale.pretraining)
    for name, *inner in unsupported_settings(scale, changes):
        if inner:
            base[name] = {key: value for key, value in base[name].items() if key not in inner}
        else:
            del base[name]
    return PretrainSettings.model_validate({**merged(base, changes), "seed": seed})


def unsupported_settings(scale: Scale, changes: Changes) -> list[tuple[str, ...]]:
    """Return the paths of the scale's pre-training settings that the system of an arm does not support."""
    system, base = str(changes.get("system", "bert")), scale.pretraining
    paths: list[tuple[str, ...]] = []
    if system not in MASKED_LM_SYSTEMS and "examples" in base:
        paths.append(("examples",))
    if system.startswith("lstm"):
        paths += [("start",)] if "start" in base else []
        paths += [("optimizer", "method")] if "method" in base.get("optimizer", {}) else []
    return paths


def finetuning_settings(scale: Scale, column: Column, changes: Changes, task: TaskSpec, seed: int) -> FinetuneSettings:
    """Return the settings of a fine-tuning. Later ones win: the scale's, its task's, the arm's, the column's."""
    changes = {**changes, **column.finetuning}
    of_task = scale.finetuning_of.get(str(column.task), {})
    features = scale.features if "features" in changes else {}
    fixed = {"max_length": task.max_length, "seeds": 1, "first_seed": seed}
    return FinetuneSettings.model_validate({**scale.finetuning, **of_task, **features, **changes, **fixed})


def _decisive(settings: Settings) -> dict[str, Any]:
    """Return the settings that change the result.

    Defaults are left out, so a new setting with a default keeps old digests.
    """
    return settings.model_dump(mode="json", exclude_defaults=True, exclude=set(settings.changeable | settings.numeric))


def _decisive_of_finetuning(settings: FinetuneSettings) -> dict[str, Any]:
    """Return the settings that decide a fine-tuning, without `_DIGEST_DEFAULTS` and without defaults of the others."""
    values = {name: value for name, value in _decisive(settings).items() if name not in _DIGEST_DEFAULTS}
    named = {name: getattr(settings, name) for name in _DIGEST_DEFAULTS}
    return values | {name: value for name, value in named.items() if value != _DIGEST_DEFAULTS[name]}


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def record_version(record: Mapping[str, Any]) -> str:
    """Return the version of the program that wrote a run.json; "unknown" where it has none."""
    return str(record.get("versions", {}).get("bertwright", "unknown"))


def system_and_size(name: str) -> str:
    """Return the system and size with which the name of a part's folder begins: `bert-tiny` of `bert-tiny-seed0-…`."""
    return name.partition("-seed")[0]


def unique(parts: Sequence[Any]) -> list[Any]:
    """Return the parts in their order, without repetitions of a folder."""
    return list({part.folder: part for part in parts}.values())
