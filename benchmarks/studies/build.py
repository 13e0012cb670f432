"""Time, rate and memory of a corpus build.

python -m benchmarks.studies.build INPUT... --tokenizer DIR [--json]

Memory is the greatest sum of the proportional set sizes of the build's processes, sampled five times a second (Linux).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def children(process: int) -> list[int]:
    """A process and all its descendants."""
    processes = [process]
    for one in processes:
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                processes += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return processes


def memory(process: int) -> float:
    """Proportional set size of a process tree in MiB."""
    total = 0.0
    for one in children(process):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(float(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))
    return total


def build(inputs: list[str], tokenizer: str, workers: int | None) -> dict[str, float]:
    """Build a corpus into a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bertwright", "corpus", "build", *inputs, "--tokenizer", tokenizer]
        command += ["--out", f"{folder}/corpus", "--json", *(["--workers", str(workers)] if workers else [])]
        start, peak = time.perf_counter(), 0.0
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            while running.poll() is None:
                peak = max(peak, memory(running.pid))
                time.sleep(0.2)
            seconds = time.perf_counter() - start
            assert running.stdout
            answer = running.stdout.read()
        if running.returncode:
            raise SystemExit(running.returncode)
        return {**json.loads(answer.splitlines()[-1]), "seconds": seconds, "peak_mib": peak}


def main() -> None:
    """Build once and print the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", nargs="+")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--workers", type=int)
    parser.add_argument(
        "--text-bytes", type=float, help="bytes of text in the inputs; counted with their own rules when absent"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = build(options.inputs, options.tokenizer, options.workers)
    size = options.text_bytes or text_bytes(options.inputs)
    row = {
        "work": "corpus build",
        "text_mb": size / 1e6,
        "mb_per_second": size / 1e6 / result["seconds"],
        **{name: result[name] for name in ("seconds", "peak_mib", "documents", "sentences", "tokens")},
    }
    print("\n".join(f"{name:16}{value}" for name, value in row.items()), file=sys.stderr)
    print(json.dumps({"rows": [row]}) if options.json else "")


def text_bytes(inputs: list[str]) -> int:
    """Bytes of the unpacked inputs."""
    import bz2
    import gzip
    import lzma

    openers: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}
    total = 0
    for name in inputs:
        with openers.get(Path(name).suffix, open)(name, "rb") as stream:
            while block := stream.read(1 << 22):
                total += len(block)
    return total


if __name__ == "__main__":
    main()
