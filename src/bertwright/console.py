"""Messages and progress of a running command, on standard error: standard output holds results alone.

In a Jupyter notebook, whose kernels have IPython, they are outputs of the cell.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, TextIO

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from rich.status import Status as Line

# With FORCE_COLOR rich would treat a log file as a terminal and fill it with control codes.
_forced = None if sys.stderr is not None and sys.stderr.isatty() else False
console = Console(stderr=True, highlight=False, soft_wrap=True, force_terminal=_forced)


_said: ContextVar[set[str] | None] = ContextVar("said", default=None)
_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


def is_main_process() -> bool:
    """Return whether this process prints: it is the only one, or rank zero of those that torchrun started."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


def say(text: str) -> None:
    """Print one line of plain text; of several processes that torchrun started, only the main one prints.

    Inside `redirect_messages` the text goes to its listener instead, and inside `say_once` a repeated text is skipped.
    """
    if listener := _listener.get():
        listener(text)
        return
    if not is_main_process():
        return
    said = _said.get()
    if said is not None:
        if text in said:
            return
        said.add(text)
    if console.is_jupyter:
        display_text(text)
        return
    with ignore_closed_stderr():
        console.print(text, markup=False)


def display_text(text: str, **options: Any) -> Any:
    """Display a text in the output of a notebook's cell, where lines wrap; `options` are those of IPython's display."""
    return import_module("IPython.display").display({"text/plain": text}, raw=True, **options)


@contextmanager
def ignore_closed_stderr() -> Iterator[None]:
    """Ignore errors of writing to standard error (a closed terminal, a log on a full disk), so that the work continues.

    After such an error nothing more is written there.
    """
    try:
        yield
    except OSError:
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Discard all further output to a standard stream, its buffer included."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, stream.fileno())
    os.close(null_device)


@contextmanager
def say_once(said: set[str]) -> Iterator[None]:
    """Let `say` skip the texts in `said`, and add those that it prints: the same file may be read several times."""
    token = _said.set(said)
    try:
        yield
    finally:
        _said.reset(token)


@contextmanager
def redirect_messages(listener: Callable[[str], None]) -> Iterator[None]:
    """Give messages to `listener` instead of printing them, and show no progress: for callers in Python."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """Return a line for each value of a result; nested values have names such as mean.accuracy."""
    values = dict(_flat(result))
    width = max([24, *map(len, values)]) + 2
    return [
        f"{key:{width}}{value:.4f}" if isinstance(value, float) else f"{key:{width}}{value}"
        for key, value in values.items()
    ]


def _flat(result: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in result.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", inner) for name, inner in _flat(value))
        else:
            yield key, value


def table_lines(rows: Sequence[Sequence[str]], *, left: int = 0) -> list[str]:
    """Return rows of cells as lines. Each column is as wide as its widest cell, with three blanks between two columns.

    left: number of first columns whose cells stand at the left; those of the others stand at the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "   ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def clock(seconds: float) -> str:
    """Return a duration as on a clock: 0:05, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class NotebookLine:
    """A line in the output of a notebook's cell. Each text takes the place of the one before."""

    _SECONDS = 0.25
    """Seconds between two texts at least."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._last = -math.inf
        self._pending: str | None = None

    def start(self) -> None:
        """Do nothing: the line appears with its first text."""

    def update(self, text: Text) -> None:
        """Show a text, or keep it where the one before is too new."""
        self._pending = text.plain
        if time.monotonic() - self._last >= self._SECONDS:
            self._show(text.plain)

    def stop(self) -> None:
        """Show the last text, which stays."""
        if self._pending is not None:
            self._show(self._pending)

    def _show(self, text: str) -> None:
        if self._handle is None:
            self._handle = display_text(text, display_id=True)
        else:
            self._handle.update({"text/plain": text}, raw=True)
        self._last, self._pending = time.monotonic(), None


def _new_line() -> "Line | NotebookLine":
    return NotebookLine() if console.is_jupyter else console.status("")


_PAUSE: Final = 10.0
"""Seconds from one printed line of progress to the next."""
PATIENCE: Final = 2.0
"""Seconds of work that is usually short, after which its progress is shown."""


class Status:
    """Progress line: updated in place on a terminal and in a notebook, elsewhere printed at most once in ten seconds.

    Only the main process shows it. A Status inside another one uses its line for a while. ends: print the last text at
    the end, where it came too soon to be printed. patience: seconds during which no text is shown.
    """

    _active: ClassVar["Status | None"] = None

    def __init__(self, *, ends: bool = True, patience: float = 0.0) -> None:
        self._outer = Status._active
        self._live: Line | NotebookLine | None = None
        self._silent = _listener.get() is not None or not is_main_process()
        if (console.is_terminal or console.is_jupyter) and not self._silent:
            self._live = self._outer._live if self._outer else _new_line()
        self._ends = ends
        self._patience = patience
        self._begin = self._last = time.monotonic()
        self._pending: str | None = None

    def __enter__(self) -> "Status":
        if self._live and not self._outer:
            with ignore_closed_stderr():
                self._live.start()
        if not self._silent:
            Status._active = self
        return self

    def remaining(self, done: float) -> str:
        """Return the time that is left where the fraction `done` took the time since the beginning; "…" for none."""
        return clock((time.monotonic() - self._begin) * max(0.0, 1 / done - 1)) if done else "…"

    def update(self, text: str) -> None:
        """Show `text` in place of the text before."""
        if self._silent or time.monotonic() - self._begin < self._patience:
            return
        if self._live:
            with ignore_closed_stderr():
                self._live.update(Text(text))
            return
        self._pending = text
        if time.monotonic() - self._last >= _PAUSE:
            self._last = time.monotonic()
            self._pending = None
            with ignore_closed_stderr():
                print(text, file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._silent:
            return
        Status._active = self._outer
        with ignore_closed_stderr():
            if self._live:
                if not self._outer:
                    self._live.stop()
            elif self._pending and self._ends:
                print(self._pending, file=sys.stderr, flush=True)
