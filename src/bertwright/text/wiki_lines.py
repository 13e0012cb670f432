"""line of parsed wiki text → line of running text, without the traces that dropped markup leaves (paper §3.1)."""

import html
import re

from bertwright.text.wiki_cuts import CUT

LIST_ITEM, HEADING = "\x02", "\x03"
"""Marks of a list item and of a heading in a line; no XML document may hold these characters."""
LANGUAGE_CODE = re.compile(r"[a-z]{2,3}(-[a-z]+)*|simple")
"""Language of a Wikipedia: its code, or `simple` English."""

_START_OF_TABLE_ROW = ("|", "!", "{|")
_APOSTROPHES = re.compile(r"'{2,}")
_BEHAVIOUR_SWITCH = re.compile(r"__[A-Z]{3,}__")  # such as __NOTOC__
_SPELLINGS = re.compile(r"-\{([^{}]*)\}-")
_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[a-zA-Z][a-zA-Z0-9]*);")
# Empty brackets, doubled punctuation, spaces before punctuation: found with one pattern, removed with several.
_UNTIDY = re.compile(r"[(（\[][\s,;:、，；–—)）\]-]|[\s,;:、，；][,.;:!?)）\]、，；。]")
_TIDIED = (
    (re.compile(r"\s*[(（\[][,;:、，；\s–—-]*[)）\]]"), ""),
    (re.compile(r"([(（])[,;:、，；\s]+"), r"\1"),
    (re.compile(r"(?<![,;:、，；\s])[,;:、，；\s]++([)）])"), r"\1"),  # a long run is scanned once
    (re.compile(r"([,;、，；])(?:\s*[,;、，；])+"), r"\1"),
    (re.compile(r"[,;、，；]\s*([.。])(?!\.)"), r"\1"),
    (re.compile(r"\s+([,.;:!?)])(?=\s|$)"), r"\1"),
)
_MOST_PASSES = 40  # passes over a line; each removes the innermost empty brackets
_REMNANT = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|\]\s*\]|<!--|-->|https?://|__[A-Z]{3,}__"
    r"|</?(?:ref|br|div|span|small|sup|sub|nowiki|gallery|table|t[dhr]|math|references?|center|font|blockquote|li|ul|ol|p)\b"
    r"|\b(?:thumb|thumbnail|left|right|\d+px)\|",
    re.IGNORECASE,
)
_SIGN_OF_REMNANT = re.compile(r"[{}\[\]<>|]|__|://")  # every remnant of markup has one of these, and few lines have


def clean_line(line: str) -> str:
    """Return the line without traces of markup; "" for a list item, a table row, or a line in which markup remains."""
    if LIST_ITEM in line or HEADING in line or line.lstrip().startswith(_START_OF_TABLE_ROW):
        return ""
    line = _BEHAVIOUR_SWITCH.sub("", _without_bold_and_italics(line))
    if "-{" in line:
        line = _SPELLINGS.sub(_first_spelling, line)
    if "&" in line:  # an entity that was escaped twice
        line = _ENTITY.sub(lambda entity: html.unescape(entity[0]), line)
    line = " ".join(line.replace(CUT, "").split())
    for _ in range(_MOST_PASSES):  # brackets may become empty when those inside them are removed
        if not _UNTIDY.search(line):
            break
        before = line
        for pattern, replacement in _TIDIED:
            line = pattern.sub(replacement, line)
        if line == before:
            break
    line = " ".join(line.split())
    has_remnant = _SIGN_OF_REMNANT.search(line) and _REMNANT.search(line)
    return line if any(map(str.isalpha, line)) and not has_remnant else ""


def _without_bold_and_italics(line: str) -> str:
    """Remove the runs of two, three and five apostrophes, which mean italics and bold; other apostrophes are text.

    Where a run of two and a run of three both have no partner, the three are an apostrophe and italics.
    """
    if "''" not in line:
        return line
    runs = list(_APOSTROPHES.finditer(line))
    lengths = [len(run[0]) for run in runs]
    start_of_split = -1  # start of the run of three that is an apostrophe and italics
    if sum(each == 2 or each > 4 for each in lengths) % 2 and sum(each > 2 for each in lengths) % 2:
        after_letter = (run.start() for run in runs if len(run[0]) == 3 and line[: run.start()][-1:].isalpha())
        start_of_split = next(after_letter, -1)

    def apostrophes(run: re.Match[str]) -> str:
        length = len(run[0])
        return "'" * (1 if run.start() == start_of_split or length == 4 else max(0, length - 5))

    return _APOSTROPHES.sub(apostrophes, line)


def _first_spelling(match: re.Match[str]) -> str:
    """Return the first spelling of a word: A for -{zh-hans:A;zh-hant:B}- and -{A}-, nothing for rules of a page."""
    flag, bar, spellings = match[1].rpartition("|")
    if bar and flag.strip() in ("H", "T", "-", "D"):
        return ""
    language, colon, first = spellings.partition(";")[0].partition(":")
    return first.strip() if colon and LANGUAGE_CODE.fullmatch(language.strip()) else spellings
