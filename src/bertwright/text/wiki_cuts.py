"""wiki markup → shorter wiki markup: cut out the parts that show no words, before a full parser reads the rest.

References, comments, formulas, tables and most templates are the largest part of a page's markup, and reading them
takes most of a full parser's time. `cut_markup` removes them with patterns. `count_unclosed` counts openings that have
no end: the parser searches for each of their ends to the end of the text, and a page with thousands would take hours.
"""

import re

from bertwright.text.wiki_templates import name_of, renderer_of

_TAG = re.compile(
    r"<!--|-->|<(?P<slash>/?)(?P<name>ref|math|chem|ce|syntaxhighlight|source|pre|gallery|timeline|score|imagemap|hiero"
    r"|graph|mapframe|maplink|templatedata|templatestyles|references)\b(?P<rest>[^<>]*)>",
    re.IGNORECASE,
)
_INNERMOST_TEMPLATE = re.compile(r"(?<!\{)\{\{(?!\{)([^{}]*)\}\}")
_MOST_NESTED = 40  # templates within templates; MediaWiki allows as many
_STAND_IN = re.compile("\x05(\\d+)\x06")  # number of a template; no XML document may hold these two characters
_LINK = re.compile(r"\[\[([^\[\]{}<>|:\n]+)(?:\|([^\[\]{}<>|\n]*))?\]\]")
_LINE_STARTS = tuple("*#:;=|!{ ")  # at the start of a line: a list, a heading or a table
CUT = "\x06"
"""Mark at the start of a line for text that was cut out there, so that the rest is not read as a list or a table."""
_NOWIKI = re.compile(r"<nowiki\s*>", re.IGNORECASE)


def cut_markup(wikitext: str) -> str:
    """Return the markup without references, comments, tables and templates that show no word; plain links become text.

    Markup that is not well-formed stays as it is.
    """
    if _NOWIKI.search(wikitext):  # braces inside <nowiki> are text
        return wikitext
    return _LINK.sub(_words_of_link, _without_tables(_without_templates(_without_tags(wikitext))))


def _words_of_link(link: re.Match[str]) -> str:
    label: str = link[2] or link[1].strip()
    return link[0] if label.startswith(_LINE_STARTS) or "://" in label else label


def _without_tags(text: str) -> str:
    """Remove comments and elements whose contents are no text; one that is never closed stays, with all after it."""
    kept: list[str] = []
    begin = end = 0  # start of the open element, and end of the last cut
    closing = ""  # name of the tag that closes the open element; "" outside of elements
    for tag in _TAG.finditer(text):
        name = (tag["name"] or tag[0]).lower()
        if closing:
            is_end = not tag["name"] or (tag["slash"] and not tag["rest"].strip())
            if name != closing or not is_end:
                continue
            closing = ""
        elif name == "-->" or tag["slash"]:
            continue
        else:
            begin = tag.start()
            is_empty = tag["name"] and tag["rest"].endswith("/")
            if not is_empty:
                closing = "-->" if name == "<!--" else name
                continue
        kept.append(text[end:begin])
        if name != "-->" and text[max(0, begin - 1) : begin] in ("", "\n"):
            kept.append(CUT)
        end = tag.end()
    return "".join((*kept, text[end:]))


def _without_templates(text: str) -> str:
    """Remove the templates that show nothing, from the innermost outwards.

    A number stands in for a template that shows words, so that the template around it becomes an innermost one.
    """
    shown: list[str] = []

    def cut(template: re.Match[str]) -> str:
        if renderer_of(name_of(template[1].partition("|")[0])) is None:
            return ""
        shown.append(template[0])
        return f"\x05{len(shown) - 1}\x06"

    for _ in range(_MOST_NESTED):
        text, num_cut = _INNERMOST_TEMPLATE.subn(cut, text)
        if not num_cut:
            break
    for _ in range(_MOST_NESTED):
        if "\x05" not in text:
            break
        text = _STAND_IN.sub(lambda number: shown[int(number[1])], text)
    return text


def _without_tables(text: str) -> str:
    """Remove tables with the tables inside them; one that is never closed stays, and all text after it."""
    if "{|" not in text:
        return text
    kept: list[str] = []
    table: list[str] = []  # lines since the outermost table began
    depth = 0
    for line in text.split("\n"):
        bare = line.lstrip(" \t:*#;")
        if bare.startswith("{|"):
            depth += 1
        if not depth:
            kept.append(line)
            continue
        table.append(line)
        if bare.startswith("|}") and not bare.startswith("|}}"):
            depth -= 1
            if not depth:
                kept.append(bare[2:])
                table = []
    return "\n".join((*kept, *table))


_BRACKET = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}(?!\})|<!--|-->|\[|\]|<(?P<end>/?)(?P<name>[a-z][a-z0-9]*)(?P<rest>[^<>]*)(?P<close>>?)",
    re.IGNORECASE,
)
_OPENING_OF = {"}}": "{{", "]]": "[[", "|}": "{|", "-->": "<!--", "]": "["}
_TAGS_WITHOUT_END = frozenset("br hr wbr img li dt dd p td th tr".split())
_MOST_OPEN = 35  # the parser gives up a little deeper


def count_unclosed(wikitext: str) -> int:
    """Return the number of openings of templates, links, tables, tags and comments without a matching end.

    An opening deeper than 35 levels counts too.
    """
    count = 0
    opened: list[str] = []
    for bracket in _BRACKET.finditer(wikitext):
        name = (bracket["name"] or "").lower()
        if name and (not bracket["close"] or bracket["rest"].count('"') % 2):
            count += 1
            continue
        if name and (name in _TAGS_WITHOUT_END or bracket["rest"].endswith("/")):
            continue
        closes = f"<{name}" if bracket["end"] else _OPENING_OF.get(bracket[0])
        if closes is None:
            count += len(opened) >= _MOST_OPEN
            opened.append(f"<{name}" if name else bracket[0])
        elif opened and opened[-1] == closes:
            opened.pop()
    return count + len(opened)
