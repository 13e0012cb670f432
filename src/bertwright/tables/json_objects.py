"""line of JSON → object; messages for JSON that is cut short, or in another layout than one object a line."""

import json
from collections import Counter
from collections.abc import Callable

from bertwright.errors import InputError, shown
from bertwright.tables.bad_rows import BadRow
from bertwright.tables.json_values import float_of_json


def names_once(location: str) -> Callable[[list[tuple[str, object]]], dict[str, object]]:
    """Return a function that makes an object of (name, value) pairs and raises InputError for a name that is repeated.

    The parser of the standard library would keep the last of the values.
    """

    def to_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise InputError(f"{location}: '{shown(twice)}' is there twice in one object; names must differ")
        return fields

    return to_object


def json_object(line: str, location: str) -> dict[str, object]:
    """Return the object in a line of JSON. Raises BadRow, which begins with `location`, for anything else."""
    try:
        fields = json.loads(line, object_pairs_hook=names_once(location), parse_float=float_of_json(location))
    except InputError as error:
        raise _bad(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise _bad(f"{location}: not valid JSON: {error}{_layout(line, error)}") from None
    if not isinstance(fields, dict):
        raise _bad(
            f"{location}: expected one object {{…}} a line, got a JSON {type(fields).__name__}{_layout(line, None)}"
        )
    # Half of a surrogate pair is valid in JSON as an escape, but cannot be tokenised or written as UTF-8.
    if "\\ud" in line.lower():
        try:
            json.dumps(fields, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise _bad(f"{location}: holds half of a surrogate pair (\\ud800 to \\udfff), which is no text") from None
    return fields


def is_cut(text: str, error: Exception) -> bool:
    """Return whether a parser of JSON failed because the text ends too early."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    rest = text[error.pos :].strip()
    if error.msg.startswith("Invalid \\u"):
        return len(rest) < 6
    # Letters at the end are the beginning of true, false or null.
    return error.msg.startswith("Unterminated string") or not rest or rest.isalpha()


def _bad(message: str) -> BadRow:
    return BadRow("not valid JSON", message)


def _layout(line: str, error: Exception | None) -> str:
    """Return what a line has instead of an object, and what to do; empty where the line is an object with a mistake."""
    line = line.strip()
    if line.startswith("["):
        return "; a list begins here: write each of its objects on a line of its own, for example with jq -c '.[]'"
    if not line.startswith("{"):
        return (
            f"; expected one object {{…}} a line, got {shown(line)}; a table is named .csv or .tsv, or is read with "
            "--input-format where a command has it"
        )
    if line.endswith(("{", "[", ",")):
        return "; the object goes on in the next line: write each object on one line, for example with jq -c ."
    if error is not None and is_cut(line, error):
        return "; the line ends in the middle of the object: was the file cut short?"
    return ""
