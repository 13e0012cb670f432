"""folder of experiments → variances between pre-trainings of each task, over the arms of all experiments in it."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bertwright.experiments.jobs import PRETRAINED, USED, record_version
from bertwright.experiments.spread import Variance, interaction_variance, pool, sample_variance
from bertwright.training.run_files import run_record

_SEED: Final = re.compile(r"-seed(\d+)\.\d+-")
"""Pre-training seed in the name of a fine-tuning's folder."""
_CHANGED: Final = re.compile(r"step-\d+|head-[\w-]+")
"""Name of a model that was taken before the end of its pre-training, or that has a changed head."""
ArmKey = tuple[str, str, str]
"""Pre-training, change of its model and fine-tuning of an arm, without seeds, as text."""


@dataclass(frozen=True)
class Spread:
    """Pooled variances between pre-trainings, in units² of the metric.

    apart      (task, metric) → variance of an arm over its pre-trainings
    together   (task, metric) → variance of the difference of two arms that share their pre-trainings
    versions   versions of the program that wrote the records
    """

    apart: Mapping[tuple[str, str], Variance | None]
    together: Mapping[tuple[str, str], Variance | None]
    versions: frozenset[str] = frozenset()

    def pooled(self, task: str, metric: str, *, share_pretrainings: bool, factor: float) -> Variance | None:
        """Return the variance of a task's metric in points²; None where no arm of the task has two pre-trainings."""
        variance = (self.together if share_pretrainings else self.apart).get((task, metric))
        return None if variance is None else Variance(variance.value * factor**2, variance.degrees)


def read_spread(out: Path, *, last_epoch: bool) -> Spread:
    """Return the variances over all finished fine-tunings below OUT/tuned.

    last_epoch: True for the scores of the last epoch, False for those of the best.
    """
    scores: dict[tuple[str, str], dict[ArmKey, dict[int, list[float]]]] = defaultdict(lambda: defaultdict(dict))
    versions: set[str] = set()
    for path in sorted((out / "tuned").glob("*/*/run.json")):
        record = run_record(path.parent)
        key = _arm_key(path.parent.name, record, out)
        seed = _SEED.search(path.parent.name)
        if not (record.get("finished") and key and seed):
            continue
        result = record["result"]["seeds"][0]
        epochs = result.get("epochs", [])
        if last_epoch and not epochs:  # records of earlier versions have the best epoch only
            continue
        versions.add(record_version(record))
        for metric, value in (epochs[-1] if last_epoch else result["scores"]).items():
            by_seed = scores[path.parent.parent.name, metric][key]
            by_seed.setdefault(int(seed[1]), []).append(value)
    means = {
        kind: {
            key: {seed: sum(values) / len(values) for seed, values in by_seed.items()} for key, by_seed in arms.items()
        }
        for kind, arms in scores.items()
    }
    return Spread(
        {kind: pool(_apart(arms)) for kind, arms in means.items()},
        {kind: pool(_together(arms)) for kind, arms in means.items()},
        frozenset(versions),
    )


def _apart(arms: Mapping[ArmKey, Mapping[int, float]]) -> list[Variance]:
    """Return the variance of each arm over its pre-trainings; arms with changed models are left out."""
    return [
        sample_variance([list(units.values())]) for (_, change, _), units in arms.items() if not _CHANGED.match(change)
    ]


def _together(arms: Mapping[ArmKey, Mapping[int, float]]) -> list[Variance]:
    """Return the variance of differences within each group of arms that share their pre-trainings."""
    groups: dict[str, list[Mapping[int, float]]] = defaultdict(list)
    for (pretraining, _, _), units in arms.items():
        groups[pretraining].append(units)
    variances = []
    for group in groups.values():
        most = max(len(units) for units in group)
        whole = [units for units in group if len(units) == most]
        seeds = sorted(set.intersection(*(set(units) for units in whole)))
        if len(whole) > 1 and len(seeds) > 1:
            variances.append(interaction_variance([[units[seed] for seed in seeds] for units in whole]))
    return variances


def _arm_key(folder: str, record: Mapping[str, Any], out: Path) -> ArmKey | None:
    """Return the key of the arm of a fine-tuning, from the name of its folder and its record.

    None where the record of a pre-training is not there.

    Records of different corpora, of other rows and of different versions of the program are different arms.
    """
    rows = {name: record.get("data", {}).get(name) for name in ("task", "train", "dev")}
    if folder.startswith(USED):  # the seeds of the name are those of fine-tunings of one model
        settings = {key: value for key, value in record["settings"].items() if key != "first_seed"}
        return folder.partition("-seed")[0], "", json.dumps([settings, rows, record_version(record)], sort_keys=True)
    parts = Path(str(record.get("data", {}).get("model", ""))).parts
    depth = next((depth for depth in (3, 4) if parts[-depth : 1 - depth] == (PRETRAINED,)), None)
    if depth:  # pretrained/NAME/model or pretrained/NAME/snapshots/step-…; folders above may have the same name
        folders, name = parts[1 - depth], parts[-1]
    else:  # made of one or two models, in a folder that is named after them; the folder above names the change
        folders, name = (parts[-1], parts[-2]) if len(parts) > 1 else ("", "")
    models = []
    for folder in folders.split("+"):
        pretraining = run_record(out / PRETRAINED / folder)
        if "settings" not in pretraining:
            return None
        settings = {key: value for key, value in pretraining["settings"].items() if key != "seed"}
        models.append([settings, pretraining.get("data", {}).get("corpus"), record_version(pretraining)])
    tuned = {key: value for key, value in record["settings"].items() if key != "first_seed"}
    of_other_model: list[Any] = []
    if name.startswith("head-"):  # the head of a second model makes no other pre-training
        models, of_other_model = models[:1], models[1:]
    return (
        json.dumps(models, sort_keys=True),
        " ".join([name, *(json.dumps(other, sort_keys=True) for other in of_other_model)]),
        json.dumps([tuned, rows, record_version(record)], sort_keys=True),
    )
