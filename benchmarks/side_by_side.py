"""Programs that do the same work take turns, and a table shows how much faster ours is.

Each turn of ours stands beside the turn of a peer that came right after it, so that what else the machine does meets
both; a ratio is the median over the turns, its spread the largest less the smallest.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bertwright.model.config import EncoderConfig

REST = 0.1
"""Seconds between turns, in which the threads of the one before come to rest."""


def compare(
    work: str, ours: Callable[[], float], peers: Mapping[str, Callable[[], float]], *, repeats: int = 5, unit: str
) -> list[dict[str, Any]]:
    """A row for each peer. A contender is a function that does its work once and returns how many `unit` that were.

    The first turn of each warms it up and does not count.
    """
    contenders = {"": ours, **peers}
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, run in contenders.items():
            time.sleep(REST)
            begin = time.perf_counter()
            done = run()
            seconds = time.perf_counter() - begin
            if turn:
                rates[name].append(done / seconds)
            else:
                print(f"{work}: {name or 'bertwright'} is warm after {seconds:.1f} s", file=sys.stderr)
    return [_row(work, name, rates[""], rates[name], unit) for name in peers]


def _row(work: str, peer: str, ours: Sequence[float], theirs: Sequence[float], unit: str) -> dict[str, Any]:
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return {
        "work": work,
        "peer": peer,
        "unit": unit,
        "ours": statistics.median(ours),
        "theirs": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "spread": max(ratios) - min(ratios),
    }


def transformers_config(config: EncoderConfig, **more: Any) -> Any:
    """transformers' own name for the same architecture."""
    import transformers

    return transformers.BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.intermediate,
        max_position_embeddings=config.max_positions,
        layer_norm_eps=config.layer_norm_eps,
        initializer_range=config.initializer_range,
        **more,
    )


def timed(run: Callable[[], object], *, repeats: int = 5) -> float:
    """Median seconds of a call; one call before them warms it up."""
    run()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def roof(shapes: Iterable[tuple[int, int, int]], kind: torch.dtype, *, repeats: int = 5) -> float:
    """FLOP/s of torch's matrix products [n, k] x [k, m] over these shapes (n, k, m) one after the other."""
    pairs = [
        (torch.randn(rows, inner).to(kind), torch.randn(columns, inner).to(kind).t()) for rows, inner, columns in shapes
    ]
    work = sum(2.0 * left.shape[0] * left.shape[1] * right.shape[1] for left, right in pairs)
    return work / timed(lambda: [torch.mm(left, right) for left, right in pairs], repeats=repeats)


def parser(description: str, *, threads: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=4)
    options.add_argument("--json", action="store_true", help="print the result as the last line of standard output")
    if threads:
        options.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return options


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table, for people, on standard error."""
    print(f"{'work':<44}{'peer':<40}{'ours':>12}{'theirs':>12}{'ratio':>8}{'spread':>8}", file=sys.stderr)
    for row in rows:
        figures = f"{row['ours']:>12,.2f}{row['theirs']:>12,.2f}{row['ratio']:>8.2f}{row['spread']:>8.2f}"
        note = f"  {row['note']}" if "note" in row else ""
        print(f"{row['work']:<44}{row['peer']:<40}{figures}  {row['unit']}{note}", file=sys.stderr)


def finish(
    options: argparse.Namespace, rows: Sequence[Mapping[str, Any]], *, packages: Sequence[str], **more: Any
) -> None:
    """Print the table, and with --json one line: rows, whatever else was measured, versions and processor."""
    show(rows)
    for name, value in more.items():
        print(f"{name}: {value}", file=sys.stderr)
    if options.json:
        report = {"rows": rows, **more, "versions": versions(packages), "processor": processor()}
        print(json.dumps(report, default=str))


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python, torch, bertwright and the peers."""
    names = ("bertwright", "torch", *packages)
    return {"python": platform.python_version(), **{name: _version(name) for name in names}}


def processor() -> str:
    """The name that Linux gives the processor, how many of its cores this process may use, and torch's kernels."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {len(os.sched_getaffinity(0))} cores, {torch.backends.cpu.get_cpu_capability()}"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "source" if name == "bertwright" else "absent"
