"""Time and memory of planning an epoch of sentence pairs for a corpus of many sentences.

    python -m benchmarks.studies.plan [--sentences 100000000] [--length 128] [--json]

Sentence lengths are synthetic (geometric, 25 tokens on average, 256 at most), documents have about 20 sentences. The
table goes to standard error; with --json the last line of standard output is one object. Linux only: the peak is VmHWM
of /proc/self/status, reset after compilation and after the inputs were made.
"""

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np

import bertwright
from bertwright.objectives.sentence_pairs import PLAN, plan_rows

MEAN_TOKENS, MOST_TOKENS = 25, 256
MEAN_SENTENCES = 20
_BLOCK = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies.plan", description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=100_000_000)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--json", action="store_true", help="print the result as one line on standard output")
    arguments = parser.parse_args()
    result = measure(arguments.sentences, arguments.length)
    for name, value in result.items():
        print(f"{name:<28}{value:>16,}" if not isinstance(value, dict) else f"{name} {value}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(result))


def measure(num_sentences: int, length: int) -> dict[str, Any]:
    """Plan epoch 0 once for 20 sentences, which compiles (or reads numba's cache), and then for all of them.

    Processor seconds are this process's own: they say what a free core would take while others use it too.
    """
    begin, busy = time.perf_counter(), time.process_time()
    plan_rows(*synthetic_sizes(20), length=length, seed=0, epoch=0)
    compiled, compiling = time.perf_counter() - begin, time.process_time() - busy
    lengths, first = synthetic_sizes(num_sentences)
    inputs = lengths.nbytes + first.nbytes
    forget_peak()
    before = memory("VmRSS")
    start, worked = time.perf_counter(), time.process_time()
    plan = plan_rows(lengths, first, length=length, seed=0, epoch=0)
    seconds, processor = time.perf_counter() - start, time.process_time() - worked
    peak = memory("VmHWM")
    return {
        "sentences": num_sentences,
        "documents": first.size - 1,
        "tokens": int(lengths.sum(dtype=np.int64)),
        "rows": plan.size,
        "seconds": round(seconds, 2),
        "processor_seconds": round(processor, 2),
        "first_call_seconds": round(compiled, 2),
        "first_call_processor_seconds": round(compiling, 2),
        "plan_bytes": plan.nbytes,
        "record_bytes": PLAN.itemsize,
        "input_bytes": inputs,
        "resident_before_bytes": before,
        "peak_bytes": peak,
        "peak_less_inputs_bytes": peak - inputs,
        "versions": {
            "bertwright": bertwright.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "numba": numba.__version__,
        },
    }


def synthetic_sizes(num_sentences: int) -> tuple[np.ndarray, np.ndarray]:
    """Sentence lengths int32 [sentences] and the first sentence of each document int64 [documents + 1], seeded."""
    generator = np.random.default_rng(0)
    lengths = np.empty(num_sentences, np.int32)
    for at in range(0, num_sentences, _BLOCK):  # in blocks: int64 numbers for all at once would be the peak
        block = lengths[at : at + _BLOCK]
        block[:] = np.minimum(generator.geometric(1 / MEAN_TOKENS, block.size), MOST_TOKENS)
    sizes = generator.integers(1, 2 * MEAN_SENTENCES, num_sentences // MEAN_SENTENCES + 1)
    ends = np.cumsum(sizes)
    ends = ends[ends < num_sentences]
    return lengths, np.concatenate([[0], ends, [num_sentences]])


def forget_peak() -> None:
    """Make VmHWM begin again at what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def memory(name: str) -> int:
    """Return a value of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


if __name__ == "__main__":
    main()
