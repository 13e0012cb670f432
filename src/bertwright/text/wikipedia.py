"""MediaWiki dump → pages: articles as a stream, in every language (paper §3.1).

An article is a page of the main namespace that is no redirect and no disambiguation page. In a dump with histories the
last revision counts. Memory holds one revision at a time. A file that declares XML entities is refused, because they
can expand without end ("billion laughs"); no dump declares any.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO
from xml.etree.ElementTree import Element, ParseError, iterparse
from xml.parsers import expat

from bertwright.errors import InputError
from bertwright.stores.remote import AnyFile

LARGEST_PAGE = 20_000_000
"""Most bytes of a page's markup. MediaWiki itself allows 2 MB."""

_PROLOG = 65_536  # bytes within which a dump's first element begins
_MOST_ELEMENTS = 100_000  # XML elements of a revision; a usual one has about ten
_FILE, _CATEGORY = "6", "14"  # namespace numbers, the same in every wiki
# Possessive (*+): long runs of spaces are scanned once.
_REDIRECT = re.compile(r"\s*#[^\s\[\]:#]+\s*+:?\s*+\[\[")
# The template that marks a disambiguation page, in the larger editions. The start of its name is enough, except for
# templates that are a note above an article, or that mark a link to be corrected.
_DISAMBIGUATION = re.compile(
    r"\{\{\s*+(?![^{}|\n]*(?:hinweis|needed|link|disambigr\b|\?))(?:(?:disambig|dab\b|hndis|geodis|begriffsklärung|homonymi|desambig|disambigua|doorverwijspagina|dp\b"
    r"|ujednoznacznienie|неоднозначность|многозначность|багатозначність|aimai|曖昧さ回避|消歧[义義]|동음이의|동명이인"
    r"|förgrening|gren\b|täsmennyssivu|rozcestník|anlam ayrımı|توضيح|ابهام|פירושונים|egyért|flertydig|peker\b"
    r"|định hướng|dezambiguizare|αποσαφήνιση|แก้ความกำกวม)|[^{}|\n]*\bdisambiguation\s*(?:\||\}\}))|__DISAMBIG__",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Page:
    """Article of a dump.

    wikitext   its markup; empty where the page is a style sheet, a program or data (its <model> is not wikitext)
    location   "file: page number and title"
    dropped    the wiki's names of the namespaces whose links stand for no text: files and categories
    """

    wikitext: str
    location: str
    dropped: tuple[str, ...]

    @property
    def size(self) -> int:
        """Characters of markup."""
        return len(self.wikitext)


def is_dump(first_line: str) -> bool:
    """Return whether a file that begins with this line is XML; of the formats read here only a dump is."""
    return first_line.lstrip("\ufeff").startswith(("<mediawiki", "<?xml", "<!DOCTYPE"))


def read_pages(path: AnyFile, stream: BinaryIO) -> Iterator[Page]:
    """Yield the articles of a dump in order.

    Raises InputError for XML that is broken or cut short, another kind of XML, a document type, and a page over
    `LARGEST_PAGE`; the message names the last page before it. Errors of reading the stream are passed on.
    """
    limited = _LimitedStream(path, stream)
    root: Element | None = None
    dropped: tuple[str, ...] = ()
    last = "before its first page"  # position in the dump, for messages
    page: Element | None = None  # the page that is being read
    events = iterparse(limited, events=("start", "end"))
    try:
        for event, element in events:
            tag = element.tag.rpartition("}")[2]
            if root is None:
                root = element
                if tag != "mediawiki":
                    raise InputError(f"{path}: expected a MediaWiki dump, got XML whose first element is <{tag}>")
            if event == "start":
                limited.elements += 1
                page = element if page is None and tag == "page" else page
            elif tag == "siteinfo":
                dropped = _dropped_namespaces(element)
            elif tag == "revision" and page is not None and page[-1] is element:
                for earlier in page.findall(element.tag)[:-1]:
                    page.remove(earlier)
                limited.restart()  # a history is long, a revision is not
            elif page is not None and element is page:
                article, name = _page(path, page, dropped)
                last = f"after {name}"
                page = None
                root.clear()  # otherwise an empty element remains for each of millions of pages
                limited.restart()
                if article:
                    yield article
    except ParseError as error:
        line, column = error.position
        raise InputError(f"{path}:{line}: the XML is broken or cut short, column {column}, {last}: {error}") from None
    except _TooLarge:
        raise InputError(
            f"{path}: expected pages of at most {LARGEST_PAGE // 10**6} MB and {_MOST_ELEMENTS:,} elements, got a "
            f"larger one {last}"
        ) from None


def _page(path: AnyFile, element: Element, dropped: tuple[str, ...]) -> tuple[Page | None, str]:
    """Return the article in a <page>, or None where it is no article, and the name of the page for messages."""
    fields = _children(element)
    title = _text_of(fields.get("title"))
    name = f"page {_text_of(fields.get('id')) or '?'} {title!r}"
    revision = _children(fields.get("revision", ()))  # the last one
    wikitext = _text_of(revision.get("text"))
    is_article = _text_of(fields.get("ns")) in ("", "0") and "redirect" not in fields
    if not is_article or not wikitext or _REDIRECT.match(wikitext) or _DISAMBIGUATION.search(wikitext):
        return None, name
    if _text_of(revision.get("model")) not in ("", "wikitext"):
        wikitext = ""
    return Page(wikitext, f"{path}: {name}", dropped), name


def _children(element: Iterable[Element]) -> dict[str, Element]:
    """Return the elements in an element by their names, without the namespace of XML."""
    return {child.tag.rpartition("}")[2]: child for child in element}


def _text_of(element: Element | None) -> str:
    return (element.text or "") if element is not None else ""


def _dropped_namespaces(siteinfo: Element) -> tuple[str, ...]:
    """Return the wiki's names of the namespaces of files and categories."""
    spaces = (each for each in siteinfo.iter() if each.tag.rpartition("}")[2] == "namespace")
    return tuple(each.text for each in spaces if each.get("key") in (_FILE, _CATEGORY) and each.text)


class _TooLarge(Exception):
    """A revision has more bytes or elements than allowed."""


class _LimitedStream:
    """Stream for the XML parser with limits: no document type, and only so many bytes and elements a revision."""

    def __init__(self, path: AnyFile, stream: BinaryIO) -> None:
        self._stream = stream
        self._prolog: bytes | None = stream.read(_PROLOG)
        _check_prolog(path, self._prolog)
        self.restart()

    def restart(self) -> None:
        """Count bytes and elements from zero."""
        self._bytes = self.elements = 0

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, as the method of a file."""
        data, self._prolog = self._prolog if self._prolog is not None else self._stream.read(size), None
        self._bytes += len(data)
        if self._bytes > LARGEST_PAGE + 2 * _PROLOG or self.elements > _MOST_ELEMENTS:
            raise _TooLarge
        return data


def _check_prolog(path: AnyFile, prolog: bytes) -> None:
    """Raise InputError for a document type before the first element, and where no element begins in these bytes."""
    has_element = False

    def begin(*_: object) -> None:
        nonlocal has_element
        has_element = True

    def refuse(*_: object) -> None:
        raise InputError(f"{path}: declares a document type, whose entities could expand without end; refused")

    parser = expat.ParserCreate()
    parser.StartElementHandler = begin
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(prolog, False)
    except expat.ExpatError:  # `read_pages` raises the error with its line
        return
    if not has_element and len(prolog) == _PROLOG:
        raise InputError(
            f"{path}: expected a MediaWiki dump, got XML without an element in its first {_PROLOG:,} bytes"
        )
