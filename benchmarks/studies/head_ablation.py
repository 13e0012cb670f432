"""A pre-trained model with and without the head that looks for the same piece: does it cause the scores on pairs?

python -m benchmarks.studies.head_ablation TASK --data FOLDER --pairs STS-B/dev.tsv --store FILE
    [--epochs 4] [--batch-size 16] [--learning-rate 3e-4] [--threads 1] MODEL …

For each model the head with the most attention to the same piece in the other text is found, as in same_piece. The
model is fine-tuned three times: as it is; without that head; and without another head of the same layer, as a control.
Values and outputs of a removed head are zero, and so are their gradients: it stays removed in fine-tuning.

Each measurement is a line of FILE, and is not repeated. The table has the metric after the last epoch for each model,
and the mean of the differences over the models with its standard error.
"""

import argparse
import csv
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.studies.first_results import stored
from benchmarks.studies.same_piece import shares
from benchmarks.studies.schedule import curve, prepared
from bertwright.finetuning.schedule import scheduled
from bertwright.model.config import EncoderConfig
from bertwright.tasks.spec import get_spec

WAYS = ("whole", "ablated", "control")


def without_head(weights: Mapping[str, Tensor], layer: int, head: int, heads: int) -> dict[str, Tensor]:
    """Return the weights of a model in which a head of its encoder has no values and no output.

    layer, head: from 0. The query, key and value maps are one matrix [3D, D], and each head has D / heads rows of each.
    """
    changed = dict(weights)
    prefix = f"encoder.layers.{layer}.attention."
    hidden = weights[prefix + "output.weight"].shape[1]
    width = hidden // heads
    values = slice(2 * hidden + head * width, 2 * hidden + (head + 1) * width)
    for name in ("qkv.weight", "qkv.bias"):
        changed[prefix + name] = weights[prefix + name].clone()
        changed[prefix + name][values] = 0.0
    changed[prefix + "output.weight"] = weights[prefix + "output.weight"].clone()
    changed[prefix + "output.weight"][:, head * width : (head + 1) * width] = 0.0
    return changed


def strongest_head(source: str, pairs: list[tuple[str, str]]) -> tuple[int, int, float]:
    """Return layer and head, from 0, with the most attention to the same piece, and the fraction that it gives."""
    layers = shares(source, pairs)["layers"]
    fraction, layer, head = max((value, i, j) for i, row in enumerate(layers) for j, value in enumerate(row))
    return layer, head, fraction


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a measurement for each model and way that is not in the store."""
    with options.pairs.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:300]
    pairs = [(line["sentence1"], line["sentence2"]) for line in lines]
    known = stored(options.store)
    for source in options.models:
        same = {"task": options.task, "model": source}
        missing = [way for way in WAYS if not any({**same, "way": way}.items() <= line.items() for line in known)]
        if not missing:
            continue
        layer, head, fraction = strongest_head(source, pairs)
        settings, bound, saved = prepared(get_spec(options.task), source, options.data, threads=options.threads)
        chosen = {"epochs": options.epochs, "batch_size": options.batch_size, "learning_rate": options.learning_rate}
        schedule = scheduled(settings.model_copy(update=chosen), saved.config, len(bound.lengths))
        assert isinstance(saved.config, EncoderConfig)
        heads = saved.config.heads
        removed = {"ablated": head, "control": (head + 1) % heads}
        for way in missing:
            weights = saved.weights
            if way in removed:
                weights = without_head(saved.weights or {}, layer, removed[way], heads)
            values = curve(schedule, bound, replace(saved, weights=weights), 0)
            if len(values) < schedule.epochs:  # a signal stopped it
                return
            yield {**same, "way": way, "layer": layer, "head": head, "fraction": fraction, "curve": values}


def table(measured: list[dict[str, Any]]) -> str:
    """Return a line for each task and model, and for each task the mean difference that the removal makes."""
    lines = []
    for task in sorted({line["task"] for line in measured}):
        scores: dict[str, dict[str, float]] = {}
        for line in (line for line in measured if line["task"] == task):
            scores.setdefault(line["model"], {"fraction": line["fraction"]})[line["way"]] = line["curve"][-1]
        for model, cells in scores.items():
            lines.append(f"{task}, {model}: " + ", ".join(f"{name} {value:.3f}" for name, value in cells.items()))
        for way in WAYS[1:]:
            changes = [cells[way] - cells["whole"] for cells in scores.values() if {way, "whole"} <= cells.keys()]
            if len(changes) > 1:
                error = statistics.stdev(changes) / math.sqrt(len(changes))
                lines.append(
                    f"{task}, {way} - whole: {statistics.fmean(changes):+.3f} ± {error:.3f}, {len(changes)} models"
                )
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, and print the table of the whole store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for line in measure(options):
        with options.store.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
    print(table(stored(options.store)))


if __name__ == "__main__":
    main()
