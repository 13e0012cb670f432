"""text → documents, what they are: a document, the settings by which text is cut into some, and its paragraphs."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from bertwright.config import Settings
from bertwright.errors import InputError
from bertwright.text.decompress import LONGEST

# text → sentences: the code of a language → the one that sentence rules are known by.
#
# The rules are asked for by lower-case codes, and anything that they do not know is cut by those of English in
# silence.

_CODE: Final = re.compile(r"[a-z]{2,3}(-[a-z0-9]+)*")
TWO_LETTERS: Final = frozenset(
    """
    aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo
    es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg
    ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn
    no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw
    ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
    """.split()
)
"""ISO 639-1, and two that Wikipedias still have: bh and sh."""


def known_language(given: str) -> str:
    """`de` for de, DE and de-AT; three letters stay as they are, in lower case. ValueError for what is no language."""
    code = given.lower()
    language = code.partition("-")[0]
    if not _CODE.fullmatch(code) or (len(language) == 2 and language not in TWO_LETTERS):
        raise ValueError(
            f"{given!r} is no language; allowed are the two letters of ISO 639-1, such as en or ko, or the three of "
            "a language that has no two"
        )
    return language if len(language) == 2 else code


LINE_END = re.compile(r"\r\n|\r|\n")

OnError = Callable[[InputError], None]
"""What happens to a record that cannot be read: raise the error, or note it and go on with the next record."""


def stop(error: InputError) -> None:
    """The strictest of them: no record may be bad."""
    raise error


class TextSettings(Settings):
    """How plain text is cut into documents and paragraphs, and which language's rules part its sentences."""

    documents: Literal["blank-lines", "lines", "file"] = Field(
        default="blank-lines",
        description="what parts the documents of plain text: blank lines, every line's end, or nothing (one per file)",
    )
    lines: Literal["text", "wrapped", "sentences"] = Field(
        default="text",
        description="what a line is: a paragraph of running text, a piece of a wrapped block, or one sentence",
    )
    field: str = Field(default="text", min_length=1, description="the field or column of records that holds the text")
    language: Annotated[str, AfterValidator(known_language)] = Field(
        default="en",
        description="language code of the text, such as en or ko, for the sentence rules",
    )


@dataclass(frozen=True)
class Document:
    """One document: its paragraphs in order, none empty, and the "file:line" where it begins."""

    paragraphs: tuple[str, ...]
    place: str

    @property
    def size(self) -> int:
        """Characters of text."""
        return sum(map(len, self.paragraphs))


def tidy(line: str) -> str:
    """The line with every run of white space as one space."""
    return " ".join(line.split())


def paragraphs_of(lines: Iterable[str], settings: TextSettings) -> tuple[str, ...]:
    """Make paragraphs of lines: each line one, or with wrapped lines each run of lines without a blank one."""
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


def bounded(size: int, place: str) -> int:
    """The size of a document so far, in characters; InputError beyond what fits into memory beside everything else."""
    if size > LONGEST:
        raise InputError(
            f"{place}: a document of over {LONGEST // 10**6} million characters; blank lines part the documents of "
            "plain text (or each line is one, with --documents lines, or each file): put them where documents end"
        )
    return size


def without_title(body: list[str], title: str) -> list[str]:
    """Drop the first line with text where it only repeats the title."""
    for index, line in enumerate(body):
        if line.strip():
            return body[index + 1 :] if title and tidy(line) == tidy(title) else body
    return body
