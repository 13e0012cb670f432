"""A static table beside the encoder that it was made of: texts a second, and Spearman's correlation on pairs.

    python -m benchmarks.static --model minilm --table table --data STSB-test.tsv [--texts 2000] [--threads 1] [--json]

`bertwright export static --model minilm --out table` makes the table. The texts are the first distinct ones of the
pairs, repeated up to their number for the table, which is too fast to measure otherwise. Each speed is the median of
three runs, tokenizing included, and its spread their largest minus their smallest. The table goes to standard error;
with --json the last line of standard output is {"rows": [...]}.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.side_by_side import processor
from bertwright.search.evaluate import evaluate_embed
from bertwright.tables.reader import read_table
from bertwright.tasks.static_vectors import TextVectors, open_vectors

RUNS = 3
TIMES = 50
"""Number of times that the static table computes the texts."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.static", description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the result as one line on standard output")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    os.environ["RAYON_NUM_THREADS"] = str(options.threads)  # the tokenizer reads it when it first encodes
    pairs = read_table(options.data, columns=["sentence1", "sentence2"])
    texts = list(dict.fromkeys([*pairs.texts("sentence1"), *pairs.texts("sentence2")]))[: options.texts]
    rows = [
        measure("encoder", options.model, options.data, texts),
        measure("static table", options.table, options.data, texts * TIMES),
    ]
    rows[1]["ratio"] = rows[1]["texts_per_second"] / rows[0]["texts_per_second"]
    print(f"{processor()}, {options.threads} threads, {len(texts):,} texts", file=sys.stderr)
    print(f"{'':14}{'size':>6}{'texts/s':>12}{'spread':>10}{'spearman':>10}{'ratio':>8}", file=sys.stderr)
    for row in rows:
        numbers = f"{row['size']:6}{row['texts_per_second']:12,.0f}{row['spread']:10,.0f}{row['spearman']:10.4f}"
        print(f"{row['name']:14}{numbers}{row.get('ratio', 1.0):8.1f}", file=sys.stderr)
    if options.json:
        print(json.dumps({"rows": rows}))


def measure(name: str, model: str, data: Path, texts: list[str]) -> dict[str, Any]:
    """Return speed and correlation of one model."""
    vectors = open_vectors(model, "fp32", "cpu")
    vectors.vectors(texts[:64])  # the first call prepares memory and threads
    speeds = [len(texts) / seconds(vectors, texts) for _ in range(RUNS)]
    return {
        "name": name,
        "size": vectors.size,
        "texts_per_second": statistics.median(speeds),
        "spread": max(speeds) - min(speeds),
        "spearman": evaluate_embed(model, data, precision="fp32")["spearman"],
    }


def seconds(vectors: TextVectors, texts: list[str]) -> float:
    """Return the seconds that the vectors of these texts take."""
    begin = time.perf_counter()
    vectors.vectors(texts)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
