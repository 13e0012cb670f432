"""What a person sees while a command runs: all on standard error, so that standard output holds results alone."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, TextIO

from rich.console import Console

if TYPE_CHECKING:
    from rich.status import Status as Line

# rich takes FORCE_COLOR for a terminal, and a log file would then be full of control codes.
_forced = None if sys.stderr is not None and sys.stderr.isatty() else False
console = Console(stderr=True, highlight=False, soft_wrap=True, force_terminal=_forced)


_said: ContextVar[set[str] | None] = ContextVar("said", default=None)
_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


def say(text: str) -> None:
    """Print one line of plain text for the person."""
    if listener := _listener.get():
        listener(text)
        return
    said = _said.get()
    if said is not None:
        if text in said:
            return
        said.add(text)
    with heard_or_not():
        console.print(text, markup=False)


@contextmanager
def heard_or_not() -> Iterator[None]:
    """Within, standard error may be a closed terminal, or a log on a full disk: the work goes on in silence."""
    try:
        yield
    except OSError:
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """From now on, what is written to a standard stream goes nowhere; what it still holds too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextmanager
def without_repeats(said: set[str]) -> Iterator[None]:
    """Within, `say` leaves out what is in `said` and adds what it prints: the same file may be looked at often."""
    token = _said.set(said)
    try:
        yield
    finally:
        _said.reset(token)


@contextmanager
def told_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Within, what would be said is given to `listener`, and nothing is shown: a program asks, not a person."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def clock(seconds: float) -> str:
    """A duration as a clock shows it: 0:05, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Status:
    """One line that changes in place on a terminal, and is printed at most every few seconds elsewhere.

    One within another takes over its line for a while. `ends`: whether a last text that came too soon to be printed is
    printed at the end.
    """

    _shown: ClassVar["Status | None"] = None

    def __init__(self, *, seconds: float = 10.0, ends: bool = True) -> None:
        self._outer = Status._shown
        self._live: Line | None = None
        self._silent = _listener.get() is not None
        if console.is_terminal and not self._silent:
            self._live = self._outer._live if self._outer else console.status("")
        self._seconds, self._ends = seconds, ends
        self._last = time.monotonic()
        self._unseen: str | None = None

    def __enter__(self) -> "Status":
        if self._live and not self._outer:
            with heard_or_not():
                self._live.start()
        if not self._silent:
            Status._shown = self
        return self

    def update(self, text: str) -> None:
        """Show `text`, replacing what was shown before."""
        if self._silent:
            return
        if self._live:
            with heard_or_not():
                self._live.update(text.replace("[", "\\["))
            return
        self._unseen = text
        if time.monotonic() - self._last >= self._seconds:
            self._last = time.monotonic()
            self._unseen = None
            with heard_or_not():
                print(text, file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._silent:
            return
        Status._shown = self._outer
        with heard_or_not():
            if self._live:
                if not self._outer:
                    self._live.stop()
            elif self._unseen and self._ends:
                print(self._unseen, file=sys.stderr, flush=True)
