"""signals → a training that ends after its step."""

import signal
from types import FrameType
from typing import Any


class Signals:
    """Remembers SIGINT, SIGTERM and SIGHUP (a terminal that is closed) instead of dying of them; a second one stops at
    once. One that is ignored, as SIGHUP under nohup, stays so."""

    def __init__(self) -> None:
        self.received = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
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
