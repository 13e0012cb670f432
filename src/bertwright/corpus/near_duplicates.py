"""shards → documents as sets of shingles of tokens, for the search for near-duplicates."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from bertwright.corpus.checks import sentence_hashes
from bertwright.corpus.shards import Corpus, Tokens
from bertwright.text.near_duplicates import DIGEST_BYTES, Shingles

_TOKENS = 64
"""Number of first tokens of a document that a list shows."""


class CorpusDocuments:
    """The documents of a corpus, its exact duplicates included, in their order."""

    def __init__(self, folder: Path) -> None:
        self._corpus = Corpus.open(folder)
        self._first = self._corpus.document_first()

    def __len__(self) -> int:
        """Return the number of documents."""
        return self._corpus.num_documents

    def number(self, document: int) -> int:
        """Return the number of a document in the corpus, from 0."""
        return document

    def digests(self) -> Iterator[bytes]:
        """Yield a hash of DIGEST_BYTES bytes of the tokens of each document."""
        for tokens in self._documents(range(len(self))):
            yield hashlib.blake2b(np.ascontiguousarray(tokens).tobytes(), digest_size=DIGEST_BYTES).digest()

    def shingles(self, size: int) -> Iterator[Shingles]:
        """Yield the shingles of `size` tokens of each document; a shorter document is one shingle."""
        for tokens in self._documents(range(len(self))):
            length = min(size, len(tokens))
            starts = np.arange(len(tokens) - length + 1)
            runs = tokens[starts[:, None] + np.arange(length)].reshape(-1)
            yield np.unique(sentence_hashes(runs, np.full(len(starts), length, dtype=np.int32)))

    def texts(self, documents: Iterable[int]) -> dict[int, str]:
        """Return the beginning of each of these documents."""
        decode = self._corpus.tokenizer.decode
        numbers = list(documents)
        return {
            number: decode(tokens[:_TOKENS].tolist())
            for number, tokens in zip(numbers, self._documents(numbers), strict=True)
        }

    def _documents(self, numbers: Iterable[int]) -> Iterator[Tokens]:
        for number in numbers:
            begin, end = self._first[number : number + 2]
            [shard], [start], [length] = self._corpus.locate(np.array([begin]), np.array([end - begin], dtype=np.int32))
            yield self._corpus.views[shard][start : start + length]
