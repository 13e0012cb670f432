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
from bertwright.text.wiki_templates import name_of, reading_of

# Wiki markup → the same without what is dropped anyway, so that little is left to parse (paper §3.1).
#
# References, comments, formulas, tables and the templates that stand for no words are most of a page's markup, and
# most of the time of a full parser. They are cut out here in a few passes; whatever is not plainly well-formed stays
# as it is.

_TOKEN = re.compile(
    r"<!--|-->|<(/?)(ref|math|chem|ce|syntaxhighlight|source|pre|gallery|timeline|score|imagemap|hiero|graph|mapframe"
    r"|maplink|templatedata|templatestyles|references)\b([^<>]*)>",
    re.IGNORECASE,
)
_INNERMOST = re.compile(r"(?<!\{)\{\{(?!\{)([^{}]*)\}\}")
_DEEPEST = 40  # templates within templates; MediaWiki allows as many
_HELD = re.compile("\x05(\\d+)\x06")  # private marks: no XML document may hold them
_LINK = re.compile(r"\[\[([^\[\]{}<>|:\n]+)(?:\|([^\[\]{}<>|\n]*))?\]\]")
_STARTS = tuple("*#:;=|!{ ")  # what begins a list, a heading or a table where a line begins
NOTHING = "\x06"
"""Stands at a line's start for what was cut out there, so that what follows does not begin the line."""
_UNREAD = re.compile(r"<nowiki\s*>", re.IGNORECASE)


def reduced(wikitext: str) -> str:
    """The markup without references, comments, tables and templates that leave no word; plain links are their text."""
    if _UNREAD.search(wikitext):  # where braces may be text
        return wikitext
    return _LINK.sub(_shown, _without_tables(_without_templates(_without_tags(wikitext))))


def _shown(link: re.Match[str]) -> str:
    label: str = link[2] or link[1].strip()
    return link[0] if label.startswith(_STARTS) or "://" in label else label


def _without_tags(text: str) -> str:
    """Without comments and the tags whose contents are no text; what is never closed stays, and all behind it."""
    kept: list[str] = []
    begin = end = 0  # of what is open, and of what was last cut out
    closing = ""
    for token in _TOKEN.finditer(text):
        name = (token[2] or token[0]).lower()
        if closing:
            if name != closing or (token[2] and (not token[1] or token[3].strip())):
                continue
            closing = ""
        elif name == "-->" or token[1]:
            continue
        else:
            begin = token.start()
            if name == "<!--":
                closing = "-->"
                continue
            if not token[3].endswith("/"):
                closing = name
                continue
        kept.append(text[end:begin])
        if name != "-->" and text[max(0, begin - 1) : begin] in ("", "\n"):
            kept.append(NOTHING)
        end = token.end()
    return "".join((*kept, text[end:]))


def _without_templates(text: str) -> str:
    """Without the templates that stand for nothing, from the innermost outwards."""
    held: list[str] = []

    def cut(template: re.Match[str]) -> str:
        if reading_of(name_of(template[1].partition("|")[0])) is None:
            return ""
        held.append(template[0])
        return f"\x05{len(held) - 1}\x06"

    for _ in range(_DEEPEST):
        text, found = _INNERMOST.subn(cut, text)
        if not found:
            break
    for _ in range(_DEEPEST):
        if "\x05" not in text:
            break
        text = _HELD.sub(lambda mark: held[int(mark[1])], text)
    return text


def _without_tables(text: str) -> str:
    """Without tables, and those in them; a table that is never closed stays, and all behind it."""
    if "{|" not in text:
        return text
    kept: list[str] = []
    opened: list[str] = []  # the lines since the outermost table began
    depth = 0
    for line in text.split("\n"):
        bare = line.lstrip(" \t:*#;")
        if bare.startswith("{|"):
            depth += 1
        if not depth:
            kept.append(line)
            continue
        opened.append(line)
        if bare.startswith("|}") and not bare.startswith("|}}"):
            depth -= 1
            if not depth:
                kept.append(bare[2:])
                opened = []
    return "\n".join((*kept, *opened))


# Wiki markup → how much of it is never closed: a full parser tries each such opening up to the end of its text.
#
# A page with thousands of them, which no author writes, would take hours; see `passages`.

_BRACKET = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}(?!\})|<!--|-->|\[|\]|<(?P<end>/?)(?P<name>[a-z][a-z0-9]*)(?P<rest>[^<>]*)(?P<close>>?)",
    re.IGNORECASE,
)
_CLOSES = {"}}": "{{", "]]": "[[", "|}": "{|", "-->": "<!--", "]": "["}
_ALONE = frozenset("br hr wbr img li dt dd p td th tr".split())
_DEEPEST_BRACKETS = 35  # the parser gives up a little deeper


def unclosed(wikitext: str) -> int:
    """Openings of templates, links, tables, tags and comments whose end is missing, crossed, or too deep."""
    found = 0
    opened: list[str] = []
    for token in _BRACKET.finditer(wikitext):
        name = (token["name"] or "").lower()
        if name and (not token["close"] or token["rest"].count('"') % 2):
            found += 1
            continue
        if name and (name in _ALONE or token["rest"].endswith("/")):
            continue
        closes = f"<{name}" if token["end"] else _CLOSES.get(token[0])
        if closes is None:
            found += len(opened) >= _DEEPEST_BRACKETS
            opened.append(f"<{name}" if name else token[0])
        elif opened and opened[-1] == closes:
            opened.pop()
    return found + len(opened)


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
