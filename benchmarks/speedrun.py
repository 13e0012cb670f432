"""A finished pre-training → its row in docs/speedrun.md: minutes, bits a character, BLiMP, digest of the weights.

python -m benchmarks.speedrun RUN --held-out CORPUS --blimp FILE [--scores FOLDER] [--json]

RUN is a folder of `bertwright pretrain`. Minutes are those of its training steps, without evaluations and checkpoints.
The bits are those of `bertwright evaluate pretraining`. BLiMP is the mean of the paradigms, with each piece masked
alone, in fp32. The minutes to a target are those up to the first evaluation of the run that reached it. FOLDER keeps
the scores of BLiMP, so that a stopped measurement continues.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.side_by_side import processor, versions
from bertwright.files import file_digest
from bertwright.model.folder import WEIGHTS
from bertwright.pretraining.evaluate import evaluate_pretraining
from bertwright.reports.runs import Run, read_run
from bertwright.scoring.evaluate import measure_minimal_pairs
from bertwright.scoring.settings import ScoreSettings

TARGETS: Final = (1.30, 1.20)
"""Bits a character of the held-out text to reach."""
_BITS: Final = "mlm_bits_per_character"


def minutes_to(target: float, lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the minutes up to the first evaluation with at most `target` bits a character; None without one."""
    return next((minutes for minutes, bits in _evaluations(lines) if bits <= target), None)


def _evaluations(lines: Sequence[Mapping[str, Any]]) -> Iterator[tuple[float, float]]:
    """Yield (minutes of training, bits a character) of each evaluation in the lines of metrics.jsonl."""
    minutes = 0.0
    for line in lines:
        minutes += line.get("seconds", 0.0) / 60
        if _BITS in line.get("held_out", {}):
            yield minutes, line["held_out"][_BITS]


def row_of(run: Run, *, held_out: Path, blimp: Path, scores: Path | None) -> dict[str, Any]:
    """Return the figures of a finished run; SystemExit for another one."""
    if run.kind != "pretrain" or run.state != "finished" or run.speed is None or run.speed.seconds is None:
        raise SystemExit(f"{run.folder}: expected a finished pre-training, got {run.kind}, {run.state}")
    model, lines = str(run.folder), run.streams[""]
    settings = ScoreSettings(masking="piece")
    pairs = measure_minimal_pairs(model, blimp, settings=settings, out=scores, precision="fp32")
    return {
        "run": run.name,
        "minutes": run.speed.seconds / 60,
        "steps": run.steps_done,
        "tokens": run.speed.seconds * run.speed.tokens_per_second,
        "bits": evaluate_pretraining(model, held_out)[_BITS],
        "blimp": 100 * pairs.accuracy,
        "phenomena": 100 * pairs.phenomena_accuracy,
        **{f"minutes to {target}": minutes_to(target, lines) for target in TARGETS},
        "weights": file_digest(run.folder / "model" / WEIGHTS),
        "processor": processor(),
        "versions": versions([]),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a run and print its figures, one a line, or as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--blimp", type=Path, required=True)
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args(arguments)
    row = row_of(read_run(options.run), held_out=options.held_out, blimp=options.blimp, scores=options.scores)
    if options.json:
        print(json.dumps(row))
        return
    for name, value in row.items():
        print(f"{name:16}{value:,.3f}" if isinstance(value, float) else f"{name:16}{value}")


if __name__ == "__main__":
    main()
