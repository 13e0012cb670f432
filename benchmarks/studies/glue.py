"""Tasks in GLUE's layout: majority, bag of words, random weights and a pre-trained model side by side, several seeds.

python -m benchmarks.studies.glue --model RUN --data FOLDER --out FOLDER [--tasks sst2,cola,rte,stsb,qnli]
    [--seeds 3] [--json]
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.folder import open_model
from bertwright.tasks.baselines import bag_of_words_baseline, majority_baseline
from bertwright.tasks.classification.spec import get_task
from bertwright.tasks.classification.task import CLASSIFICATION

FOLDERS = {
    "sst2": "SST-2",
    "cola": "CoLA",
    "rte": "RTE",
    "stsb": "STS-B",
    "qnli": "QNLI",
    "mrpc": "MRPC",
    "qqp": "QQP",
    "mnli": "MNLI",
}
EPOCHS = {"sst2": 3}
"""Small sets see their data more often."""


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the row of a task."""
    data = options.data / FOLDERS[name]
    read = CLASSIFICATION.read(get_task(name), data)
    task, train, dev = read.task, read.train, read.validation
    first = next(iter(dev.values()))
    metric = task.primary_metric
    row: dict[str, Any] = {"work": f"fine-tuning {name}", "metric": metric, "train": len(train), "dev": len(first)}
    row["majority"] = majority_baseline(task, train, first)[metric]
    row["bag_of_words"] = bag_of_words_baseline(task, train, first)[metric]
    size = "random:" + options.random
    tokenizer = open_model(str(options.model)).tokenizer
    settings = FinetuneSettings(
        epochs=EPOCHS.get(name, options.epochs),
        batch_size=32,
        seeds=options.seeds,
        learning_rate=options.learning_rate,
        max_length=options.max_length,
    )
    for column, source in (("random", size), ("pretrained", str(options.model))):
        start = time.perf_counter()
        out = options.out / f"{name}-{column}"
        result = finetune(settings, get_task(name), model=source, data=data, out=out, tokenizer=tokenizer, resume=True)
        row |= {column: statistics.fmean(result["scores"]), f"{column}_sd": result["sd"]}
        row[f"{column}_minutes"] = (time.perf_counter() - start) / 60
    return row


def main() -> None:
    """Measure every task and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", default="rte,cola,stsb,qnli,sst2")
    parser.add_argument("--random", default="tiny", help="size of the model with random weights")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for name in options.tasks.split(","):
        row = measure(name, options)
        rows.append(row)
        print(
            f"{name:6}{row['metric']:10}{row['majority']:8.3f}{row['bag_of_words']:8.3f}"
            f"{row['random']:8.3f} ± {row['random_sd']:.3f}{row['pretrained']:8.3f} ± {row['pretrained_sd']:.3f}",
            file=sys.stderr,
        )
    means = {name: statistics.fmean(row[name] for row in rows) for name in ("bag_of_words", "random", "pretrained")}
    print(f"mean of {len(rows)}: " + ", ".join(f"{name} {value:.3f}" for name, value in means.items()), file=sys.stderr)
    if options.json:
        print(json.dumps({"rows": rows, "means": means}))


if __name__ == "__main__":
    main()
