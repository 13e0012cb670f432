"""Difference of the losses of one process and of two in a pre-training, and of what rounding alone makes of one.

python -m benchmarks.studies.apart [--text FILE] [--vocab-size 8000] [--size tiny] [--steps 40]
    [--rates 1e-4 2e-2] [--json]

The same run (8 rows of 32 tokens in four micro-batches, no dropout, fp32; of the documentation of Python's standard
library, or of FILE) by one process and by two, with DDP and with FSDP2, each on one core. Two more runs by one process
are controls, which differ from the first by roundings alone: in one, all 8 rows are one micro-batch; in the other, one
weight begins one rounding away. A row says how far a run is from the first: the difference of the loss and, as a share,
of the gradient norm at step 1, and the largest difference of the loss up to steps 10, 20, ….
"""

import argparse
import json
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.side_by_side import processor, versions
from benchmarks.studies.processes import ROOT, TORCHRUN
from bertwright.corpus.build import build_corpus
from bertwright.quickstart.docstrings import STANDARD_LIBRARY, collect, corpus_text
from bertwright.text.wordpiece import train_wordpiece

ROWS, LENGTH, MICRO_BATCHES = 8, 32, 4
NUDGED = "bert.embeddings.LayerNorm.weight"
WAYS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "one process": ((), ()),
    "one process, one micro-batch": ((), ("--micro-tokens", str(ROWS * LENGTH))),
    "one process, a weight nudged": ((), ()),
    "two processes, DDP": (TORCHRUN, ()),
    "two processes, FSDP2": (TORCHRUN, ("--sharding", "fsdp2")),
}


def built(folder: Path, text: Path | None, vocab_size: int) -> Path:
    """A corpus of a text, or of the standard library's documentation."""
    if text is None:
        text = folder / "text.txt"
        library = collect({STANDARD_LIBRARY: Path(sysconfig.get_paths()["stdlib"])})
        text.write_text("\n\n".join(corpus_text(library, exclude_modules=())), "utf-8")
    train_wordpiece([text.read_text("utf-8")], vocab_size=vocab_size).save(folder / "tokenizer")
    build_corpus([text], tokenizer=folder / "tokenizer", out=folder / "corpus", workers=1)
    return folder / "corpus"


def trained(launcher: Sequence[str], out: Path, *options: str) -> list[dict[str, float]]:
    """The log of a pre-training, a line a step."""
    command = [sys.executable, *launcher, "-m", "bertwright", "pretrain", "--batch-size", str(ROWS), "--out", str(out)]
    command += ["--lengths", str(LENGTH), "--micro-tokens", str(ROWS * LENGTH // MICRO_BATCHES), "--dropout", "0"]
    command += ["--precision", "fp32", "--compile", "off", "--log-every", "1", *options]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{"loss": line["mlm"] + line["nsp"], "norm": line["gradient_norm"]} for line in lines if "mlm" in line]


def nudge(model: Path) -> None:
    """Move one weight of a model folder to the next number of float32."""
    weights = load_file(model / "model.safetensors")
    first = weights[NUDGED].view(-1)[:1]
    first.copy_(torch.nextafter(first, torch.tensor(torch.inf)))
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def distances(rate: float, one: list[dict[str, float]], other: list[dict[str, float]]) -> dict[str, Any]:
    """Return differences of loss and gradient norm at step 1, and the largest of the loss to each tenth step."""
    apart = [abs(a["loss"] - b["loss"]) for a, b in zip(one, other, strict=True)]
    row = {"rate": rate, "loss, step 1": apart[0], "norm, step 1": abs(other[0]["norm"] / one[0]["norm"] - 1.0)}
    return row | {f"loss to step {end}": max(apart[:end]) for end in range(10, len(apart) + 1, 10)}


def main() -> None:
    """Measure and print."""
    given_parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given_parser.add_argument(
        "--json", action="store_true", help="print the result as the last line of standard output"
    )
    given_parser.add_argument("--text", type=Path)
    given_parser.add_argument("--vocab-size", type=int, default=8000)
    given_parser.add_argument("--size", default="tiny")
    given_parser.add_argument("--steps", type=int, default=40)
    given_parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 2e-3, 2e-2])
    arguments = given_parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common = ("--corpus", str(built(folder, arguments.text, arguments.vocab_size)), "--threads", "1")
        for start in ("start", "nudged"):
            trained((), folder / start, *common, "--size", arguments.size, "--steps", "1", "--learning-rate", "1e-9")
        nudge(folder / "nudged" / "model")
        for rate in arguments.rates:
            logs: dict[str, list[dict[str, float]]] = {}
            for way, (launcher, options) in WAYS.items():
                model = folder / ("nudged" if "nudged" in way else "start") / "model"
                options = (*common, "--init-from", str(model), "--steps", str(arguments.steps), *options)
                logs[way] = trained(launcher, folder / f"{way} {rate}", *options, "--learning-rate", str(rate))
                rows.append({"work": f"{arguments.size}, {way}", **distances(rate, logs["one process"], logs[way])})
                figures = (f"{key} {value:.1e}" for key, value in rows[-1].items() if key != "work")
                print(f"{way}: {', '.join(figures)}", file=sys.stderr)
    if arguments.json:
        print(json.dumps({"rows": rows, "versions": versions([]), "processor": processor()}))


if __name__ == "__main__":
    main()
