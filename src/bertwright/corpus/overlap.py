"""documents of two parts of corpora → the number of those that both parts have, by the hashes beside the shards."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from bertwright.corpus.duplicates import Hashes, read_hashes
from bertwright.corpus.shards import Corpus

PartOfCorpus = tuple[Corpus, NDArray[np.int64]]
"""A corpus, and the numbers of the documents of a part of it, ascending."""


def num_shared(part: Sequence[PartOfCorpus], others: Sequence[PartOfCorpus]) -> int:
    """Return the number of different documents of `part` that `others` have too. The hashes of `part` are in memory."""
    unique = np.unique(np.concatenate([hashes for documents in part for hashes in _by_shard(documents)]))
    is_shared = np.zeros(len(unique), np.bool_)
    for documents in others:
        for hashes in _by_shard(documents):
            is_shared |= np.isin(unique, hashes)
    return int(is_shared.sum())


def _by_shard(documents: PartOfCorpus) -> Iterator[Hashes]:
    """Yield the hashes of the documents in each shard."""
    corpus, numbers = documents
    first = 0
    for entry in corpus.manifest.shards:
        begin, end = np.searchsorted(numbers, [first, first + entry.documents])
        yield np.asarray(read_hashes(corpus.folder / entry.hashes, entry.documents)[numbers[begin:end] - first])
        first += entry.documents
