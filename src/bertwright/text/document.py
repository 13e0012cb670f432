"""text → documents: the document, its paragraphs, and the settings that cut text into documents."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from bertwright.config import Settings
from bertwright.errors import InputError
from bertwright.text.decompress import LONGEST
from bertwright.text.languages import known_language

TEXT_RULES: Final = 2
"""Version of the rules that make documents and sentences of text. A corpus stores it.

In version 1 no sentence ended within a quote or bracket, however long it stayed open, and pages of a MediaWiki dump
that are not wikitext were documents.
"""

OnError = Callable[[InputError], None]
"""Function that is called with the error of a bad record: it raises the error, or notes it to skip the record."""


def raise_error(error: InputError) -> None:
    """Raise the error of a bad record."""
    raise error


class TextSettings(Settings):
    """Settings that cut plain text into documents, paragraphs and sentences."""

    documents: Literal["blank-lines", "lines", "file"] = Field(
        default="blank-lines",
        description="end of a document of plain text: a blank line, every line's end, or the end of the file",
    )
    lines: Literal["text", "wrapped", "sentences"] = Field(
        default="text",
        description="meaning of a line: a paragraph of running text, a part of a wrapped paragraph, or one sentence",
    )
    field: str = Field(default="text", min_length=1, description="field or column of records that holds the text")
    language: Annotated[str, AfterValidator(known_language)] = Field(
        default="en",
        description="language code of the text, such as en or ko, which chooses the sentence rules",
    )


@dataclass(frozen=True)
class Document:
    """Document of a text: its paragraphs in order, none empty, and its location, the "file:line" where it begins."""

    paragraphs: tuple[str, ...]
    location: str

    @property
    def size(self) -> int:
        """Characters of text."""
        return sum(map(len, self.paragraphs))


def tidy(line: str) -> str:
    """Return the line with every run of white space replaced by one space."""
    return " ".join(line.split())


def paragraphs_of(lines: Iterable[str], settings: TextSettings) -> tuple[str, ...]:
    """Return the paragraphs of lines: each line is one, or with wrapped lines each run of lines without a blank one."""
    tidied = [tidy(line) for line in lines]
    if settings.lines != "wrapped":
        return tuple(line for line in tidied if line)
    blocks: list[list[str]] = [[]]
    for line in tidied:
        if line:
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return tuple(" ".join(block) for block in blocks if block)


def checked_size(size: int, location: str) -> int:
    """Return the size of a document so far, in characters. Raises InputError where it is over LONGEST."""
    if size > LONGEST:
        raise InputError(
            f"{location}: the document has over {LONGEST // 10**6} million characters; of plain text put a blank line "
            "after each document, or choose --documents lines; of a csv table close the quotation mark of this line"
        )
    return size
