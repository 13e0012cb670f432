"""A long pre-training that must stay as it begins: resident memory, open files and the time of a step, as a picture.

python -m benchmarks.studies.soak --corpus CORPUS [--minutes 30] [--out soak.png] [--json] [-- OPTION …]

`bertwright pretrain` in a process of its own, with a checkpoint each half minute and held-out figures; options after --
go to it. Memory and files are read from /proc every five seconds; what the first fifth of the time brings (caches, the
first checkpoint) is left out of the slopes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.side_by_side import processor, versions

EVERY = 5.0


def watched(process: "subprocess.Popen[bytes]") -> list[dict[str, float]]:
    """Return the memory and open files of the process, read until it ends."""
    readings, begin, proc = [], time.monotonic(), Path(f"/proc/{process.pid}")
    while process.poll() is None:
        try:
            status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
            resident = int(status["VmRSS"].split()[0]) / 1024
            readings.append(
                {"seconds": time.monotonic() - begin, "mib": resident, "files": len(os.listdir(proc / "fd"))}
            )
        except (OSError, KeyError):  # it has just ended
            break
        time.sleep(EVERY)
    return readings


def hourly(times: list[float], values: list[float]) -> float:
    """The slope of a line through the values, in one hour."""
    return float(np.polyfit(times, values, 1)[0]) * 3600


def draw(readings: list[dict[str, float]], steps: list[tuple[float, float]], path: Path) -> None:
    """Three curves over the minutes."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    minutes = [one["seconds"] / 60 for one in readings]
    figure, axes = pyplot.subplots(3, 1, figsize=(8, 6), sharex=True, layout="constrained")
    axes[0].plot(minutes, [one["mib"] for one in readings], color="#1f5a99")
    axes[0].set(ylabel="resident, MiB", ylim=(0, None))
    axes[1].plot(minutes, [one["files"] for one in readings], color="#b3541e")
    axes[1].set(ylabel="open files", ylim=(0, None))
    axes[2].plot([at / 60 for at, _ in steps], [1e3 * seconds for _, seconds in steps], color="#2d7a3f")
    axes[2].set(ylabel="ms a step", xlabel="minutes", ylim=(0, None))
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def main() -> None:
    """Train, watch, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=Path("soak.png"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("options", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "bertwright", "pretrain", "--corpus", str(options.corpus), "--out", str(run)]
        command += ["--minutes", str(options.minutes), "--save-minutes", "0.5"]
        command += ["--held-out", "0.01", "--evaluations", "20", *options.options]
        readings = watched(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "seconds" in line]
    at, steps, before = 0.0, [], 0
    for line in trained:
        at += line["seconds"]
        steps.append((at, line["seconds"] / (line["step"] - before)))
        before = line["step"]
    later = [one for one in readings if one["seconds"] > readings[-1]["seconds"] / 5]
    settled = [one for one in steps if one[0] > steps[-1][0] / 5]
    draw(readings, steps, options.out)
    row: dict[str, Any] = {
        "work": f"{options.minutes:g} minutes of pre-training",
        "steps": trained[-1]["step"],
        "resident_mib": statistics.median(one["mib"] for one in later),
        "resident_mib_an_hour": hourly([one["seconds"] for one in later], [one["mib"] for one in later]),
        "most_files": max(one["files"] for one in readings),
        "fewest_files": min(one["files"] for one in later),
        "step_ms": 1e3 * statistics.median(seconds for _, seconds in settled),
        "step_ms_an_hour": 1e3 * hourly(*map(list, zip(*settled, strict=True))),
    }
    print(json.dumps(row, indent=2), file=sys.stderr)
    if options.json:
        print(json.dumps({"rows": [row], "versions": versions([]), "processor": processor()}))


if __name__ == "__main__":
    main()
