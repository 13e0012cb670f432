"""inline templates → the words that they show, so that no sentence has a gap (paper §3.1).

A template is a program of its wiki, and its output is not in the page. Most templates show nothing that belongs to a
sentence. Few kinds occur inside sentences, and nearly all of these show one of their arguments, so one table serves
every language.
"""

import re
from collections.abc import Callable, Mapping

Arguments = Mapping[str, str]  # by name, or by position: "1", "2", …

_LAST = 0
# Template → position of the argument that it shows.
_SHOWN_ARGUMENT = {
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
# {{lang-de|…}}, and in other wikis {{lang-en-short|…}}, {{enS|…}}, {{link-en|…}}
_LANGUAGE_TEMPLATE = re.compile(
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
    # Apostrophes as entities: next to the two or three of italics and bold they would be read as part of them.
    **{"'": "&#39;", "'s": "&#39;s", "' \"": '&#39; "', "\" '": '" &#39;', "'\"": '&#39;"', "\"'": '"&#39;'},
    **{"=": "=", "·": " · ", "•": " • "},
}
_PREFIXES = {"circa": "c. ", "c.": "c. ", "ca.": "c. ", "floruit": "fl. ", "fl.": "fl. "} | {
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
    """Return a template's name as the tables of this module spell it."""
    return " ".join(written.replace("_", " ").split()).lower()


def renderer_of(name: str) -> Callable[[Arguments], str] | None:
    """Return the function from arguments to text of a template; None where the template shows nothing.

    name   as `name_of` returns it
    """
    if name in _SIGNS:
        return lambda _: _SIGNS[name]
    if name in _SHOWN_ARGUMENT or _LANGUAGE_TEMPLATE.fullmatch(name):
        position = _SHOWN_ARGUMENT.get(name, 1)
        return lambda arguments: arguments.get(str(position) if position else str(_num_positional(arguments)), "")
    if name in _QUOTES:
        return lambda arguments: (
            "\n" + (arguments.get("1") or arguments.get("text") or arguments.get("quote") or "") + "\n"
        )
    if name in _PREFIXES:
        return lambda arguments: (_PREFIXES[name] + arguments.get("1", "")).rstrip()
    if name in _SHIPS:
        return lambda arguments: f"{name.upper()} {arguments.get('1', '')}"
    if _ROMAN_CENTURY.fullmatch(name):
        return lambda _: name[: name.index("e")].upper() + name[name.index("e") :]
    if name.startswith(("formatnum:", "lc:", "uc:", "ucfirst:", "lcfirst:")):
        return lambda _: name.partition(":")[2].strip()
    return _RENDERERS.get(name)


def _num_positional(arguments: Arguments) -> int:
    """Return the number of positional arguments before the first gap."""
    count = 0
    while str(count + 1) in arguments:
        count += 1
    return count


def _positional(arguments: Arguments) -> list[str]:
    """Return the positional arguments before the first gap."""
    return [arguments[str(index + 1)].strip() for index in range(_num_positional(arguments))]


def _convert(arguments: Arguments) -> str:
    """Return the measure as written, without its conversions: {{convert|5|ft|11|in|m}} → 5 ft 11 in."""
    words: list[str] = []
    values = _positional(arguments)
    for index, word in enumerate(values):
        number_follows = index + 1 < len(values) and _NUMBER.fullmatch(values[index + 1])
        if _NUMBER.fullmatch(word):
            words.append(word)
        elif word in _RANGES and number_follows:
            words.append(_RANGES[word])
        else:
            words.append(_UNITS.get(word.lower(), word))
            if not (index + 2 < len(values) and number_follows and word in ("ft", "mi", "lb", "st")):
                break
    return " ".join(words).replace(" – ", "–")


def _as_of(arguments: Arguments) -> str:
    return f"{'as' if arguments.get('lc') else 'As'} of {arguments.get('1', '')}".rstrip()


def _fraction(arguments: Arguments) -> str:
    parts = _positional(arguments)
    patterns = {1: "1/{}", 2: "{}/{}", 3: "{} {}/{}"}
    return patterns.get(len(parts), "").format(*parts)


def _value(arguments: Arguments) -> str:
    power = f"×10^{arguments['e'].strip()}" if arguments.get("e") else ""
    return f"{arguments.get('1', '')}{power} {arguments.get('u') or arguments.get('ul') or ''}".strip()


def _joined(arguments: Arguments, separator: str = "") -> str:
    return separator.join(_positional(arguments))


def _century(arguments: Arguments) -> str:
    return f"{arguments.get('1', '').strip()}{arguments.get('2', 'e').strip()} siècle"


_RENDERERS: dict[str, Callable[[Arguments], str]] = {
    **dict.fromkeys(("convert", "cvt"), _convert),
    **dict.fromkeys(("as of", "asof"), _as_of),
    **dict.fromkeys(("frac", "sfrac", "fraction"), _fraction),
    **dict.fromkeys(("val", "num", "formatnum", "fmtn"), _value),
    "chem": _joined,
    **dict.fromkeys(("unité", "unidad", "nombre", "date-", "unité/2"), lambda arguments: _joined(arguments, " ")),
    **dict.fromkeys(("siècle", "s-"), _century),
    "siglo": lambda arguments: f"siglo {arguments.get('1', '').strip()}",
}
