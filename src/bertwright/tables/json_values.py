"""numbers of JSON ↔ Python's floats, without a change that nobody sees.

JSON has no NaN and no infinity, and its numbers may have more digits than a float.
"""

import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from bertwright.errors import InputError, shown

_EXACT: Final = 2.0**53
"""Size below which a float holds every whole number."""


def float_of_json(location: str) -> Callable[[str], float]:
    """Return the function with which `json.loads` reads a number that has a point or an exponent.

    It raises InputError, which begins with `location`, where the float would be infinite or another whole number: two
    ids would become one.
    """

    def to_float(text: str) -> float:
        number = float(text)
        if abs(number) < _EXACT:
            return number
        if not math.isinf(number):
            # A float is written with all its digits, with as few as possible, or with 17.
            spellings = {Decimal(number), Decimal(repr(number)), Decimal(f"{number:.17g}")}
            if Decimal(text) in spellings:
                return number
        raise InputError(
            f"{location}: expected a number that a 64-bit float holds, got {shown(text)}, which would become "
            f"{number!r}; write it as a text"
        )

    return to_float


def json_value(value: object) -> object:
    """Return a value that JSON can hold: NaN and infinity become the texts NaN, Infinity and -Infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, list | tuple):
        return [json_value(part) for part in value]
    if isinstance(value, dict):
        return {name: json_value(part) for name, part in value.items()}
    return value


def json_text(value: object) -> str:
    """Return a value as one line of JSON."""
    return json.dumps(json_value(value), ensure_ascii=False, allow_nan=False)
