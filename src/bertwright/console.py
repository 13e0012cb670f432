"""What a person sees while a command runs: all on standard error, so that standard output holds results alone."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

from rich.console import Console

console = Console(stderr=True, highlight=False, soft_wrap=True)


_said: ContextVar[set[str] | None] = ContextVar("said", default=None)


def say(text: str) -> None:
    """Print one line of plain text for the person."""
    said = _said.get()
    if said is not None:
        if text in said:
            return
        said.add(text)
    console.print(text, markup=False)


@contextmanager
def without_repeats(said: set[str]) -> Iterator[None]:
    """Within, `say` leaves out what is in `said` and adds what it prints: the same file may be looked at often."""
    token = _said.set(said)
    try:
        yield
    finally:
        _said.reset(token)


class Status:
    """One line that changes in place on a terminal, and is printed at most every few seconds elsewhere."""

    def __init__(self, *, seconds: float = 10.0) -> None:
        self._live = console.status("") if console.is_terminal else None
        self._seconds = seconds
        self._last = time.monotonic()
        self._unseen: str | None = None

    def __enter__(self) -> "Status":
        if self._live:
            self._live.start()
        return self

    def update(self, text: str) -> None:
        """Show `text`, replacing what was shown before."""
        if self._live:
            self._live.update(text.replace("[", "\\["))
            return
        self._unseen = text
        if time.monotonic() - self._last >= self._seconds:
            self._last = time.monotonic()
            self._unseen = None
            print(text, file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
        elif self._unseen:
            print(self._unseen, file=sys.stderr, flush=True)
