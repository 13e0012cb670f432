"""text → shards, the work inside one worker: a chunk of documents becomes flat arrays of token ids (paper §3.1, §A.2).

The paper's "sentence" is any contiguous span, so a run of text without a boundary is cut into spans, not refused.
"""

import multiprocessing
import os
import signal
import string
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, count, islice
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import RunFailed
from bertwright.text.documents import Document, TextSettings
from bertwright.text.wikipedia import Page

MAX_SENTENCE = 128
"""Pieces in the longest sentence of a corpus; longer ones are cut into spans of about equal length."""

TABLE_BYTES = 32_000_000
"""About how much text a word table remembers before it starts anew, 64 bytes of overhead per word included."""

WORDS_PER_CALL = 16_384
"""Words handed to the tokenizer at once: its bookkeeping for each, not our arrays, is what fills memory."""


@dataclass(frozen=True)
class EncodedDocuments:
    """Whole documents as three flat arrays: D documents, S sentences, N tokens, none of them empty."""

    ids: NDArray[np.uint16] | NDArray[np.uint32]  # [N]
    sentence_first: NDArray[np.int64]  # [S + 1], first token of each sentence, then N
    document_first: NDArray[np.int64]  # [D + 1], first sentence of each document, then S
    dropped: int = 0  # documents in which no token was left


def token_dtype(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
    """The narrowest unsigned type that holds every id of a vocabulary."""
    return np.dtype(np.uint16) if vocab_size <= 1 << 16 else np.dtype(np.uint32)


class WordTable:
    """The ids of the words met so far, so that the tokenizer sees each distinct word once.

    BERT's rules, and GPT-1's here, part words at spaces and at ASCII punctuation whatever stands beside them, so the
    ids of a sentence are those of its words in a row; looking them up is several times faster than tokenizing. What is
    remembered changes no id.
    """

    def __init__(self, tokenize: Callable[[Sequence[str]], list[list[int]]], *, vocab_size: int) -> None:
        self._tokenize = tokenize
        self._dtype = token_dtype(vocab_size)
        self._forget()

    def ids(self, sentences: Sequence[str]) -> tuple[NDArray[np.uint16] | NDArray[np.uint32], NDArray[np.int64]]:
        """The ids of all S sentences one after the other, without special tokens, and their lengths: int64 [S]."""
        words = _split_words(sentences)
        if self._size > TABLE_BYTES:
            self._forget()
        rows = np.fromiter(map(self._rows.__getitem__, chain.from_iterable(words)), np.int64)
        self._learn()
        starts, lengths = self._first[rows], self._first[rows + 1] - self._first[rows]
        first = first_of(lengths)
        places = np.repeat(starts - first[:-1], lengths) + np.arange(first[-1])
        sentence_words = np.fromiter(map(len, words), np.int64, count=len(words))
        return self._ids[places], np.diff(first[first_of(sentence_words)])

    def _forget(self) -> None:
        self._rows: defaultdict[str, int] = defaultdict(count().__next__)  # a new word gets the next number
        self._first = np.zeros(1, np.int64)  # [words + 1], where the ids of each word begin
        self._ids = np.empty(0, self._dtype)
        self._size = 0

    def _learn(self) -> None:
        """Tokenize the words that were given a number since the last time."""
        new = list(islice(self._rows, len(self._first) - 1, None))
        self._size += sum(map(len, new)) + 64 * len(new)
        for begin in range(0, len(new), WORDS_PER_CALL):
            found = self._tokenize(new[begin : begin + WORDS_PER_CALL])
            lengths = np.fromiter(map(len, found), np.int64, count=len(found))
            ids = np.fromiter(chain.from_iterable(found), self._dtype, count=int(lengths.sum()))
            self._first = np.concatenate([self._first, self._first[-1] + np.cumsum(lengths)])
            self._ids = np.concatenate([self._ids, ids])


def _split_words(sentences: Sequence[str]) -> list[list[str]]:
    """Part each sentence at spaces and around every mark of ASCII punctuation; some words are empty."""
    text = "\n".join(sentence.replace("\n", " ") for sentence in sentences)
    for mark in string.punctuation:
        text = text.replace(mark, f" {mark} ")  # 32 passes in C over one long text are faster than one regex
    return [line.split(" ") for line in text.split("\n")] if sentences else []


def encode_documents(documents: Sequence[Sequence[str]], words: WordTable) -> EncodedDocuments:
    """Tokenize documents that are already split into sentences: one sequence of sentences per document.

    Sentences without a token disappear, and so do documents without a sentence (counted in `dropped`).
    """
    ids, lengths = words.ids(list(chain.from_iterable(documents)))
    owner = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    spans, owner = _cut(lengths, owner)
    per_document = np.bincount(owner, minlength=len(documents))
    kept = per_document[per_document > 0]
    return EncodedDocuments(
        ids=ids,
        sentence_first=first_of(spans),
        document_first=first_of(kept),
        dropped=len(documents) - len(kept),
    )


def start_worker() -> None:
    """Prepare a worker process: one thread, no answer to Ctrl-C, and no life beyond its parent's."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    # The terminal sends Ctrl-C to the whole group; the parent alone decides when workers stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk of documents, the UTF-8 bytes of its text, and what was said of the documents that had to be left out."""

    documents: EncodedDocuments
    text_bytes: int
    failed: tuple[str, ...] = ()


def encode_chunk(
    sources: "Sequence[Document | Page]", tokenizer: Path, settings: "TextSettings", *, skip: bool
) -> EncodedChunk:
    """Split and tokenize documents with the tokenizer of a folder; RunFailed where one defeats it, unless `skip`."""
    from bertwright.text.documents import in_full
    from bertwright.text.sentences import split_sentences

    sentences, failed, size = [], [], 0
    for source in sources:
        try:
            document = in_full(source)
            sentences.append(split_sentences(document, settings))
        except Exception as error:
            message = f"{source.location}: could not be cut into sentences: {error!r}"
            if not skip:
                raise RunFailed(message) from error
            failed.append(message)
            continue
        size += sum(len(paragraph.encode()) for paragraph in document.paragraphs)
    return EncodedChunk(encode_documents(sentences, _word_table(tokenizer)), size, tuple(failed))


@cache
def _word_table(folder: Path) -> WordTable:
    from bertwright.text.open_tokenizer import open_tokenizer_folder

    tokenizer = open_tokenizer_folder(folder)
    return WordTable(tokenizer.ids, vocab_size=tokenizer.vocab_size)


def _end_with_parent() -> None:
    # Without this a parent that was killed leaves its workers waiting for work for ever.
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _cut(lengths: NDArray[np.int64], owner: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut sentences over MAX_SENTENCE into equal spans (±1 token) and drop empty ones; `owner` follows along."""
    pieces = -(-lengths // MAX_SENTENCE)  # 0 for an empty sentence
    total, number = np.repeat(lengths, pieces), np.repeat(pieces, pieces)
    rank = np.arange(len(total)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    spans = total * (rank + 1) // number - total * rank // number
    return spans, np.repeat(owner, pieces)


def first_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of n groups begins when they lie one after the other, then where the last ends: int64 [n + 1]."""
    first = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=first[1:])
    return first
