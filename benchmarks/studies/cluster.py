"""The cost of data parallelism on a cluster: arithmetic, no measurement.

python -m benchmarks.studies.cluster [--size large] [--batch 256] [--gpus 8,64,1024] [--json]

The paper's 1,000,000 steps, 90 % of them with rows of 128 tokens and the rest of 512, 15 % masked. A GPU is taken to do
`--teraflops` of useful work a second in bf16 and to send `--gigabytes` a second to its neighbour in a ring, the slowest
link deciding; sums of gradients are of 32 bits. torch sends gradients while backward goes on: days are told with all of
the sending hidden behind the computing, and with none of it.
"""

import argparse
import json
import sys
from typing import Any

from benchmarks.memory import VOCABULARY, rows
from bertwright.model.config import size_config
from bertwright.objectives.masked_lm import PretrainingModel, pretraining_flops

PHASES = ((128, 0.9), (512, 0.1))
STEPS = 1_000_000
STATE = 16
"""Bytes of a parameter's weight, gradient and two moments."""


def point(size: str, batch: int, gpus: int, *, teraflops: float, gigabytes: float) -> dict[str, Any]:
    """Bytes and seconds of a mean step on so many GPUs."""
    config = size_config(size, VOCABULARY)
    model = PretrainingModel(config)
    count = sum(tensor.numel() for tensor in model.parameters())
    work = sum(share * pretraining_flops(model.encoder, rows(1, length)) for length, share in PHASES)
    most = -(-batch // gpus)
    compute = most * work / (teraflops * 1e12)
    around = (gpus - 1) / gpus * 4 * count
    sent = {"ddp": 2 * around, "fsdp2": 3 * around}
    seconds = {name: size / (gigabytes * 1e9) for name, size in sent.items()}
    return {
        "gpus": gpus,
        "rows_each": most,
        "state_gib": {"ddp": STATE * count / 2**30, "fsdp2": STATE * count / gpus / 2**30},
        "sent_gib": {name: size / 2**30 for name, size in sent.items()},
        "compute_seconds": compute,
        "sending_seconds": seconds,
        "days": [STEPS * step / 86_400 for step in (max(compute, seconds["ddp"]), compute + seconds["ddp"])],
        "pays_to": batch * work / (teraflops * 1e12) / (2 * 4 * count / (gigabytes * 1e9)),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="large")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--gpus", default="8,64,1024")
    parser.add_argument("--teraflops", type=float, default=400.0)
    parser.add_argument("--gigabytes", type=float, default=50.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    speeds = {"teraflops": options.teraflops, "gigabytes": options.gigabytes}
    points = [point(options.size, options.batch, int(gpus), **speeds) for gpus in options.gpus.split(",")]
    print(
        "| GPUs | rows each | state each, DDP / FSDP2 | sent a step, DDP / FSDP2 | computing | sending (DDP) | days |"
    )
    print("|---|---|---|---|---|---|---|")
    for row in points:
        state, sent = (
            " / ".join(f"{row[name][kind]:.2f} GiB" for kind in ("ddp", "fsdp2")) for name in ("state_gib", "sent_gib")
        )
        times = f"{row['compute_seconds'] * 1e3:.1f} ms | {row['sending_seconds']['ddp'] * 1e3:.1f} ms"
        days = " to ".join(f"{days:.1f}" for days in row["days"])
        print(f"| {row['gpus']:,} | {row['rows_each']} | {state} | {sent} | {times} | {days} |")
    print(f"sending takes as long as computing at {points[0]['pays_to']:.0f} GPUs", file=sys.stderr)
    if options.json:
        print(json.dumps({"rows": points}))


if __name__ == "__main__":
    main()
