"""Results as notebooks display them: one that remembers its texts, a list of them, and vectors.

They are dataclasses, lists and arrays as before. Texts are no fields, so equality, `asdict` and pickles leave them out.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertwright.markup import MOST_ROWS, Html, more, note, stacked, table

_MOST_VECTORS, _MOST_COMPONENTS = 5, 6
T = TypeVar("T")


class Displayed:
    """A result of some texts, which its display shows."""

    __slots__ = ("_texts",)

    _texts: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts of the input; empty where they are unknown, as after a pickle."""
        return getattr(self, "_texts", ())

    def text_of(self, number: int) -> str:
        """Return a text of the input; empty where it is unknown."""
        return self.texts[number] if number < len(self.texts) else ""


def with_texts(result: T, texts: tuple[str, ...]) -> T:
    """Return the result, which remembers the texts of its input from now on."""
    if isinstance(result, Displayed):
        object.__setattr__(result, "_texts", texts)
    return result


class Results(list[Any]):
    """A list of results. A notebook displays the first ones."""

    def _repr_html_(self) -> Html | None:
        shown = [getattr(result, "_repr_html_", lambda: None)() for result in self[:MOST_ROWS]]
        if not all(shown) or not shown:
            return None  # the notebook then shows the list as Python does
        line = "border-top:1px solid rgba(127,127,127,.3);padding:.3em 0"
        rows = [Html(f'<div style="{line}">{html}</div>') for html in shown]
        return stacked([*rows, note(more(len(self) - MOST_ROWS))])


class Vectors(np.ndarray[Any, np.dtype[np.float32]]):
    """Vectors [N, D], or one [D]: an array, of which a notebook displays a summary.

    Calculations and pickles give plain arrays.
    """

    def __array_wrap__(self, array: NDArray[Any], context: Any = None, return_scalar: bool = False) -> Any:
        return np.asarray(array)[()] if return_scalar else np.asarray(array)

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def _repr_html_(self) -> Html | None:
        if self.ndim not in (1, 2) or not self.size:
            return None
        rows = np.atleast_2d(np.asarray(self))
        lengths = np.linalg.norm(rows, axis=1)
        rest = " …" if rows.shape[1] > _MOST_COMPONENTS else ""
        shown = [
            [str(number), f"{length:.3f}", " ".join(f"{value:+.3f}" for value in row[:_MOST_COMPONENTS]) + rest]
            for number, (row, length) in enumerate(zip(rows[:_MOST_VECTORS], lengths, strict=False))
        ]
        count = f"{len(rows):,} vectors" if self.ndim == 2 else "a vector"
        summary = f"{count} of {rows.shape[1]:,} components, {self.dtype}"
        shown_table = table(shown, ["", "length", "first components"])
        return stacked([note(summary), shown_table, note(more(len(rows) - _MOST_VECTORS))])


def model_table(source: str, kind: str, size: str, precision: str, form: str, labels: Sequence[str]) -> Html:
    """Return what a notebook displays of a model; form: description of an input."""
    rows = [("model", source), ("kind", kind), ("size", size), ("precision", precision), ("input", form)]
    if labels:
        rows.append(("labels", f"{', '.join(labels[:MOST_ROWS])} {more(len(labels) - MOST_ROWS)}"))
    return table(rows)
