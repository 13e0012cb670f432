"""run folder → state, progress, speed and last metrics of the run, and the rows of `bertwright runs`."""

import math
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from bertwright.errors import InputError
from bertwright.files import read_json
from bertwright.training.run_files import step_folders
from bertwright.training.run_folder import read_metrics
from bertwright.training.run_lock import State, state_of

NOT_LOSSES = frozenset(
    {
        "step",
        "words",
        "gradient_norm",
        "skipped",
        "learning_rate",
        "seconds",
        "data_share",
        "tokens_per_second",
        "mfu",
        "held_out",
    }
)
"""Keys of a line of metrics.jsonl that are no training loss."""
COUNTS = frozenset({"rows", "predictions"})
"""Validation entries that are counts and no metrics."""
_LAST_LINES = 10
"""Lines of metrics.jsonl by whose speed the remaining time is estimated; steps differ in length."""
_MOST_SEEDS = 10_000

KIND_TITLES = {"pretrain": "pre-training", "finetune": "fine-tuning"}


@dataclass(frozen=True)
class Speed:
    """Mean speed of a run; seconds: sum over the training steps, None where the lines have no times."""

    tokens_per_second: float
    mfu: float
    data_share: float | None
    """Fraction of a step's time in which it waits for its batch; None where a line does not have it."""
    seconds: float | None


@dataclass(frozen=True)
class Run:
    """A run, read from its folder.

    detail: the reason for the state, empty where there is none. streams: lines of metrics.jsonl by seed folder; a
    pre-training has one stream, "". seed_records: run.json of each seed of a fine-tuning, by seed folder. saved: step
    of the newest checkpoint, by seed folder; 0 where there is none.
    """

    folder: Path
    record: Mapping[str, Any]
    state: State
    detail: str
    streams: Mapping[str, Sequence[Mapping[str, Any]]]
    seed_records: Mapping[str, Mapping[str, Any]]
    saved: Mapping[str, int]

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    @property
    def kind(self) -> str:
        """Kind of the run: `pretrain` or `finetune`."""
        return str(self.record["kind"])

    @property
    def steps_done(self) -> int:
        """Number of steps up to the last line of metrics or the newest checkpoint, summed over the seeds."""
        return sum(max(lines[-1]["step"] if lines else 0, self.saved[name]) for name, lines in self.streams.items())

    @property
    def steps_planned(self) -> int | None:
        """Number of steps of the whole run; None where it is not recorded."""
        if self.kind == "pretrain":
            return _whole(_dig(self.record, "resolved", "steps"))
        if self.state == "finished":
            return self.steps_done
        steps = [_whole(_dig(record, "resolved", "steps")) for record in self.seed_records.values()]
        seeds = _whole(_dig(self.record, "settings", "seeds"))
        return steps[0] * seeds if steps and steps[0] and seeds else None

    @property
    def started(self) -> str | None:
        """Time of the first start, in UTC."""
        sessions = self.record.get("sessions")
        return str(sessions[0]["started"]) if sessions else None

    @cached_property
    def speed(self) -> Speed | None:
        """Mean speed, weighted by the time of the lines; None before the first line."""
        parts = [part for lines in self.streams.values() for part in with_previous_step(lines)]
        if not parts:
            return None
        measured = all(number(line.get("seconds")) for line, _ in parts)
        if measured:
            times = [line["seconds"] for line, _ in parts]
        else:  # in proportion: tokens of the lines, each by its speed
            times = [
                (line["step"] - begin) * work_of_step(self.record, line["step"]) / line["tokens_per_second"]
                for line, begin in parts
            ]
        total = sum(times)
        rates = [line["tokens_per_second"] for line, _ in parts]
        utilisations = [number(line.get("mfu")) or 0.0 for line, _ in parts]
        waits = [number(line.get("data_share")) for line, _ in parts]
        known = [wait for wait in waits if wait is not None]
        return Speed(
            data_share=sum(map(operator.mul, known, times)) / total if len(known) == len(parts) else None,
            tokens_per_second=sum(map(operator.mul, rates, times)) / total,
            mfu=sum(map(operator.mul, utilisations, times)) / total,
            seconds=total if measured else None,
        )

    @property
    def losses(self) -> dict[str, float]:
        """Training losses of the last line that has any, by name."""
        for lines in reversed(list(self.streams.values())):
            for line in reversed(lines):
                losses = {name: value for name in line if name not in NOT_LOSSES if (value := number(line[name]))}
                if losses:
                    return losses
        return {}

    def validation(self, stream: str = "") -> list[tuple[int, dict[str, float]]]:
        """Return (step, metrics) of every validation of a stream."""
        lines = self.streams.get(stream, ())
        return [(line["step"], metrics_of(line["held_out"])) for line in lines if "held_out" in line]

    @property
    def last_metrics(self) -> dict[str, float]:
        """Last validation metrics; of a fine-tuning the mean of the best epochs over its finished seeds.

        Before the first seed has finished, the metrics of its best epoch so far.
        """
        if self.kind != "finetune":
            measured = self.validation()
            return measured[-1][1] if measured else {}
        best = [metrics_of(seed["scores"]) for seed in self.seeds]
        best = best or [metrics_of(_dig(record, "best", "held_out")) for record in self.seed_records.values()][:1]
        return {name: sum(metrics[name] for metrics in best) / len(best) for name in (best[0] if best else ())}

    @property
    def seeds(self) -> list[Mapping[str, Any]]:
        """Results of the finished seeds of a fine-tuning."""
        return [record["result"] for record in self.seed_records.values() if record.get("finished")]

    @property
    def seconds_left(self) -> float | None:
        """Seconds of training that are left, by the speed of the last lines; None where unknown, or not running."""
        planned = self.steps_planned
        if self.state != "running" or not planned:
            return None
        stream = next(
            (lines for lines in reversed(list(self.streams.values())) if list(with_previous_step(lines))), None
        )
        if not stream:
            return None
        seconds = work = 0.0
        for line, begin in list(with_previous_step(stream))[-_LAST_LINES:]:
            seconds += number(line.get("seconds")) or 0.0
            work += (line["step"] - begin) * work_of_step(self.record, line["step"])
        if not seconds or work <= 0:
            return None
        return float(seconds / work * _work_left(self.record, self.steps_done, planned))


def number(value: Any) -> float | None:
    """Return a finite number unchanged, and None for everything else that a file may hold in its place."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return value


def metrics_of(entry: Any) -> dict[str, float]:
    """Return the metrics of a validation entry, without counts and the flags of collapsed seeds."""
    if not isinstance(entry, Mapping):
        return {}
    names = [name for name in entry if name not in COUNTS and not name.endswith("collapsed")]
    return {name: value for name in names if (value := number(entry[name])) is not None}


def with_previous_step(lines: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Yield each training line with the step of the line before it."""
    begin = 0
    for line in lines:
        if number(line.get("tokens_per_second")):
            yield line, begin
            begin = line["step"]


def _phases(record: Mapping[str, Any], name: str, entry: str, steps: int) -> list[tuple[int, float]]:
    """Return (last step, `entry`) of each phase of the schedule `name`; one phase of 1 where there is none."""
    phases = _dig(record, "settings", name)
    if not isinstance(phases, Sequence) or not phases:
        return [(steps, 1.0)]
    fractions = [sum(phase["share"] for phase in phases[: index + 1]) for index in range(len(phases))]
    return [
        (round(fraction * steps) if index + 1 < len(phases) else steps, phase[entry])
        for index, (fraction, phase) in enumerate(zip(fractions, phases, strict=True))
    ]


def _stages(record: Mapping[str, Any], steps: int) -> list[tuple[int, float]]:
    """Return (last step, work of a step) of each part of a run with rows of one length, and as many rows a step.

    The work is the number of tokens of a row, and times the rows a step where they follow a schedule; 1 for a
    fine-tuning, whose rows differ in length.
    """
    schedules = [_phases(record, "phases", "length", steps), _phases(record, "batch_schedule", "rows", steps)]
    ends = sorted({end for phases in schedules for end, _ in phases})
    return [(end, math.prod(_at(phases, end) for phases in schedules)) for end in ends]


def _at(phases: Sequence[tuple[int, float]], step: int) -> float:
    """Return the number of the phase of a step, counted from 1."""
    return next((number for end, number in phases if step <= end), phases[-1][1])


def work_of_step(record: Mapping[str, Any], step: int) -> float:
    """Return the work of a step, counted from 1, by which steps of a run are compared."""
    return _at(_stages(record, _whole(_dig(record, "resolved", "steps")) or step), step)


def _work_left(record: Mapping[str, Any], done: int, planned: int) -> float:
    """Return the number of steps after `done`, each weighted by its work."""
    left, begin = 0.0, 0
    for end, work in _stages(record, planned):
        left += max(0, end - max(begin, done)) * work
        begin = end
    return left


def read_run(folder: Path) -> Run:
    """Read a run folder; raises InputError where it is no run folder, or where its files are broken."""
    path = folder / "run.json"
    if not path.is_file():
        raise InputError(f"{folder}: not a run folder (no run.json); `bertwright runs DIR` lists those below a folder")
    record = read_json(path)
    try:
        return _read(folder, record)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: expected a record of bertwright: {type(error).__name__} {error}") from None


def _read(folder: Path, record: Any) -> Run:
    kind = record.get("kind") if isinstance(record, Mapping) else None
    if kind == "finetune-seed":
        raise InputError(f"{folder}: one seed of a fine-tuning; name the run folder above it")
    if kind not in KIND_TITLES:
        raise InputError(f"{folder / 'run.json'}: expected kind {' or '.join(KIND_TITLES)}, got {kind!r}")
    for name in ("settings", "data"):
        if not isinstance(record.get(name), Mapping):
            raise InputError(f"{folder / 'run.json'}: expected an object under {name!r}, got {record.get(name)!r}")
    for name, expected in (("places", Mapping), ("resolved", Mapping), ("warnings", list)):
        if not isinstance(record.get(name), expected | None):
            noun = "a list" if expected is list else "an object"
            raise InputError(f"{folder / 'run.json'}: expected {noun} under {name!r}, got {record[name]!r}")
    seeds = {}
    if kind == "finetune":
        first = int(record["settings"].get("first_seed", 0))
        count = int(record["settings"]["seeds"])
        if count > _MOST_SEEDS:
            raise InputError(f"{folder / 'run.json'}: expected at most {_MOST_SEEDS:,} seeds, got {count}")
        names = [f"seed-{seed}" for seed in range(first, first + count)]
        seeds = {
            name: read_json(folder / name / "run.json") for name in names if (folder / name / "run.json").is_file()
        }
    streams = {name: read_metrics(folder / name) for name in seeds} if seeds else {"": read_metrics(folder)}
    state, detail = state_of(folder, record)
    saved = {name: _saved_step(folder / name) for name in streams}
    run = Run(folder, record, state, detail, streams, seeds, saved)
    _ = summary(run)  # raises here where a value is broken
    return run


def _saved_step(folder: Path) -> int:
    """Return the step of the newest checkpoint of a run folder; 0 where there is none."""
    return max(step_folders(folder / "checkpoints"), default=0)


def summary(run: Run) -> dict[str, Any]:
    """Return a run as a row of `bertwright runs`."""
    speed = run.speed
    return {
        "kind": run.kind,
        "state": run.state,
        "detail": run.detail,
        "steps": run.steps_done,
        "planned": run.steps_planned,
        "tokens_per_second": speed.tokens_per_second if speed else None,
        "loss": run.losses,
        "held_out": run.last_metrics,
        "seconds_left": run.seconds_left,
        "started": run.started,
    }


def list_runs(root: Path) -> list[dict[str, Any]]:
    """Return a row for each run at or below `root`, by name; seeds belong to their run.

    A broken run has a row too. A file run.json of another program makes no run.
    """
    if not root.is_dir():
        raise InputError(f"{root}: expected a folder, found none")
    return [_row(root, folder) for folder in _run_folders(root)]


def _row(root: Path, folder: Path) -> dict[str, Any]:
    name = str(folder.relative_to(root)) if folder != root else root.resolve().name
    try:
        row = {"name": name, **summary(read_run(folder))}
        if row["started"]:
            moment(row["started"])
        return row
    except (InputError, OSError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        return {"name": name, "kind": None, "state": "broken", "detail": str(error)}


def _run_folders(root: Path) -> list[Path]:
    run_folders = []
    for path, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "run.json" in files and not _is_foreign(Path(path) / "run.json"):
            run_folders.append(Path(path))
            folders.clear()
    return sorted(run_folders)


def _is_foreign(path: Path) -> bool:
    """Return whether another program wrote a file run.json: an object without any part of a run's configuration.

    A file that cannot be read, or that is no object, is a broken run.
    """
    try:
        record = read_json(path)
    except (InputError, OSError, ValueError, RecursionError):
        return False
    return isinstance(record, Mapping) and not {"kind", "settings", "data"} & record.keys()


def duration(seconds: float | None) -> str:
    """Return seconds as 1 h 05 min, 12 min or 48 s; empty for None."""
    if seconds is None:
        return ""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def moment(written: str) -> str:
    """Return 2025-11-21T06:50:07Z as 2025-11-21 06:50, in the time zone of this machine."""
    try:
        return f"{datetime.fromisoformat(written).astimezone():%Y-%m-%d %H:%M}"
    except ValueError:
        raise InputError(f"run.json: expected a time such as 2025-11-21T06:50:07Z, got {written[:60]!r}") from None


def _dig(record: Mapping[str, Any], *names: str) -> Any:
    """Return record[name][name]…; None where a level is absent."""
    value: Any = record
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None
