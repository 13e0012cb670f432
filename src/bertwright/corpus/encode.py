"""chunk of documents → flat arrays of token ids: the work of one worker process (paper §3.1, §A.2).

The paper's "sentence" is any contiguous span, so a long text without a sentence boundary is cut into spans.
"""

import multiprocessing
import os
import signal
import string
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, compress, count, islice
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import RunFailed
from bertwright.text.document import Document, TextSettings
from bertwright.text.documents import as_document
from bertwright.text.wikipedia import Page
from bertwright.text.word_counts import words_of_text

MAX_SENTENCE = 128
"""Largest number of pieces of a sentence in a corpus; longer ones are cut into spans of about equal length."""

TABLE_BYTES = 32_000_000
"""Bytes of text after which a word table is emptied, with 64 bytes of overhead per word."""

_NO_SPACE_AFTER = ("。", "！", "？", "」", "』", "）")
"""Marks after which Chinese and Japanese have no space."""

WORDS_PER_CALL = 16_384
"""Words per call of the tokenizer; its own data for each word take most of the memory."""


@dataclass(frozen=True)
class EncodedDocuments:
    """Complete documents as three flat arrays: D documents, S sentences, N tokens. No document or sentence is empty."""

    ids: NDArray[np.uint16] | NDArray[np.uint32]  # [N]
    sentence_first: NDArray[np.int64]  # [S + 1], first token of each sentence, then N
    document_first: NDArray[np.int64]  # [D + 1], first sentence of each document, then S
    dropped: int = 0  # number of documents without a token, which are left out
    words: int | None = None  # number of words of the documents in the text; None: unknown


def token_dtype(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
    """Return the narrowest unsigned type that holds every id of a vocabulary."""
    return np.dtype(np.uint16) if vocab_size <= 1 << 16 else np.dtype(np.uint32)


class WordTable:
    """Cache of the ids of words, so that the tokenizer processes each distinct word once.

    The rules of WordPiece and of GPT-1's byte pairs split words at spaces and at ASCII punctuation in every context.
    Therefore the ids of a sentence are the ids of its words, one after the other, and a look-up is several times faster
    than tokenizing. The cache changes no id.
    """

    def __init__(self, tokenize: Callable[[Sequence[str]], list[list[int]]], *, vocab_size: int) -> None:
        self._tokenize = tokenize
        self._dtype = token_dtype(vocab_size)
        self._clear()

    def ids(self, sentences: Sequence[str]) -> tuple[NDArray[np.uint16] | NDArray[np.uint32], NDArray[np.int64]]:
        """Return the ids of all S sentences in one array, without special tokens, and their lengths: int64 [S]."""
        words = _split_words(sentences)
        if self._size > TABLE_BYTES:
            self._clear()
        rows = np.fromiter(map(self._rows.__getitem__, chain.from_iterable(words)), np.int64)
        self._add_new_words()
        starts, lengths = self._first[rows], self._first[rows + 1] - self._first[rows]
        offsets = offsets_of(lengths)
        indices = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        sentence_words = np.fromiter(map(len, words), np.int64, count=len(words))
        return self._ids[indices], np.diff(offsets[offsets_of(sentence_words)])

    def _clear(self) -> None:
        self._rows: defaultdict[str, int] = defaultdict(count().__next__)  # a new word gets the next number
        self._first = np.zeros(1, np.int64)  # [words + 1], index of the first id of each word
        self._ids = np.empty(0, self._dtype)
        self._size = 0

    def _add_new_words(self) -> None:
        """Tokenize the words that are new since the last call."""
        new = list(islice(self._rows, len(self._first) - 1, None))
        self._size += sum(map(len, new)) + 64 * len(new)
        for begin in range(0, len(new), WORDS_PER_CALL):
            ids_of_words = self._tokenize(new[begin : begin + WORDS_PER_CALL])
            lengths = np.fromiter(map(len, ids_of_words), np.int64, count=len(ids_of_words))
            ids = np.fromiter(chain.from_iterable(ids_of_words), self._dtype, count=int(lengths.sum()))
            self._first = np.concatenate([self._first, self._first[-1] + np.cumsum(lengths)])
            self._ids = np.concatenate([self._ids, ids])


class WholeSentences:
    """Ids of sentences by a tokenizer whose pieces contain the space before a word, so that no word stands alone."""

    def __init__(self, tokenize: Callable[[Sequence[str]], list[list[int]]], *, vocab_size: int) -> None:
        self._tokenize = tokenize
        self._dtype = token_dtype(vocab_size)

    def ids(self, sentences: Sequence[str]) -> tuple[NDArray[np.uint16] | NDArray[np.uint32], NDArray[np.int64]]:
        """Return the ids of all S sentences in one array, without special tokens, and their lengths: int64 [S]."""
        ids_of_sentences = self._tokenize(sentences)
        lengths = np.fromiter(map(len, ids_of_sentences), np.int64, count=len(ids_of_sentences))
        ids = np.fromiter(chain.from_iterable(ids_of_sentences), np.int64, count=int(lengths.sum()))
        if self._dtype == np.uint16:
            return ids.astype(np.uint16), lengths
        return ids.astype(np.uint32), lengths


def _split_words(sentences: Sequence[str]) -> list[list[str]]:
    """Split each sentence at spaces and around every mark of ASCII punctuation; some words are empty."""
    text = "\n".join(sentence.replace("\n", " ") for sentence in sentences)
    for mark in string.punctuation:
        text = text.replace(mark, f" {mark} ")  # 32 passes in C over one long text are faster than one regex
    return [line.split(" ") for line in text.split("\n")] if sentences else []


def encode_documents(
    documents: Sequence[Sequence[str]], words: WordTable | WholeSentences, num_words: Sequence[int] | None = None
) -> EncodedDocuments:
    """Tokenize documents that are split into sentences: one sequence of sentences per document.

    num_words: number of words of each document in the text; None: unknown. Where pieces contain spaces, the sentences
    of a document are joined by one, but for those after a Chinese or Japanese full stop.
    Sentences without a token are left out. Documents without a sentence are left out too, and `dropped` counts them.
    """
    sentences = list(chain.from_iterable(documents))
    if isinstance(words, WholeSentences):
        sentences = list(chain.from_iterable(map(_spaced, documents)))
    ids, lengths = words.ids(sentences)
    document_of = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    spans, document_of = _cut(lengths, document_of)
    per_document = np.bincount(document_of, minlength=len(documents))
    kept = per_document[per_document > 0]
    return EncodedDocuments(
        ids=ids,
        sentence_first=offsets_of(spans),
        document_first=offsets_of(kept),
        dropped=len(documents) - len(kept),
        words=None if num_words is None else sum(compress(num_words, per_document > 0)),
    )


def _spaced(sentences: Sequence[str]) -> Iterator[str]:
    """Yield the sentences of a document with the space before each."""
    before = _NO_SPACE_AFTER[0]
    for sentence in sentences:
        yield sentence if before.endswith(_NO_SPACE_AFTER) else f" {sentence}"
        before = sentence


def start_worker() -> None:
    """Prepare a worker process: one thread, Ctrl-C is ignored, and the process ends with its parent."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    # The terminal sends Ctrl-C to the whole process group, but only the parent stops workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


@dataclass(frozen=True)
class EncodedChunk:
    """Encoded documents of a chunk, bytes of its text in UTF-8, and the messages about documents that were left out."""

    documents: EncodedDocuments
    text_bytes: int
    failed: tuple[str, ...] = ()


def encode_chunk(
    sources: Sequence[Document | Page], tokenizer: Path, settings: TextSettings, *, skip: bool
) -> EncodedChunk:
    """Split and tokenize documents with the tokenizer of a folder.

    Raises RunFailed where a document cannot be split into sentences; with `skip` the document is left out.
    """
    # Imported here, because reading shards imports this module and needs no package for sentences or tokenizers.
    from bertwright.text.sentences import split_sentences

    sentences, num_words, failed, size = [], [], [], 0
    for source in sources:
        try:
            document = as_document(source)
            sentences.append(split_sentences(document, settings))
        except Exception as error:
            message = f"{source.location}: could not be split into sentences: {error!r}"
            if not skip:
                raise RunFailed(message) from error
            failed.append(message)
            continue
        num_words.append(words_of_text(document.paragraphs))
        size += sum(len(paragraph.encode()) for paragraph in document.paragraphs)
    return EncodedChunk(encode_documents(sentences, _word_table(tokenizer), num_words), size, tuple(failed))


@cache
def _word_table(folder: Path) -> WordTable | WholeSentences:
    # Imported here for the same reason.
    from bertwright.text.open_tokenizer import open_tokenizer_folder
    from bertwright.text.published_tokenizer import PublishedTokenizer

    tokenizer = open_tokenizer_folder(folder)
    if isinstance(tokenizer, PublishedTokenizer):
        return WholeSentences(tokenizer.ids, vocab_size=tokenizer.vocab_size)
    return WordTable(tokenizer.ids, vocab_size=tokenizer.vocab_size)


def _end_with_parent() -> None:
    # The workers of a parent that was killed would otherwise wait forever.
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _cut(lengths: NDArray[np.int64], document_of: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut sentences over MAX_SENTENCE into equal spans (±1 token) and drop empty ones.

    document_of: number of the document of each sentence. Returns the lengths of the spans and the document of each.
    """
    pieces = -(-lengths // MAX_SENTENCE)  # 0 for an empty sentence
    total, number = np.repeat(lengths, pieces), np.repeat(pieces, pieces)
    rank = np.arange(len(total)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    spans = total * (rank + 1) // number - total * rank // number
    return spans, np.repeat(document_of, pieces)


def offsets_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offsets of n consecutive groups with these sizes, then the end of the last: int64 [n + 1]."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
