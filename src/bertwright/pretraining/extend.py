"""Finished run with the schedule wsd → a longer run that continues from the last step at the peak learning rate.

The steps up to there do not depend on the length of the run, but for the warm-up and for the lengths of rows, which are
fractions of it. So the longer run repeats none of them. The phases of a schedule of rows or of masks keep their steps:
the last one takes the additional steps.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import atomic_folder, copy_folder, file_digest, read_object
from bertwright.pretraining.schedules import shares_of_longer_run
from bertwright.pretraining.settings import BUDGETS, PretrainSettings, merged
from bertwright.training.checkpoint import list_checkpoints
from bertwright.training.run_files import run_record, step_of
from bertwright.training.run_folder import RunFolder

EXTENDS = "extends"
"""Entry of the data in run.json: digest of the checkpoint from which a longer run began."""
BEGIN = "begins_at"
"""Entry of run.json: number of the steps that a longer run has from the run that it extends."""
_MEASURED = frozenset({"evaluations", "snapshots", "checkpoints_by_words"})
_FREE = BUDGETS | _MEASURED | {"log_every", "save_minutes"}
"""Settings that may differ from those of the run that is extended; BUDGETS are not taken from it."""
_KEEP_THEIR_STEPS = ("batch_schedule", "mask_schedule")
"""Schedules whose phases end at the same steps in a longer run."""


def extended_settings(run: Path, typed: Mapping[str, Any], *, begun: Path | None = None) -> PretrainSettings:
    """Return the settings of a longer run: those of `run`, and the typed ones.

    begun: folder of the longer run, where it is resumed; it keeps its evaluations and the models on its way.
    Raises InputError where `run` is no pre-training with the schedule wsd, where nothing typed says how long the longer
    run is, and for a typed setting that would change the steps that are done.
    """
    record = read_object(run / "run.json")
    settings = record.get("settings")
    if record.get("kind") != "pretrain" or not isinstance(settings, dict):
        raise InputError(f"--extend {run}: expected the folder of a pre-training run, got a run of another kind")
    noted = PretrainSettings.model_validate(settings)
    if noted.optimizer.schedule != "wsd":
        raise InputError(
            f"--extend {run}: expected a run with --schedule wsd, got one with --schedule {noted.optimizer.schedule}: "
            "its learning rate fell with every step; continue its model with --init-from"
        )
    if not BUDGETS & set(typed) or "minutes" in typed:
        raise InputError(f"--extend {run}: give the length of the longer run: --steps, --words or --epochs")
    kept = {name: value for name, value in settings.items() if name not in BUDGETS}
    resumed = run_record(begun).get("settings", {}) if begun else {}
    kept |= {name: resumed[name] for name in _MEASURED if name in resumed}
    # A schedule that is typed as the run has it keeps its steps, as one that is not typed.
    as_typed = PretrainSettings.model_validate(merged(kept, typed))
    same = {name for name in _KEEP_THEIR_STEPS if getattr(as_typed, name) == getattr(noted, name)}
    typed = {name: value for name, value in typed.items() if name not in same}
    for schedule in _KEEP_THEIR_STEPS:
        if len(getattr(noted, schedule)) > 1:
            kept[schedule] = _longer_schedule(run, record, schedule, typed)
    extended = PretrainSettings.model_validate(merged(kept, typed))
    free = _FREE | PretrainSettings.changeable | PretrainSettings.numeric
    changed = {name for name in PretrainSettings.model_fields if getattr(extended, name) != getattr(noted, name)}
    changed -= {*_KEEP_THEIR_STEPS} - {*typed}  # their fractions alone
    if others := sorted(changed - free):
        raise InputError(f"--extend {run}: {', '.join(others)} cannot change: the steps so far were made with it")
    return extended


def _longer_schedule(
    run: Path, record: Mapping[str, Any], schedule: str, typed: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the phases of a schedule with which a longer run has those of `run` in its steps.

    Raises InputError where the number of steps of either run is open.
    """
    resolved, longer = record.get("resolved"), typed.get("steps")
    if longer is None or not isinstance(resolved, dict):
        option = f"--{schedule.replace('_', '-')}"
        raise InputError(f"--extend {run}: has a {option}; expected the length of the longer run as --steps")
    phases = record["settings"][schedule]
    shares = shares_of_longer_run([phase["share"] for phase in phases], resolved["steps"], longer=longer)
    return [{**phase, "share": share} for phase, share in zip(phases, shares, strict=True)]


def stable_checkpoint(run: Path, data: Mapping[str, Any], steps: int | None, *, warmup: float) -> Path:
    """Return the checkpoint from which `run` can be extended to `steps` steps with the same data.

    warmup: fraction of the steps; a line tells where that of the longer run ends after the checkpoint. Raises
    InputError where there is no checkpoint, for other data, and where the longer run would end before it.
    """
    checkpoints = list_checkpoints(run / "stable")
    if not checkpoints:
        raise InputError(f"--extend {run}: has no checkpoint in {run / 'stable'}: the run did not get to its decay")
    noted = read_object(run / "run.json").get("data")
    if not isinstance(noted, dict) or {**noted, EXTENDS: None} != {**data, EXTENDS: None}:
        raise InputError(f"--extend {run}: was trained with another corpus, validation corpus or initial model")
    done = step_of(checkpoints[-1].name)
    if steps is not None and steps <= done:
        raise InputError(f"--extend {run}: is at step {done:,}; expected more steps than that, got {steps:,}")
    if steps is not None and done < (warm := int(steps * warmup)):
        say(
            f"--extend {run}: the warm-up of the longer run, {warm:,} steps, ends after step {done:,}, where it begins:"
            f" the learning rate falls to {done / warm:.2f} of its peak and rises again; to avoid that, extend the run "
            f"to at most {int(done / warmup):,} steps, and that run further"
        )
    return checkpoints[-1]


def extension(out: Path, checkpoint: Path | None) -> dict[str, Any]:
    """Return the entry of the data in run.json of a run that begins from `checkpoint`; empty for a run from the start.

    Without `checkpoint`, a run that is resumed keeps the entry that it has in `out`.
    """
    if checkpoint:
        return {EXTENDS: file_digest(checkpoint / "state.json")}
    data = run_record(out).get("data")
    return {EXTENDS: data[EXTENDS]} if isinstance(data, dict) and EXTENDS in data else {}


def begin_from(checkpoint: Path | None, run: RunFolder) -> None:
    """Copy a checkpoint, and the metrics up to it, into the folder of a longer run that has no checkpoint yet.

    The process that writes the run copies them.
    Raises InputError where such a run was stopped before the copy was whole, and no checkpoint is given.
    """
    if EXTENDS not in run.record["data"] or list_checkpoints(run.checkpoints):
        return
    if checkpoint is None:
        raise InputError(f"{run.folder}: was stopped before it had a checkpoint; give --extend RUN again")
    if not run.writes:
        return
    source = checkpoint.parents[1]
    shutil.copyfile(source / "metrics.jsonl", run.folder / "metrics.jsonl")
    run.note(**{BEGIN: step_of(checkpoint.name)})
    with atomic_folder(run.checkpoints / checkpoint.name) as temporary:  # last: with it, the copy is whole
        copy_folder(checkpoint, temporary)
    say(f"{run.folder}: extends {source} from step {step_of(checkpoint.name):,}")
