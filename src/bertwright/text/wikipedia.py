"""MediaWiki dump → pages: articles as a stream, whatever the wiki's language (paper §3.1).

Only pages of the main namespace are articles; redirects and disambiguation pages are none. Of a dump with histories the
last revision is taken. One revision is held at a time. Entities of a document's own (the "billion laughs") are refused:
no dump declares any.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from xml.etree.ElementTree import Element, ParseError, iterparse
from xml.parsers import expat

from bertwright.errors import InputError

LARGEST_PAGE = 20_000_000
"""Characters of one page's markup. MediaWiki itself allows 2 MB."""

_PROLOG = 65_536  # bytes within which a dump's first element begins
_MOST_ELEMENTS = 100_000  # of one revision, which has about ten
_FILE, _CATEGORY = "6", "14"  # namespace numbers, the same in every wiki
# Possessive (*+): long runs of spaces are gone through once.
_REDIRECT = re.compile(r"\s*#[^\s\[\]:#]+\s*+:?\s*+\[\[")
# What the larger editions call the template that marks a disambiguation page; the start of its name is enough, unless
# it goes on as the note above an article that speaks of such a page, or as the mark of a link to be mended.
_DISAMBIGUATION = re.compile(
    r"\{\{\s*+(?![^{}|\n]*(?:hinweis|needed|link|disambigr\b|\?))(?:(?:disambig|dab\b|hndis|geodis|begriffsklärung|homonymi|desambig|disambigua|doorverwijspagina|dp\b"
    r"|ujednoznacznienie|неоднозначность|многозначность|багатозначність|aimai|曖昧さ回避|消歧[义義]|동음이의|동명이인"
    r"|förgrening|gren\b|täsmennyssivu|rozcestník|anlam ayrımı|توضيح|ابهام|פירושונים|egyért|flertydig|peker\b"
    r"|định hướng|dezambiguizare|αποσαφήνιση|แก้ความกำกวม)|[^{}|\n]*\bdisambiguation\s*(?:\||\}\}))|__DISAMBIG__",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Page:
    """One article: its markup, the "file: page number and title" it stands at, the wiki's names of dropped links."""

    wikitext: str
    place: str
    dropped: tuple[str, ...]

    @property
    def size(self) -> int:
        """Characters of markup."""
        return len(self.wikitext)


def is_dump(first_line: str) -> bool:
    """Whether a file that begins with this line is XML: of the layouts read here only a dump is."""
    return first_line.lstrip("\ufeff").startswith(("<mediawiki", "<?xml", "<!DOCTYPE"))


def read_pages(path: Path, stream: BinaryIO) -> Iterator[Page]:
    """Yield the articles of a dump in order.

    Raises InputError for XML that is broken or cut short, another kind of XML, a document type, and a page beyond
    `LARGEST_PAGE`, naming the last page that was whole. Errors of reading the stream are passed on.
    """
    guarded = _Guarded(path, stream)
    root: Element | None = None
    dropped: tuple[str, ...] = ()
    last = "before its first page"
    page: Element | None = None  # the one that is being read
    events = iterparse(guarded, events=("start", "end"))
    try:
        for event, element in events:
            tag = element.tag.rpartition("}")[2]
            if root is None:
                root = element
                if tag != "mediawiki":
                    raise InputError(
                        f"{path}: XML whose first element is <{tag}>; of XML only MediaWiki dumps are read"
                    )
            if event == "start":
                guarded.elements += 1
                page = element if page is None and tag == "page" else page
            elif tag == "siteinfo":
                dropped = _names(element)
            elif tag == "revision" and page is not None and page[-1] is element:
                for earlier in page.findall(element.tag)[:-1]:
                    page.remove(earlier)
                guarded.begin_anew()  # histories are long, their revisions are not
            elif page is not None and element is page:
                found, last = _page(path, page, dropped)
                page = None
                root.clear()  # or an empty element stays for each of millions of pages
                guarded.begin_anew()
                if found:
                    yield found
    except ParseError as error:
        line, column = error.position
        raise InputError(f"{path}:{line}: the XML is broken or cut short, column {column}, {last}: {error}") from None
    except _TooLarge:
        raise InputError(
            f"{path}: a page of over {LARGEST_PAGE // 10**6} MB or {_MOST_ELEMENTS:,} elements, {last}"
        ) from None


def _page(path: Path, element: Element, dropped: tuple[str, ...]) -> tuple[Page | None, str]:
    """The article in a <page>, None where it is no article, and where the reading stands now."""
    fields = {child.tag.rpartition("}")[2]: child for child in element}
    title = _text(fields.get("title"))
    name = f"page {_text(fields.get('id')) or '?'} {title!r}"
    revision = fields.get("revision")  # of several the last
    wikitext = (
        _text(next((child for child in revision if child.tag.endswith("text")), None)) if revision is not None else ""
    )
    is_article = _text(fields.get("ns")) in ("", "0") and "redirect" not in fields
    if not is_article or not wikitext or _REDIRECT.match(wikitext) or _DISAMBIGUATION.search(wikitext):
        return None, f"after {name}"
    return Page(wikitext, f"{path}: {name}", dropped), f"after {name}"


def _text(element: Element | None) -> str:
    return (element.text or "") if element is not None else ""


def _names(siteinfo: Element) -> tuple[str, ...]:
    """This wiki's own names of the namespaces of files and categories."""
    spaces = (each for each in siteinfo.iter() if each.tag.rpartition("}")[2] == "namespace")
    return tuple(each.text for each in spaces if each.get("key") in (_FILE, _CATEGORY) and each.text)


class _TooLarge(Exception):
    pass


class _Guarded:
    """A stream for the parser that refuses a document type, and more bytes or elements than a revision may have."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self._stream = stream
        self._prolog: bytes | None = stream.read(_PROLOG)
        _check_prolog(path, self._prolog)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Measure from here."""
        self._bytes = self.elements = 0

    def read(self, size: int = -1) -> bytes:
        """As a file's."""
        data, self._prolog = self._prolog if self._prolog is not None else self._stream.read(size), None
        self._bytes += len(data)
        if self._bytes > LARGEST_PAGE + 2 * _PROLOG or self.elements > _MOST_ELEMENTS:
            raise _TooLarge
        return data


def _check_prolog(path: Path, prolog: bytes) -> None:
    """InputError for a document type before the first element, and where no element begins in so many bytes."""
    begun = False

    def begin(*_: object) -> None:
        nonlocal begun
        begun = True

    def refuse(*_: object) -> None:
        raise InputError(f"{path}: declares a document type; its entities could expand without end: refused")

    parser = expat.ParserCreate()
    parser.StartElementHandler = begin
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(prolog, False)
    except expat.ExpatError:  # what reads the whole says where
        return
    if not begun and len(prolog) == _PROLOG:
        raise InputError(f"{path}: XML in whose first {_PROLOG:,} bytes no element begins; no dump does so")
