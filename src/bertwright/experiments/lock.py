"""experiment, request → lock file: claims, seeds and δ, frozen before the first run and checked when a page is written.

A claim that is changed after its result is known tests nothing. The lock says which claims were there before.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertwright.console import say
from bertwright.experiments.jobs import run_record
from bertwright.experiments.plan import ExperimentPlan
from bertwright.experiments.spec import Claim
from bertwright.files import read_object, write_json
from bertwright.version import __version__

_TITLES = {
    "program": "version of the program",
    "scale": "scale",
    "seeds": "fine-tuning seeds",
    "pretraining_seeds": "pre-training seeds",
}


def claims_lock_path(plan: ExperimentPlan) -> Path:
    """Return the path of the lock of an experiment at a scale."""
    return plan.out / "locks" / f"{plan.experiment.name}-{plan.scale.name}.json"


def write_lock(plan: ExperimentPlan) -> None:
    """Write the lock of an experiment, unless there is one; it notes how many parts were computed before it."""
    path = claims_lock_path(plan)
    if path.is_file():
        return
    finished = sum(part.is_finished for part in (*plan.all_models, *plan.all_jobs))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**_content(plan), "parts_finished_before": finished})
    say(f"{path}: claims, seeds and δ are locked")


def lock_lines(plan: ExperimentPlan) -> list[str]:
    """Return sentences about the lock of a page: its digest, and everything that differs from it."""
    path = claims_lock_path(plan)
    lines = list(_version_lines(plan))
    if not path.is_file():
        return [
            "**No lock.** These runs are older than lock files, or no command computed them here: nothing shows that "
            "claims, seeds and δ were chosen before the results were known.",
            *lines,
        ]
    locked = read_object(path)
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


def _content(plan: ExperimentPlan) -> dict[str, Any]:
    return {
        "experiment": plan.experiment.name,
        "program": __version__,
        "scale": plan.scale.name,
        "seeds": plan.seeds,
        "pretraining_seeds": plan.pretraining_seeds,
        "claims": [_claim(plan, claim) for claim in plan.experiment.claims],
    }


def _claim(plan: ExperimentPlan, claim: Claim) -> dict[str, Any]:
    return {
        "statement": claim.statement,
        "arm": claim.arm,
        "against": claim.against,
        "columns": list(plan.experiment.columns_of(claim)),
        "within": claim.within,
        "delta": claim.delta,
        "withdrawn": bool(claim.withdrawn),
    }


def _differences(locked: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each setting and each claim that differs from the lock."""
    for name, title in _TITLES.items():
        if locked.get(name) != content[name]:
            yield f"**Not as locked:** {title}: locked {locked.get(name)}, here {content[name]}."
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
    """Yield a sentence for each arm with fewer finished pre-trainings than locked."""
    for arm in plan.arms:
        by_seed = plan.models.get(arm.name, ())
        finished = sum(all(model.is_finished for model in models) for models in by_seed)
        if by_seed and finished < locked["pretraining_seeds"]:
            wanted = locked["pretraining_seeds"]
            yield f"**Fewer seeds than locked:** `{arm.name}` has {finished} of {wanted} pre-trainings."


def _version_lines(plan: ExperimentPlan) -> Iterator[str]:
    """Yield a sentence where records are of several versions of the program, or of another one than this."""
    parts = [part for part in (*plan.all_models, *plan.all_jobs) if part.is_finished]
    versions = {
        str(record["versions"].get("bertwright", "unknown"))
        for part in parts
        if "versions" in (record := run_record(part.folder))
    }
    if versions - {__version__}:
        yield (
            f"**Records of another version of the program:** {', '.join(sorted(versions))}; this page was written by "
            f"{__version__}."
        )
