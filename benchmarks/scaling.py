"""Training speed for several lengths, batch sizes, numbers of layers and threads, as numbers and as pictures.

python -m benchmarks.scaling [--out FOLDER] [--repeats 4] [--json]

Steps of masked LM and next sentence on whole rows of random pieces, a vocabulary of 30,522; everything but what a
picture is about stays at 2 layers of 128, 128 tokens and 32 rows. What a token costs is shown beside the floating-point
work that it needs: where both grow alike the machine is kept busy, and where the cost grows faster it is not.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.memory import VOCABULARY, rows
from benchmarks.side_by_side import parser, processor, timed, versions
from bertwright.model.config import EncoderConfig, size_config
from bertwright.model.encoder import init_weights
from bertwright.objectives.masked_lm import PretrainingModel, pretraining_flops
from bertwright.training.hardware import Numerics, apply_numerics, resolve_numerics
from bertwright.training.loop import Loop, Plan
from bertwright.training.settings import OptimizerSettings

LENGTHS = (64, 128, 256, 384, 512)
BATCHES = (1, 4, 16, 32, 64)
LAYERS = (2, 4, 8, 12)


def step_seconds(config: EncoderConfig, *, batch: int, length: int, threads: int, repeats: int) -> dict[str, float]:
    """Median seconds of a step, and its floating-point work."""
    settled: Numerics = resolve_numerics("auto", threads=threads)
    apply_numerics(settled)
    model = PretrainingModel(config)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(0))
    loop = Loop(model.trainable(), Plan(steps=10**6, seed=0, optimizer=OptimizerSettings()), settled, None)
    inputs = rows(batch, length)
    seconds = timed(lambda: loop.step(0, lambda _: [inputs]), repeats=repeats)
    return {"seconds": seconds, "flops": pretraining_flops(model.encoder, inputs), "tokens": batch * length}


def measure(threads: int, repeats: int) -> list[dict[str, Any]]:
    """Return a row for each point of each picture."""
    tiny = size_config("tiny", VOCABULARY)
    points: list[tuple[str, int, dict[str, Any]]] = []
    points += [("length", length, {"length": length}) for length in LENGTHS]
    points += [("rows", batch, {"batch": batch}) for batch in BATCHES]
    points += [("layers", layers, {"config": tiny.model_copy(update={"layers": layers})}) for layers in LAYERS]
    points += [("threads", count, {"threads": count}) for count in range(1, threads + 1)]
    measured: list[dict[str, Any]] = []
    for name, value, changes in points:
        setting: dict[str, Any] = {"config": tiny, "batch": 32, "length": 128, "threads": threads, **changes}
        point = step_seconds(setting.pop("config"), repeats=repeats, **setting)
        row: dict[str, Any] = {"work": f"step of tiny by {name}", name: value}
        row["tokens_per_second"] = point["tokens"] / point["seconds"]
        row |= {
            "flops_per_token": point["flops"] / point["tokens"],
            "flops_per_second": point["flops"] / point["seconds"],
        }
        measured.append(row)
        print(f"{name} {value}: {row['tokens_per_second']:,.0f} tokens/s, {row['flops_per_second'] / 1e9:,.0f} GFLOP/s",
              file=sys.stderr)  # fmt: skip
    return measured


def draw(measured: list[dict[str, Any]], folder: Path) -> list[str]:
    """A picture for each thing that was changed: tokens a second, and how much of the work's rate is left."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pictures = []
    for name in ("length", "rows", "layers", "threads"):
        points = [row for row in measured if name in row]
        values = [row[name] for row in points]
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
        left.plot(values, [row["tokens_per_second"] for row in points], "o-", color="#1f5a99")
        left.set(xlabel=name, ylabel="tokens a second", xticks=values)
        right.plot(values, [row["flops_per_second"] / 1e9 for row in points], "o-", color="#b3541e")
        right.set(xlabel=name, ylabel="GFLOP a second", xticks=values)
        for axes in (left, right):
            axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
        path = folder / f"scaling-{name}.png"
        figure.savefig(path, dpi=120, metadata={"Software": None})
        pyplot.close(figure)
        pictures.append(str(path))
    return pictures


def main() -> None:
    """Measure, draw, print."""
    given_parser = parser(__doc__, threads=False)
    given_parser.add_argument("--out", type=Path, help="where the pictures go")
    options: argparse.Namespace = given_parser.parse_args()
    points = measure(len(os.sched_getaffinity(0)), options.repeats)
    pictures = draw(points, options.out) if options.out else []
    if options.json:
        print(json.dumps({"rows": points, "pictures": pictures, "versions": versions([]), "processor": processor()}))


if __name__ == "__main__":
    main()
