"""Run folders → what they say: how a run stands, how far it is, how fast, and its last figures."""

import math
import operator
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertwright.errors import InputError
from bertwright.files import read_json
from bertwright.training.run_folder import read_metrics
from bertwright.training.run_lock import State, state_of

NOT_LOSSES = frozenset(
    {
        "step",
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
COUNTS = frozenset({"rows", "predictions"})
"""Held-out entries that count what was measured."""
_MOST_SEEDS = 10_000

KINDS = {"pretrain": "pre-training", "finetune": "fine-tuning"}


@dataclass(frozen=True)
class Speed:
    """Means over a run. `seconds` of training steps is None for a run whose lines have no times."""

    tokens_per_second: float
    mfu: float
    data_share: float | None
    """Of the time of a step, what it waits for its batch; None for a run whose lines do not say."""
    seconds: float | None


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it. `streams`: the lines of metrics.jsonl by seed, or under "" alone."""

    folder: Path
    record: Mapping[str, Any]
    state: State
    detail: str
    streams: Mapping[str, Sequence[Mapping[str, Any]]]
    seed_records: Mapping[str, Mapping[str, Any]]

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.resolve().name

    @property
    def kind(self) -> str:
        """`pretrain` or `finetune`."""
        return str(self.record["kind"])

    @property
    def steps_done(self) -> int:
        """Steps that a line tells of, over all seeds."""
        return sum(lines[-1]["step"] for lines in self.streams.values() if lines)

    @property
    def steps_planned(self) -> int | None:
        """None where it was not recorded: not settled yet, or an older fine-tuning that did not finish."""
        if self.kind == "pretrain":
            return _whole(_dig(self.record, "resolved", "steps"))
        if self.state == "finished":
            return self.steps_done
        settled = [_whole(_dig(record, "resolved", "steps")) for record in self.seed_records.values()]
        seeds = _whole(_dig(self.record, "settings", "seeds"))
        return settled[0] * seeds if settled and settled[0] and seeds else None

    @property
    def started(self) -> str | None:
        """When it was first begun, in UTC."""
        sessions = self.record.get("sessions")
        return str(sessions[0]["started"]) if sessions else None

    @cached_property
    def speed(self) -> Speed | None:
        """None before the first line."""
        parts = [part for lines in self.streams.values() for part in with_begins(lines)]
        if not parts:
            return None
        measured = all(number(line.get("seconds")) for line, _ in parts)
        if measured:
            times = [line["seconds"] for line, _ in parts]
        else:  # in proportion: tokens of the lines, each by its speed
            times = [
                (line["step"] - begin) * row_length(self.record, line["step"]) / line["tokens_per_second"]
                for line, begin in parts
            ]
        total = sum(times)
        rates = [line["tokens_per_second"] for line, _ in parts]
        shares = [number(line.get("mfu")) or 0.0 for line, _ in parts]
        waits = [number(line.get("data_share")) for line, _ in parts]
        known = [share for share in waits if share is not None]
        return Speed(
            data_share=sum(map(operator.mul, known, times)) / total if len(known) == len(parts) else None,
            tokens_per_second=sum(map(operator.mul, rates, times)) / total,
            mfu=sum(map(operator.mul, shares, times)) / total,
            seconds=total if measured else None,
        )

    @property
    def losses(self) -> dict[str, float]:
        """The training losses of the last line that has some."""
        for lines in reversed(list(self.streams.values())):
            for line in reversed(lines):
                found = {name: value for name in line if name not in NOT_LOSSES if (value := number(line[name]))}
                if found:
                    return found
        return {}

    def held_out(self, stream: str = "") -> list[tuple[int, dict[str, float]]]:
        """(step, figures) of every measurement."""
        lines = self.streams.get(stream, ())
        return [(line["step"], figures_of(line["held_out"])) for line in lines if "held_out" in line]

    @property
    def last_figures(self) -> dict[str, float]:
        """The last held-out figures; of a fine-tuning the mean of its best epochs over the seeds that are done."""
        if self.kind != "finetune":
            measured = self.held_out()
            return measured[-1][1] if measured else {}
        scores = [figures_of(seed["scores"]) for seed in self.seeds]
        return {name: sum(one[name] for one in scores) / len(scores) for name in (scores[0] if scores else ())}

    @property
    def seeds(self) -> list[Mapping[str, Any]]:
        """What each finished seed of a fine-tuning came to."""
        return [record["result"] for record in self.seed_records.values() if record.get("finished")]

    @property
    def seconds_left(self) -> float | None:
        """Of training, by the last line's speed; None where the run is not going on or this cannot be told."""
        planned = self.steps_planned
        if self.state != "running" or not planned:
            return None
        stream = next((lines for lines in reversed(list(self.streams.values())) if list(with_begins(lines))), None)
        if not stream:
            return None
        line, begin = list(with_begins(stream))[-1]
        seconds = number(line.get("seconds"))
        if not seconds or line["step"] <= begin:
            return None
        return float(seconds / (line["step"] - begin) * _steps_left(self.record, self.steps_done, planned))


def number(value: Any) -> float | None:
    """A finite number as it is, None for all else that a file may hold in its place."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return value


def figures_of(given: Any) -> dict[str, float]:
    """The numbers of a mapping, what was counted and collapse flags left out."""
    if not isinstance(given, Mapping):
        return {}
    names = [name for name in given if name not in COUNTS and not name.endswith("collapsed")]
    return {name: value for name in names if (value := number(given[name])) is not None}


def with_begins(lines: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Training lines, each with the step of the one before it."""
    begin = 0
    for line in lines:
        if number(line.get("tokens_per_second")):
            yield line, begin
            begin = line["step"]


def _phases(record: Mapping[str, Any], steps: int) -> list[tuple[int, float]]:
    """(end, tokens of a row) of each phase of a pre-training; one phase of rows of 1 for all else."""
    phases = _dig(record, "settings", "phases")
    if not isinstance(phases, Sequence) or not phases:
        return [(steps, 1.0)]
    shares = [sum(phase["share"] for phase in phases[: index + 1]) for index in range(len(phases))]
    return [
        (round(share * steps) if index + 1 < len(phases) else steps, phase["length"])
        for index, (share, phase) in enumerate(zip(shares, phases, strict=True))
    ]


def row_length(record: Mapping[str, Any], step: int) -> float:
    """Tokens of a row at a step (counted from 1); 1 where rows are as long as their texts."""
    phases = _phases(record, _whole(_dig(record, "resolved", "steps")) or step)
    return next((length for end, length in phases if step <= end), phases[-1][1])


def _steps_left(record: Mapping[str, Any], done: int, planned: int) -> float:
    """Steps after `done`, each weighed by the length of its rows against those of the last step."""
    left, begin = 0.0, 0
    for end, length in _phases(record, planned):
        left += max(0, end - max(begin, done)) * length
        begin = end
    return left / row_length(record, done)


def read_run(folder: Path) -> Run:
    """Read a run folder; InputError where there is none, or where what it holds is broken."""
    path = folder / "run.json"
    if not path.is_file():
        raise InputError(f"{folder}: not a run folder (no run.json); `bertwright runs DIR` lists those below a folder")
    record = read_json(path)
    try:
        return _read(folder, record)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: not as bertwright writes it: {type(error).__name__} {error}") from None


def _read(folder: Path, record: Any) -> Run:
    kind = record.get("kind") if isinstance(record, Mapping) else None
    if kind == "finetune-seed":
        raise InputError(f"{folder}: is one seed of a fine-tuning; name the run folder above it")
    if kind not in KINDS:
        raise InputError(f"{folder / 'run.json'}: kind is {kind!r}; allowed are {', '.join(KINDS)}")
    for name in ("settings", "data"):
        if not isinstance(record.get(name), Mapping):
            raise InputError(f"{folder / 'run.json'}: {name} is {record.get(name)!r}; expected an object")
    seeds = {}
    if kind == "finetune":
        first = int(record["settings"].get("first_seed", 0))
        count = int(record["settings"]["seeds"])
        if count > _MOST_SEEDS:
            raise InputError(f"{folder / 'run.json'}: seeds is {count}; at most {_MOST_SEEDS:,} are read")
        names = [f"seed-{seed}" for seed in range(first, first + count)]
        seeds = {
            name: read_json(folder / name / "run.json") for name in names if (folder / name / "run.json").is_file()
        }
    streams = {name: read_metrics(folder / name) for name in seeds} if seeds else {"": read_metrics(folder)}
    state, detail = state_of(folder, record)
    run = Run(folder, record, state, detail, streams, seeds)
    _ = summary(run)  # so that what is broken shows here
    return run


def summary(run: Run) -> dict[str, Any]:
    """One run as a row of `bertwright runs`."""
    speed = run.speed
    return {
        "kind": run.kind,
        "state": run.state,
        "detail": run.detail,
        "steps": run.steps_done,
        "planned": run.steps_planned,
        "tokens_per_second": speed.tokens_per_second if speed else None,
        "loss": run.losses,
        "held_out": run.last_figures,
        "seconds_left": run.seconds_left,
        "started": run.started,
    }


def list_runs(root: Path) -> list[dict[str, Any]]:
    """A row for each run at or below `root`, by name; seeds belong to their run, and a broken run has a row as well."""
    if not root.is_dir():
        raise InputError(f"{root}: is not a folder")
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
    found = []
    for place, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "run.json" in files:
            found.append(Path(place))
            folders.clear()
    return sorted(found)


def clock(seconds: float | None) -> str:
    """Seconds as 1 h 05 min, 12 min or 48 s."""
    if seconds is None:
        return ""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def moment(written: str) -> str:
    """2025-11-21T06:50:07Z → 2025-11-21 06:50 in this machine's time."""
    try:
        return f"{datetime.fromisoformat(written).astimezone():%Y-%m-%d %H:%M}"
    except ValueError:
        raise InputError(f"run.json: {written[:60]!r} is no moment, such as 2025-11-21T06:50:07Z") from None


def _dig(record: Mapping[str, Any], *names: str) -> Any:
    found: Any = record
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


# Rows of runs → a table for a terminal.

_WIDE = 180
"""Columns where nobody's terminal says how many there are."""


def runs_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each run, and below them why some of them are as they are."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("run", "kind", "state"):
        table.add_column(name, overflow="fold")
    for name in ("steps", "tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("loss", "held out", "left", "started"):
        table.add_column(name)
    for row in rows:
        table.add_row(*(Text(cell) for cell in _cells(row)))
    stream = StringIO()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDE
    console = Console(file=stream, width=width, highlight=False, no_color=True)
    console.print(table)
    for row in rows:
        if row["detail"]:
            console.print(Text(f"{row['name']}: {row['state']}: {row['detail']}"))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip("\n")


def _cells(row: Mapping[str, Any]) -> list[str]:
    if row["state"] == "broken":
        return [row["name"], "", "broken", *[""] * 6]
    planned = f"{row['planned']:,}" if row["planned"] else "?"
    held_out = list(row["held_out"].items())[:2]
    return [
        row["name"],
        KINDS[row["kind"]],
        row["state"],
        f"{row['steps']:,} / {planned}",
        f"{row['tokens_per_second']:,.0f}" if row["tokens_per_second"] else "",
        " ".join(f"{name} {value:.3f}" for name, value in row["loss"].items()),
        " ".join(f"{name} {value:.3f}" for name, value in held_out),
        clock(row["seconds_left"]),
        moment(row["started"]) if row["started"] else "",
    ]
