"""Fine-tuning while other programs keep cores busy: threads that soon sleep while they wait, beside torch as it comes.

python -m benchmarks.studies.busy [--beside 0,2] [--batch-size 8] [--repeats 3] [--json]

`bertwright finetune` on 1,500 short sentences with the model that comes along, in turns with GOMP_SPINCOUNT=20000,
which `bertwright` sets, and with the 300,000 turns of a waiting thread that are OpenMP's own. Beside each run so many
loops of Python that do nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.finetuning import documentation_data
from benchmarks.side_by_side import finish, parser
from bertwright.cli import SPIN_ROUNDS

ROWS: Final = 1500
OWN: Final = "300000"
"""Default turns of a waiting thread in GNU's OpenMP."""


@contextmanager
def others(count: int) -> Iterator[None]:
    """So many programs that keep a core each as busy as they get it."""
    with ExitStack() as running:
        for _ in range(count):
            loop = running.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            running.callback(loop.kill)
        yield


def trained(data: Path, turns: str, options: argparse.Namespace) -> float:
    """Tokens a second of a fine-tuning: the median over the lines of its log."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bertwright", "finetune", "sst2", "--model", "small-wiki", "--epochs", "1"]
        command += ["--data", str(data), "--out", f"{folder}/run", "--batch-size", str(options.batch_size)]
        command += ["--precision", "fp32", "--threads", str(options.threads)]
        subprocess.run(command, env={**os.environ, "GOMP_SPINCOUNT": turns}, check=True, capture_output=True)
        lines = next(Path(folder).glob("run/*/metrics.jsonl")).read_text().splitlines()
    return float(median(json.loads(line)["tokens_per_second"] for line in lines if "tokens_per_second" in line))


def measure(data: Path, beside: int, options: argparse.Namespace) -> dict[str, Any]:
    """The row of one number of other programs."""
    rates: dict[str, list[float]] = {SPIN_ROUNDS: [], OWN: []}
    with others(beside):
        for _ in range(options.repeats):
            for turns, speeds in rates.items():
                speeds.append(trained(data, turns, options))
    ratios = [ours / theirs for ours, theirs in zip(rates[SPIN_ROUNDS], rates[OWN], strict=True)]
    return {
        "work": f"batches of {options.batch_size}, {beside} beside",
        "peer": "the same, as torch comes",
        "unit": "tokens/s",
        "ours": median(rates[SPIN_ROUNDS]),
        "theirs": median(rates[OWN]),
        "ratio": median(ratios),
        "spread": max(ratios) - min(ratios),
    }


def main() -> None:
    """Measure each number of other programs and print the table."""
    given_parser = parser(__doc__)
    given_parser.set_defaults(repeats=3)
    given_parser.add_argument("--beside", default="0,2")
    given_parser.add_argument("--batch-size", type=int, default=8)
    options = given_parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data, _ = documentation_data(Path(folder))
        train = data / "train.tsv"
        train.write_text("".join(train.read_text("utf-8").splitlines(keepends=True)[: ROWS + 1]), "utf-8")
        rows = [measure(data, beside, options) for beside in map(int, options.beside.split(","))]
    finish(options, rows, packages=[])


if __name__ == "__main__":
    main()
