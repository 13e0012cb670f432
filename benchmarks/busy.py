"""Training and answering beside programs that keep cores busy, and what a fair share of the machine would be.

python -m benchmarks.busy [--beside 0,1,2,4] [--seconds 3] [--repeats 3] [--out FOLDER] [--json]

Each other program is a loop of Python that does nothing. Ours, in the environment that the command line sets, takes
turns with the same work as torch comes: OpenMP's threads spin 300,000 rounds before they sleep, memory has no huge
pages, and nothing watches the cores. The fair share of C threads on C cores
beside K programs is C / (C + K) of the speed that ours has alone. The models have random weights.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import IO, Any, Final, cast
from unittest import mock

from benchmarks.side_by_side import finish, parser
from benchmarks.studies.schedule import numbers
from bertwright.cli import SPIN_ROUNDS

PROGRAMS: Final = {
    "ours": {"GOMP_SPINCOUNT": SPIN_ROUNDS, "THP_MEM_ALLOC_ENABLE": "1"},
    "torch": {"GOMP_SPINCOUNT": "300000", "THP_MEM_ALLOC_ENABLE": "0"},
}
"""Environment of ours as `bertwright.cli` sets it, and as torch comes: rounds for which a thread spins, huge pages."""
REST: Final = 2.0
"""Seconds beside the other programs before the clock starts."""


def _training(size: str, batch: int, length: int, threads: int) -> Callable[[], int]:
    from benchmarks.memory import VOCABULARY
    from benchmarks.step import training_step

    return training_step(size, batch, length, VOCABULARY, threads=threads, precision="auto")


def _answering(size: str, batch: int, length: int, threads: int) -> Callable[[], int]:
    import torch

    from benchmarks.memory import VOCABULARY
    from bertwright.model.config import size_config
    from bertwright.model.cpu.packing import packed_copy
    from bertwright.model.encoder import Encoder, init_weights
    from bertwright.training.hardware import prepare_processor

    prepare_processor()
    torch.set_num_threads(threads)
    encoder = Encoder(size_config(size, VOCABULARY))
    init_weights(encoder, 0.02, torch.Generator().manual_seed(0))
    packed = packed_copy(torch.nn.ModuleDict({"encoder": encoder}).eval(), "fp32")["encoder"]
    ids = torch.randint(1000, VOCABULARY, (batch, length), dtype=torch.int32)
    segments, mask = torch.zeros_like(ids), torch.ones(batch, length, dtype=torch.bool)

    def step() -> int:
        with torch.inference_mode():
            packed(ids, segments, mask)
        return batch * length

    return step


WORKS: Final[dict[str, Callable[[int], Callable[[], int]]]] = {
    "pre-training `tiny`, 32 rows of 64": partial(_training, "tiny", 32, 64),
    "pre-training `6x384`, 8 rows of 64": partial(_training, "6x384", 8, 64),
    "answering with `6x384`, 32 texts of 32": partial(_answering, "6x384", 32, 32),
    "answering with `6x384`, one text of 32": partial(_answering, "6x384", 1, 32),
}
"""Name → function of the number of threads that makes a model and returns one step, which returns its tokens."""


def serve(name: str, threads: int, *, watched: bool) -> None:
    """Do the work for as many seconds as a line of standard input says, and print the tokens a second; again and again.

    This is the process of one program.
    """
    with nullcontext() if watched else mock.patch("bertwright.training.hardware.watch_cores"):
        step = WORKS[name](threads)
    for _ in range(3):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, tokens, begin = float(line), 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            tokens += step()
        print(tokens / (time.perf_counter() - begin), flush=True)


class Program:
    """A process that does a work when it is asked."""

    def __init__(self, name: str, program: str, threads: int) -> None:
        command = [sys.executable, "-m", "benchmarks.busy", "--serve", name, "--threads", str(threads)]
        command += ["--watched"] if program == "ours" else []
        environment = {**os.environ, **PROGRAMS[program]}
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._line()

    def rate(self, seconds: float) -> float:
        """Return the tokens a second of so many seconds."""
        stream = cast(IO[str], self.process.stdin)
        stream.write(f"{seconds}\n")
        stream.flush()
        return float(self._line())

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()

    def _line(self) -> str:
        line = cast(IO[str], self.process.stdout).readline()
        if not line:
            raise SystemExit(f"{' '.join(cast(Sequence[str], self.process.args))}: ended without a result")
        return line


@contextmanager
def others(count: int) -> Iterator[None]:
    """Run so many programs that take as much of a core as they get."""
    with ExitStack() as running:
        for _ in range(count):
            loop = running.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            running.callback(loop.kill)
        yield


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each number of other programs."""
    with ExitStack() as running:
        programs = {program: Program(name, program, options.threads) for program in PROGRAMS}
        for program in programs.values():
            running.callback(program.end)
        rates = {count: _rates(programs, count, options) for count in options.beside}
    alone = median(rates[0]["ours"]) if 0 in rates else float("nan")
    rows = []
    for count, measured in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(measured["ours"], measured["torch"], strict=True)]
        fair = alone * options.threads / (options.threads + count)
        rows.append(
            {
                "work": f"{name}, {count} beside",
                "name": name,
                "beside": count,
                "peer": "the same, as torch comes",
                "unit": "tokens/s",
                "ours": median(measured["ours"]),
                "theirs": median(measured["torch"]),
                "ratio": median(ratios),
                "spread": max(ratios) - min(ratios),
                "of_fair_share": median(measured["ours"]) / fair,
                "their_part_of_fair_share": median(measured["torch"]) / fair,
            }
        )
    return rows


def _rates(programs: dict[str, Program], count: int, options: argparse.Namespace) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {program: [] for program in programs}
    with others(count):
        for _ in range(options.repeats):
            for name, program in programs.items():
                program.rate(REST)
                rates[name].append(program.rate(options.seconds))
    return rates


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the part of a fair share that each work gets."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(row["name"] for row in rows))
    figure, axes = pyplot.subplots(1, len(names), figsize=(3 * len(names), 3), sharey=True, layout="constrained")
    for each, name in zip([axes] if len(names) == 1 else axes, names, strict=True):
        points = [row for row in rows if row["name"] == name]
        counts = [str(row["beside"]) for row in points]
        each.plot(counts, [row["of_fair_share"] for row in points], "o-", color="#1f5a99", label="bertwright")
        each.plot(
            counts, [row["their_part_of_fair_share"] for row in points], "s--", color="#b3541e", label="as torch comes"
        )
        each.axhline(1.0, color="#888888", linewidth=0.8)
        each.set(title=name.replace("`", "").replace(", ", ",\n"), xlabel="busy programs beside it")
        each.title.set_fontsize(9)
    highest = max(max(row["of_fair_share"], row["their_part_of_fair_share"]) for row in rows)
    figure.axes[0].set(ylabel="speed ÷ fair share", ylim=(0, 1.05 * highest))
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def main() -> None:
    """Measure each work beside each number of other programs, draw and print the table."""
    options_parser = parser(__doc__)
    options_parser.set_defaults(repeats=3)
    options_parser.add_argument("--beside", type=numbers(int), default=[0, 1, 2, 4], help="numbers of other programs")
    options_parser.add_argument("--seconds", type=float, default=3.0, help="seconds of one turn")
    options_parser.add_argument("--out", type=Path, help="folder of the picture")
    options_parser.add_argument("--serve", help=argparse.SUPPRESS)
    options_parser.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    options = options_parser.parse_args()
    if options.serve:
        serve(options.serve, options.threads, watched=options.watched)
        return
    rows = [row for name in WORKS for row in measure(name, options)]
    if options.out:
        draw(rows, options.out / "busy.png")
    finish(options, rows, packages=[])


if __name__ == "__main__":
    main()
