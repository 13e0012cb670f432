"""The errors that a person is meant to read."""

from typing import Final

SHOWN: Final = 60
"""Characters of a wrong value that a message shows."""


class InputError(Exception):
    """Bad input or bad usage; the command line exits with 2.

    The message says the bad value, where it came from (file and line) and what is allowed.
    """


class Damaged(InputError):
    """A file is not what was written: its digest differs from the one that was noted then."""


class MissingExtra(InputError):
    """A part that was not installed is needed; the message holds the exact install line."""

    def __init__(self, extra: str, what: str) -> None:
        super().__init__(f"{what} needs the extra '{extra}': pip install 'bertwright[{extra}]'")


class Stopped(Exception):
    """A person stopped the work and everything worth keeping was saved; the command line exits with 0."""


class RunFailed(Exception):
    """The work itself failed (a NaN loss, a full disk); the command line exits with 1."""


def shown(value: object) -> str:
    """A wrong value for a message, cut where it is long."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
