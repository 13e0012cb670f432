"""text → shards: read documents as a stream, tokenize them in worker processes, write them in order (paper §3.1).

One process reads; chunks of whole documents are cut by their text alone, so the number of workers changes no byte. A
bounded number of chunks is under way at any time, so memory does not grow with the text.
"""

import errno
import hashlib
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

from bertwright.console import Status
from bertwright.corpus.encode import EncodedDocuments, encode_chunk, start_worker
from bertwright.corpus.manifest import Manifest, Source
from bertwright.corpus.shards import SHARD_TOKENS, CorpusWriter
from bertwright.errors import InputError, RunFailed
from bertwright.files import atomic_folder
from bertwright.text.documents import Document, TextSettings, find_inputs, read_sources
from bertwright.text.tokenizer import Tokenizer
from bertwright.text.wikipedia import Page

CHUNK_CHARACTERS = 1_000_000
"""A chunk, the work handed to a worker and one record batch, ends with the document that brings it to this size."""

CHUNKS_PER_WORKER = 3
"""Chunks under way for each worker: enough that none waits while the oldest one is being finished."""

_EXPANSION = {
    ".gz": 2.7,
    ".bz2": 3.7,
    ".xz": 3.7,
}  # characters per byte, until a file was read: for the time left alone


def build_corpus(
    inputs: Sequence[str | Path],
    *,
    tokenizer: str | Path,
    out: str | Path,
    settings: TextSettings | None = None,
    workers: int | None = None,
    shard_tokens: int = SHARD_TOKENS,
) -> Manifest:
    """Build the corpus folder `out` from text files with the tokenizer of a folder; returns what its manifest says.

    `workers` is the number of tokenizing processes (default: one per usable core); it changes no byte. A shard ends at
    `shard_tokens` tokens. InputError for bad input or an `out` that is not empty, RunFailed where a worker dies or the
    disk is full; `out` is whole or absent.
    """
    settings = settings or TextSettings()
    workers = workers if workers is not None else len(os.sched_getaffinity(0))
    out = Path(out)
    files = find_inputs(inputs)
    _refuse_unusable(out, files, workers)
    loaded = Tokenizer.load(Path(tokenizer))
    try:
        with atomic_folder(out) as folder, CorpusWriter(folder, tokenizer=loaded, shard_tokens=shard_tokens) as writer:
            return _fill(writer, files, folder / "tokenizer", settings, workers=workers)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunFailed(f"{out}: the disk is full; nothing was kept") from error
        raise


def _fill(
    writer: CorpusWriter, files: Sequence[Path], tokenizer: Path, settings: TextSettings, *, workers: int
) -> Manifest:
    documents = dropped = 0
    progress = _Progress(files)
    with Status() as status, _pool(workers) as pool:
        chunks = _chunks(progress.documents(settings))
        for encoded, text_bytes in _encode(chunks, pool, tokenizer, settings, limit=workers * CHUNKS_PER_WORKER):
            writer.add(encoded)
            documents += len(encoded.document_first) - 1
            dropped += encoded.dropped
            progress.text_bytes += text_bytes
            status.update(f"{documents:,} documents · {progress.line()}")
    if not documents:
        raise InputError(
            f"no text was found in {len(files)} file(s), {files[0]} first, with the settings {settings.model_dump()}"
        )
    return writer.finish(text=settings.model_dump(mode="json"), sources=tuple(progress.sources), dropped=dropped)


def _chunks(documents: Iterable[Document | Page]) -> Iterator[list[Document | Page]]:
    """Group whole documents, by their own size alone."""
    chunk: list[Document | Page] = []
    characters = 0
    for document in documents:
        chunk.append(document)
        characters += document.size
        if characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _encode(
    chunks: Iterable[list[Document | Page]],
    pool: ProcessPoolExecutor,
    tokenizer: Path,
    settings: TextSettings,
    *,
    limit: int,
) -> Iterator[tuple[EncodedDocuments, int]]:
    """Encode chunks in the pool, at most `limit` under way, and yield them in their order."""
    pending: deque[tuple[str, Future[tuple[EncodedDocuments, int]]]] = deque()
    try:
        for chunk in chunks:
            if len(pending) == limit:
                yield _result(*pending.popleft())
            pending.append((chunk[0].place, pool.submit(encode_chunk, chunk, tokenizer, settings)))
    except BrokenProcessPool as error:
        raise _worker_died() from error
    while pending:
        yield _result(*pending.popleft())


def _result(place: str, future: Future[tuple[EncodedDocuments, int]]) -> tuple[EncodedDocuments, int]:
    try:
        return future.result()
    except InputError:
        raise
    except BrokenProcessPool as error:
        raise _worker_died() from error
    except Exception as error:
        raise RunFailed(f"the documents from {place} on could not be tokenized: {error!r}") from error


def _worker_died() -> RunFailed:
    return RunFailed("a tokenizing process was killed from outside (out of memory?); nothing was kept")


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    # "spawn": a fork would copy the threads' locks of this process in whatever state they are.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=start_worker)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Progress:
    """Reads the files one after the other and knows how far it came."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._sizes = {path: path.stat().st_size for path in files}
        self._begin = time.monotonic()
        self._read = 0  # bytes of the files read to their end
        self._characters = 0  # of those files' text
        self._current: tuple[int, float] = (0, 1.0)  # size of the file being read, characters expected per byte
        self._current_characters = 0
        self.sources: list[Source] = []
        self.text_bytes = 0

    def documents(self, settings: TextSettings) -> Iterator[Document | Page]:
        for path, size in self._sizes.items():
            self.sources.append(_source(path))
            expected = self._characters / self._read if self._read else _EXPANSION.get(path.suffix.lower(), 1.0)
            self._current, self._current_characters = (size, expected), 0
            for document in read_sources(path, settings):
                self._current_characters += document.size
                yield document
            self._read += size
            self._characters += self._current_characters
            self._current, self._current_characters = (0, 1.0), 0

    def line(self) -> str:
        seconds = time.monotonic() - self._begin
        size, expected = self._current
        done = self._read + min(size, self._current_characters / max(expected, 1e-9))
        left = seconds * (sum(self._sizes.values()) - done) / max(done, 1)
        return (
            f"{self.text_bytes / 1e6:,.0f} MB of text · {self.text_bytes / 1e6 / max(seconds, 1e-9):.1f} MB/s · "
            f"about {left // 60:.0f} min {left % 60:.0f} s left"
        )


def _source(path: Path) -> Source:
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return Source(path=str(path), bytes=path.stat().st_size, sha256=digest)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _refuse_unusable(out: Path, files: Sequence[Path], workers: int) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists already and is not an empty folder; name another one or remove it")
    if workers < 1:
        raise InputError(f"{workers} workers: at least 1 is needed")
    for path in files:
        if not path.is_file():
            raise InputError(f"{path}: not a regular file (a pipe cannot be read twice); write the text into a file")
