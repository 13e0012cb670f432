"""Shards → batches: spans of whole words to be masked together (SpanBERT, Joshi et al. 2019, §3.1).

A span's length in words is geometric with p = 0.2, kept to 1 … 10 (3.8 words on average); it begins at any word of the
row with the same chance. Spans are added until the wanted number of pieces is reached, or no word fits any more. A span
ends early at the end of its segment, before a word that is masked already, and before a word that no longer fits (the
original cuts that word instead). There is no span-boundary objective.
"""

import numpy as np

from bertwright.compiled import compiled
from bertwright.corpus.random import below, draw, signed

LONGEST_SPAN = 10
"""Words."""

_32 = np.uint64(32)


def _thresholds() -> np.ndarray:
    """2**32 times the chance of at most 1, 2 … 9 words, in whole numbers: (1 - 0.8**n) / (1 - 0.8**10) as fractions."""
    most = LONGEST_SPAN
    chances = [5 ** (most - n) * (5**n - 4**n) for n in range(1, most)]
    return np.array([2**32 * chance // (5**most - 4**most) for chance in chances], np.uint64)


_SHORTER = _thresholds()


@compiled
def span_words(bits: np.uint64) -> int:
    """The number of words of a span from 64 random bits: 1 … 10."""
    words = 1
    for threshold in _SHORTER:
        if (bits >> _32) < threshold:
            break
        words += 1
    return words


@compiled
def choose_spans(
    ids: np.ndarray,
    continuation: np.ndarray,
    special: tuple[int, int],
    key: np.uint64,
    wanted: int,
    heads: np.ndarray,
    sizes: np.ndarray,
    sources: np.ndarray,
) -> np.ndarray:
    """Choose at most `wanted` pieces of a row in spans: bool [T]; `sources` gets the first place of each one's span.

    ids: int32 [T]; continuation: bool [V], see `rows.mask`; special: the ids of [CLS] and [SEP]; key: of the row's
    choices; heads, sizes, sources: int64 [T] or longer, to be overwritten.
    """
    num_words = _words(ids, continuation, special, heads, sizes)
    chosen = np.zeros(ids.size, np.bool_)
    taken = 0
    for i in range(num_words):  # the words in random order: what is taken or too long now stays so
        if taken >= wanted:
            break
        other = i + signed(below(draw(key, np.uint64(2 * i)), np.uint64(num_words - i)))
        start = heads[other]
        heads[other] = heads[i]
        place = start
        for _ in range(span_words(draw(key, np.uint64(2 * i + 1)))):
            if place == ids.size or chosen[place] or sizes[place] == 0 or taken + sizes[place] > wanted:
                break
            end = place + sizes[place]
            chosen[place:end] = True
            sources[place:end] = start
            taken += end - place
            place = end
    return chosen


@compiled
def _words(
    ids: np.ndarray, continuation: np.ndarray, special: tuple[int, int], heads: np.ndarray, sizes: np.ndarray
) -> int:
    """The first places of the words in `heads`, their pieces in `sizes` (0 at all other places); returns how many.

    A piece that goes on with a word whose beginning was cut off the segment begins one.
    """
    num_words = 0
    inside = False
    for place in range(ids.size):
        sizes[place] = 0
        if ids[place] in special:
            inside = False
        elif inside and continuation[ids[place]]:
            sizes[heads[num_words - 1]] += 1
        else:
            heads[num_words] = place
            sizes[place] = 1
            num_words += 1
            inside = True
    return num_words
