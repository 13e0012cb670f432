"""A finished pre-training → its row in docs/speedrun.md: minutes, bits a character, BLiMP, digest of the weights.

python -m benchmarks.speedrun RUN --held-out CORPUS --blimp FILE [--scores FOLDER] [--any-pairs] [--json]

RUN is a folder of `bertwright pretrain`. Minutes are those of its training steps, without evaluations and checkpoints.
The bits are those of `bertwright evaluate pretraining`. BLiMP is the mean of the paradigms, with each piece masked
alone, in fp32. The minutes to a target are those up to the first evaluation of the run that reached it, else of the
whole run where its final bits reach it. FOLDER keeps the scores of BLiMP, so that a stopped measurement continues. What
decides the bits of the training (processor) and the versions are those that run.json has.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.side_by_side import processor
from bertwright.corpus.shards import Corpus
from bertwright.files import file_digest
from bertwright.model.folder import WEIGHTS
from bertwright.pretraining.evaluate import evaluate_pretraining
from bertwright.reports.runs import Run, read_run
from bertwright.scoring.evaluate import measure_minimal_pairs
from bertwright.scoring.pairs import read_paradigms
from bertwright.scoring.settings import ScoreSettings
from bertwright.training.run_files import noted_corpora

TARGETS: Final = (1.30, 1.20)
"""Bits a character of the held-out text to reach."""
PAIRS: Final = (67, 67_000)
"""Numbers of BLiMP's paradigms and pairs."""
_BITS: Final = "mlm_bits_per_character"


def minutes_to(target: float, lines: Sequence[Mapping[str, Any]], *, bits: float) -> float | None:
    """Return the minutes up to the first evaluation with at most `target` bits a character.

    bits: those of the trained model. Without such an evaluation they decide: the minutes of the whole run, or None.
    """
    for line in lines:
        if line.get("held_out", {}).get(_BITS, math.inf) <= target:
            return _minutes_at(line["step"], lines)
    return _minutes_at(lines[-1]["step"], lines) if bits <= target else None


def _minutes_at(step: int, lines: Sequence[Mapping[str, Any]]) -> float:
    """Return the minutes of training up to a step, which may be within the steps of a line of metrics.jsonl."""
    seconds, begin = 0.0, 0
    for line in (line for line in lines if "seconds" in line):
        seconds += line["seconds"] * min(1.0, max(0.0, (step - begin) / (line["step"] - begin)))
        begin = line["step"]
    return seconds / 60


def check(run: Run, *, held_out: Path) -> None:
    """Raise SystemExit for a run that can have no row, and for another held-out text."""
    if run.kind != "pretrain" or run.state != "finished" or run.speed is None or run.speed.seconds is None:
        raise SystemExit(f"{run.folder}: expected a finished pre-training, got {run.kind}, {run.state}")
    if run.record["data"].get("init_from"):
        raise SystemExit(f"{run.folder}: expected a pre-training from random weights, got --init-from or --extend")
    if noted_corpora(run.record, "held_out") != [Corpus.open(held_out).fingerprint]:
        raise SystemExit(f"{run.folder}: expected a run with --held-out {held_out}, got another held-out text, or none")


def check_pairs(blimp: Path) -> None:
    """Raise SystemExit for a file that has not all pairs of BLiMP."""
    paradigms = read_paradigms(blimp)
    counts = (len(paradigms), sum(len(paradigm.pairs) for paradigm in paradigms))
    if counts != PAIRS:
        raise SystemExit(f"{blimp}: expected BLiMP's {PAIRS[0]} paradigms and {PAIRS[1]:,} pairs, got {counts}")


def row_of(run: Run, *, held_out: Path, blimp: Path, scores: Path | None) -> dict[str, Any]:
    """Return the figures of a run that passes `check`; SystemExit for a model without bits a character."""
    check(run, held_out=held_out)
    assert run.speed is not None
    assert run.speed.seconds is not None
    model, lines = str(run.folder), run.streams[""]
    measured = evaluate_pretraining(model, held_out)
    if _BITS not in measured:
        raise SystemExit(f"{run.folder}: expected a masked LM, got a model without bits a character of masked pieces")
    settings = ScoreSettings(masking="piece")
    pairs = measure_minimal_pairs(model, blimp, settings=settings, out=scores, precision="fp32")
    return {
        "run": run.name,
        "minutes": run.speed.seconds / 60,
        "steps": run.steps_done,
        "tokens": run.speed.seconds * run.speed.tokens_per_second,
        "bits": measured[_BITS],
        "blimp": 100 * pairs.accuracy,
        "phenomena": 100 * pairs.phenomena_accuracy,
        **{f"minutes to {target}": minutes_to(target, lines, bits=measured[_BITS]) for target in TARGETS},
        "weights": file_digest(run.folder / "model" / WEIGHTS),
        "processor": run.record["resolved"]["numerics"]["processor"],
        "versions": run.record["versions"],
        "measured on": processor(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a run and print its figures, one a line, or as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--blimp", type=Path, required=True)
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--any-pairs", action="store_true", help="take other pairs than BLiMP's 67,000: no record")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args(arguments)
    if not options.any_pairs:
        check_pairs(options.blimp)
    row = row_of(read_run(options.run), held_out=options.held_out, blimp=options.blimp, scores=options.scores)
    if options.json:
        print(json.dumps(row))
        return
    for name, value in row.items():
        print(f"{name:16}{value:,.3f}" if isinstance(value, float) else f"{name:16}{value}")


if __name__ == "__main__":
    main()
