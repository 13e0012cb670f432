"""Wiki markup → passages of running text: what paper §3.1 takes of Wikipedia ("only the text passages").

Lists, tables, headings, references, templates, media and formulas are dropped. A line in which markup remains, because
its author left it broken, is dropped as a whole: half a template is worse than a missing sentence.
"""

import html
import re
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType

from bertwright.errors import InputError

# Tags whose contents are text of the sentence around them; whatever stands in any other tag is dropped.
_KEPT = frozenset(
    "abbr b bdi bdo big blockquote br center cite code div em font i ins kbd noinclude nowiki onlyinclude p q s samp "
    "section small span strong sub sup time tt u var".split()
)
# Templates that stand for one of their own parameters, by its place; all others are dropped with what they hold.
_TEXT_TEMPLATES = {"lang": 2, "langue": 2, "nowrap": 1, "nobr": 1, "abbr": 1, "transl": 2}
_MEDIA = re.compile(r"\.(jpe?g|png|svg|gif|tiff?|webp|og[gva]|webm|mp3|mid|wav|flac|pdf|djvu|xcf)$", re.IGNORECASE)
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*|simple")
_LIST, _HEADING = "\x02", "\x03"  # private marks: no XML document may hold them
_STYLE = re.compile(r"'{2,}")
_SWITCH = re.compile(r"__[A-Z]{3,}__")
_EMPTY_BRACKETS = re.compile(r"\s*[(（\[]\s*[,;:、，；\s–—-]*\s*[)）\]]")
_LOOSE_START = re.compile(r"([(（])\s*[,;:、，；]\s*")
_LOOSE_END = re.compile(r"\s*[,;:、，；]\s*([)）])")
_SPACE_BEFORE = re.compile(r"\s+([,.;:!?)])(?=\s|$)")
_REMNANT = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|\]\s*\]|<!--|-->|https?://|__[A-Z]{3,}__"
    r"|</?(?:ref|br|div|span|small|sup|sub|nowiki|gallery|table|t[dhr]|math|references?|center|font|blockquote|li|ul|ol|p)\b"
    r"|\b(?:thumb|thumbnail|left|right|\d+px)\|",
    re.IGNORECASE,
)
_TABLE_LINE = ("|", "!", "{|")
_FILE, _CATEGORY = ("file", "image", "media"), ("category",)


def passages(wikitext: str, dropped: Iterable[str] = ()) -> tuple[str, ...]:
    """The paragraphs of running text in `wikitext`, in order, without markup.

    `dropped` are names of namespaces, in the wiki's own language, whose links stand for no text: files and categories.
    Raises InputError where mwparserfromhell is not installed.
    """
    prefixes = frozenset({*_FILE, *_CATEGORY, *(name.lower() for name in dropped)})
    parsed = _parser().parse(wikitext, skip_style_tags=True)
    lines = "".join(_text(parsed, prefixes)).split("\n")
    return tuple(line for line in map(_line, lines) if line)


def _text(code: object, prefixes: frozenset[str]) -> Iterator[str]:
    """The text that each node of parsed wiki markup stands for."""
    nodes = _parser().nodes
    for node in getattr(code, "nodes", ()):
        if isinstance(node, nodes.Text):
            yield node.value
        elif isinstance(node, nodes.HTMLEntity):
            yield html.unescape(str(node))
        elif isinstance(node, nodes.Wikilink):
            yield from _link(node, prefixes)
        elif isinstance(node, nodes.ExternalLink):
            yield from _text(node.title, prefixes) if node.title else ()
        elif isinstance(node, nodes.Heading):
            yield "\n" + _HEADING + "\n"
        elif isinstance(node, nodes.Template):
            yield from _template(node, prefixes)
        elif isinstance(node, nodes.Tag):
            yield from _tag(node, prefixes)


def _link(node: object, prefixes: frozenset[str]) -> Iterator[str]:
    title = str(getattr(node, "title", "")).strip()
    prefix, colon, rest = title.partition(":")
    if colon and prefix:
        known = prefix.strip().lower() in prefixes
        # [[fr:Paris]] at an article's end names its twin; [[:fr:Paris]] inside a sentence is text
        twin = not getattr(node, "text", None) and _LANGUAGE.fullmatch(prefix.strip())
        if known or twin or _MEDIA.search(rest.strip()):
            return
    shown = getattr(node, "text", None)
    yield from _text(shown, prefixes) if shown else (title.removeprefix(":"),)


def _template(node: object, prefixes: frozenset[str]) -> Iterator[str]:
    place = _TEXT_TEMPLATES.get(str(getattr(node, "name", "")).strip().lower())
    positional = [each for each in getattr(node, "params", ()) if not each.showkey]
    if place and len(positional) >= place:
        yield from _text(positional[place - 1].value, prefixes)


def _tag(node: object, prefixes: frozenset[str]) -> Iterator[str]:
    name = str(getattr(node, "tag", "")).strip().lower()
    if name in ("li", "dt", "dd") and getattr(node, "wiki_markup", None):
        yield _LIST  # the item's text follows on the same line
    elif name in ("br", "p"):
        yield " "
    elif name == "hr":
        yield "\n"
    if name in _KEPT:
        yield from _text(getattr(node, "contents", None), prefixes)


def _line(line: str) -> str:
    """One line made tidy; "" where it is no text: a list's item, a row of a table, or a line with markup left."""
    if _LIST in line or _HEADING in line or line.lstrip().startswith(_TABLE_LINE):
        return ""
    line = _SWITCH.sub("", _STYLE.sub("", line))
    for _ in range(2):  # brackets that are empty once what they held is gone, and those around them
        line = _EMPTY_BRACKETS.sub("", _LOOSE_END.sub(r"\1", _LOOSE_START.sub(r"\1", line)))
    line = " ".join(_SPACE_BEFORE.sub(r"\1", line).split())
    return line if any(map(str.isalpha, line)) and not _REMNANT.search(line) else ""


@cache
def _parser() -> ModuleType:
    try:
        import mwparserfromhell
    except ImportError:
        raise InputError("wiki markup needs mwparserfromhell: pip install 'bertwright[wikipedia]'") from None
    return mwparserfromhell
