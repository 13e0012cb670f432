"""text → shards, the work inside one worker: a chunk of documents becomes flat arrays of token ids (paper §3.1, §A.2).

The paper's "sentence" is any contiguous span, so a run of text without a boundary is cut into spans, not refused.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from bertwright.text.documents import Document, TextSettings
    from bertwright.text.tokenizer import Tokenizer

MAX_SENTENCE = 128
"""Pieces in the longest sentence of a corpus; longer ones are cut into spans of about equal length."""

SENTENCES_PER_CALL = 4096
"""Sentences handed to the tokenizer at once: its per-token bookkeeping, not our arrays, is what fills memory."""


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


def encode_documents(
    documents: Sequence[Sequence[str]], tokenize: Callable[[Sequence[str]], list[list[int]]], *, vocab_size: int
) -> EncodedDocuments:
    """Tokenize documents that are already split into sentences.

    `documents` holds one sequence of sentences per document; `tokenize` maps sentences to ids without special tokens.
    Sentences without a token disappear, and so do documents without a sentence (counted in `dropped`).
    """
    sentences = list(chain.from_iterable(documents))
    dtype = token_dtype(vocab_size)
    parts, lengths = [np.empty(0, dtype)], [np.empty(0, np.int64)]
    for begin in range(0, len(sentences), SENTENCES_PER_CALL):
        rows = tokenize(sentences[begin : begin + SENTENCES_PER_CALL])
        row_lengths = np.fromiter(map(len, rows), np.int64, count=len(rows))
        parts.append(np.fromiter(chain.from_iterable(rows), dtype, count=int(row_lengths.sum())))
        lengths.append(row_lengths)
    owner = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    spans, owner = _cut(np.concatenate(lengths), owner)
    per_document = np.bincount(owner, minlength=len(documents))
    kept = per_document[per_document > 0]
    return EncodedDocuments(
        ids=np.concatenate(parts),
        sentence_first=_first(spans),
        document_first=_first(kept),
        dropped=len(documents) - len(kept),
    )


def start_worker() -> None:
    """Prepare a worker process: one thread, no answer to Ctrl-C, and no life beyond its parent's."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    # The terminal sends Ctrl-C to the whole group; the parent alone decides when workers stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def encode_chunk(
    documents: "Sequence[Document]", tokenizer: Path, settings: "TextSettings"
) -> tuple[EncodedDocuments, int]:
    """Split and tokenize documents with the tokenizer of a folder; also the UTF-8 bytes of their text."""
    from bertwright.text.sentences import split_sentences

    loaded = _tokenizer(tokenizer)
    sentences = [split_sentences(document, settings) for document in documents]
    size = sum(len(paragraph.encode()) for document in documents for paragraph in document.paragraphs)
    return encode_documents(sentences, loaded.ids, vocab_size=loaded.vocab_size), size


@cache
def _tokenizer(folder: Path) -> "Tokenizer":
    from bertwright.text.tokenizer import Tokenizer

    return Tokenizer.load(folder)


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


def _first(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    first = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=first[1:])
    return first
