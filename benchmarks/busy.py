"""Fine-tuning while other programs keep cores busy: threads that soon sleep while they wait, beside torch as it comes.

python -m benchmarks.busy [--beside 0,1,2] [--size tiny] [--repeats 3] [--json]

Turns of `python -m benchmarks.finetuning` with GOMP_SPINCOUNT=20000, which `bertwright` sets, and without it, as torch
comes: a thread that waits turns 300,000 times then. Beside each run so many loops of Python that do nothing. Ours
stands beside ours without the setting, and beside transformers, which does not have it.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.finetuning import documentation_data
from benchmarks.side_by_side import finish, parser
from bertwright.cli import TURNS

PEER = "transformers, dynamic padding"
SETTING = "GOMP_SPINCOUNT"


@contextmanager
def others(count: int) -> Iterator[None]:
    """So many programs that keep a core each as busy as they get it."""
    with ExitStack() as running:
        for _ in range(count):
            loop = running.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            running.callback(loop.kill)
        yield


def rates(command: Sequence[str], *, is_set: bool) -> dict[str, float]:
    """Examples a second of ours and of the peer, of one turn."""
    environment = {name: value for name, value in os.environ.items() if name not in (SETTING, "OMP_WAIT_POLICY")}
    if is_set:
        environment[SETTING] = TURNS
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    row = next(row for row in json.loads(output.splitlines()[-1])["rows"] if row["peer"] == PEER)
    return {"ours": row["ours"], PEER: row["theirs"]}


def measure(command: Sequence[str], size: str, beside: int, repeats: int) -> list[dict[str, Any]]:
    """The rows of one number of other programs."""
    ours: list[float] = []
    peers: dict[str, list[float]] = {"the same, as torch comes": [], PEER: []}
    with others(beside):
        for _ in range(repeats):
            ours.append(rates(command, is_set=True)["ours"])
            found = rates(command, is_set=False)
            peers["the same, as torch comes"].append(found["ours"])
            peers[PEER].append(found[PEER])
    rows = []
    for peer, theirs in peers.items():
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        rows.append(
            {
                "work": f"fine-tuning {size}, {beside} beside",
                "peer": peer,
                "unit": "examples/s",
                "ours": median(ours),
                "theirs": median(theirs),
                "ratio": median(ratios),
                "spread": max(ratios) - min(ratios),
            }
        )
    return rows


def main() -> None:
    """Measure each number of other programs and print the table."""
    given_parser = parser(__doc__)
    given_parser.set_defaults(repeats=3)
    given_parser.add_argument("--beside", default="0,1,2")
    given_parser.add_argument("--size", default="tiny")
    given = given_parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data, tokenizer = documentation_data(Path(folder))
        tokenizer.save(Path(folder) / "tok")
        command = [sys.executable, "-m", "benchmarks.finetuning", "--json", "--sizes", given.size, "--repeats", "2"]
        command += ["--data", str(data), "--tokenizer", f"{folder}/tok", "--threads", str(given.threads)]
        rows = [
            row
            for beside in map(int, given.beside.split(","))
            for row in measure(command, given.size, beside, given.repeats)
        ]
    finish(given, rows, packages=["transformers"])


if __name__ == "__main__":
    main()
