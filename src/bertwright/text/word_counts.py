"""text → number of words, and numbers of words as a person types and reads them."""

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Final

from bertwright.errors import InputError

_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_NUMBER: Final = re.compile(r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:\.[0-9]+)?)([kmb]?)", re.IGNORECASE)
_MOST: Final = 10**15
MILLION: Final = 10**6


def words_of_text(paragraphs: Iterable[str]) -> int:
    """Return the number of words of a text: its parts when it is divided at Unicode white space."""
    return sum(len(paragraph.split()) for paragraph in paragraphs)


def parse_words(text: str) -> int:
    """Return the number of words that `10M`, `1.5M`, `100k` or a plain number stands for; M is a million.

    Raises InputError for everything else, for zero, and for a fraction of a word.
    """
    match = _NUMBER.fullmatch(text.replace("_", ""))
    number = Decimal(match[1].replace(",", "")) * _UNITS[match[2].lower()] if match else Decimal(0)
    if not 0 < number <= _MOST or number != int(number):
        raise InputError(f"--words {text!r}: expected a number of words above 0, such as 10M, 1.5M, 100k or 250000")
    return int(number)


def words_text(words: int) -> str:
    """Return a number of words as a person types it: 10M, 1.5M, 100k, 12,345."""
    for unit, size in (("M", MILLION), ("k", 1000)):
        if words >= size and words % (size // 100) == 0:
            return f"{words / size:,.2f}".rstrip("0").rstrip(".") + unit
    return f"{words:,}"
