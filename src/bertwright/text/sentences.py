"""documents → sentences: the units that next-sentence prediction pairs (paper §3.1, §A.2).

A "sentence" of the paper is any contiguous span; real sentence boundaries keep a pair's two halves readable.
"""

import sentencex

from bertwright.text.document import Document, TextSettings


def split_sentences(document: Document, settings: TextSettings) -> list[str]:
    """Give the document's sentences in order, none empty, white space tidied.

    A sentence never crosses a paragraph. With `settings.lines == "sentences"` the paragraphs are taken as they are.
    """
    if settings.lines == "sentences":
        return list(document.paragraphs)
    sentences: list[str] = []
    for paragraph in document.paragraphs:
        # one call per paragraph costs little more than one per document, and no boundary can be lost
        for sentence in sentencex.segment(settings.language, paragraph):
            tidy = " ".join(sentence.split())
            if tidy:
                sentences.append(tidy)
    return sentences
