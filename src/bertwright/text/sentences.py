"""documents → sentences: the units that next-sentence prediction pairs (paper §3.1, §A.2).

In the paper a "sentence" is any contiguous span. Here it ends where a sentence of the language ends.
"""

import re
from collections.abc import Iterator
from typing import Final

import sentencex

from bertwright.text.document import Document, TextSettings, tidy

_LONG: Final = 10_000  # characters; a longer paragraph is cut into stretches
_STRETCH: Final = 2_000  # least characters of a stretch
_END: Final = re.compile("[。！？](?![”』」）。！？])")


def split_sentences(document: Document, settings: TextSettings) -> list[str]:
    """Return the document's sentences in order, none empty, with single spaces.

    A sentence never crosses the end of a paragraph. With `settings.lines == "sentences"` each paragraph is a sentence.
    """
    if settings.lines == "sentences":
        return list(document.paragraphs)
    sentences: list[str] = []
    for paragraph in document.paragraphs:
        # One call per paragraph costs little more than one per document, and keeps every boundary.
        for stretch in _stretches(paragraph):
            for sentence in sentencex.segment(settings.language, stretch):
                if sentence := tidy(sentence):
                    sentences.append(sentence)
    return sentences


def _stretches(paragraph: str) -> Iterator[str]:
    """Yield the paragraph, or, where it is long, parts of it that end with a sentence of Chinese or Japanese.

    Where no space follows a sentence, the time of sentencex is quadratic: hours for a book in one line.
    """
    begin = 0
    if len(paragraph) > _LONG:
        for mark in _END.finditer(paragraph):
            if mark.end() - begin >= _STRETCH:
                yield paragraph[begin : mark.end()]
                begin = mark.end()
    if begin < len(paragraph):
        yield paragraph[begin:]
