"""settings that are not given → trials of them, which Optuna proposes; the best model is kept.

The record of the search holds everything: Optuna's study is made anew from it for each trial, and the seed of a
proposal is the number of the trial. So a search that was stopped proposes what the whole one would have proposed.
"""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bertwright.console import clock, say, say_once
from bertwright.errors import DiskFull, InputError, MissingExtra, RunFailed, Stopped
from bertwright.files import write_json
from bertwright.finetuning.prepare import STATES, prepare
from bertwright.finetuning.run import TuneRequest, tune
from bertwright.finetuning.schedule import ScheduledSettings, scheduled
from bertwright.finetuning.search_folder import common_record, keep_model, opened_search, ranked_text
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.config import BackboneConfig
from bertwright.tasks.spec import TaskSpec

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.distributions import BaseDistribution

TRIALS: Final = "search.json"
PARTS: Final = 4
"""Number of parts of a training. After the epoch that completes one, a trial is compared with the others."""
UNPRUNED: Final = 4
"""Number of complete trials before one may be pruned."""
RANDOM: Final = 5
"""Number of trials before the proposals follow from what was measured."""
ATTEMPTS: Final = 50
"""Number of proposals for a trial before the search ends, since each of them was tried before."""
RANGE: Final = 5.0
"""Largest ratio between a learning rate that is tried and the default one."""

Space = Mapping[str, tuple[float, ...]]
"""Values of each setting; for the learning rate the least and the largest one."""


class _Pruned(Exception):
    """A trial that is worse than half of the others after the same part of its training."""


class _TimeIsUp(Exception):
    """A search whose minutes are over in the middle of a trial."""


@dataclass(frozen=True)
class TrialBudget:
    """Number of trials, those of earlier sessions included, and minutes of training; None: no limit."""

    trials: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        for option, value in (("--search", self.trials), ("--search-minutes", self.minutes)):
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{option}: expected a positive number, got {value}")

    def is_spent(self, rows: list[dict[str, Any]]) -> bool:
        """Return whether the trials or the minutes are used up."""
        seconds = sum(row["seconds"] for row in rows)
        ended = sum(row["state"] != "running" for row in rows)
        return (self.trials is not None and ended >= self.trials) or (
            self.minutes is not None and seconds >= 60 * self.minutes
        )


def space_around(request: FinetuneSettings, chosen: ScheduledSettings, config: BackboneConfig) -> Space:
    """Return the values to try of each setting that the request leaves open; the default is among them.

    chosen: the defaults for these data and this model. Raises InputError where every one of them is given.
    """
    rate, rows, epochs = chosen.learning_rate, chosen.batch_size, chosen.epochs
    space: dict[str, tuple[float, ...]] = {
        "learning_rate": (_rounded(rate / RANGE), _rounded(rate * RANGE)),
        "batch_size": _ascending(max(2, rows // 2), rows, 2 * rows),
        "epochs": _ascending(math.ceil(epochs / 2), epochs, 2 * epochs),
        "warmup": _ascending(0.02, chosen.warmup, 0.2),
        "weight_decay": _ascending(0.0, chosen.weight_decay, 0.1),
    }
    if not (request.features or config.shares_layers):
        space["layer_decay"] = _ascending(0.8, 0.9, chosen.layer_decay)
    decided = space.keys() & request.model_fields_set
    if decided == space.keys():
        raise InputError(
            f"--search: all settings that it tries are given ({', '.join(sorted(decided))}); leave out one of them"
        )
    return {name: values for name, values in space.items() if name not in decided}


def search_by_trials(
    settings: FinetuneSettings,
    task: TaskSpec,
    budget: TrialBudget,
    request: TuneRequest,
) -> dict[str, Any]:
    """Fine-tune with the defaults and then with settings that Optuna proposes; keep the best model in `request.out`.

    Returns all trials, best first. Each trial is a run in it, so `request.resume` continues an interrupted search; with
    a larger budget it continues one that has ended. Of the trials only the best one keeps its folder. Raises RunFailed
    where no trial was completed.
    """
    _import_optuna()
    printed: set[str] = set()
    with say_once(printed):
        prepared = prepare(settings, task, request.model, request.data, request.tokenizer, cache=request.out / STATES)
    rows, contrasts = len(prepared.bound.lengths), prepared.bound.kind.contrasts
    chosen = scheduled(settings, prepared.saved.config, rows, contrasts=contrasts)
    space = space_around(settings, chosen, prepared.saved.config)
    record = {
        **common_record(settings, task, request.model),
        "task_settings": prepared.bound.task.model_dump(mode="json"),
        "space": {name: list(values) for name, values in space.items()},
        "data": hashlib.sha256(json.dumps(prepared.digests, sort_keys=True).encode()).hexdigest()[:16],
    }
    del prepared  # each trial prepares its own
    ignored: Set[str] = settings.numeric if request.allow_other_numerics else frozenset()
    with opened_search(request.out / TRIALS, record, resume=request.resume, ignored=ignored) as stored:
        search = _Search(request.out, stored, settings, space, budget)
        search.record.setdefault("trials", [])
        while not budget.is_spent(search.rows) and search.begin_trial(chosen):
            search.run_trial(task, request, printed)
        result = search.result(task.name)
    return {**result, "text": trials_table(result)}


class _Search:
    """The record of a search in its folder, and one trial after the other."""

    def __init__(
        self, out: Path, record: dict[str, Any], settings: FinetuneSettings, space: Space, budget: TrialBudget
    ) -> None:
        self.out, self.record, self.settings, self.space, self.budget = out, record, settings, space, budget

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Trials in their order."""
        rows: list[dict[str, Any]] = self.record["trials"]
        return rows

    @property
    def complete(self) -> list[dict[str, Any]]:
        """Complete trials, the best one first."""
        return sorted((row for row in self.rows if row["state"] == "complete"), key=lambda row: -row["mean"])

    def folder(self, row: Mapping[str, Any]) -> Path:
        """Return the run folder of a trial."""
        return self.out / f"trial-{row['trial']}"

    def begin_trial(self, chosen: ScheduledSettings) -> bool:
        """Note the settings of the next trial, unless one was interrupted; return False where all were tried.

        chosen: the defaults, which are the first trial.
        """
        if self.rows and self.rows[-1]["state"] == "running":
            return True
        row: dict[str, Any] = {"trial": len(self.rows), "state": "running", "reports": {}, "seconds": 0.0}
        defaults = {} if self.rows else {name: getattr(chosen, name) for name in self.space}
        tried = [each["settings"] for each in self.rows]
        for attempt in range(ATTEMPTS):
            _, settings = self._proposed(row, defaults, attempt=attempt)
            if settings not in tried:
                self.rows.append({**row, "settings": settings})
                self._write()
                return True
        say(f"{len(self.rows)} trials: no other settings were proposed {ATTEMPTS} times in a row; the search ends")
        return False

    def run_trial(self, task: TaskSpec, request: TuneRequest, printed: set[str]) -> None:
        """Run the last trial, which may have been interrupted, and note how it ended; `printed` is that of `tune`."""
        row = self.rows[-1]
        values = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in row["settings"].items())
        say(f"[trial {row['trial']}] {values}")
        changed = self.settings.model_copy(update=row["settings"])
        folder = self.folder(row)
        try:
            with self._timed(row):
                part = replace(request, out=folder, resume=folder.exists())
                result, signalled = tune(changed, task, part, printed=printed, after_epoch=self._pruner(row))
        except _TimeIsUp:
            return
        except DiskFull:
            raise
        except (_Pruned, RunFailed) as error:
            reason = str(error).partition("; ")[0]  # the rest is about the trial's folder, which is removed
            self._end(row, {"state": "pruned" if isinstance(error, _Pruned) else "failed", "note": reason})
            return
        except Stopped:
            raise Stopped(f"stopped in trial {row['trial']}; continue with the same command and --resume") from None
        kept = {name: result[name] for name in ("metric", "mean", "sd", "scores", "collapsed", "baselines")}
        self._end(row, {"state": "complete", **kept})
        if signalled and not self.budget.is_spent(self.rows):
            raise Stopped(f"stopped after trial {row['trial']}; continue with the same command and --resume")

    def result(self, task: str) -> dict[str, Any]:
        """Keep the best model; return all trials, the complete ones first, best first. Raises RunFailed for none."""
        if not self.complete:
            failed = [row for row in self.rows if row["state"] == "failed"]
            if failed and len(failed) == len(self.rows):
                raise RunFailed(
                    f"{self.out}: all {len(failed)} trials failed, the last one with: {failed[-1]['note']}; mend that, "
                    "and start again with another --out"
                )
            raise RunFailed(
                f"{self.out}: none of {len(self.rows)} trials was completed; continue with --resume and a larger "
                "--search or --search-minutes"
            )
        best = self.complete[0]
        model = keep_model(self.folder(best) / "model", self.out)
        others = [row for row in self.rows if row["state"] != "complete"]
        rows = [{**row, "model": str(self.folder(row) / "model") if row is best else None} for row in self.complete]
        metric = best["metric"]
        return {"task": task, "metric": metric, "rows": [*rows, *others], "model": str(model), "out": str(self.out)}

    def _proposed(
        self, row: Mapping[str, Any], settings: Mapping[str, Any], *, attempt: int = 0
    ) -> tuple["Trial", dict[str, Any]]:
        """Return Optuna's trial and its settings; `settings` are those of the trial where they are decided.

        attempt: number of proposals for this trial that were refused before.
        """
        optuna = _import_optuna()
        space = _distributions(self.space)
        seed = (self.settings.first_seed + row["trial"] + 10_000 * attempt) % 2**32  # those that NumPy takes
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED)
        study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
        states = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
        for earlier in self.rows[: row["trial"]]:
            reports = {int(part): value for part, value in earlier["reports"].items()}
            known = {"params": earlier["settings"], "distributions": space, "intermediate_values": reports}
            state = optuna.trial.TrialState[states[earlier["state"]]]
            study.add_trial(optuna.create_trial(state=state, value=earlier.get("mean"), **known))
        if settings:
            study.enqueue_trial(dict(settings))
        trial = study.ask(space)
        proposed = {name: trial.params[name] for name in self.space}
        if "learning_rate" in proposed and not settings:
            proposed["learning_rate"] = _rounded(proposed["learning_rate"])
        for part, value in row["reports"].items():
            trial.report(value, int(part))
        return trial, proposed

    def _pruner(self, row: dict[str, Any]) -> Any:
        """Return what is called after each epoch of a trial: it raises _Pruned or _TimeIsUp."""
        trial, _ = self._proposed(row, row["settings"])
        before, began = row["seconds"], time.monotonic()

        def after_epoch(seed: int, done: float, metric: float) -> None:
            row["seconds"] = before + time.monotonic() - began
            part = int(PARTS * done)
            if seed == self.settings.first_seed and 0 < part < PARTS and str(part) not in row["reports"]:
                row["reports"][str(part)] = metric
                trial.report(metric, part)
                if trial.should_prune():
                    raise _Pruned(f"pruned after {done:.0%} of its training")
            self._write()
            is_last = done >= 1.0 and seed == self.settings.first_seed + self.settings.seeds - 1
            if self.complete and self.budget.is_spent(self.rows) and not is_last:
                raise _TimeIsUp

        return after_epoch

    @contextmanager
    def _timed(self, row: dict[str, Any]) -> Iterator[None]:
        """Add the seconds of the block to those of the trial, and write the record, however the block ends."""
        before, began = row["seconds"], time.monotonic()
        try:
            yield
        finally:
            row["seconds"] = before + time.monotonic() - began
            self._write()

    def _end(self, row: dict[str, Any], outcome: Mapping[str, Any]) -> None:
        """Note the outcome of a trial; remove all folders of trials but the best one's."""
        row.update(outcome)
        self._write()
        best = self.complete[0] if self.complete else None
        for each in self.rows:
            if each is not best:
                shutil.rmtree(self.folder(each), ignore_errors=True)
        if row["state"] != "complete":
            say(f"trial {row['trial']}: {row['note']}")

    def _write(self) -> None:
        write_json(self.out / TRIALS, self.record)


def trials_table(result: Mapping[str, Any]) -> str:
    """Return the trials as lines, best first, with a note on the bias of the best one."""
    names = list(result["rows"][0]["settings"])
    table = [["trial", *(name.replace("_", " ") for name in names), f"{result['metric']} on dev", "time", ""]]
    for row in result["rows"]:
        values = [f"{row['settings'][name]:g}" for name in names]
        metric = f"{row['mean']:.4f} ± {row['sd']:.4f}" if row["state"] == "complete" else "–"
        collapsed = f"{len(row['collapsed'])} of {len(row['scores'])} seeds collapsed" if row.get("collapsed") else ""
        note = "the defaults" if row["trial"] == 0 else row.get("note", "not ended" if metric == "–" else "")
        notes = "; ".join(filter(None, (note, collapsed)))
        table.append([str(row["trial"]), *values, metric, clock(row["seconds"]), notes])
    return ranked_text(table, result)


def _distributions(space: Space) -> dict[str, "BaseDistribution"]:
    """Return the space in Optuna's terms."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    return {
        name: (
            FloatDistribution(values[0], values[-1], log=True)
            if name == "learning_rate"
            else CategoricalDistribution(values)
        )
        for name, values in space.items()
    }


def _import_optuna() -> Any:
    """Return the module optuna, which belongs to an extra."""
    try:
        import optuna
    except ImportError:
        raise MissingExtra("optuna", "--search") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _rounded(rate: float) -> float:
    """Return a rate with two digits."""
    return float(f"{rate:.2g}")


def _ascending(*values: float) -> tuple[float, ...]:
    """Return the different values in order."""
    return tuple(sorted(set(values)))
