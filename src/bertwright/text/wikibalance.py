"""Wiki markup → how much of it is never closed: a full parser tries each such opening up to the end of its text.

A page with thousands of them, which no author writes, would take hours; see `passages`.
"""

import re

_TOKEN = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}(?!\})|<!--|-->|\[|\]|<(?P<end>/?)(?P<name>[a-z][a-z0-9]*)(?P<rest>[^<>]*)(?P<close>>?)",
    re.IGNORECASE,
)
_CLOSES = {"}}": "{{", "]]": "[[", "|}": "{|", "-->": "<!--", "]": "["}
_ALONE = frozenset("br hr wbr img li dt dd p td th tr".split())
_DEEPEST = 35  # the parser gives up a little deeper


def unclosed(wikitext: str) -> int:
    """Openings of templates, links, tables, tags and comments whose end is missing, crossed, or too deep."""
    found = 0
    opened: list[str] = []
    for token in _TOKEN.finditer(wikitext):
        name = (token["name"] or "").lower()
        if name and (not token["close"] or token["rest"].count('"') % 2):
            found += 1
            continue
        if name and (name in _ALONE or token["rest"].endswith("/")):
            continue
        closes = f"<{name}" if token["end"] else _CLOSES.get(token[0])
        if closes is None:
            found += len(opened) >= _DEEPEST
            opened.append(f"<{name}" if name else token[0])
        elif opened and opened[-1] == closes:
            opened.pop()
    return found + len(opened)
