"""documents → sentences: the units that next-sentence prediction pairs (paper §3.1, §A.2).

In the paper a "sentence" is any contiguous span. Here it ends where a sentence of the language ends.
"""

import re
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

import sentencex

from bertwright.text.document import Document, TextSettings, tidy

LONGEST_QUOTE: Final = 1_000
"""Most characters within a quote or brackets; nearly all quotes of novels and of Wikipedia are shorter."""

_WINDOW: Final = 5_000  # characters of a long paragraph that are split at a time

# sentencex ends no sentence within these pairs, however far apart they are.
_PAIRS: Final = ("«»", "‘’", "‚‚", "“”", "‛‛", "„“", "»«", "‟‟", "‹›", "《》", "「」")
_QUOTES: Final = re.compile(
    "|".join(
        [
            r"``.*?(?:''|``)",
            r"\B`\b[^`']*+(?:'\b[^`']*+)*+(?:'\B|`\B)",
            r"\B'\b[^']*+(?:'\b[^']*+)*+'\B",
            # A straight mark with a space on one side alone shows whether it opens; that of 12 inches does not.
            r"""(?:(?<!\S)"|"(?=\S))[^"]*+(?:(?<=\S)"|"(?!\S))""",
            '"',
            *(f"{opening}[^{closing}]*+{closing}" for opening, closing in _PAIRS),
        ]
    )
)
_BRACKETS: Final = re.compile(r"[(（<{\[][^)\]}>）]*+[)\]}>）]")


def split_sentences(document: Document, settings: TextSettings) -> list[str]:
    """Return the document's sentences in order, none empty, with single spaces.

    A sentence never crosses the end of a paragraph. With `settings.lines == "sentences"` each paragraph is a sentence.
    """
    if settings.lines == "sentences":
        return list(document.paragraphs)
    sentences: list[str] = []
    for paragraph in document.paragraphs:
        # One call per paragraph costs little more than one per document, and keeps every boundary.
        split = _split if len(paragraph) <= _WINDOW else _split_long
        for sentence in split(paragraph, settings.language):
            if sentence := tidy(sentence):
                sentences.append(sentence)
    return sentences


def _split(paragraph: str, language: str) -> Iterable[str]:
    """Return the sentences of a paragraph of at most `_WINDOW` characters."""
    sentences: list[str] = sentencex.segment(language, paragraph)
    if len(paragraph) <= LONGEST_QUOTE or max(map(len, sentences), default=0) <= LONGEST_QUOTE:
        return sentences
    return _split_closed(tidy(paragraph), language)


def _split_closed(text: str, language: str) -> list[str]:
    """Return the sentences of a text in which quotes and brackets that stay open for too long are none.

    The text has single spaces and no line ends; then the sentences have all of its characters.
    """
    ends = list(accumulate(map(len, sentencex.segment(language, _without_stray_openings(text)))))
    return [text[first:end] for first, end in zip([0, *ends], ends, strict=False)]


def _split_long(paragraph: str, language: str) -> Iterable[str]:
    """Yield the sentences of a long paragraph.

    The time of sentencex is quadratic in a paragraph of many quotes, or without spaces between sentences. Therefore it
    gets a window at a time. The next window begins where a sentence ended, before quotes that this window may cut.
    """
    paragraph = tidy(paragraph)
    begin = 0
    while begin < len(paragraph):
        window = paragraph[begin : begin + _WINDOW]
        sentences = _split_closed(window, language)
        if begin + _WINDOW < len(paragraph):
            kept = sum(end <= _WINDOW - LONGEST_QUOTE for end in accumulate(map(len, sentences)))
            sentences = sentences[:kept] or [window[: window.rfind(" ") + 1] or window]
        yield from sentences
        begin += sum(map(len, sentences))


def _without_stray_openings(text: str) -> str:
    """Return a text of the same length in which the openings of quotes and brackets that stay open are replaced.

    A mark after a word becomes a closing one, with which a sentence may end, and any other a dagger.
    """
    strays: list[int] = []
    for pattern in (_QUOTES, _BRACKETS):
        position = 0
        while match := pattern.search(text, position):
            is_stray = match[0] == '"' or len(match[0]) > LONGEST_QUOTE
            strays += [match.start()] if is_stray else []
            position = match.start() + 1 if is_stray else match.end()
    if not strays:
        return text
    letters = list(text)
    for position in strays:
        is_after_word = position > 0 and not text[position - 1].isspace()
        letters[position] = "”" if is_after_word else "†"
    return "".join(letters)
