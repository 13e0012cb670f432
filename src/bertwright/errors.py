"""The errors that a person is meant to read."""

from pathlib import Path
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


class DiskFull(RunFailed, OSError):
    """A file or folder could not be written for lack of room; the message says which, what was kept and what to do."""

    def __init__(self, path: Path, error: OSError) -> None:
        kept = "what was there before is kept" if path.exists() else "nothing was written there"
        text = f"{path}: the disk is full ({error.strerror}); {kept}. Make room, or name a path on another disk"
        super().__init__(error.errno, text)

    def __str__(self) -> str:
        return str(self.strerror)


def shown(value: object) -> str:
    """A wrong value for a message, cut where it is long."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def legible(text: str) -> str:
    """Return the text as UTF-8 can write it: a byte of a file's name that is no character is shown by its number."""
    return text.encode(errors="backslashreplace").decode().replace("\\udc", "\\x")
