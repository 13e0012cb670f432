"""Shards → batches: from planned sentences to rows with masks, in compiled loops over a batch (paper §A.1, §A.2).

Every row has random streams of its own, keyed by (seed, epoch, purpose, row): it comes out the same in any batch.
Letters: B rows, T tokens of a row, P predictions of a row, V vocabulary.
"""

import numpy as np

from bertwright.compiled import compiled
from bertwright.corpus.random import below, child, draw, happens, signed
from bertwright.objectives.spans import choose_spans

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
