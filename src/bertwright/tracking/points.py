"""lines of metrics.jsonl and results of run.json → points: a name, a step and a number each."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertwright.files import read_object

_REFUSED = re.compile(r"[^\w\-. /]")
"""Characters that MLflow takes in no name; the other trackers get the same names."""


@dataclass(frozen=True)
class TrackedPoint:
    """A number at a step."""

    name: str
    step: int
    value: float


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker shows it: a pre-training, or one seed of a fine-tuning.

    folder: folder with its metrics.jsonl. whole: folder of the whole run, which is the one above a seed. group: name
    that the seeds of a fine-tuning share. parameters: settings and facts of run.json, with names such as
    optimizer.learning_rate.
    """

    folder: Path
    whole: Path
    name: str
    group: str | None
    parameters: Mapping[str, str | int | float | bool | None]


def points_of(line: Mapping[str, Any]) -> list[TrackedPoint]:
    """Return the numbers of a line of metrics.jsonl. Those inside of `held_out` have names such as held_out/loss."""
    return [TrackedPoint(name, line["step"], value) for name, value in _numbers(line) if name != "step"]


def final_points(record: Mapping[str, Any], step: int) -> list[TrackedPoint]:
    """Return the last validation metrics, or those of the best epoch, of a finished run: names such as final/loss.

    record: content of run.json. step: number of steps of the run.
    """
    result = record.get("result") if record.get("finished") else None
    if not isinstance(result, Mapping):
        return []
    metrics = result.get("scores", result.get("held_out"))
    epoch = {"epoch": result["epoch"]} if "epoch" in result else {}
    return points_of({"step": step, "final": {**(metrics if isinstance(metrics, Mapping) else {}), **epoch}})


def describe_run(folder: Path, record: Mapping[str, Any]) -> TrackedRun:
    """Return the run in `folder`, whose run.json has the content `record`. A seed has the settings of its run too."""
    name, is_seed = folder.resolve().name, record.get("kind") == "finetune-seed"
    if not is_seed:
        return TrackedRun(folder, folder, name, None, _parameters(record))
    whole = folder.parent
    group = whole.resolve().name
    outer = read_object(whole / "run.json")
    settings = {**(outer.get("settings") or {}), **(record.get("settings") or {})}
    return TrackedRun(folder, whole, f"{group}-{name}", group, _parameters({**outer, "settings": settings}))


def _numbers(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in line.items():
        name = prefix + _REFUSED.sub("_", key)
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{name}/")
        elif isinstance(value, int | float):
            yield name, float(value)


def _parameters(record: Mapping[str, Any]) -> dict[str, str | int | float | bool | None]:
    settings = dict(_flat(record.get("settings") or {}))
    facts = {name: record[name] for name in ("kind", "resolved", "data", "versions") if name in record}
    return settings | dict(_flat(facts))


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str | int | float | bool | None]]:
    for key, value in record.items():
        name = prefix + _REFUSED.sub("_", str(key))
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            is_plain = value is None or isinstance(value, str | int | float)
            yield name, value if is_plain else json.dumps(value)
