"""Peak memory of a training step beside transformers', and the largest batch that fits into some memory.

python -m benchmarks.memory [--size base] [--batch 16] [--gibibytes 8] [--json]

Each contender runs in a process of its own: masked LM and next sentence on rows of 128 tokens, AdamW and clipping, a
step of one row, which makes the optimiser's moments, and one of the whole batch. The peak is what the system says the
process held at most. Peaks grow along a line with the rows, so few batches are tried.
"""

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.pretraining import theirs
from benchmarks.side_by_side import parser, processor, versions
from bertwright.model.config import size_config
from bertwright.model.encoder import init_weights
from bertwright.objectives.masked_lm import Inputs, PretrainingModel
from bertwright.training.activation_checkpointing import checkpoint_activations
from bertwright.training.hardware import apply_numerics, resolve_numerics
from bertwright.training.loop import Loop, Plan
from bertwright.training.memory import peak_bytes
from bertwright.training.settings import OptimizerSettings

LENGTH, VOCABULARY = 128, 30_522
FEW, LARGEST = 1, 512
"""Rows that are tried at least and at most."""


def rows(batch: int, length: int = LENGTH, vocabulary: int = VOCABULARY) -> Inputs:
    """Whole rows of random pieces, 15 % of them to be predicted."""
    random, masked = torch.Generator().manual_seed(0), round(0.15 * length)
    places = torch.stack([torch.randperm(length - 1, generator=random)[:masked] + 1 for _ in range(batch)])
    at = torch.cat([torch.zeros(batch, 1, dtype=torch.int64), places], dim=1)
    picked = (torch.arange(batch)[:, None] * (masked + 1) + torch.arange(1, masked + 1)).flatten()
    return Inputs(
        ids=torch.randint(5, vocabulary, (batch, length), generator=random, dtype=torch.int32),
        segments=torch.zeros(batch, length, dtype=torch.int32),
        mask=torch.ones(batch, length, dtype=torch.bool),
        at=at,
        picked=picked,
        labels=torch.randint(5, vocabulary, (len(picked),), generator=random),
        is_random=torch.zeros(batch, dtype=torch.int64),
    )


def ours(size: str, batch: int, micro: int, activation_checkpointing: bool) -> None:
    """The steps in the program's own loop, `micro` rows at a time."""
    config = size_config(size, VOCABULARY)
    model = PretrainingModel(config)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(0))
    if activation_checkpointing:
        checkpoint_activations(model.encoder.layers)
    numerics = resolve_numerics("fp32")
    apply_numerics(numerics)
    loop = Loop(model.trainable(), Plan(steps=10, seed=0, optimizer=OptimizerSettings()), numerics, None)
    for step, sizes in enumerate(([1], [min(micro, batch - begin) for begin in range(0, batch, micro)])):
        loop.step(step, lambda _, sizes=sizes: [rows(size) for size in sizes])  # type: ignore[misc]


def transformers_step(size: str, batch: int) -> None:
    """The steps of transformers' model."""
    transformers.logging.set_verbosity_error()
    theirs(size_config(size, VOCABULARY), [[rows(1)], [rows(batch)]], bf16=False, compiled=False)()


def in_own_process(run: Callable[..., None], *arguments: Any) -> int | None:
    """Bytes at the peak; None where a signal ended the process. SystemExit where it failed otherwise."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(there, run, arguments))
    process.start()
    there.close()
    try:
        peak: int | None = here.recv()
    except EOFError:
        peak = None
    process.join()
    if peak is None and (process.exitcode or 0) >= 0:  # the exit code of a signal is negative
        raise SystemExit(f"{run.__name__}{arguments}: failed with exit code {process.exitcode}; its error is above")
    return peak


def _measured(answer: Connection, run: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    run(*arguments)
    answer.send(peak_bytes())


def largest(limit: int, run: Callable[[int], int | None], peaks: dict[int, int | None]) -> int:
    """The largest batch, to an eighth, whose peak is at most `limit`; 0 where not even one row fits.

    `peaks` are those of batches that were tried before; None: it did not live.
    """
    peaks = dict(peaks)
    while True:
        fits = max((rows for rows, peak in peaks.items() if peak and peak <= limit), default=0)
        over = min((rows for rows, peak in peaks.items() if not peak or peak > limit), default=LARGEST + 1)
        if over - fits <= max(1, fits // 8):
            return fits
        if over in peaks and not peaks[over]:
            guess = (fits + over) // 2
        else:
            guess = min(along(peaks, limit), over - 1)
            if guess < fits + max(1, fits // 8):  # an eighth more would be too much
                return fits
        peaks[guess] = run(guess)


def along(peaks: Mapping[int, int | None], limit: int) -> int:
    """Rows at which the line through the two largest batches that lived reaches `limit`; 1 before there are two."""
    lived = sorted((rows, peak) for rows, peak in peaks.items() if peak)
    if len(lived) < 2:
        return 1
    (few, low), (many, high) = lived[-2:]
    return few + int((limit - low) * (many - few) / max(1, high - low))


def shown(peak: int | None) -> str:
    """Return a peak for people."""
    return "did not live" if peak is None else f"{peak / 2**30:.2f} GiB"


def main() -> None:
    """Measure and print."""
    given_parser = parser(__doc__, threads=False)
    given_parser.add_argument("--size", default="base")
    given_parser.add_argument("--batch", type=int, default=16)
    given_parser.add_argument("--gibibytes", type=float, default=8.0)
    options: argparse.Namespace = given_parser.parse_args()
    size, batch = options.size, options.batch
    whole: dict[str, Callable[[int], int | None]] = {
        "transformers": lambda rows: in_own_process(transformers_step, size, rows),
        "bertwright": lambda rows: in_own_process(ours, size, rows, rows, False),
        "bertwright --activation-checkpointing": lambda rows: in_own_process(ours, size, rows, rows, True),
    }
    table = []
    for name, run in whole.items():
        peak = run(batch)
        most = largest(int(options.gibibytes * 2**30), run, {batch: peak, FEW: run(FEW)})
        table.append({"work": f"memory {size}", "contender": name, "batch": batch, "peak": peak, "largest_batch": most})
        print(f"{name:28}{batch} rows at once: {shown(peak)}; in {options.gibibytes} GiB: {most} rows", file=sys.stderr)
    pieces = int(np.ceil(batch / 4))
    peak = in_own_process(ours, size, batch, pieces, False)
    table.append({"work": f"memory {size}", "contender": f"bertwright, {pieces} rows at a time", "peak": peak})
    print(f"{table[-1]['contender']:28}{batch} rows: {shown(peak)}", file=sys.stderr)
    if options.json:
        print(json.dumps({"rows": table, "versions": versions(["transformers"]), "processor": processor()}))


if __name__ == "__main__":
    main()
