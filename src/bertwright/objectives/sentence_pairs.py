"""Shards → batches: the plan of an epoch, which lists the sentences of each row (paper §3.1 and §A.2).

A plan has one small record for each row, and is computed from sentence lengths alone. The walk goes through each
document chunk by chunk: a chunk is the sentences that fill a row. Its random numbers are keyed by (seed, epoch,
document). A sentence is identified by its number in the corpus.
"""

import numpy as np

from bertwright.errors import InputError
from bertwright.jit import compiled
from bertwright.objectives.sampling import below, child, draw, happens, probability, signed, stream_key
from bertwright.objectives.settings import SecondSentence

PLAN = np.dtype([("a", "<i8"), ("a_count", "<i4"), ("b", "<i8"), ("b_count", "<i4"), ("random", "u1")])
"""Record of a row: A is the `a_count` sentences from sentence `a` on, B the `b_count` from `b` on (0: there is no B).

random: 0 where B follows A; 1 where B comes from a random document or, for sentence order, stands before A in the text.
"""

PLAN_VERSION = 1  # version of the walk and of its random numbers: saved plans of another version are not read

_TARGET, _CHUNK = 0x7A46, 0xC404  # purposes in the keys of the two streams of a document
_HALF = probability(0.5)

# Counters in a document's stream. Each chunk has 16 numbers, so that the pass that counts rows can skip those of B.
_DRAWS_PER_CHUNK = 16
_A_END, _COIN, _DOCUMENT, _START = 0, 1, 2, 12
_SEGMENTS, _NEXT, _ORDER = 0, 1, 2  # kinds of rows
_KINDS = {"none": _SEGMENTS, "next": _NEXT, "order": _ORDER}
_TRIES = 10  # draws of a document other than that of A; after them the document of A is accepted


def plan_rows(
    lengths: np.ndarray,
    document_first: np.ndarray,
    *,
    length: int,
    seed: int,
    epoch: int,
    second_sentence: SecondSentence = "next",
    short_share: float = 0.1,
    documents: np.ndarray | None = None,
) -> np.ndarray:
    """Return the plan of an epoch: the rows in the order of the walk, a PLAN array.

    second_sentence: `next`: rows `[CLS] A [SEP] B [SEP]`, where B follows A or is random. `none`: rows `[CLS] A [SEP]`
    with the sentences of a document until the row is full. `order`: sentence order (ALBERT, Lan et al. 2019, §3.1).

    For sentence order, the walk and its cuts are those of `next`, and B is always the rest of the chunk. Where `next`
    takes a random B, A and B are swapped. The swap is done before rows are truncated: truncation leaves A one token
    longer than B where both are cut to equal length, and a later swap would reveal the label. A chunk has at least two
    sentences: a sentence that fills the row alone takes the next one with it, and the last sentence of a document takes
    the one before it. Documents of one sentence are skipped.

    lengths: number of tokens of each sentence, int32 [sentences], at least 1 each.
    document_first: first sentence of each document, int64 [documents + 1].
    length: number of tokens of a row, its special tokens included.
    short_share: fraction of the documents whose rows aim at a shorter length.
    documents: numbers of the documents to use, for A and for a random B, int64; None: all. Empty documents are skipped.
    Raises InputError where a sentence has no tokens or a row has no room for two tokens of text.
    """
    kind = _KINDS[second_sentence]
    most = length - (2 if kind == _SEGMENTS else 3)
    if most < 2:
        raise InputError(f"length {length}: a row needs room for at least two tokens of text")
    if lengths.size and int(lengths.min()) < 1:
        raise InputError(f"sentence {int(lengths.argmin())} of the corpus has no tokens; build the corpus again")
    filled = filled_documents(document_first, least=2 if kind == _ORDER else 1)
    chosen = filled if documents is None else np.intersect1d(documents, filled).astype(np.int64)
    arguments = (
        lengths,
        document_first,
        chosen,
        most,
        stream_key(seed, epoch, _TARGET),
        stream_key(seed, epoch, _CHUNK),
        probability(short_share),
        kind,
    )
    # Two passes: the first counts the rows and chooses no B, so that the plan has exactly the right size.
    plan = np.zeros(_walk(*arguments, np.zeros(0, PLAN)), PLAN)
    if plan.size:
        _walk(*arguments, plan)
    return plan


def filled_documents(document_first: np.ndarray, least: int = 1) -> np.ndarray:
    """Return the numbers of the documents that have at least `least` sentences, int64."""
    return np.flatnonzero(np.diff(document_first) >= least).astype(np.int64)


@compiled
def _walk(
    lengths: np.ndarray,
    first: np.ndarray,
    documents: np.ndarray,
    most: int,
    target_key: np.uint64,
    chunk_key: np.uint64,
    short: np.uint64,
    kind: int,
    plan: np.ndarray,
) -> int:
    """Walk all documents, fill `plan` unless it is empty, and return the number of rows."""
    row = 0
    for document in documents:
        target = _target(child(target_key, np.uint64(document)), most, short)
        key = child(chunk_key, np.uint64(document))
        end = first[document + 1]
        at = first[document]
        chunk = 0
        while at < end:
            count = _take(lengths, at, end, target)
            if kind == _ORDER and count == 1:
                at, count = min(at, end - 2), 2
            a_count, is_random = count, False
            if kind != _SEGMENTS:
                a_count, is_random = _cut(key, chunk, count)
            if plan.size > 0:
                a, b, b_count = at, at + a_count, count - a_count
                if is_random and kind == _NEXT:
                    b, b_count = _random_b(lengths, first, documents, document, at, a_count, target, key, chunk)
                swapped = is_random and kind == _ORDER
                plan[row].a = b if swapped else a
                plan[row].a_count = b_count if swapped else a_count
                plan[row].b = 0 if kind == _SEGMENTS else (a if swapped else b)
                plan[row].b_count = a_count if swapped else b_count
                plan[row].random = is_random
            row += 1
            chunk += 1
            # the sentences that a random B replaced start the next chunk
            at += a_count if is_random and kind == _NEXT else count
    return row


@compiled
def _target(key: np.uint64, most: int, short: np.uint64) -> int:
    """Return the number of tokens that a document's rows aim at: `most`, or with probability `short` 2 to `most`."""
    if happens(draw(key, np.uint64(0)), short):
        return 2 + signed(below(draw(key, np.uint64(1)), np.uint64(most - 1)))
    return most


@compiled
def _take(lengths: np.ndarray, at: int, end: int, target: int) -> int:
    """Return the number of sentences from `at` on, at least 1, that reach `target` tokens or end at sentence `end`."""
    count = 1
    total = int(lengths[at])
    while total < target and at + count < end:
        total += int(lengths[at + count])
        count += 1
    return count


@compiled
def _number(key: np.uint64, chunk: int, counter: int) -> np.uint64:
    return draw(key, np.uint64(chunk * _DRAWS_PER_CHUNK + counter))


@compiled
def _cut(key: np.uint64, chunk: int, count: int) -> tuple[int, bool]:
    """Return the number of sentences of a chunk that are A, and whether B is random; a single sentence leaves no B."""
    if count == 1:
        return 1, True
    a_count = 1 + signed(below(_number(key, chunk, _A_END), np.uint64(count - 1)))
    return a_count, happens(_number(key, chunk, _COIN), _HALF)


@compiled
def _random_b(
    lengths: np.ndarray,
    first: np.ndarray,
    documents: np.ndarray,
    document: int,
    a: int,
    a_count: int,
    target: int,
    key: np.uint64,
    chunk: int,
) -> tuple[int, int]:
    """Return the first sentence and the number of sentences of a random B, which fills the rest of the row."""
    target_b = target
    for sentence in range(a, a + a_count):
        target_b -= int(lengths[sentence])
    other = document
    for attempt in range(_TRIES):
        other = documents[signed(below(_number(key, chunk, _DOCUMENT + attempt), np.uint64(documents.size)))]
        if other != document:
            break
    begin, end = first[other], first[other + 1]
    start = begin + signed(below(_number(key, chunk, _START), np.uint64(end - begin)))
    return start, _take(lengths, start, end, target_b)
