"""shards → shards: the sentences of a corpus in random order, in documents of the same lengths (beside paper §3.1).

What documents are worth is seen where only their order is taken away: sentences, tokens and rows stay what they were.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertwright.corpus.encode import EncodedDocuments
from bertwright.corpus.manifest import Manifest
from bertwright.corpus.shards import Corpus, Tokens
from bertwright.corpus.writer import CorpusWriter
from bertwright.errors import InputError
from bertwright.files import atomic_folder

_SENTENCES = 100_000
"""About so many of a record batch."""


def shuffle_sentences(source: Path, out: Path, *, seed: int = 0) -> Manifest:
    """Write the corpus `out` with the sentences of `source`, documents that equal an earlier one left out.

    The same corpus and seed give the same bytes. InputError for an `out` that is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists already and is not an empty folder; name another one or remove it")
    corpus = Corpus.open(source)
    first = corpus.document_first()
    used = np.setdiff1d(np.arange(corpus.num_documents), corpus.duplicates, assume_unique=True)
    counts = np.diff(first)[used]
    sentences = np.concatenate([np.arange(first[document], first[document + 1]) for document in used])
    order = np.random.default_rng(seed).permutation(sentences)
    ends = np.cumsum(counts)
    with atomic_folder(out) as folder, CorpusWriter(folder, tokenizer=corpus.tokenizer) as writer:
        begin = 0
        while begin < len(counts):
            before = ends[begin] - counts[begin]
            end = max(begin + 1, int(np.searchsorted(ends, before + _SENTENCES, side="right")))
            writer.add(_documents(corpus, order[before : ends[end - 1]], counts[begin:end]))
            begin = end
        manifest = corpus.manifest
        return writer.finish(
            text={**manifest.text, "sentences_shuffled": seed},
            sources=manifest.sources,
            dropped=manifest.dropped_documents,
            keep_duplicates=True,
        )


def _documents(corpus: Corpus, sentences: NDArray[np.int64], counts: NDArray[np.int64]) -> EncodedDocuments:
    """The given sentences, `counts` of them to a document."""
    shard, start, length = corpus.locate(sentences, np.ones(len(sentences), np.int32))
    places = zip(shard.tolist(), start.tolist(), length.tolist(), strict=True)
    ids: Tokens = np.concatenate([corpus.views[s][at : at + size] for s, at, size in places])
    return EncodedDocuments(
        ids,
        np.concatenate([[0], np.cumsum(length, dtype=np.int64)]),
        np.concatenate([[0], np.cumsum(counts)]),
    )
