"""experiment × scale × seeds → what has to be computed: pre-trainings and fine-tunings, each in a folder of its own.

The name of a folder ends with a digest of all that decides what is in it. So experiments share what they have in
common, and what was begun with other settings is never gone on with.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertwright.config import Settings
from bertwright.corpus.manifest import read_manifest
from bertwright.experiments.corpora import Corpora, Kind
from bertwright.experiments.data import PaperTask, Subset
from bertwright.experiments.spec import Arm, Changes, Column, Scale
from bertwright.files import read_object
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.pretraining.settings import PretrainSettings, merged
from bertwright.pretraining.setup import snapshot_folder, snapshot_steps
from bertwright.tasks.spec import TaskSpec, get_spec

RESULT = "result.json"


@dataclass(frozen=True)
class Model:
    """One pre-training, or what it would begin from where not `is_trained`."""

    settings: PretrainSettings
    corpus: Path
    is_trained: bool
    folder: Path

    @property
    def is_finished(self) -> bool:
        """Whether it is there."""
        return bool(_record(self.folder).get("finished")) if self.is_trained else (self.folder / "model").is_dir()

    @property
    def result(self) -> Mapping[str, Any]:
        """What a finished run found."""
        found: Mapping[str, Any] = _record(self.folder)["result"]
        return found

    @property
    def tokens(self) -> int:
        """Of all its steps, padding included."""
        steps, settings = self.settings.steps or 0, self.settings
        return round(sum(phase.share * steps * settings.batch_size * phase.length for phase in settings.phases))

    def at(self, share: float) -> Path:
        """The model folder after a share of the steps."""
        steps = snapshot_steps([share], self.settings.steps or 0)
        return snapshot_folder(self.folder, steps[0]) if steps and self.is_trained else self.folder / "model"


@dataclass(frozen=True)
class Tuning:
    """One fine-tuning of one seed. models: one, or two that are joined before."""

    models: tuple[Model, ...]
    at: float
    task: TaskSpec
    subset: Subset
    settings: FinetuneSettings
    folder: Path

    @property
    def is_finished(self) -> bool:
        """Whether it is there."""
        return bool(_record(self.folder).get("finished"))

    @property
    def scores(self) -> Mapping[str, float]:
        """The best epoch's figures of a finished one."""
        found: Mapping[str, float] = _record(self.folder)["result"]["seeds"][0]["scores"]
        return found


@dataclass(frozen=True)
class Without:
    """A baseline without a network on a task."""

    baseline: str
    task: TaskSpec
    subset: Subset
    folder: Path

    @property
    def is_finished(self) -> bool:
        """Whether it is there."""
        return (self.folder / RESULT).is_file()

    @property
    def scores(self) -> Mapping[str, float]:
        """Its figures."""
        found: Mapping[str, float] = read_object(self.folder / RESULT)["scores"]
        return found


@dataclass(frozen=True)
class Ground:
    """What all jobs of an experiment stand on."""

    out: Path
    scale: Scale
    corpora: Corpora
    subsets: Mapping[str, Subset]
    tasks: Mapping[str, PaperTask]

    def models(self, arm: Arm, seed: int) -> tuple[Model, ...]:
        """The pre-trainings of an arm: one, or two to be joined."""
        changes = [arm.pretraining, *([arm.second] if arm.second is not None else [])]
        return tuple(self._model(arm, one, seed) for one in changes)

    def _model(self, arm: Arm, changes: Changes, seed: int) -> Model:
        settings = pretraining_settings(self.scale, changes, seed)
        corpus = self.corpora.folders[corpus_kind(arm, changes)]
        fingerprint = read_manifest(corpus).fingerprint
        digest = _digest(_decisive(settings), fingerprint, *([] if arm.is_trained else ["untrained"]))
        name = f"{changes.get('system', 'bert')}-{settings.size}-seed{seed}-{digest}"
        return Model(settings, corpus, arm.is_trained, self.out / "pretrained" / name)

    def tuning(self, arm: Arm, column: Column, models: tuple[Model, ...], seed: int) -> Tuning:
        """The fine-tuning of an arm for a column."""
        assert column.task is not None
        task, subset = self._task(column.task), self.subsets[column.task]
        settings = finetuning_settings(self.scale, column, arm.finetuning, task, seed)
        names = [model.folder.name for model in models]
        kind = "+".join(name.partition("-seed")[0] for name in names)
        digest = _digest(names, task.model_dump(mode="json"), subset.digest, _decisive(settings), arm.at)
        name = f"{kind}-seed{models[0].settings.seed}.{seed}-{digest}"
        return Tuning(models, arm.at, task, subset, settings, self.out / "tuned" / column.task / name)

    def without(self, arm: Arm, column: Column) -> Without:
        """The baseline of an arm for a column."""
        assert column.task is not None
        task, subset = self._task(column.task), self.subsets[column.task]
        name = f"{arm.baseline}-{_digest(task.model_dump(mode='json'), subset.digest)}"
        return Without(str(arm.baseline), task, subset, self.out / "tuned" / column.task / name)

    def _task(self, name: str) -> TaskSpec:
        spec = get_spec(self.tasks[name].task)
        return type(spec).model_validate({**dict(spec), **self.scale.tasks.get(name, {})})


def corpus_kind(arm: Arm, changes: Changes) -> Kind:
    """The corpus that an arm is pre-trained on: GPT-1 has byte pairs."""
    return ("bytepair" if changes.get("system") == "gpt" else "wordpiece"), arm.text


def kinds_of(arm: Arm) -> Iterator[Kind]:
    """All corpora of an arm."""
    if arm.baseline is None:
        yield corpus_kind(arm, arm.pretraining)
        if arm.second is not None:
            yield corpus_kind(arm, arm.second)


def pretraining_settings(scale: Scale, changes: Changes, seed: int) -> PretrainSettings:
    """The scale's settings under those of an arm; what a system cannot have is left out of the scale's."""
    base = dict(scale.pretraining)
    for name, *inner in cannot_have(scale, changes):
        if inner:
            base[name] = {key: value for key, value in base[name].items() if key not in inner}
        else:
            del base[name]
    return PretrainSettings.model_validate({**merged(base, changes), "seed": seed})


def cannot_have(scale: Scale, changes: Changes) -> list[tuple[str, ...]]:
    """Where those of the scale's pre-training settings stand that the system of an arm cannot have."""
    system, base = str(changes.get("system", "bert")), scale.pretraining
    paths: list[tuple[str, ...]] = []
    if system != "bert" and "examples" in base:
        paths.append(("examples",))
    if system.startswith("lstm"):
        paths += [("start",)] if "start" in base else []
        paths += [("optimizer", "method")] if "method" in base.get("optimizer", {}) else []
    return paths


def finetuning_settings(scale: Scale, column: Column, changes: Changes, task: TaskSpec, seed: int) -> FinetuneSettings:
    """The scale's settings, for all tasks and for that of the column, under those of an arm and of the column."""
    changes = {**changes, **column.finetuning}
    of_task = scale.finetuning_of.get(str(column.task), {})
    features = scale.features if "features" in changes else {}
    own = {"max_length": task.max_length, "seeds": 1, "first_seed": seed}
    return FinetuneSettings.model_validate({**scale.finetuning, **of_task, **features, **changes, **own})


def _decisive(settings: Settings) -> dict[str, Any]:
    """Settings that decide what is learned, the defaults left out: one that is added later changes no digest."""
    return settings.model_dump(mode="json", exclude_defaults=True, exclude=set(settings.free | settings.bits))


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def _record(folder: Path) -> Mapping[str, Any]:
    """What run.json says; empty where there is none."""
    path = folder / "run.json"
    return read_object(path) if path.is_file() else {}


def unique(jobs: Sequence[Any]) -> list[Any]:
    """Jobs in their order, each folder once."""
    return list({job.folder: job for job in jobs}.values())
