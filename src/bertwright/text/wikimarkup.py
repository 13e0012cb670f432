"""Wiki markup → the same without what is dropped anyway, so that little is left to parse (paper §3.1).

References, comments, formulas, tables and the templates that stand for no words are most of a page's markup, and most
of the time of a full parser. They are cut out here in a few passes; whatever is not plainly well-formed stays as it is.
"""

import re

from bertwright.text.wikitemplates import name_of, reading_of

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
