"""grid of settings → a fine-tuning for each combination, with all seeds; the best one is kept (paper §A.3)."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bertwright.console import say
from bertwright.errors import InputError, Stopped
from bertwright.files import write_json
from bertwright.finetuning.run import TuneRequest, tune
from bertwright.finetuning.search_folder import common_record, keep_model, opened_search, ranked_text
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.setup import check_settings, open_initial_model
from bertwright.tasks.spec import TaskSpec

PAPER = "batch-size=16,32 learning-rate=5e-5,3e-5,2e-5 epochs=2,3,4"
_RECORD = "grid.json"

Grid = Mapping[str, tuple[Any, ...]]


def parse_grid(text: str, base: FinetuneSettings) -> Grid:
    """Return the grid for `paper`, or for NAME=VALUE,VALUE …; raises InputError for an unknown setting or value."""
    grid: dict[str, tuple[Any, ...]] = {}
    for part in (PAPER if text == "paper" else text).split():
        name, _, values = part.partition("=")
        key = name.replace("-", "_")
        if key not in FinetuneSettings.model_fields or key in ("seeds", "first_seed", "threads", "precision", "device"):
            allowed = "batch-size, learning-rate, epochs, warmup, weight-decay, layer-decay, max-length, …"
            raise InputError(f"--grid: unknown setting {name!r}; allowed: {allowed}")
        if key in grid:
            raise InputError(f"--grid: {name} is given twice")
        grid[key] = tuple(_value(base, key, value, part) for value in values.split(","))
        if len(set(grid[key])) < len(grid[key]):
            raise InputError(f"--grid {part}: a value is given twice")
    if not grid:
        raise InputError(f"--grid: expected paper, or NAME=VALUE,VALUE … such as '{PAPER}', got {text!r}")
    return grid


def search_grid(
    settings: FinetuneSettings,
    task: TaskSpec,
    grid: Grid,
    request: TuneRequest,
) -> dict[str, Any]:
    """Fine-tune with every combination; return all metrics, best first, and keep the best model in `request.out`.

    Each combination is a run in it, so `request.resume` continues an interrupted search.
    """
    out = request.out
    combinations = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    saved, _ = open_initial_model(request.model, request.tokenizer)
    for combination in combinations:  # an invalid combination must fail now, not after days
        check_settings(settings.model_copy(update=combination), saved.config, request.model)
    ignored: Set[str] = settings.numeric if request.allow_other_numerics else frozenset()
    record = {
        **common_record(settings, task, request.model),
        "grid": {name: list(values) for name, values in grid.items()},
    }
    with opened_search(out / _RECORD, record, resume=request.resume, ignored=ignored):
        rows = _rows(settings, task, combinations, request)
        rows.sort(key=lambda row: (-row["mean"], row["sd"]))
        best = keep_model(Path(rows[0]["model"]), out)
        result = {"task": task.name, "metric": rows[0]["metric"], "rows": rows, "model": str(best), "out": str(out)}
        write_json(out / _RECORD, {**record, "result": result})
    return {**result, "text": grid_table(result)}


def _rows(
    settings: FinetuneSettings,
    task: TaskSpec,
    combinations: Sequence[Mapping[str, Any]],
    request: TuneRequest,
) -> list[dict[str, Any]]:
    """Return the metrics of every combination, in order. Raises Stopped where a signal came before the last one."""
    rows: list[dict[str, Any]] = []
    printed: set[str] = set()
    for number, combination in enumerate(combinations, start=1):
        folder = request.out / "-".join(
            f"{key.replace('_', '-')}={written(value)}" for key, value in combination.items()
        )
        say(f"[{number}/{len(combinations)}] {folder.name}")
        try:
            changed = settings.model_copy(update=combination)
            part = replace(request, out=folder, resume=folder.exists())
            result, signalled = tune(changed, task, part, printed=printed)
            kept = {name: result[name] for name in ("metric", "mean", "sd", "scores", "collapsed", "model")}
            kept["baselines"] = result.get("baselines")  # a run of an earlier version has none
            rows.append({"settings": dict(combination), **kept})
        except Stopped:
            signalled = True
        if signalled and len(rows) < len(combinations):
            raise Stopped(
                f"stopped with {len(rows)} of {len(combinations)} settings done; continue with the same command and "
                "--resume"
            )
    return rows


def grid_table(result: Mapping[str, Any]) -> str:
    """Return the metrics as lines, best first, with a note on the bias of the best one."""
    names = list(result["rows"][0]["settings"])
    table = [[*(name.replace("_", " ") for name in names), f"{result['metric']} on dev", ""]]
    for row in result["rows"]:
        note = f"{len(row['collapsed'])} of {len(row['scores'])} seeds collapsed" if row["collapsed"] else ""
        values = [written(row["settings"][name]) for name in names]
        table.append([*values, f"{row['mean']:.4f} ± {row['sd']:.4f}", note])
    return ranked_text(table, result)


def written(value: float) -> str:
    """Return a number as text with at most six digits, or with all digits where six are not enough."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _value(base: FinetuneSettings, key: str, text: str, part: str) -> Any:
    """Return the value of a setting from its text; `part` is the part of the grid in which it stands."""
    try:
        number = float(text)
        value = int(number) if number.is_integer() else number
        changed = FinetuneSettings.model_validate({**base.model_dump(), key: value})
    except (ValueError, OverflowError, ValidationError):
        raise InputError(f"--grid {part}: invalid value {text!r} of {key.replace('_', '-')}") from None
    return getattr(changed, key)
