"""A search over settings, each a fine-tuning of its own with all its seeds; the best on dev is kept (paper §A.3)."""

import shutil
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bertwright.console import say
from bertwright.errors import InputError, Stopped
from bertwright.files import atomic_folder, read_json, write_json
from bertwright.finetuning.run import tune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.setup import opened, refuse_unfit
from bertwright.tasks.spec import TaskSpec
from bertwright.training.run_lock import LOCK, locked

PAPER = "batch-size=16,32 learning-rate=5e-5,3e-5,2e-5 epochs=2,3,4"
_RECORD = "grid.json"

Grid = Mapping[str, tuple[Any, ...]]


def parse_grid(given: str, base: FinetuneSettings) -> Grid:
    """`paper`, or `NAME=VALUE,VALUE NAME=VALUE,…` with names of settings; InputError for what is no setting's value."""
    found: dict[str, tuple[Any, ...]] = {}
    for part in (PAPER if given == "paper" else given).split():
        name, _, values = part.partition("=")
        key = name.replace("-", "_")
        if key not in FinetuneSettings.model_fields or key in ("seeds", "first_seed", "threads", "precision", "device"):
            allowed = "batch-size, learning-rate, epochs, warmup, weight-decay, layer-decay, max-length, …"
            raise InputError(f"--grid: {name!r} is no setting to search over; allowed are {allowed}")
        if key in found:
            raise InputError(f"--grid: {name} stands there twice")
        found[key] = tuple(_value(base, key, text, part) for text in values.split(","))
        if len(set(found[key])) < len(found[key]):
            raise InputError(f"--grid {part}: the same value stands there twice")
    if not found:
        raise InputError(f"--grid {given!r}: write paper, or NAME=VALUE,VALUE … such as '{PAPER}'")
    return found


def search(
    settings: FinetuneSettings,
    task: TaskSpec,
    grid: Grid,
    *,
    model: str,
    data: Path,
    out: Path,
    tokenizer: Path | None = None,
    resume: bool = False,
    allow_other_numerics: bool = False,
) -> dict[str, Any]:
    """Fine-tune with every combination; returns all figures, best first, and keeps the best one's model in `out`.

    Each combination is a run in `out`, so a search that was stopped goes on where it was with `resume`.
    """
    combinations = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    saved, _ = opened(model, tokenizer)
    for chosen in combinations:  # the last of them must not fail after days
        refuse_unfit(settings.model_copy(update=chosen), saved.config, model)
    is_new = not out.exists()
    record = _open(
        out, settings, task, grid, model, resume=resume, free=settings.bits if allow_other_numerics else frozenset()
    )
    where: Any = {"model": model, "data": data, "tokenizer": tokenizer, "allow_other_numerics": allow_other_numerics}
    with locked(out):
        try:
            rows = _rows(settings, task, combinations, out=out, where=where)
        except InputError:
            if not any(path.is_dir() for path in out.iterdir()):  # nothing has begun: the mistake can be mended
                for name in (_RECORD, LOCK):
                    (out / name).unlink()
                if is_new:
                    out.rmdir()
            raise
        rows.sort(key=lambda row: (-row["mean"], row["sd"]))
        best = out / "model"
        with atomic_folder(best) as folder:
            shutil.copytree(rows[0]["model"], folder, dirs_exist_ok=True)
        result = {"task": task.name, "metric": rows[0]["metric"], "rows": rows, "model": str(best), "out": str(out)}
        write_json(out / _RECORD, {**record, "result": result})
    return {**result, "text": grid_table(result)}


def _rows(
    settings: FinetuneSettings,
    task: TaskSpec,
    combinations: Sequence[Mapping[str, Any]],
    *,
    out: Path,
    where: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """The figures of every combination, in their order; Stopped where a signal came before the last one was done."""
    rows: list[dict[str, Any]] = []
    said: set[str] = set()
    for number, chosen in enumerate(combinations, start=1):
        place = out / "-".join(f"{key.replace('_', '-')}={_written(value)}" for key, value in chosen.items())
        say(f"[{number}/{len(combinations)}] {place.name}")
        signalled = False
        try:
            one = settings.model_copy(update=dict(chosen))
            found, signalled = tune(one, task, out=place, resume=place.exists(), said=said, **where)
            kept = {name: found[name] for name in ("metric", "mean", "sd", "scores", "collapsed", "model")}
            rows.append({"settings": dict(chosen), **kept})
        except Stopped:
            signalled = True
        if signalled and len(rows) < len(combinations):
            raise Stopped(
                f"stopped with {len(rows)} of {len(combinations)} settings done; the same command with --resume goes on"
            )
    return rows


def grid_table(result: Mapping[str, Any]) -> str:
    """The figures as lines, best first, and what they are worth."""
    names = list(result["rows"][0]["settings"])
    head = "".join(f"{name.replace('_', ' '):>16}" for name in names)
    lines = [f"{head}   {result['metric']} on dev"]
    for row in result["rows"]:
        values = "".join(f"{_written(row['settings'][name]):>16}" for name in names)
        fell = f"   {len(row['collapsed'])} of {len(row['scores'])} seeds collapsed" if row["collapsed"] else ""
        lines.append(f"{values}   {row['mean']:.4f} ± {row['sd']:.4f}{fell}")
    lines.append("The first was chosen on dev, so its figure there is better than it will be elsewhere.")
    return "\n".join([*lines, f"its model: {result['model']}"])


def _written(value: float) -> str:
    """A value as people write it, with as many digits as tell it from every other one."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _value(base: FinetuneSettings, key: str, text: str, part: str) -> Any:
    try:
        number = float(text)
        known = FinetuneSettings.model_validate(
            {**base.model_dump(), key: int(number) if number.is_integer() else number}
        )
    except (ValueError, OverflowError, ValidationError):
        raise InputError(f"--grid {part}: {text!r} is no value of {key.replace('_', '-')}") from None
    return getattr(known, key)


def _open(
    out: Path,
    settings: FinetuneSettings,
    task: TaskSpec,
    grid: Grid,
    model: str,
    *,
    resume: bool,
    free: Set[str],
) -> dict[str, Any]:
    """The record of a search, begun or taken up; InputError where `out` holds something else but in what is free."""
    record: dict[str, Any] = {
        "task": task.name,
        "model": model,
        "settings": settings.model_dump(mode="json"),
        "grid": {name: list(values) for name, values in grid.items()},
    }
    path = out / _RECORD
    if not path.exists():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out}: is not empty and holds no search; choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        write_json(path, record)
        return record
    if not resume:
        raise InputError(f"{out}: already holds a search; continue it with --resume or choose another --out")
    found = read_json(path)
    if not isinstance(found, dict):
        raise InputError(f"{path}: holds a JSON {type(found).__name__}, and no search")
    there, here = _flat(found), _flat(record)
    differing = [
        f"{name} ({there.get(name)!r} there, {here[name]!r} here)"
        for name in here
        if there.get(name) != here[name] and name not in free
    ]
    if differing:
        raise InputError(f"{out}: holds a search with other {', '.join(differing)}; choose another --out")
    return record


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a search, by name; the settings of an earlier version's as they are called today."""
    settings = dict(record.get("settings", {}))
    with suppress(ValidationError):
        settings = FinetuneSettings.model_validate(settings).model_dump(mode="json")
    return {name: record[name] for name in ("task", "model", "grid") if name in record} | settings
