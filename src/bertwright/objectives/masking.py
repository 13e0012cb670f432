"""Shards → batches: from planned sentences to rows with masks, in compiled loops over a batch (paper §A.1, §A.2).

Every row has random streams of its own, keyed by (seed, epoch, purpose, row): it comes out the same in any batch.
Letters: B rows, T tokens of a row, P predictions of a row, V vocabulary.
"""

import numpy as np

from bertwright.jit import compiled
from bertwright.objectives.sampling import below, child, draw, happens, signed

# Shards → batches: spans of whole words to be masked together (SpanBERT, Joshi et al. 2019, §3.1).
#
# A span's length in words is geometric with p = 0.2, kept to 1 … 10 (3.8 words on average); it begins at any word of
# the row with the same chance. Spans are added until the wanted number of pieces is reached, or no word fits any
# more. A span ends early at the end of its segment, before a word that is masked already, and before a word that no
# longer fits (the original cuts that word instead). There is no span-boundary objective.

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


_BITS = 64


@compiled
def truncate(rows: np.ndarray, sizes: np.ndarray, most: int, key: np.uint64) -> tuple[np.ndarray, np.ndarray]:
    """Cut A and B until together they have `most` tokens.

    rows: int64 [B] row numbers; sizes: int64 [B, 2] tokens of A and B; key: of the epoch's truncation.
    One token goes at a time, from the longer of the two (B where they are equal), from its front or its back with
    probability 1/2 each. Returns (skipped at the front, left over), each int64 [B, 2].
    """
    fronts = np.zeros(sizes.shape, np.int64)
    left = sizes.copy()
    for i in range(rows.size):
        stream = child(key, np.uint64(rows[i]))
        bits = np.uint64(0)
        for cut in range(sizes[i, 0] + sizes[i, 1] - most):
            if cut % _BITS == 0:
                bits = draw(stream, np.uint64(cut // _BITS))
            side = 0 if left[i, 0] > left[i, 1] else 1
            left[i, side] -= 1
            fronts[i, side] += signed(bits & np.uint64(1))
            bits = bits >> np.uint64(1)
    return fronts, left


@compiled
def copy_slices(
    tokens: np.ndarray, chosen: np.ndarray, starts: np.ndarray, counts: np.ndarray, columns: np.ndarray, ids: np.ndarray
) -> None:
    """Copy tokens[starts[i] : starts[i] + counts[i]] to row i of `ids`, from columns[i] on, for the i in `chosen`."""
    for i in chosen:
        start, column = starts[i], columns[i]
        for k in range(counts[i]):
            ids[i, column + k] = tokens[start + k]


@compiled
def frame(ids: np.ndarray, segments: np.ndarray, left: np.ndarray, cls_id: int, sep_id: int, pairs: bool) -> np.ndarray:
    """Set [CLS] and [SEP] round A and B and the segments (B and its [SEP]: 1); returns the rows' lengths int32 [B]."""
    lengths = np.empty(ids.shape[0], np.int32)
    for i in range(ids.shape[0]):
        end = 1 + left[i, 0]
        ids[i, 0] = cls_id
        ids[i, end] = sep_id
        if pairs:
            begin, end = end + 1, end + 1 + left[i, 1]
            ids[i, end] = sep_id
            segments[i, begin : end + 1] = 1
        lengths[i] = end + 1
    return lengths


@compiled
def mask(
    rows: np.ndarray,
    ids: np.ndarray,
    lengths: np.ndarray,
    wanted: np.ndarray,
    continuation: np.ndarray,
    spans: bool,
    special: tuple[int, int, int],
    vocab_size: np.uint64,
    shares: tuple[np.uint64, np.uint64],
    keys: tuple[np.uint64, np.uint64],
    positions: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
) -> None:
    """Choose pieces of each row, note them in `positions`, `labels`, `weights`, and put their replacements into `ids`.

    rows: int64 [B] row numbers; ids: int32 [B, T]; lengths: int32 [B]; wanted: predictions by length, int64 [T + 1];
    continuation: bool [V], True for a piece that goes on with a word; empty where every piece is chosen by itself;
    spans: choose spans of words, and draw what is shown in their place once for each; special: the ids of [CLS], [SEP],
    [MASK]; shares: thresholds of [MASK], and of [MASK] or the same piece; keys: of the epoch's choices and
    replacements; positions, labels: int32 [B, P], weights: float32 [B, P], all zero.
    """
    cls_id, sep_id, mask_id = special
    heads = np.empty(ids.shape[1], np.int64)
    following = np.empty(ids.shape[1], np.int64)
    sizes = np.empty(ids.shape[1], np.int64)
    sources = np.empty(ids.shape[1], np.int64)
    for i in range(rows.size):
        length = int(lengths[i])
        row = ids[i, :length]
        choice = child(keys[0], np.uint64(rows[i]))
        if spans:
            chosen = choose_spans(row, continuation, (cls_id, sep_id), choice, wanted[length], heads, sizes, sources)
        else:
            num_groups = _group(row, continuation, cls_id, sep_id, heads, following, sizes)
            chosen = _choose(choice, heads[:num_groups], following, sizes, length, wanted[length])
        replacement = child(keys[1], np.uint64(rows[i]))
        for count, place in enumerate(np.flatnonzero(chosen)):
            positions[i, count] = place
            labels[i, count] = ids[i, place]
            weights[i, count] = 1.0
            kind = draw(replacement, np.uint64(2 * (sources[place] if spans else place)))
            if happens(kind, shares[0]):
                ids[i, place] = mask_id
            elif not happens(kind, shares[1]):
                # Any entry of the vocabulary: special ones too, and now and then the piece that was there.
                ids[i, place] = signed(below(draw(replacement, np.uint64(2 * place + 1)), vocab_size))


@compiled
def _group(
    ids: np.ndarray,
    continuation: np.ndarray,
    cls_id: int,
    sep_id: int,
    heads: np.ndarray,
    following: np.ndarray,
    sizes: np.ndarray,
) -> int:
    """Put the candidates into groups, their first places in `heads`, a place's next in `following`; returns how many.

    A piece that goes on with a word joins the group before it, as in the original also across [SEP] (where truncation
    has cut a word's beginning off B), and stands for itself where there is none.
    """
    num_groups = 0
    last = 0
    for place in range(ids.size):
        piece = ids[place]
        if piece in (cls_id, sep_id):
            continue
        if continuation.size > 0 and num_groups > 0 and continuation[piece]:
            following[last] = place
            sizes[heads[num_groups - 1]] += 1
        else:
            heads[num_groups] = place
            sizes[place] = 1
            num_groups += 1
        last = place
    return num_groups


@compiled
def _choose(
    key: np.uint64, heads: np.ndarray, following: np.ndarray, sizes: np.ndarray, length: int, wanted: int
) -> np.ndarray:
    """Go through the groups in random order and take each that still fits into `wanted` pieces: bool [length]."""
    chosen = np.zeros(length, np.bool_)
    taken = 0
    for i in range(heads.size):
        if taken >= wanted:
            break
        other = i + signed(below(draw(key, np.uint64(i)), np.uint64(heads.size - i)))
        head = heads[other]
        heads[other] = heads[i]
        if taken + sizes[head] > wanted:
            continue
        taken += sizes[head]
        place = head
        for _ in range(sizes[head]):
            chosen[place] = True
            place = following[place]
    return chosen


@compiled
def held_out(documents: np.ndarray, key: np.uint64, share: np.uint64) -> np.ndarray:
    """Which of the documents, int64 [N], a split holds out: bool [N]."""
    chosen = np.empty(documents.size, np.bool_)
    for i in range(documents.size):
        chosen[i] = happens(child(key, np.uint64(documents[i])), share)
    return chosen
