"""panels of numbers → a PNG file; matplotlib, which draws them, belongs to an extra."""

from pathlib import Path
from typing import TYPE_CHECKING

from bertwright.console import say
from bertwright.errors import MissingExtra
from bertwright.files import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(purpose: str, width: float, height: float) -> "Figure | None":
    """Return an empty figure of that many inches; print a message and return None where matplotlib is absent.

    purpose: what is drawn, as the subject of the message: "a loss curve".
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        say(str(MissingExtra("plots", purpose)))
        return None
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", path: Path, *, dpi: int = 110) -> None:
    """Write a figure as a PNG file with so many points an inch."""
    with atomic_file(path) as stream:
        figure.savefig(stream, dpi=dpi, format="png")
