"""Signals that end a process → the end of a training after its step."""

import signal
from types import FrameType
from typing import Any

from bertwright.portable import END_SIGNALS


class Signals:
    """Records SIGINT and END_SIGNALS, such as SIGHUP (a closed terminal), so that training ends after its step.

    A second signal interrupts at once. A signal that was ignored before stays ignored, as SIGHUP under nohup.
    """

    def __init__(self) -> None:
        self.received = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        for number in (signal.SIGINT, *END_SIGNALS):
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            try:
                self._before[number] = signal.signal(number, self._receive)
            except ValueError:  # not the main thread: the caller's handlers stay
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True
