"""experiment, request → lock file: claims, seeds and δ, frozen before the first run and checked when a page is written.

A claim that is changed after its result is known tests nothing. The lock says which claims were there before.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.experiments.jobs import BaselineJob, record_version
from bertwright.experiments.plan import ExperimentPlan
from bertwright.experiments.spec import Claim
from bertwright.experiments.used_model import note_of
from bertwright.files import read_object, write_json
from bertwright.training.run_files import run_record
from bertwright.version import __version__

_TITLES = {
    "experiment": "experiment",
    "program": "version of the program",
    "scale": "scale",
    "seeds": "fine-tuning seeds",
    "pretraining_seeds": "pre-training seeds",
    "minutes": "minutes of each pre-training",
    "rate_share": "fraction of the minutes for each trial of a learning rate",
    "factors": "learning rates that are tried",
}

_NOTHING_SHOWN = "So nothing shows that claims, seeds and δ were chosen before the results were known."


def claims_lock_path(plan: ExperimentPlan) -> Path:
    """Return the path of the lock of a plan."""
    return lock_of(plan.out, plan.experiment.name, plan.scale.name)


def lock_of(out: Path, experiment: str, scale: str) -> Path:
    """Return the path of the lock of an experiment at a scale, in the folder of its results."""
    return out / "locks" / f"{experiment}-{scale}.json"


def write_lock(plan: ExperimentPlan) -> None:
    """Write the lock of an experiment, unless there is one; it notes how many parts were computed before it.

    Baselines without a network do not count, because they say nothing about the claims.
    """
    path = claims_lock_path(plan)
    if path.is_file():
        return
    parts = (*plan.all_models, *(job for job in plan.all_jobs if not isinstance(job, BaselineJob)))
    finished = sum(part.is_finished for part in parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**_content(plan), "parts_finished_before": finished})
    say(f"{path}: claims, seeds and δ are locked")


def lock_lines(plan: ExperimentPlan) -> list[str]:
    """Return sentences about the lock of a page: its digest, and everything that differs from it."""
    path = claims_lock_path(plan)
    lines = list(_version_lines(plan))
    if not path.is_file():
        return [
            "**No lock.** These runs are older than lock files, or they were computed in another folder. "
            f"{_NOTHING_SHOWN}",
            *lines,
        ]
    try:
        locked = _read_lock(path)
    except InputError as error:
        return [f"**The lock cannot be used:** {str(error).replace(str(path), path.name)}. {_NOTHING_SHOWN}", *lines]
    content = _content(plan)
    digest = hashlib.sha256(json.dumps(locked["claims"], sort_keys=True).encode()).hexdigest()[:12]
    before = locked.get("parts_finished_before")
    first = "Claims, seeds and δ were locked before the runs"
    if before:
        first = f"**The lock is late:** {before} parts were computed before it was written"
    return [
        f"{first} (digest of the claims: {digest}).",
        *_differences(locked, content),
        *_missing_seeds(plan, locked),
        *lines,
    ]


def _read_lock(path: Path) -> dict[str, Any]:
    """Return the content of a lock. Raises InputError where it cannot be read or has not the parts of a lock."""
    locked = read_object(path)
    claims = locked.get("claims")
    if not isinstance(claims, list) or not all(isinstance(each, dict) and "statement" in each for each in claims):
        raise InputError(f"{path.name}: expected a list of claims with their statements")
    for name in ("seeds", "pretraining_seeds"):
        if not isinstance(locked.get(name), int):
            raise InputError(f"{path.name}: expected a number as {name}, got {locked.get(name)!r}")
    return locked


def _content(plan: ExperimentPlan) -> dict[str, Any]:
    return {
        "experiment": plan.experiment.name,
        "program": __version__,
        "scale": plan.scale.name,
        **_seeds(plan),
        **_search(plan),
        **({"model": note_of(plan.used_model)} if plan.used_model else {}),
        "claims": [_claim(plan, claim) for claim in plan.experiment.claims],
    }


def _seeds(plan: ExperimentPlan) -> dict[str, int]:
    """Return the numbers of seeds. The fine-tunings of a used model have seeds, and its pre-training counts as one."""
    if plan.used_model:
        return {"seeds": plan.pretraining_seeds, "pretraining_seeds": 1}
    return {"seeds": plan.seeds, "pretraining_seeds": plan.pretraining_seeds}


def _search(plan: ExperimentPlan) -> dict[str, Any]:
    """Return the search for learning rates; empty where the arms have the scale's."""
    if plan.rates is None:
        return {}
    search = plan.rates.search
    minutes = {} if search.minutes is None else {"minutes": search.minutes}
    return {**minutes, "rate_share": search.rate_share, "factors": list(search.factors)}


def _claim(plan: ExperimentPlan, claim: Claim) -> dict[str, Any]:
    interaction = {"beyond": list(claim.beyond)} if claim.beyond else {}
    return {
        "statement": claim.statement,
        "arm": claim.arm,
        "against": claim.against,
        **interaction,
        "columns": list(plan.experiment.columns_of(claim)),
        "within": claim.within,
        "delta": claim.delta,
        "withdrawn": bool(claim.withdrawn),
    }


def _differences(locked: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each setting and each claim that differs from the lock."""
    for name, title in _TITLES.items():
        if locked.get(name) != content.get(name):
            yield f"**Not as locked:** {title}: locked {locked.get(name)}, here {content.get(name)}."
    before = {claim["statement"]: claim for claim in locked["claims"]}
    now = {claim["statement"]: claim for claim in content["claims"]}
    for statement in [*before, *(name for name in now if name not in before)]:
        if statement not in now:
            yield f"**Not as locked:** the claim “{statement}” was locked and is gone."
        elif statement not in before:
            yield f"**Not as locked:** the claim “{statement}” was not locked."
        elif before[statement] != now[statement]:
            changed = ", ".join(
                f"{key} was {before[statement].get(key)!r}, is {value!r}"
                for key, value in now[statement].items()
                if before[statement].get(key) != value
            )
            yield f"**Not as locked:** the claim “{statement}”: {changed}."


def _missing_seeds(plan: ExperimentPlan, locked: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence on arms with fewer finished pre-trainings than locked, and one on those with fewer fine-tunings.

    The numbers of fine-tunings of an arm are the smallest and the largest of its tasks that have too few.
    """
    wanted = locked["pretraining_seeds"]
    pretrained, tuned = [], []
    for arm in plan.arms:
        by_seed = plan.models.get(arm.name, ())
        finished = sum(all(model.is_finished for model in models) for models in by_seed)
        if by_seed and finished < wanted:
            pretrained.append(f"`{arm.name}` {finished}")
        jobs = [plan.jobs.get((arm.name, column.name), {}) for column in plan.columns if column.task]
        counts = [sum(job.is_finished for job in by_pair.values()) for by_pair in jobs if by_pair]
        few = sorted({count for count in counts if arm.baseline is None and count < wanted * locked["seeds"]})
        if few:
            tuned.append(f"`{arm.name}` {' to '.join(map(str, dict.fromkeys([few[0], few[-1]])))}")
    for parts, name, number in (
        (pretrained, "pre-trainings", wanted),
        (tuned, "fine-tunings", wanted * locked["seeds"]),
    ):
        if parts:
            yield f"**Fewer seeds than locked:** {name}, of {number}: {', '.join(parts)}."


def _version_lines(plan: ExperimentPlan) -> Iterator[str]:
    """Yield a sentence where records are of another version of the program than this one, with their arms."""
    arms: dict[str, dict[str, None]] = {}
    for arm in plan.arms:
        models = [model for seeds in plan.models.get(arm.name, ()) for model in seeds]
        jobs = [job for (name, _), by_seed in plan.jobs.items() if name == arm.name for job in by_seed.values()]
        for part in (*models, *jobs):
            record = run_record(part.folder) if part.is_finished else {}
            if record:  # a baseline and a model that is not trained have none
                version = record_version(record)
                arms.setdefault(version, {})[f"`{arm.name}`"] = None
    others = [f"{version} ({', '.join(names)})" for version, names in sorted(arms.items()) if version != __version__]
    if others:
        advice = " Do not compare arms of different versions before you know what changed between them."
        yield (
            f"**Records of another version of the program:** {', '.join(others)}. This page was written by "
            f"{__version__}.{advice if len(arms) > 1 else ''}"
        )
