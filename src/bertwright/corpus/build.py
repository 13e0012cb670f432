"""text → shards: read documents as a stream, tokenize them in worker processes, write them in order (paper §3.1).

One process reads; chunks of whole documents are cut by their text alone, so the number of workers changes no byte. A
bounded number of chunks is under way at any time, so memory does not grow with the text. A build that was stopped or
killed goes on from its last whole shard when the same command is given again, to the same bytes.
"""

import os
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bertwright.console import Status
from bertwright.corpus.encode import EncodedChunk, encode_chunk, start_worker
from bertwright.corpus.inputs import Chunk, Position, Reader, part_of
from bertwright.corpus.manifest import Manifest
from bertwright.corpus.resume import BuildState, Unfinished, built_already, is_free, unfinished
from bertwright.corpus.writer import SHARD_TOKENS, CorpusWriter
from bertwright.errors import DiskFull, InputError, RunFailed
from bertwright.files import FULL_DISK
from bertwright.text.documents import HubDataset, Input, TextSettings, find_inputs
from bertwright.text.open_tokenizer import open_tokenizer_folder
from bertwright.version import __version__

CHUNKS_PER_WORKER = 3
"""Chunks under way for each worker: enough that none waits while the oldest one is being finished."""

MOST_WORKERS = 4096
"""Of one build, as threads of one process; the system's own numbers end in an OverflowError."""


def build_corpus(
    inputs: Sequence[str | Path],
    *,
    tokenizer: str | Path,
    out: str | Path,
    settings: TextSettings | None = None,
    workers: int | None = None,
    shard_tokens: int = SHARD_TOKENS,
    skip: bool = False,
    keep_duplicates: bool = False,
    part: tuple[int, int] | None = None,
) -> Manifest:
    """Build the corpus folder `out` from text with the tokenizer of a folder; returns what its manifest says.

    `workers` is the number of tokenizing processes (default: one per usable core); it changes no byte. A shard ends at
    `shard_tokens` tokens. skip: leave out what cannot be read and count it in the manifest. part: (i, n), the i-th of
    the n parts into which the inputs are dealt, for `merge_corpora`.
    InputError for bad input or an `out` that is not empty, RunFailed where a worker dies or the disk is full; `out` is
    whole or absent, and the same call goes on where an earlier one ended.
    """
    settings = settings or TextSettings()
    workers = workers if workers is not None else len(os.sched_getaffinity(0))
    if not 1 <= workers <= MOST_WORKERS:
        raise InputError(f"{workers} workers: 1 to {MOST_WORKERS} are allowed")
    out = Path(out)
    sources = part_of(find_inputs(inputs), part)
    if not skip:
        _refuse_missing(sources)
    loaded = open_tokenizer_folder(Path(tokenizer))
    config: dict[str, Any] = {
        "version": __version__,
        "inputs": [_named(source) for source in sources],
        "tokenizer": loaded.hash,
        "text": settings.model_dump(mode="json"),
        "shard_tokens": shard_tokens,
        "on_error": "skip" if skip else "stop",
        "keep_duplicates": keep_duplicates,
    }
    if manifest := built_already(out, config, sources):
        return manifest
    if not is_free(out):
        raise InputError(f"{out}: exists already and is not an empty folder; name another one or remove it")
    try:
        with (
            unfinished(out, config, sources) as work,
            CorpusWriter(work.folder, tokenizer=loaded, shard_tokens=shard_tokens, entries=work.state.shards) as writer,
        ):
            reader = Reader(sources, settings, skip=skip, start=work.state.position)
            state = _fill(writer, reader, work, settings, workers=workers, skip=skip)
            skipped = reader.skipped.together(state.skipped)
            if not state.documents:
                raise InputError(_nothing(sources, settings, skipped.first))
            return writer.finish(
                text=settings.model_dump(mode="json"),
                sources=tuple(reader.sources),
                dropped=state.dropped,
                skipped=skipped,
                keep_duplicates=keep_duplicates,
            )
    except OSError as error:
        if error.errno in FULL_DISK:
            raise DiskFull(out, error) from error
        raise


def _fill(
    writer: CorpusWriter, reader: Reader, work: Unfinished, settings: TextSettings, *, workers: int, skip: bool
) -> BuildState:
    """Tokenize and write what the reader gives; the state at the end. It is saved after each whole shard."""
    state = work.state
    limit = workers * CHUNKS_PER_WORKER
    with Status() as status, _pool(workers) as pool:
        tokenizer = work.folder / "tokenizer"
        for encoded, position in _encode(reader.chunks(), pool, tokenizer, settings, skip=skip, limit=limit):
            ended = writer.add(encoded.documents)
            state = _counted(state, encoded, position)
            reader.text_bytes += encoded.text_bytes
            if ended:
                state = state.model_copy(update={"shards": writer.entries})
                work.save(state)
            status.update(f"{state.documents:,} documents · {reader.progress()}")
    return state


def _counted(state: BuildState, encoded: EncodedChunk, position: Position) -> BuildState:
    """The state with one more chunk."""
    skipped = state.skipped
    for message in encoded.failed:
        skipped = skipped.and_more(message, records=1)
    return state.model_copy(
        update={
            "position": position,
            "documents": state.documents + len(encoded.documents.document_first) - 1,
            "dropped": state.dropped + encoded.documents.dropped,
            "skipped": skipped,
        }
    )


def _encode(
    chunks: Iterable[Chunk],
    pool: ProcessPoolExecutor,
    tokenizer: Path,
    settings: TextSettings,
    *,
    skip: bool,
    limit: int,
) -> Iterator[tuple[EncodedChunk, Position]]:
    """Encode chunks in the pool, at most `limit` under way, and yield them in their order with the position after."""
    pending: deque[tuple[Chunk, Future[EncodedChunk]]] = deque()
    try:
        for chunk in chunks:
            if len(pending) == limit:
                yield _result(*pending.popleft())
            with _without_interrupts():  # submitting starts a worker where all are busy
                pending.append((chunk, pool.submit(encode_chunk, chunk.documents, tokenizer, settings, skip=skip)))
    except BrokenProcessPool as error:
        raise _worker_died() from error
    while pending:
        yield _result(*pending.popleft())


def _result(chunk: Chunk, future: Future[EncodedChunk]) -> tuple[EncodedChunk, Position]:
    try:
        return future.result(), chunk.position
    except (InputError, RunFailed):
        raise
    except BrokenProcessPool as error:
        raise _worker_died() from error
    except Exception as error:
        location = chunk.documents[0].location
        raise RunFailed(f"the documents from {location} on could not be tokenized: {error!r}") from error


def _worker_died() -> RunFailed:
    return RunFailed("a tokenizing process was killed from outside (out of memory?)")


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    # "spawn": a fork would copy the threads' locks of this process in whatever state they are.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=start_worker)
    try:
        yield pool
    except BaseException:  # what workers are at is not wanted any more, and waiting for it may take minutes
        for worker in list((pool._processes or {}).values()):
            worker.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that are started in it never see the terminal's Ctrl-C, not even while they begin."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _named(source: Input) -> str:
    return f"{source} at {source.revision}" if isinstance(source, HubDataset) else str(source)


def _nothing(sources: Sequence[Input], settings: TextSettings, messages: Sequence[str]) -> str:
    told = f"; {messages[0]}" if messages else ""
    return (
        f"no text was found in {len(sources)} input(s), {sources[0]} first, "
        f"with the settings {settings.model_dump()}{told}"
    )


def _refuse_missing(sources: Sequence[Input]) -> None:
    for source in sources:
        if isinstance(source, Path) and not source.exists():
            raise InputError(f"{source}: a link that leads nowhere")
