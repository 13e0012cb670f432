"""A pre-training that ends without warning between two checkpoints."""

from collections.abc import Sequence
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.training.loop import Loop


class Killed(BaseException):
    """Ends a process as nothing else does."""


def cut_off(command: Sequence[str], *, after: int, saved: int) -> None:
    """Run a command that trains until it is killed after some steps; its only checkpoint is that of step `saved`."""
    step = Loop.step

    def until_then(self: Any, number: int, batches: Any) -> None:
        if number == after:
            raise Killed
        step(self, number, batches)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Loop, "step", until_then)
        patched.setattr(Loop, "is_time_to_save", lambda _, done: done == saved)
        with pytest.raises(Killed):
            main([*command])
