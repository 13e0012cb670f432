"""folders → figures: what the finished runs of an experiment found, and what they cost."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from bertwright.errors import InputError
from bertwright.files import read_object
from bertwright.recipes.paper.jobs import Model, Tuning, Without
from bertwright.recipes.paper.plan import Plan
from bertwright.recipes.paper.spec import Arm, Column
from bertwright.recipes.paper.statistics import Pair
from bertwright.recipes.runs import read_run
from bertwright.training.machine import Numerics

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
