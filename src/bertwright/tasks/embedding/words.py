"""pairs of texts → similarities by the words that both texts have: the baseline of vectors, which needs no model."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertwright.tasks.embedding.metrics import rank_metrics, score_metrics
from bertwright.tasks.embedding.pairs import TextPairs
from bertwright.text.words import text_words


def words_of(texts: Sequence[str]) -> list[frozenset[str]]:
    """Return the different words of each text, in lower case."""
    return [frozenset(text_words(text)) for text in texts]


def word_cosines(pairs: TextPairs) -> NDArray[np.float64]:
    """Return for each pair [N] the number of words that both texts have, by the root of the product of their numbers.

    It is the cosine of vectors with a 1 for each word of a text.
    """
    firsts, seconds = words_of(pairs.firsts), words_of(pairs.seconds)
    cosines = []
    for anchor, positive in zip(pairs.anchors, pairs.positives, strict=True):
        first, second = firsts[anchor], seconds[positive]
        cosines.append(len(first & second) / max(1.0, (len(first) * len(second)) ** 0.5))
    return np.round(cosines, 6)


def word_metrics(pairs: TextPairs) -> dict[str, float]:
    """Return the metrics of `vector_metrics` for these cosines."""
    if pairs.scores is not None:
        return score_metrics(word_cosines(pairs), pairs.scores)
    firsts, seconds = words_of(pairs.firsts), words_of(pairs.seconds)

    def similarities(anchors: NDArray[np.int64], pool: NDArray[np.int64]) -> NDArray[np.float64]:
        columns: defaultdict[str, list[int]] = defaultdict(list)
        for column, text in enumerate(pool):
            for word in seconds[text]:
                columns[word].append(column)
        common = np.zeros((len(anchors), len(pool)))
        for row, anchor in enumerate(anchors):
            for word in firsts[anchor] & columns.keys():
                common[row, columns[word]] += 1.0
        lengths = [
            np.sqrt([max(1, len(words[text])) for text in chosen])
            for words, chosen in ((firsts, anchors), (seconds, pool))
        ]
        return np.round(common / lengths[0][:, None] / lengths[1], 6)

    return rank_metrics(pairs, similarities)
