"""result of a run or an evaluation → lines that say how far it can be trusted, and what to try."""

import math
from collections.abc import Mapping
from typing import Any, Final

_TOLERATED: Final = 0.1
"""Largest calibration error without advice."""


def validation_lines(result: Mapping[str, Any]) -> list[str]:
    """Return a line with the number of validation rows; of an accuracy, with its standard error too."""
    rows, metric, mean = result.get("validation_rows"), result["metric"], result["mean"]
    if not rows:
        return []
    counted = f"validation rows: {rows:,}"
    if metric.rpartition(".")[2] != "accuracy" or result.get("unit", "rows") != "rows":  # a tagger's is that of words
        return [f"{counted}; the best epoch was chosen on them"]
    error = math.sqrt(mean * (1 - mean) / rows)
    measured = f"an accuracy of {mean:.4f} on them has a standard error of {error:.4f}"
    return [f"{counted}; {measured}, and the best epoch was chosen on them"]


def baseline_advice(result: Mapping[str, Any], *, is_cosine: bool) -> str:
    """Return what to try where a model is not better than a baseline.

    is_cosine: True where the best baseline is the cosine of the frozen model. The advice depends on the model that the
    run started from, and on the best epoch of its best seed: more epochs help only where that is the last one.
    """
    start, metric = str(result.get("start", "")), result["metric"]
    other = "a published encoder (bertwright import)"
    if start.startswith("random:"):
        other = "a pre-trained model, such as small-wiki, which comes with the program, or a published one (import)"
    more = ["more rows", other, "another learning rate"]
    seeds = result.get("seeds")
    best = max(seeds, key=lambda seed: seed["scores"][metric]) if seeds else None
    if best and best["epoch"] == len(best["epochs"]):
        more.append("more epochs (--epochs)")
    listed = f"{', '.join(more[:-1])}, or {more[-1]}"
    if is_cosine:
        frozen = "Use the vectors of the model before fine-tuning (bertwright.load(MODEL).vectors in Python)"
        if result.get("task") == "embed":
            return f"{frozen}, or try {listed}."
        return f"{frozen}, train its vectors on the pairs (bertwright finetune embed), or try {listed}."
    return f"Try {listed}."


def calibration_lines(metrics: Mapping[str, Any], *, model: str) -> list[str]:
    """Return a line of advice for each calibration error of an evaluation that is too large."""
    return [
        f"{name} {value:.4f}: the probabilities differ from the fraction of right answers by {100 * value:.0f} points "
        f"on average; to correct them: bertwright evaluate --model {model} --data FILE --calibrate, with a FILE that "
        "it was not trained on"
        for name, value in metrics.items()
        if name.endswith("calibration_error") and value > _TOLERATED
    ]
