"""bytes of a file → lines of UTF-8 text; messages for the other encodings and line ends that files have."""

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from bertwright.errors import InputError, shown
from bertwright.tables.bad_rows import BadRow
from bertwright.text.decompress import MAGIC, is_undecoded
from bertwright.text.parquet import PARQUET_MAGIC

_PARQUET: Final = "Parquet"
_OFFICE: Final = "an Excel workbook or another zip file"
_KINDS: Final = {_PARQUET: PARQUET_MAGIC, _OFFICE: b"PK\x03\x04", **MAGIC}
_ADVICE: Final = {
    _PARQUET: "name a table .parquet, or add --input-format parquet",
    _OFFICE: "save the table as .csv in UTF-8",
}
CARRIAGE_RETURNS: Final = (
    "expected lines that end in a line feed, got carriage returns alone, as old Mac programs write them; convert the "
    "file, for example with tr '\\r' '\\n'"
)
_UTF16_MARKS: Final = (BOM_UTF16_LE, BOM_UTF16_BE)
_AROUND: Final = 20  # number of bytes before and after a wrong byte that a message shows


def decode_lines(stream: Iterable[bytes], source: str, *, strict: bool = True) -> Iterator[str]:
    """Yield lines as text with their line ends, without a byte order mark.

    strict   False: a line that is not UTF-8 is yielded too; `is_undecoded` is true for it

    Raises InputError, with the line, where a line is not UTF-8, and where the file is UTF-16, Parquet or packed, or has
    carriage returns as its only line ends.
    """
    lines = iter(stream)
    first = next(lines, b"")
    _refuse_binary(first, source)
    has_returns = b"\r" in first.rstrip(b"\r\n")
    if has_returns or is_undecoded(first.decode("utf-8", "surrogateescape")):
        second = next(lines, b"")
        if has_returns and not second and not first.endswith(b"\n"):
            raise InputError(f"{source}: {CARRIAGE_RETURNS}")
        if second.startswith(b"\0"):  # the second half of the line feed
            raise InputError(f"{source}:1: not UTF-8 text{_utf16(first)}")
        lines = chain([second] if second else [], lines)
    for number, raw in enumerate(chain([first] if first else [], lines), 1):
        if is_utf16(raw, is_first=number == 1):
            raise InputError(f"{source}:{number}: not UTF-8 text{_utf16(raw)}")
        line = raw.decode("utf-8", "surrogateescape")
        if strict and is_undecoded(line):
            raise undecoded(line, f"{source}:{number}")
        # MRPC's files and others begin with a byte order mark, which is not part of the first column's name.
        yield line.removeprefix("\ufeff") if number == 1 else line


def undecoded(text: str, location: str, unit: str = "line") -> BadRow:
    """Return the error for a text of `decode_lines` with bytes that are not UTF-8, beginning with `location`."""
    raw = text.encode("utf-8", "surrogateescape")
    wrong = 0
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = error.start
    return BadRow(
        "not UTF-8 text", f"{location}: not UTF-8 text (byte {wrong + 1} of the {unit}){_windows(raw, wrong)}"
    )


def decode_file(raw: bytes, source: str) -> str:
    """Return the text of a whole file without a byte order mark. Raises InputError where it is not UTF-8."""
    if is_utf16(raw):
        raise InputError(f"{source}: not UTF-8 text{_utf16(raw)}")
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        is_cut = error.reason == "unexpected end of data"
        problem = ": it ends in the middle of a character; was it cut short?" if is_cut else _windows(raw, error.start)
        raise InputError(f"{source}: not UTF-8 text (byte {error.start + 1}){problem}") from None


def is_utf16(raw: bytes, *, is_first: bool = True) -> bool:
    """Return whether a line or a file is UTF-16: it begins with the mark of UTF-16, or has NUL bytes at its ends.

    Characters of ASCII, such as the line feed and the brackets of JSON, have one NUL byte each. A line of NUL bytes
    alone, which a full disk or a crash may leave behind, is not UTF-16.

    is_first: True for the first line of a file, which alone may begin with the mark
    """
    if is_first and raw.startswith(_UTF16_MARKS):
        return True
    if b"\0" not in raw or not raw.strip(b"\0\r\n"):
        return False
    if 3 * raw.count(b"\0") > len(raw):
        return True
    is_marked = b"\0" in raw[:2] or raw.endswith(b"\0\n")
    return is_marked and is_undecoded(raw.decode("utf-8", "surrogateescape"))  # else one NUL byte in a text of UTF-8


def is_binary(raw: bytes) -> bool:
    """Return whether a file with this first line is Parquet or packed: it begins so, and has bytes that no text has."""
    return raw.startswith(tuple(_KINDS.values())) and bool(re.search(rb"[\x00-\x08\x0e-\x1f\x80-\xff]", raw[:64]))


def _refuse_binary(first: bytes, source: str) -> None:
    if is_binary(first):
        kind = next(name for name, magic in _KINDS.items() if first.startswith(magic))
        raise InputError(
            f"{source}: expected text, got {kind}; {_ADVICE.get(kind, 'give the file this ending, or unpack it')}"
        )


def _utf16(raw: bytes) -> str:
    if raw.startswith(_UTF16_MARKS):
        return ": it begins with the mark of UTF-16; convert the file, for example with iconv -f UTF-16 -t UTF-8"
    name = "UTF-16BE" if raw[:1] == b"\0" else "UTF-16LE"
    return f": it has the NUL bytes of UTF-16; convert the file, for example with iconv -f {name} -t UTF-8"


def _windows(raw: bytes, wrong: int) -> str:
    """Return how the text around the byte `wrong` reads in CP949 or Windows-1252, and what to do."""
    if korean := re.match(rb"(?:[\xb0-\xc8][\xa1-\xfe]){2,}", raw[wrong : wrong + _AROUND]):  # Hangul of KS X 1001
        return (
            f": as CP949 (Korean) it reads {shown(repr(korean[0].decode('cp949')))}; if that is right, convert the "
            "file, for example with iconv -f CP949 -t UTF-8; else save it again as UTF-8"
        )
    around = raw[max(0, wrong - _AROUND) : wrong + _AROUND].decode("cp1252", "replace").strip()
    return (
        f": as Windows-1252 it reads {shown(repr(around))}; if that is right, convert the file, for example with iconv "
        "-f WINDOWS-1252 -t UTF-8; else save it again as UTF-8"
    )
