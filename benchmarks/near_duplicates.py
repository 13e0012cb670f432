"""Time and memory of a search for near-duplicates, on made-up texts of 85 words.

    python -m benchmarks.near_duplicates [--texts 4000] [--share 20] [--json]

Of the first texts none is like another one. Of the second ones, 60 words are those of --share texts; no pair is a
near-duplicate, but many are proposed. Of the third ones every second is the one before with another last word. The
memory is the peak that Python and NumPy allocate, by the number of texts, and is measured in a run of its own. The
table goes to standard error; with --json the last line of standard output is {"rows": [...]}.
"""

import argparse
import json
import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.side_by_side import processor
from bertwright.text.near_duplicates import Shingles, find_near, text_shingles

WORDS, SHARED = 85, 60
VOCABULARY = 20_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the three and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.near_duplicates", description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--share", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print the result as one line on standard output")
    options = parser.parse_args(arguments)
    rows = [measure(kind, options.texts, options.share) for kind in ("unlike", "shared", "half")]
    print(f"{processor()}, {options.texts:,} texts", file=sys.stderr)
    print(f"{'':8}{'seconds':>9}{'listed':>9}{'bytes/text':>12}", file=sys.stderr)
    for row in rows:
        line = f"{row['kind']:8}{row['seconds']:9.1f}{row['listed']:9,}{row['bytes_per_text']:12,.0f}"
        print(line, file=sys.stderr)
    if options.json:
        print(json.dumps({"rows": rows}))


def measure(kind: str, texts: int, share: int) -> dict[str, Any]:
    """Return seconds, number of listed texts, and peak memory by the number of texts."""

    def read() -> Iterator[Shingles]:
        return (text_shingles(made_up(kind, number, share), 5) for number in range(texts))

    started = time.perf_counter()
    listed = len(find_near(read, threshold=0.8))
    seconds = time.perf_counter() - started
    tracemalloc.start()
    find_near(read, threshold=0.8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"kind": kind, "seconds": seconds, "listed": listed, "bytes_per_text": peak / texts}


def made_up(kind: str, number: int, share: int) -> str:
    """Return text `number` of a kind; the same at each call."""
    if kind == "shared":
        common = np.random.default_rng((1, number // share)).integers(VOCABULARY, size=SHARED)
        rest = np.random.default_rng((2, number)).integers(VOCABULARY, size=WORDS - SHARED)
        return " ".join(map(str, [*common, *rest]))
    if kind == "half" and number % 2:
        return f"{made_up(kind, number - 1, share).rpartition(' ')[0]} other"
    return " ".join(map(str, np.random.default_rng((3, number)).integers(VOCABULARY, size=WORDS)))


if __name__ == "__main__":
    main()
