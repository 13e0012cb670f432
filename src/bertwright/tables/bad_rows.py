"""rows that cannot be used → an error, or the numbers of the rows that are left out, by reason."""

import unicodedata
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Final, Literal

from bertwright.console import say
from bertwright.errors import InputError

BadRowPolicy = Literal["stop", "skip"]
"""Treatment of a row that cannot be used: it ends the reading, or it is left out and counted."""
_INVISIBLE: Final = ("Cc", "Cf")  # Unicode's control and format characters, such as NUL and U+200B


class BadRow(InputError):
    """Error of one row. `reason` names it in the counts of the rows that are left out: "without a label"."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class BadRows:
    """The bad rows of a table: the first one is raised, or all are counted by reason, with the first messages of each.

    unit   name of a row in messages, such as sentence or question
    shown  number of messages of each reason that are kept
    add    is called with the error of each bad row, as the `on_error` of the functions that read tables
    """

    def __init__(self, policy: BadRowPolicy, unit: str = "row", *, shown: int = 1) -> None:
        self._policy, self._unit, self._shown = policy, unit, shown
        self.counts: Counter[str] = Counter()
        self.messages: dict[str, list[str]] = {}

    def add(self, error: InputError) -> None:
        """Count the bad row. Raises the error where rows are not left out, or where it concerns more than a row."""
        if self._policy == "stop" or not isinstance(error, BadRow):
            raise error
        self.counts[error.reason] += 1
        if self.counts[error.reason] <= self._shown:
            self.messages.setdefault(error.reason, []).append(str(error))

    @property
    def text(self) -> str:
        """Return the number of rows that are left out, and the numbers by reason."""
        total = self.counts.total()
        by_reason = ", ".join(f"{count:,} {reason}" for reason, count in self.counts.most_common())
        return f"{total:,} {self._unit}{' is' if total == 1 else 's are'} left out: {by_reason}"


@contextmanager
def bad_rows_of(source: object, policy: BadRowPolicy, *, unit: str = "row", shown: int = 1) -> Iterator[BadRows]:
    """Yield the bad rows of a table, and print their numbers at the end. An error of the block gets the numbers too.

    A bad row that ends the reading is raised with the option that leaves it out.
    """
    bad_rows = BadRows(policy, unit, shown=shown)
    try:
        yield bad_rows
    except BadRow as error:
        if policy == "skip":
            raise
        raise BadRow(error.reason, f"{error}; --on-error skip leaves such {unit}s out") from None
    except InputError as error:
        if not bad_rows.counts:
            raise
        raise InputError(f"{error}; {bad_rows.text}; the first: {next(iter(bad_rows.messages.values()))[0]}") from None
    if bad_rows.counts:
        say(f"{source}: {bad_rows.text}")
        for message in chain.from_iterable(bad_rows.messages.values()):
            say(f"left out: {message}")


def is_blank(text: str) -> bool:
    """Return whether a text has nothing for a model: white space, U+FFFD, control and format characters alone."""
    return all(
        letter.isspace() or letter == "\ufffd" or unicodedata.category(letter) in _INVISIBLE for letter in text.strip()
    )
