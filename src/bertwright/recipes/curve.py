"""metrics.jsonl → a picture of the losses."""

from pathlib import Path

from bertwright.console import say
from bertwright.errors import MissingExtra
from bertwright.files import atomic_file
from bertwright.training.tracking import RunFolder

_TERMS = {"mlm": "masked-LM loss (nats)", "lm": "language model's loss (nats)"}
"""What a run learns first of all, and what its axis is called."""


def draw_curve(run: RunFolder, *, title: str = "") -> Path:
    """Draw the training loss and the held-out loss of a run into `RUN/loss.png`; MissingExtra without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("plots", "a loss curve") from None
    lines = run.metrics()
    term = next((term for term in _TERMS if any(term in line for line in lines)), "mlm")
    trained = [(line["step"], line[term]) for line in lines if term in line]
    held_out = [(line["step"], line["held_out"][f"{term}_loss"]) for line in lines if "held_out" in line]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*zip(*trained, strict=True), color="#b8c4d6", linewidth=1, label="training")
    if held_out:
        axes.plot(*zip(*held_out, strict=True), color="#1f4e8c", marker="o", markersize=3, label="held out")
    axes.set(xlabel="step", ylabel=_TERMS[term], title=title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    path = run.folder / "loss.png"
    with atomic_file(path) as stream:
        figure.savefig(stream, dpi=110, format="png")
    return path


def try_curve(run: RunFolder, *, title: str) -> str | None:
    """The picture's path, or None where matplotlib is absent (which is said)."""
    try:
        return str(draw_curve(run, title=title))
    except MissingExtra as error:
        say(str(error))
        return None
