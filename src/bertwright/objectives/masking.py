"""Shards → batches: truncation, special tokens and masking of rows, in compiled loops over a batch (paper §A.1, §A.2).

Every row has its own random streams, keyed by (seed, epoch, purpose, row), and is the same in any batch.

Spans are those of SpanBERT (Joshi et al. 2019, §3.1). The length of a span in words is geometric with p = 0.2, cut to
1 … 10 words (3.8 on average). A span begins at any word of the row with the same probability. Spans are added until the
number of predictions is reached or no word fits any more. A span ends early at the end of its segment, before a word
that is already masked, and before a word that no longer fits; the original cuts that word instead. There is no
span-boundary objective. N-grams are those of ALBERT (Lan et al. 2019, §4.1): spans of n = 1, 2 or 3 words, with a
probability in proportion to 1/n, whose pieces are replaced one by one.

Shapes: B rows, T tokens of a row, P predictions of a row, V vocabulary.
"""

import numpy as np

from bertwright.jit import compiled
from bertwright.objectives.sampling import below, child, draw, happens, signed
from bertwright.objectives.settings import MaskUnits

_32 = np.uint64(32)


def _geometric(longest: int) -> np.ndarray:
    """Return 2**32 times the probability of at most 1, 2, … words, `longest` left out: uint64.

    The probability of at most n words is (1 - 0.8**n) / (1 - 0.8**longest); it is computed in integers.
    """
    numerators = [5 ** (longest - n) * (5**n - 4**n) for n in range(1, longest)]
    return np.array([2**32 * numerator // (5**longest - 4**longest) for numerator in numerators], np.uint64)


SPAN_LENGTHS: dict[MaskUnits, np.ndarray] = {
    "span": _geometric(10),
    "ngram": np.array([2**32 * 6 // 11, 2**32 * 9 // 11], np.uint64),  # 1 + 1/2 + 1/3 = 11/6
}
"""Units that are spans of words → 2**32 times the probability of at most 1, 2, … words, the largest number left out."""


@compiled
def span_words(bits: np.uint64, lengths: np.ndarray) -> int:
    """Return the number of words of a span from 64 random bits; lengths: an entry of SPAN_LENGTHS."""
    words = 1
    for threshold in lengths:
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
    span_lengths: np.ndarray,
    heads: np.ndarray,
    sizes: np.ndarray,
    sources: np.ndarray,
) -> np.ndarray:
    """Choose at most `wanted` pieces of a row in spans: bool [T].

    `sources` gets the first position of the span of each chosen piece.

    ids: int32 [T]. continuation: bool [V], see `mask`. special: ids of [CLS] and [SEP]. key: key of the row's choices.
    span_lengths: an entry of SPAN_LENGTHS. heads, sizes, sources: int64 [T] or longer, overwritten.
    """
    num_words = _words(ids, continuation, special, heads, sizes)
    chosen = np.zeros(ids.size, np.bool_)
    taken = 0
    for i in range(num_words):  # words in random order; a word that does not fit now never fits later
        if taken >= wanted:
            break
        other = i + signed(below(draw(key, np.uint64(2 * i)), np.uint64(num_words - i)))
        start = heads[other]
        heads[other] = heads[i]
        begin = start
        for _ in range(span_words(draw(key, np.uint64(2 * i + 1)), span_lengths)):
            if begin == ids.size or chosen[begin] or sizes[begin] == 0 or taken + sizes[begin] > wanted:
                break
            end = begin + sizes[begin]
            chosen[begin:end] = True
            sources[begin:end] = start
            taken += end - begin
            begin = end
    return chosen


@compiled
def _words(
    ids: np.ndarray, continuation: np.ndarray, special: tuple[int, int], heads: np.ndarray, sizes: np.ndarray
) -> int:
    """Return the number of words; write their first positions to `heads` and their numbers of pieces to `sizes`.

    `sizes` is 0 at all other positions. A continuation piece whose word begins outside of the segment counts as the
    beginning of a word.
    """
    num_words = 0
    inside = False
    for position in range(ids.size):
        sizes[position] = 0
        if ids[position] in special:
            inside = False
        elif inside and continuation[ids[position]]:
            sizes[heads[num_words - 1]] += 1
        else:
            heads[num_words] = position
            sizes[position] = 1
            num_words += 1
            inside = True
    return num_words


_BITS = 64


@compiled
def truncate(rows: np.ndarray, sizes: np.ndarray, most: int, key: np.uint64) -> tuple[np.ndarray, np.ndarray]:
    """Cut A and B until together they have at most `most` tokens.

    One token at a time is removed from the longer of the two (from B where they are equal), from its front or its back
    with probability 1/2 each.

    rows: row numbers, int64 [B]. sizes: tokens of A and B, int64 [B, 2]. key: key of the epoch's truncation.
    Returns the tokens removed at the front and the tokens left, int64 [B, 2] each.
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
    """Copy tokens[starts[i] : starts[i] + counts[i]] to row i of `ids`, from columns[i] on, for each i in `chosen`."""
    for i in chosen:
        start, column = starts[i], columns[i]
        for k in range(counts[i]):
            ids[i, column + k] = tokens[start + k]


@compiled
def add_special_tokens(
    ids: np.ndarray, segments: np.ndarray, left: np.ndarray, cls_id: int, sep_id: int, pairs: bool
) -> np.ndarray:
    """Set [CLS], [SEP] and the segments (1 for B and its [SEP]) in place; return the lengths of the rows, int32 [B]."""
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
    span_lengths: np.ndarray,
    together: bool,
    special: tuple[int, int, int],
    vocab_size: np.uint64,
    thresholds: tuple[np.uint64, np.uint64],
    keys: tuple[np.uint64, np.uint64],
    positions: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
) -> None:
    """Choose pieces of each row; fill `positions`, `labels`, `weights`; replace the pieces in `ids` (all in place).

    rows: row numbers, int64 [B]. ids: int32 [B, T]. lengths: int32 [B]. wanted: predictions by length, int64 [T + 1].
    continuation: bool [V], True for a piece that continues a word; empty where pieces are chosen one by one.
    span_lengths: an entry of SPAN_LENGTHS to choose spans of words; empty to choose pieces or words.
    together: True to draw the kind of replacement once for each span.
    special: ids of [CLS], [SEP] and [MASK]. thresholds: of [MASK], and of [MASK] or the same piece, from the
    probabilities of `MaskingSettings` (80 % and 10 %); see `happens`.
    keys: keys of the epoch's choices and replacements.
    positions, labels: int32 [B, P], zeros. weights: float32 [B, P], zeros.
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
        if span_lengths.size > 0:
            ends = (cls_id, sep_id)
            chosen = choose_spans(row, continuation, ends, choice, wanted[length], span_lengths, heads, sizes, sources)
        else:
            num_groups = _group(row, continuation, cls_id, sep_id, heads, following, sizes)
            chosen = _choose(choice, heads[:num_groups], following, sizes, length, wanted[length])
        replacement = child(keys[1], np.uint64(rows[i]))
        for count, position in enumerate(np.flatnonzero(chosen)):
            positions[i, count] = position
            labels[i, count] = ids[i, position]
            weights[i, count] = 1.0
            kind = draw(replacement, np.uint64(2 * (sources[position] if together else position)))
            if happens(kind, thresholds[0]):
                ids[i, position] = mask_id
            elif not happens(kind, thresholds[1]):
                # Any entry of the vocabulary, special tokens and the piece itself included.
                ids[i, position] = signed(below(draw(replacement, np.uint64(2 * position + 1)), vocab_size))


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
    """Group the candidates and return the number of groups.

    `heads` gets the first position of each group, `following` the next position of the group after each position,
    `sizes` the number of pieces at the first position. A piece that continues a word joins the group before it, and
    begins a group where there is none. As in the original, it also joins a group before [SEP] where truncation removed
    the beginning of B's first word.
    """
    num_groups = 0
    last = 0
    for position in range(ids.size):
        piece = ids[position]
        if piece in (cls_id, sep_id):
            continue
        if continuation.size > 0 and num_groups > 0 and continuation[piece]:
            following[last] = position
            sizes[heads[num_groups - 1]] += 1
        else:
            heads[num_groups] = position
            sizes[position] = 1
            num_groups += 1
        last = position
    return num_groups


@compiled
def _choose(
    key: np.uint64, heads: np.ndarray, following: np.ndarray, sizes: np.ndarray, length: int, wanted: int
) -> np.ndarray:
    """Choose the groups that still fit into `wanted` pieces, in random order: bool [length]."""
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
        position = head
        for _ in range(sizes[head]):
            chosen[position] = True
            position = following[position]
    return chosen


@compiled
def held_out(documents: np.ndarray, key: np.uint64, threshold: np.uint64) -> np.ndarray:
    """Return a mask, bool [N], of the documents, int64 [N], that belong to the validation part; see `happens`."""
    chosen = np.empty(documents.size, np.bool_)
    for i in range(documents.size):
        chosen[i] = happens(child(key, np.uint64(documents[i])), threshold)
    return chosen
