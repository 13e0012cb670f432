"""documents → sentences: the units that next-sentence prediction pairs (paper §3.1, §A.2).

A "sentence" of the paper is any contiguous span; real sentence boundaries keep a pair's two halves readable.
"""

import re
from collections.abc import Iterator
from typing import Final

import sentencex

from bertwright.text.document import Document, TextSettings

_LONG: Final = 10_000
_STRETCH: Final = 2_000
"""Characters of a paragraph that is cut, and of each of its parts at least."""
_END: Final = re.compile("[。！？](?![”』」）。！？])")


def split_sentences(document: Document, settings: TextSettings) -> list[str]:
    """Give the document's sentences in order, none empty, white space tidied.

    A sentence never crosses a paragraph. With `settings.lines == "sentences"` the paragraphs are taken as they are.
    """
    if settings.lines == "sentences":
        return list(document.paragraphs)
    sentences: list[str] = []
    for paragraph in document.paragraphs:
        # one call per paragraph costs little more than one per document, and no boundary can be lost
        for stretch in _stretches(paragraph):
            for sentence in sentencex.segment(settings.language, stretch):
                tidy = " ".join(sentence.split())
                if tidy:
                    sentences.append(tidy)
    return sentences


def _stretches(paragraph: str) -> Iterator[str]:
    """The whole paragraph; a long one of Chinese or Japanese in parts that end with a sentence.

    sentencex takes the square of its time where no space follows a sentence: hours for a book in one line.
    """
    begin = 0
    if len(paragraph) > _LONG:
        for mark in _END.finditer(paragraph):
            if mark.end() - begin >= _STRETCH:
                yield paragraph[begin : mark.end()]
                begin = mark.end()
    if begin < len(paragraph):
        yield paragraph[begin:]
