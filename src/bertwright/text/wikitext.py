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
from bertwright.text.wikibalance import unclosed
from bertwright.text.wikimarkup import NOTHING, reduced
from bertwright.text.wikitemplates import name_of, reading_of

# Tags whose contents are text of the sentence around them; whatever stands in any other tag is dropped.
_KEPT = frozenset(
    "abbr b bdi bdo big blockquote br center cite code div em font i ins kbd noinclude nowiki onlyinclude p q s samp "
    "section small span strong sub sup time tt u var".split()
)
_MEDIA = re.compile(r"\.(jpe?g|png|svg|gif|tiff?|webp|og[gva]|webm|mp3|mid|wav|flac|pdf|djvu|xcf)$", re.IGNORECASE)
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*|simple")
_LIST, _HEADING = "\x02", "\x03"  # private marks: no XML document may hold them
_QUOTES = re.compile(r"'{2,}")
_SWITCH = re.compile(r"__[A-Z]{3,}__")
# What dropped markup leaves behind: brackets around nothing, marks that part nothing, spaces before a mark.
_UNTIDY = re.compile(r"[(（\[][\s,;:、，；–—)）\]-]|[\s,;:、，；][,.;:!?)）\]、，；。]")
_TIDIED = (
    (re.compile(r"\s*[(（\[][,;:、，；\s–—-]*[)）\]]"), ""),
    (re.compile(r"([(（])[,;:、，；\s]+"), r"\1"),
    (re.compile(r"(?<![,;:、，；\s])[,;:、，；\s]++([)）])"), r"\1"),  # a long run is gone through once
    (re.compile(r"([,;、，；])(?:\s*[,;、，；])+"), r"\1"),
    (re.compile(r"[,;、，；]\s*([.。])(?!\.)"), r"\1"),
    (re.compile(r"\s+([,.;:!?)])(?=\s|$)"), r"\1"),
)
_VARIANT = re.compile(r"-\{([^{}]*)\}-")
_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[a-zA-Z][a-zA-Z0-9]*);")
# A link with a namespace alone on its line: a category or a twin under a name that the dump's head does not list.
_LINK_LINE = re.compile(r"^[ \t]*(?:\[\[[^\[\]|:\n]+:[^\[\]\n]*\]\][ \t]*)+$", re.MULTILINE)
_REMNANT = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|\]\s*\]|<!--|-->|https?://|__[A-Z]{3,}__"
    r"|</?(?:ref|br|div|span|small|sup|sub|nowiki|gallery|table|t[dhr]|math|references?|center|font|blockquote|li|ul|ol|p)\b"
    r"|\b(?:thumb|thumbnail|left|right|\d+px)\|",
    re.IGNORECASE,
)
_MARKS = re.compile(r"[{}\[\]<>|]|__|://")  # any remnant has one of these
_TABLE_LINE = ("|", "!", "{|")
_FILE, _CATEGORY = ("file", "image", "media"), ("category",)
_MOST_UNCLOSED, _MOST_IN_A_LINE = 100, 5  # openings without their end, which take time without end to parse
_MOST_PASSES = 40  # over a line, each of which removes the innermost of empty brackets


def passages(wikitext: str, dropped: Iterable[str] = ()) -> tuple[str, ...]:
    """The paragraphs of running text in `wikitext`, in order, without markup.

    `dropped` are names of namespaces, in the wiki's own language, whose links stand for no text: files and categories.
    Where over a hundred openings have no end, each line is read alone, and one with several of them is dropped.
    Raises InputError where mwparserfromhell is not installed.
    """
    prefixes = frozenset({*_FILE, *_CATEGORY, *(name.lower() for name in dropped)})
    markup = _LINK_LINE.sub("", reduced(wikitext))
    parts = [markup]
    if unclosed(markup) > _MOST_UNCLOSED:
        parts = [line for line in markup.split("\n") if unclosed(line) <= _MOST_IN_A_LINE]
    parsed = (_parser().parse(part, skip_style_tags=True) for part in parts)
    lines = "\n".join("".join(_text(each, prefixes)) for each in parsed).split("\n")
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
            yield _template(node, prefixes)
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


def _template(node: object, prefixes: frozenset[str]) -> str:
    reading = reading_of(name_of(str(getattr(node, "name", ""))))
    if reading is None:
        return ""
    given = {str(each.name).strip(): "".join(_text(each.value, prefixes)) for each in getattr(node, "params", ())}
    return reading(given)


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
    line = _SWITCH.sub("", _without_quotes(line))
    if "-{" in line:
        line = _VARIANT.sub(_variant, line)
    if "&" in line:  # entities that were escaped twice
        line = _ENTITY.sub(lambda entity: html.unescape(entity[0]), line)
    line = " ".join(line.replace(NOTHING, "").split())
    for _ in range(_MOST_PASSES):  # brackets may be empty only once those in them are gone
        if not _UNTIDY.search(line):
            break
        before = line
        for pattern, left in _TIDIED:
            line = pattern.sub(left, line)
        if line == before:
            break
    line = " ".join(line.split())
    return line if any(map(str.isalpha, line)) and not (_MARKS.search(line) and _REMNANT.search(line)) else ""


def _without_quotes(line: str) -> str:
    """Without the runs of two, three and five apostrophes that mean italics and bold; further ones are text.

    Where both a run of two and one of three are left without their fellow, the three are an apostrophe and italics.
    """
    if "''" not in line:
        return line
    runs = list(_QUOTES.finditer(line))
    lengths = [len(run[0]) for run in runs]
    spare = -1
    if sum(each == 2 or each > 4 for each in lengths) % 2 and sum(each > 2 for each in lengths) % 2:
        spare = next((n for n, run in enumerate(runs) if len(run[0]) == 3 and line[: run.start()][-1:].isalpha()), -1)
    numbers = iter(range(len(runs)))

    def left(run: re.Match[str]) -> str:
        length = len(run[0])
        return "'" * (1 if next(numbers) == spare or length == 4 else max(0, length - 5))

    return _QUOTES.sub(left, line)


def _variant(found: re.Match[str]) -> str:
    """-{zh-hans:A;zh-hant:B}- → A, the first of a word's spellings; -{A}- → A; rules for the whole page → nothing."""
    flag, bar, body = found[1].rpartition("|")
    if bar and flag.strip() in ("H", "T", "-", "D"):
        return ""
    language, colon, first = body.partition(";")[0].partition(":")
    return first.strip() if colon and _LANGUAGE.fullmatch(language.strip()) else body


@cache
def _parser() -> ModuleType:
    try:
        import mwparserfromhell
    except ImportError:
        raise InputError("wiki markup needs mwparserfromhell: pip install 'bertwright[wikipedia]'") from None
    return mwparserfromhell
