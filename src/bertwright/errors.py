"""Errors whose messages are written for the user."""

from pathlib import Path
from typing import Final

SHOWN: Final = 60
"""Number of characters of a wrong value that a message shows."""


class InputError(Exception):
    """Bad input or bad usage; the command line exits with 2.

    The message says where the value stands (file and line, option, column), what was expected, and what came.
    """


class Damaged(InputError):
    """A file whose digest differs from the one that was noted when it was written."""


class MissingExtra(InputError):
    """A feature that needs an extra which is not installed; the message holds the install command."""

    def __init__(self, extra: str, feature: str) -> None:
        super().__init__(f"{feature} needs the extra '{extra}': pip install 'bertwright[{extra}]'")
        self.extra, self.feature = extra, feature

    def __reduce__(self) -> tuple[type, tuple[str, str]]:  # pickled where a worker process fails
        return type(self), (self.extra, self.feature)


class Stopped(Exception):
    """Work that the user stopped after it was saved; the command line exits with 0."""


class RunFailed(Exception):
    """Work that failed although its input was good (a NaN loss, a full disk); the command line exits with 1."""


class Diverged(RunFailed):
    """A training whose loss or weights are not finite any more, or whose loss jumped up."""


class DiskFull(RunFailed, OSError):
    """A file or folder that the disk has no room for; the message says which, what was kept and what to do."""

    def __init__(self, path: Path, error: OSError) -> None:
        kept = "what was there before is kept" if path.exists() else "nothing was written there"
        text = f"{path}: the disk is full ({error.strerror}); {kept}. Make room, or name a path on another disk"
        super().__init__(error.errno, text)
        self.path, self.error = path, error

    def __reduce__(self) -> tuple[type, tuple[Path, OSError]]:
        return type(self), (self.path, self.error)

    def __str__(self) -> str:
        return str(self.strerror)


def shown(value: object) -> str:
    """Return a wrong value as text for a message, cut to `SHOWN` characters."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def legible(text: str) -> str:
    """Return the text as valid UTF-8: bytes of a file name that are no characters become \\x and their number."""
    return text.encode(errors="backslashreplace").decode().replace("\\udc", "\\x")
