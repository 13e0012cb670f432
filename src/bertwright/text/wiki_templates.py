"""Inline templates → the words that they stand for, so that no sentence is left with a hole (paper §3.1).

A template is a program of its wiki, and what it shows is not in the page. Most show nothing that belongs to a sentence.
Those inside sentences are few, and nearly all show one of their own arguments, so one table serves every language.
"""

import re
from collections.abc import Callable, Mapping

Arguments = Mapping[str, str]  # by name, or by place: "1", "2", …

_LAST = 0
_PLACES = {
    **dict.fromkeys(("lang", "langue", "llang", "script", "transl", "transliteration", "ship"), _LAST),
    **dict.fromkeys(
        "nowrap,nobr,nobreak,nowr,s,abbr,abbrlink,angbr,angle bracket,vr,sc,smallcaps,smaller,small,big,large,larger,"
        "tt,mono,samp,kbd,var,mvar,em,strong,vanchor,visible anchor,unicode,polytonic,chem2,ce,ill,illm,"
        "interlanguage link,link-interwiki,lien,le,guil,esd,flag,flagu,flagcountry,railgauge,track gauge,"
        "not a typo,proper name,nihongo,nihongo2,en,cp932フォント,jis2004フォント,jis90フォント,補助漢字フォント,"
        "仮リンク,ルビ,読み仮名,"
        "한자,옛한글,임시링크,нп,нп1,нп2,нп3,нп4,нп5,не переведено,не переведено 5".split(","),
        1,
    ),
}
# {{lang-de|…}} and its kin in other wikis: {{lang-en-short|…}}, {{enS|…}}, {{link-en|…}}
_OF_A_LANGUAGE = re.compile(
    r"(?:lang|link)-[a-z-]+|(?:ar|cs|da|de|el|en|es|fa|fr|grc|he|hu|it|ja|ko|la|pl|pt|ro|ru|sv|tr|uk|zh)s"
)
_QUOTES = frozenset(
    "quote,blockquote,quotation,cquote,bquote,quote box,zitat,cita,citazione,citation bloc,цитата,اقتباس,인용문".split(
        ","
    )
)
_SIGNS = {
    **dict.fromkeys(("snd", "spnd", "spaced ndash", "spaced en dash", "sndash", "dash"), " – "),
    **dict.fromkeys(("ndash", "en dash"), "–"),
    **dict.fromkeys(("mdash", "mdashb", "em dash", "emdash", "spaced mdash"), "—"),
    **dict.fromkeys(("nbsp", "nbs", "space", "spaces", "thinsp", "thin space", "hairsp", "pad"), " "),
    # apostrophes as entities: beside the two or three of italics and bold they would be read with them
    **{"'": "&#39;", "'s": "&#39;s", "' \"": '&#39; "', "\" '": '" &#39;', "'\"": '&#39;"', "\"'": '"&#39;'},
    **{"=": "=", "·": " · ", "•": " • "},
}
_BEFORE = {"circa": "c. ", "c.": "c. ", "ca.": "c. ", "floruit": "fl. ", "fl.": "fl. "} | {
    **dict.fromkeys(("us$", "usd"), "US$"),
    **dict.fromkeys(("£", "gbp"), "£"),
    **dict.fromkeys(("€", "euro"), "€"),
    **dict.fromkeys(("₹", "inr"), "₹"),
}
_SHIPS = frozenset("hms hmas hmcs uss ss rms ms mv ins hnlms smu sms".split())
_UNITS = {
    "sqmi": "sq mi", "sqft": "sq ft", "cuft": "cu ft", "km2": "km²", "m2": "m²", "ha": "ha", "m3": "m³", "km3": "km³",
    "c": "°C", "f": "°F", "mile": "miles", "foot": "feet", "kph": "km/h",
}  # fmt: skip
_RANGES = {"to": "to", "and": "and", "or": "or", "by": "by", "x": "×", "×": "×", "-": "–", "–": "–", "to(-)": "to"}
_NUMBER = re.compile(r"[+\-−]?[\d.,/+ ]*\d[.,/]*")
_ROMAN_CENTURY = re.compile(r"[ivx]+e siècle")


def name_of(written: str) -> str:
    """A template's name as the tables here have it."""
    return " ".join(written.replace("_", " ").split()).lower()


def reading_of(name: str) -> Callable[[Arguments], str] | None:
    """How the template of this name, in small letters, is read from its arguments; None where it stands for nothing."""
    if name in _SIGNS:
        return lambda _: _SIGNS[name]
    if name in _PLACES or _OF_A_LANGUAGE.fullmatch(name):
        place = _PLACES.get(name, 1)
        return lambda given: given.get(str(place) if place else str(_positional(given)), "")
    if name in _QUOTES:
        return lambda given: "\n" + (given.get("1") or given.get("text") or given.get("quote") or "") + "\n"
    if name in _BEFORE:
        return lambda given: (_BEFORE[name] + given.get("1", "")).rstrip()
    if name in _SHIPS:
        return lambda given: f"{name.upper()} {given.get('1', '')}"
    if _ROMAN_CENTURY.fullmatch(name):
        return lambda _: name[: name.index("e")].upper() + name[name.index("e") :]
    if name.startswith(("formatnum:", "lc:", "uc:", "ucfirst:", "lcfirst:")):
        return lambda _: name.partition(":")[2].strip()
    return _READINGS.get(name)


def _positional(given: Arguments) -> int:
    """How many arguments stand at places without a gap."""
    count = 0
    while str(count + 1) in given:
        count += 1
    return count


def _convert(given: Arguments) -> str:
    """{{convert|5|ft|11|in|m}} → 5 ft 11 in: the measure that was given, without those that it is converted to."""
    words: list[str] = []
    places = [given[str(place + 1)].strip() for place in range(_positional(given))]
    for place, word in enumerate(places):
        if _NUMBER.fullmatch(word):
            words.append(word)
        elif word in _RANGES and place + 1 < len(places) and _NUMBER.fullmatch(places[place + 1]):
            words.append(_RANGES[word])
        else:
            words.append(_UNITS.get(word.lower(), word))
            if not (
                place + 2 < len(places) and _NUMBER.fullmatch(places[place + 1]) and word in ("ft", "mi", "lb", "st")
            ):
                break
    return " ".join(words).replace(" – ", "–")


def _as_of(given: Arguments) -> str:
    return f"{'as' if given.get('lc') else 'As'} of {given.get('1', '')}".rstrip()


def _fraction(given: Arguments) -> str:
    parts = [given[str(place + 1)].strip() for place in range(_positional(given))]
    shapes = {1: "1/{}", 2: "{}/{}", 3: "{} {}/{}"}
    return shapes.get(len(parts), "").format(*parts)


def _value(given: Arguments) -> str:
    power = f"×10^{given['e'].strip()}" if given.get("e") else ""
    return f"{given.get('1', '')}{power} {given.get('u') or given.get('ul') or ''}".strip()


def _joined(given: Arguments, between: str = "") -> str:
    return between.join(given[str(place + 1)].strip() for place in range(_positional(given)))


def _century(given: Arguments) -> str:
    return f"{given.get('1', '').strip()}{given.get('2', 'e').strip()} siècle"


_READINGS: dict[str, Callable[[Arguments], str]] = {
    **dict.fromkeys(("convert", "cvt"), _convert),
    **dict.fromkeys(("as of", "asof"), _as_of),
    **dict.fromkeys(("frac", "sfrac", "fraction"), _fraction),
    **dict.fromkeys(("val", "num", "formatnum", "fmtn"), _value),
    "chem": _joined,
    **dict.fromkeys(("unité", "unidad", "nombre", "date-", "unité/2"), lambda given: _joined(given, " ")),
    **dict.fromkeys(("siècle", "s-"), _century),
    "siglo": lambda given: f"siglo {given.get('1', '').strip()}",
}
