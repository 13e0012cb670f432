"""Epochs, batch size and learning rate of fine-tuning: validation metric after each epoch, for each combination.

python -m benchmarks.studies.schedule TASK --model MODEL --data FOLDER [--rows 50,600] [--epochs 3,20]
    [--batch-size 8,16] [--learning-rate 1e-4,5e-4] [--seeds 1] [--threads 1] [--device cpu] [--json]

Without --epochs, --batch-size and --learning-rate the default schedule is measured. No epoch is chosen: the metric of
the last epoch counts. `--rows` takes the first rows of a random order of the training file, the same order for each
number.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from bertwright.finetuning.batches import steps_of
from bertwright.finetuning.schedule import ScheduledSettings, scheduled
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.setup import initial_model, initial_weights, open_initial_model, train_plan
from bertwright.model.folder import SavedModel
from bertwright.tasks.binding import BoundTask
from bertwright.tasks.kinds import kind_of
from bertwright.tasks.spec import TaskSpec, get_spec
from bertwright.training.hardware import apply_numerics, resolve_numerics
from bertwright.training.loop import autocast, train
from bertwright.training.settings import Device


def sample(data: Path, rows: int, folder: Path) -> Path:
    """Return a folder with the first rows of a random order of the training file, and links to the other files."""
    out = folder / f"rows-{rows}"
    out.mkdir(exist_ok=True)
    for source in data.iterdir():
        if source.stem.startswith("train"):
            lines = source.read_text("utf-8").splitlines(keepends=True)
            head, body = ([], lines) if data.name == "CoLA" else (lines[:1], lines[1:])
            random.Random(0).shuffle(body)
            (out / f"train{source.suffix}").write_text("".join(head + body[:rows]), "utf-8")
        elif not (out / source.name).exists():
            (out / source.name).symlink_to(source.absolute())
    return out


def curve(settings: ScheduledSettings, bound: BoundTask, saved: SavedModel, seed: int) -> list[float]:
    """Return the primary validation metric after each epoch."""
    numerics = resolve_numerics(settings.precision, threads=settings.threads, device=settings.device)
    apply_numerics(numerics)
    model = initial_model(settings, bound, saved, seed)
    plan = train_plan(settings, bound, saved.config, seed)
    values: list[float] = []

    def evaluate(_: int) -> dict[str, float]:
        with autocast(numerics):
            metrics = bound.evaluate(model)
        values.append(next(iter(metrics.values())))
        return metrics

    steps = plan.steps // settings.epochs
    ends = frozenset(range(steps, plan.steps + 1, steps))
    plan = replace(plan, evaluate=evaluate, evaluate_at=ends)
    train(bound.trainable(model), steps_of(bound, settings.batch_size, seed=seed), plan=plan, numerics=numerics)
    return values


def prepared(
    task: TaskSpec, model: str, data: Path, *, threads: int, device: Device = "cpu"
) -> tuple[FinetuneSettings, BoundTask, SavedModel]:
    """Return settings without a schedule, the data bound to the model, and the model."""
    settings = FinetuneSettings(max_length=task.max_length, threads=threads, device=device)
    saved, tokenizer = open_initial_model(model, None)
    bound = kind_of(task).prepare(task, data, tokenizer, saved.config, task.max_length)
    return settings, bound, initial_weights(settings, bound, saved)


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Return a row for each number of rows, combination of settings, and seed."""
    task = get_spec(options.task)
    table = []
    for rows in options.rows or [0]:
        data = sample(options.data, rows, folder) if rows else options.data
        base, bound, saved = prepared(task, options.model, data, threads=options.threads, device=options.device)
        for epochs, batch_size, rate in product(options.epochs, options.batch_size, options.learning_rate):
            changed = base.model_copy(update={"epochs": epochs, "batch_size": batch_size, "learning_rate": rate})
            settings = scheduled(changed, saved.config, len(bound.lengths))
            for seed in range(options.seeds):
                start = time.perf_counter()
                values = curve(settings, bound, saved, seed)
                row = settings.model_dump(include={"epochs", "batch_size", "learning_rate"})
                seconds = round(time.perf_counter() - start, 1)
                table.append({"rows": len(bound.lengths), **row, "seed": seed, "seconds": seconds, "curve": values})
                print(f"{table[-1]}", file=sys.stderr)
    return table


def numbers(kind: type) -> Any:
    """Return a reader of numbers separated by commas."""
    return lambda text: [kind(part) for part in text.split(",")]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=numbers(int), default=[])
    parser.add_argument("--epochs", type=numbers(int), default=[None])
    parser.add_argument("--batch-size", type=numbers(int), default=[None])
    parser.add_argument("--learning-rate", type=numbers(float), default=[None])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = measure(options, Path(folder))
    if options.json:
        print(json.dumps(table))


if __name__ == "__main__":
    main()
