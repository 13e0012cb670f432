"""Speed of one process and of two: tokens a second of a pre-training.

python -m benchmarks.studies.processes --corpus CORPUS [--size tiny] [--steps 60] [--repeats 3] [--json]

The same run (32 rows of 128 tokens in two micro-batches, no dropout, fp32) by one process on one core and on all of
them, and by two processes of one core each under torchrun, with DDP and with FSDP2. They take turns.
`benchmarks.studies.apart` says how far apart their losses are.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.side_by_side import parser, processor, versions

ROOT = Path(__file__).resolve().parent.parent.parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
WAYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "one process, one core": ((), ("--threads", "1")),
    "one process, two cores": ((), ("--threads", "2")),
    "two processes, DDP": (TORCHRUN, ("--threads", "1")),
    "two processes, FSDP2": (TORCHRUN, ("--threads", "1", "--sharding", "fsdp2")),
}


def trained(way: str, corpus: Path, size: str, steps: int, out: Path) -> float:
    """Tokens a second."""
    launcher, options = WAYS[way]
    command = [sys.executable, *launcher, "-m", "bertwright", "pretrain", "--corpus", str(corpus), "--size", size]
    command += ["--steps", str(steps), "--batch-size", "32", "--micro-tokens", "2048", "--lengths", "128"]
    command += ["--dropout", "0", "--precision", "fp32", "--compile", "off", "--log-every", "5", *options]
    subprocess.run([*command, "--out", str(out)], check=True, capture_output=True, cwd=ROOT)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "mlm" in line]
    return float(statistics.median(line["tokens_per_second"] for line in lines[1:]))


def main() -> None:
    """Measure and print."""
    given_parser = parser(__doc__, threads=False)
    given_parser.set_defaults(repeats=3)
    given_parser.add_argument("--corpus", type=Path, required=True)
    given_parser.add_argument("--size", default="tiny")
    given_parser.add_argument("--steps", type=int, default=60)
    options = given_parser.parse_args()
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.repeats):
            for position, way in enumerate(WAYS):
                out = Path(folder) / f"{turn}-{position}"
                rates[way].append(trained(way, options.corpus, options.size, options.steps, out))
                print(f"{way}: {rates[way][-1]:,.0f} tokens/s", file=sys.stderr)
    rows: list[dict[str, Any]] = []
    alone = next(iter(WAYS))
    for way in WAYS:
        ratios = [mine / one for mine, one in zip(rates[way], rates[alone], strict=True)]
        rows.append(
            {
                "work": f"{options.size}, {way}",
                "tokens_per_second": statistics.median(rates[way]),
                "ratio": statistics.median(ratios),
                "spread": max(ratios) - min(ratios),
            }
        )
        print(rows[-1], file=sys.stderr)
    if options.json:
        print(json.dumps({"rows": rows, "versions": versions([]), "processor": processor()}))


if __name__ == "__main__":
    main()
