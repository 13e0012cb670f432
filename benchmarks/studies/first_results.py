"""A newcomer's first fine-tuning: the plain command beside other settings, transformers, and a bag of words.

python -m benchmarks.studies.first_results TASK --model MODEL --data FOLDER --store FILE [--rows 50,200]
    [--ways plain,before,transformers] [--seeds 3] [--threads 1] [--device cpu] [--json]

Ways: plain, the schedule that `finetune` chooses; before, 3 epochs of batches of 32 at 3e-4 below a width of 768 and at
3e-5 from there on, the defaults until November 2026; transformers, its model classes with 3 epochs of batches of 16 at
5e-5, AdamW and linear decay, for tasks of one or two texts. All have the same rows, tokens and validation metric.

Each measurement is a line of FILE with the metric after each epoch, and is not repeated. The table has the mean and the
standard deviation over the seeds of the last epoch, and in brackets the mean of the best epochs.
"""

import argparse
import json
import statistics
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from benchmarks.studies.schedule import curve, numbers, prepared, sample
from bertwright.finetuning.baselines import text_baselines, word_baseline
from bertwright.finetuning.schedule import scheduled
from bertwright.tasks.binding import BoundTask
from bertwright.tasks.classification.model import TextBatch
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.spec import get_spec
from bertwright.tasks.tagging.spec import TaggingTask
from bertwright.training.hardware import move_to_device, resolve_device

WAYS = ("plain", "before", "transformers")
WIDE = 768


class TransformersClassifier(nn.Module):
    """transformers' BertForSequenceClassification with the attributes that the validation of a bound task reads."""

    both_orders = False

    def __init__(self, folder: str, bound: BoundTask) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model = transformers.AutoModelForSequenceClassification.from_pretrained(
                folder, num_labels=bound.task.num_outputs
            )
        self.encoder = self.model.bert
        self.encoder.config.pad_id = bound.config.pad_id
        self.classifier = nn.Module()
        self.classifier.linear = self.model.classifier

    def forward(self, batch: TextBatch) -> Tensor:
        """Return logits [rows, outputs]."""
        columns = {
            "input_ids": batch.ids.long(),
            "token_type_ids": batch.segments.long(),
            "attention_mask": batch.mask.long(),
        }
        logits: Tensor = self.model(**columns).logits
        return logits


def transformers_curve(folder: str, bound: BoundTask, seed: int, device: torch.device) -> list[float]:
    """Return the primary validation metric after each of three epochs of a plain training loop."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(False)  # as it comes
    model = TransformersClassifier(folder, bound).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    rows, random = len(bound.lengths), np.random.default_rng(seed)
    steps = 3 * -(-rows // 16)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, steps)
    values = []
    for _ in range(3):
        model.train()
        order = random.permutation(rows)
        for begin in range(0, rows, 16):
            batch = move_to_device(bound.batch(np.sort(order[begin : begin + 16])), device)
            loss = bound.kind.loss(bound.task, model, batch) / len(batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        values.append(next(iter(bound.evaluate(model).values())))
    return values


def bag_of_words(bound: BoundTask) -> dict[str, float]:
    """Return the primary validation metric of each baseline."""
    task, train = bound.task, bound.train[0]
    validation = next(iter(bound.validation.values()))[0]
    if isinstance(task, ClassificationTask):
        metrics = text_baselines(task, train, validation).metrics
    else:
        metrics = word_baseline(task, train, validation).metrics if isinstance(task, TaggingTask) else {}
    return {name: next(iter(values.values())) for name, values in metrics.items()}


def measure(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a measurement for each number of rows, way and seed that is not in the store."""
    task, known = get_spec(options.task), stored(options.store)
    for rows in options.rows or [0]:
        data = sample(options.data, rows, folder) if rows else options.data
        settings, bound, saved = prepared(task, options.model, data, threads=options.threads, device=options.device)
        before = {"epochs": 3, "batch_size": 32, "learning_rate": 3e-5 if saved.config.hidden >= WIDE else 3e-4}
        same = {"task": options.task, "model": options.model, "rows": len(bound.lengths)}
        for way in options.ways:
            for seed in range(options.seeds):
                cell = {**same, "way": way, "seed": seed}
                if any(cell.items() <= line.items() for line in known):
                    continue
                if way == "transformers":
                    values = transformers_curve(saved.source, bound, seed, resolve_device(options.device))
                else:
                    chosen = settings.model_copy(update=before if way == "before" else {})
                    schedule = scheduled(chosen, saved.config, len(bound.lengths))
                    values = curve(schedule, bound, saved, seed)
                    if len(values) < schedule.epochs:  # a signal stopped it
                        return
                yield {**cell, "curve": values}
        if not any({**same, "way": "baselines"}.items() <= line.items() for line in known):
            yield {**same, "way": "baselines", "metrics": bag_of_words(bound)}


def stored(path: Path) -> list[dict[str, Any]]:
    """Return the measurements of a store."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def table(measured: list[dict[str, Any]]) -> str:
    """Return a line for each task, model and number of rows."""
    lines = []
    for task, model, rows in sorted({(line["task"], line["model"], line["rows"]) for line in measured}):
        group = [line for line in measured if (line["task"], line["model"], line["rows"]) == (task, model, rows)]
        cells = []
        for way in WAYS:
            curves = [line["curve"] for line in group if line["way"] == way]
            if curves:
                last, best = [each[-1] for each in curves], statistics.fmean(map(max, curves))
                deviation = statistics.stdev(last) if len(last) > 1 else float("nan")
                cells.append(f"{way} {statistics.fmean(last):.3f} ± {deviation:.3f} [{best:.3f}], n {len(curves)}")
        cells += [
            f"{name} {value:.3f}"
            for line in group
            if line["way"] == "baselines"
            for name, value in line["metrics"].items()
        ]
        lines.append(f"{task}, {Path(model).name}, {rows} rows: {'; '.join(cells)}")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, and print the table of the whole store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--rows", type=numbers(int), default=[])
    parser.add_argument("--ways", type=numbers(str), default=list(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        for line in measure(options, Path(folder)):
            with options.store.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")
    measured = stored(options.store)
    print(json.dumps(measured) if options.json else table(measured))


if __name__ == "__main__":
    main()
