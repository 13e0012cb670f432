"""texts → rankings by BM25 (Robertson and Zaragoza 2009), the baseline of retrieval, by the library bm25s."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import MissingExtra
from bertwright.search.exact import BestDocuments
from bertwright.search.metrics import DEPTH
from bertwright.tasks.beir import RetrievalData

K1: Final = 0.9
B: Final = 0.4
"""The two parameters of the published figures of BEIR (Anserini's defaults)."""
_BLOCK: Final = 8192


def rank_by_bm25(
    data: RetrievalData, queries: Sequence[str], left_out: NDArray[np.int64]
) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Return the numbers and scores of the best documents that share a word with each query.

    All documents are in memory at once.

    Words are lower-cased, English stop words left out, and the rest stemmed by Snowball's English rules. `left_out` is
    that of `BestDocuments.add`. Raises MissingExtra without bm25s and PyStemmer.
    """
    try:
        import bm25s
        import Stemmer
    except ImportError:
        raise MissingExtra("search", "BM25") from None
    order: list[int] = []
    texts: list[str] = []
    for ids, block in data.documents(_BLOCK):
        order += [data.numbers[id] for id in ids]
        texts += block
    options: Any = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    index = bm25s.BM25(k1=K1, b=B)
    index.index(bm25s.tokenize(texts, **options), show_progress=False)
    tokens = bm25s.tokenize(list(queries), return_ids=False, **options)
    best, all_documents = BestDocuments(len(queries), min(DEPTH, len(order))), np.array(order, dtype=np.int64)
    for row, words in enumerate(tokens):
        scores = index.get_scores(words) if words else np.zeros(len(order))
        hits = np.flatnonzero(scores > 0)  # the others have no word of the query
        best.add(row, scores[None, hits].astype(np.float32), all_documents[hits], left_out[row : row + 1])
    return best.best()
