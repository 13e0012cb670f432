"""wiki markup → passages of running text ("only the text passages" of Wikipedia, paper §3.1).

Lists, tables, headings, references, templates, media and formulas are dropped. A line in which broken markup remains is
dropped too: half a template is worse than a missing sentence.

`passages` works in three steps. `reduced` cuts out references, comments, formulas, tables and templates that show no
words, which are most of a page's markup and most of the time of a full parser. `unclosed` counts openings without an
end, because the parser searches for each of their ends to the end of the text, and a page with thousands would take
hours. Then mwparserfromhell parses the rest.
"""

import html
import re
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType

from bertwright.errors import InputError
from bertwright.text.wiki_templates import name_of, reading_of

# Patterns of `reduced`.
_TOKEN = re.compile(
    r"<!--|-->|<(/?)(ref|math|chem|ce|syntaxhighlight|source|pre|gallery|timeline|score|imagemap|hiero|graph|mapframe"
    r"|maplink|templatedata|templatestyles|references)\b([^<>]*)>",
    re.IGNORECASE,
)
_INNERMOST = re.compile(r"(?<!\{)\{\{(?!\{)([^{}]*)\}\}")
_DEEPEST = 40  # templates within templates; MediaWiki allows as many
_HELD = re.compile("\x05(\\d+)\x06")  # private marks: no XML document may hold them
_LINK = re.compile(r"\[\[([^\[\]{}<>|:\n]+)(?:\|([^\[\]{}<>|\n]*))?\]\]")
_STARTS = tuple("*#:;=|!{ ")  # at the start of a line: a list, a heading or a table
NOTHING = "\x06"
"""Mark at the start of a line for text that was cut out there, so that the rest is not read as a list or a table."""
_UNREAD = re.compile(r"<nowiki\s*>", re.IGNORECASE)


def reduced(wikitext: str) -> str:
    """Return the markup without references, comments, tables and templates that show no word; plain links become text.

    Markup that is not well-formed stays as it is.
    """
    if _UNREAD.search(wikitext):  # braces inside <nowiki> are text
        return wikitext
    return _LINK.sub(_shown, _without_tables(_without_templates(_without_tags(wikitext))))


def _shown(link: re.Match[str]) -> str:
    label: str = link[2] or link[1].strip()
    return link[0] if label.startswith(_STARTS) or "://" in label else label


def _without_tags(text: str) -> str:
    """Remove comments and tags whose contents are no text; one that is never closed stays, and all text after it."""
    kept: list[str] = []
    begin = end = 0  # start of the open tag, and end of the last cut
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
    """Remove templates that show nothing, from the innermost outwards."""
    held: list[str] = []

    def cut(template: re.Match[str]) -> str:
        if reading_of(name_of(template[1].partition("|")[0])) is None:
            return ""
        held.append(template[0])
        return f"\x05{len(held) - 1}\x06"

    for _ in range(_DEEPEST):
        text, num_cut = _INNERMOST.subn(cut, text)
        if not num_cut:
            break
    for _ in range(_DEEPEST):
        if "\x05" not in text:
            break
        text = _HELD.sub(lambda mark: held[int(mark[1])], text)
    return text


def _without_tables(text: str) -> str:
    """Remove tables with the tables inside them; one that is never closed stays, and all text after it."""
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


# Patterns of `unclosed`.
_BRACKET = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}(?!\})|<!--|-->|\[|\]|<(?P<end>/?)(?P<name>[a-z][a-z0-9]*)(?P<rest>[^<>]*)(?P<close>>?)",
    re.IGNORECASE,
)
_CLOSES = {"}}": "{{", "]]": "[[", "|}": "{|", "-->": "<!--", "]": "["}
_ALONE = frozenset("br hr wbr img li dt dd p td th tr".split())
_DEEPEST_BRACKETS = 35  # the parser gives up a little deeper


def unclosed(wikitext: str) -> int:
    """Return the number of openings of templates, links, tables, tags and comments without a matching end.

    An opening deeper than 35 levels counts too.
    """
    count = 0
    opened: list[str] = []
    for token in _BRACKET.finditer(wikitext):
        name = (token["name"] or "").lower()
        if name and (not token["close"] or token["rest"].count('"') % 2):
            count += 1
            continue
        if name and (name in _ALONE or token["rest"].endswith("/")):
            continue
        closes = f"<{name}" if token["end"] else _CLOSES.get(token[0])
        if closes is None:
            count += len(opened) >= _DEEPEST_BRACKETS
            opened.append(f"<{name}" if name else token[0])
        elif opened and opened[-1] == closes:
            opened.pop()
    return count + len(opened)


# Patterns of `passages`. The contents of these tags are part of the sentence around them; those of others are dropped.
_KEPT = frozenset(
    "abbr b bdi bdo big blockquote br center cite code div em font i ins kbd noinclude nowiki onlyinclude p q s samp "
    "section small span strong sub sup time tt u var".split()
)
_MEDIA = re.compile(r"\.(jpe?g|png|svg|gif|tiff?|webp|og[gva]|webm|mp3|mid|wav|flac|pdf|djvu|xcf)$", re.IGNORECASE)
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*|simple")
_LIST, _HEADING = "\x02", "\x03"  # private marks: no XML document may hold them
_QUOTES = re.compile(r"'{2,}")
_SWITCH = re.compile(r"__[A-Z]{3,}__")
# Traces of dropped markup: empty brackets, doubled punctuation, spaces before punctuation.
_UNTIDY = re.compile(r"[(（\[][\s,;:、，；–—)）\]-]|[\s,;:、，；][,.;:!?)）\]、，；。]")
_TIDIED = (
    (re.compile(r"\s*[(（\[][,;:、，；\s–—-]*[)）\]]"), ""),
    (re.compile(r"([(（])[,;:、，；\s]+"), r"\1"),
    (re.compile(r"(?<![,;:、，；\s])[,;:、，；\s]++([)）])"), r"\1"),  # a long run is scanned once
    (re.compile(r"([,;、，；])(?:\s*[,;、，；])+"), r"\1"),
    (re.compile(r"[,;、，；]\s*([.。])(?!\.)"), r"\1"),
    (re.compile(r"\s+([,.;:!?)])(?=\s|$)"), r"\1"),
)
_VARIANT = re.compile(r"-\{([^{}]*)\}-")
_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[a-zA-Z][a-zA-Z0-9]*);")
# A line of links with a namespace: categories, or the article in other languages, under names that the dump lacks.
_LINK_LINE = re.compile(r"^[ \t]*(?:\[\[[^\[\]|:\n]+:[^\[\]\n]*\]\][ \t]*)+$", re.MULTILINE)
_REMNANT = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|\]\s*\]|<!--|-->|https?://|__[A-Z]{3,}__"
    r"|</?(?:ref|br|div|span|small|sup|sub|nowiki|gallery|table|t[dhr]|math|references?|center|font|blockquote|li|ul|ol|p)\b"
    r"|\b(?:thumb|thumbnail|left|right|\d+px)\|",
    re.IGNORECASE,
)
_MARKS = re.compile(r"[{}\[\]<>|]|__|://")  # every remnant of markup has one of these
_TABLE_LINE = ("|", "!", "{|")
_FILE, _CATEGORY = ("file", "image", "media"), ("category",)
_MOST_UNCLOSED, _MOST_IN_A_LINE = 100, 5  # openings without an end, in a page and in a line
_MOST_PASSES = 40  # passes over a line; each removes the innermost empty brackets


def passages(wikitext: str, dropped: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the paragraphs of running text in `wikitext`, in order, without markup.

    `dropped` are the wiki's names of namespaces whose links stand for no text: files and categories.
    Where over a hundred openings have no end, each line is parsed alone, and a line with more than five is dropped.
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
    """Yield the text of each node of parsed wiki markup."""
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
        # [[fr:Paris]] at an article's end names the article in French; [[:fr:Paris]] inside a sentence is text.
        twin = not getattr(node, "text", None) and _LANGUAGE.fullmatch(prefix.strip())
        if known or twin or _MEDIA.search(rest.strip()):
            return
    shown = getattr(node, "text", None)
    yield from _text(shown, prefixes) if shown else (title.removeprefix(":"),)


def _template(node: object, prefixes: frozenset[str]) -> str:
    reading = reading_of(name_of(str(getattr(node, "name", ""))))
    if reading is None:
        return ""
    return reading(
        {str(each.name).strip(): "".join(_text(each.value, prefixes)) for each in getattr(node, "params", ())}
    )


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
    """Return a line with the traces of markup removed; "" for a list item, a table row or a line with markup left."""
    if _LIST in line or _HEADING in line or line.lstrip().startswith(_TABLE_LINE):
        return ""
    line = _SWITCH.sub("", _without_quotes(line))
    if "-{" in line:
        line = _VARIANT.sub(_variant, line)
    if "&" in line:  # an entity that was escaped twice
        line = _ENTITY.sub(lambda entity: html.unescape(entity[0]), line)
    line = " ".join(line.replace(NOTHING, "").split())
    for _ in range(_MOST_PASSES):  # brackets may become empty when those inside them are removed
        if not _UNTIDY.search(line):
            break
        before = line
        for pattern, replacement in _TIDIED:
            line = pattern.sub(replacement, line)
        if line == before:
            break
    line = " ".join(line.split())
    return line if any(map(str.isalpha, line)) and not (_MARKS.search(line) and _REMNANT.search(line)) else ""


def _without_quotes(line: str) -> str:
    """Remove the runs of two, three and five apostrophes, which mean italics and bold; other apostrophes are text.

    Where a run of two and a run of three both have no partner, the three are an apostrophe and italics.
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


def _variant(match: re.Match[str]) -> str:
    """Return the first spelling of a word: A for -{zh-hans:A;zh-hant:B}- and -{A}-, nothing for rules of a page."""
    flag, bar, spellings = match[1].rpartition("|")
    if bar and flag.strip() in ("H", "T", "-", "D"):
        return ""
    language, colon, first = spellings.partition(";")[0].partition(":")
    return first.strip() if colon and _LANGUAGE.fullmatch(language.strip()) else spellings


@cache
def _parser() -> ModuleType:
    try:
        import mwparserfromhell
    except ImportError:
        raise InputError("wiki markup needs mwparserfromhell: pip install 'bertwright[wikipedia]'") from None
    return mwparserfromhell
