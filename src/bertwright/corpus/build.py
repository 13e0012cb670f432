"""text → shards: read documents as a stream, tokenize them in worker processes, write them in order (paper §3.1).

One process reads. Chunks of complete documents are cut by the size of their text only, so the number of workers changes
no byte. Few chunks are in memory at a time, so memory does not grow with the text. When the same command is given again
after a stop or a kill, the build continues from its last complete shard and ends in the same bytes.
"""

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
from bertwright.corpus.inputs import Chunk, Position, Reader, part_of, refuse_missing
from bertwright.corpus.manifest import Manifest, SampleSettings, text_record
from bertwright.corpus.resume import (
    BuildState,
    UnfinishedBuild,
    has_unfinished,
    recover_finished,
    refuse_taken,
    resume_build,
)
from bertwright.corpus.sample import SampledInputs, sample_inputs
from bertwright.corpus.writer import SHARD_TOKENS, CorpusWriter
from bertwright.errors import DiskFull, InputError, RunFailed
from bertwright.files import FULL_DISK
from bertwright.portable import interrupts_blocked, num_cores
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.document import TextSettings
from bertwright.text.documents import Input, find_inputs
from bertwright.text.open_tokenizer import open_tokenizer_folder
from bertwright.text.records import HubDataset
from bertwright.version import __version__

CHUNKS_PER_WORKER = 3
"""Chunks in memory per worker, so that no worker waits for the oldest chunk."""

MOST_WORKERS = 4096
"""Largest number of workers of a build; far larger numbers end in an OverflowError."""


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
    sample: SampleSettings | None = None,
) -> Manifest:
    """Build the corpus folder `out` from text with the tokenizer of a folder, and return its manifest.

    workers          number of tokenizing processes (default: one per usable core); it changes no byte
    shard_tokens     tokens at which a shard ends
    skip             leave out records and files that cannot be read, and count them in the manifest
    keep_duplicates  keep documents that equal an earlier one
    part             (i, n): read the i-th of n parts of the inputs, for `merge_corpora`
    sample           draw documents up to a number of words; with a mix, `inputs` is empty

    `out` is complete or absent. The same call continues where an earlier one ended. Raises InputError for bad input or
    an `out` that is not empty, RunFailed where a worker dies or the disk is full.
    """
    settings = settings or TextSettings()
    workers = workers if workers is not None else num_cores()
    if not 1 <= workers <= MOST_WORKERS:
        raise InputError(f"{workers} workers: expected 1 to {MOST_WORKERS}")
    out = Path(out)
    loaded = open_tokenizer_folder(Path(tokenizer))
    if not has_unfinished(out):  # before all words are counted, which takes long
        refuse_taken(out)
    sampled = sample_inputs(inputs, sample, settings, skip=skip) if sample else None
    sources = sampled.inputs if sampled else part_of(find_inputs(inputs), part)
    if not skip:
        refuse_missing(sources)
    config = _config(
        sources, loaded, settings, sampled, shard_tokens=shard_tokens, skip=skip, keep_duplicates=keep_duplicates
    )
    if manifest := recover_finished(out, config, sources):
        return manifest
    refuse_taken(out)
    try:
        with (
            resume_build(out, config, sources) as build,
            CorpusWriter(
                build.folder, tokenizer=loaded, shard_tokens=shard_tokens, entries=build.state.shards
            ) as writer,
        ):
            reader = _reader(sources, settings, sampled, start=build.state.position, skip=skip)
            state = _write_shards(writer, reader, build, settings, workers=workers, skip=skip)
            if sampled:
                sampled.refuse_other_number(state.documents + state.dropped + state.skipped.records)
            skipped = reader.skipped.combined(state.skipped)
            if not state.documents:
                raise InputError(_no_text(sources, settings, skipped.first))
            return writer.finish(
                text=text_record(settings),
                sources=tuple(reader.sources),
                dropped=state.dropped,
                skipped=skipped,
                keep_duplicates=keep_duplicates,
                sample=sampled.sample if sampled else None,
            )
    except OSError as error:
        if error.errno in FULL_DISK:
            raise DiskFull(out, error) from error
        raise


def _config(
    sources: Sequence[Input],
    tokenizer: BaseTokenizer,
    settings: TextSettings,
    sampled: SampledInputs | None,
    *,
    shard_tokens: int,
    skip: bool,
    keep_duplicates: bool,
) -> dict[str, Any]:
    """Return all that decides the bytes of a corpus, as JSON."""
    return {
        "version": __version__,
        "inputs": [_source_name(source) for source in sources],
        "tokenizer": tokenizer.hash,
        "text": text_record(settings),
        "shard_tokens": shard_tokens,
        "on_error": "skip" if skip else "stop",
        "keep_duplicates": keep_duplicates,
        "sample": sampled.sample.settings.model_dump(mode="json") if sampled else None,
        "drawn documents": sampled.digest if sampled else None,
    }


def _reader(
    sources: Sequence[Input], settings: TextSettings, sampled: SampledInputs | None, *, start: Position, skip: bool
) -> Reader:
    """Return a reader of the inputs, or of the drawn documents, from a position on."""
    if sampled is None:
        return Reader(sources, settings, skip=skip, start=start)
    return Reader(sources, settings, skip=skip, start=start, chosen=sampled.chosen, stamps=sampled.stamps)


def _write_shards(
    writer: CorpusWriter, reader: Reader, build: UnfinishedBuild, settings: TextSettings, *, workers: int, skip: bool
) -> BuildState:
    """Tokenize and write the documents of the reader, save the state after each shard, and return the last state."""
    state = build.state
    limit = workers * CHUNKS_PER_WORKER
    with Status() as status, _pool(workers) as pool:
        tokenizer = build.folder / "tokenizer"
        for encoded, position in _encode(reader.chunks(), pool, tokenizer, settings, skip=skip, limit=limit):
            ended = writer.add(encoded.documents)
            state = _with_chunk(state, encoded, position)
            reader.text_bytes += encoded.text_bytes
            if ended:
                state = state.model_copy(update={"shards": writer.entries})
                build.save(state)
            status.update(f"{state.documents:,} documents · {reader.progress()}")
    return state


def _with_chunk(state: BuildState, encoded: EncodedChunk, position: Position) -> BuildState:
    """Return the state after one more chunk."""
    skipped = state.skipped
    for message in encoded.failed:
        skipped = skipped.with_message(message, records=1)
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
    """Encode chunks in the pool, at most `limit` at a time, and yield each in order with the position after it."""
    pending: deque[tuple[Chunk, Future[EncodedChunk]]] = deque()
    try:
        for chunk in chunks:
            if len(pending) == limit:
                yield _result(*pending.popleft())
            with interrupts_blocked():  # `submit` starts a worker where all are busy
                pending.append((chunk, pool.submit(encode_chunk, chunk.documents, tokenizer, settings, skip=skip)))
        while pending:
            yield _result(*pending.popleft())
    except BrokenProcessPool as error:
        raise RunFailed("a tokenizing process was killed by another program (out of memory?)") from error


def _result(chunk: Chunk, future: Future[EncodedChunk]) -> tuple[EncodedChunk, Position]:
    try:
        return future.result(), chunk.position
    except (InputError, RunFailed, BrokenProcessPool):
        raise
    except Exception as error:
        location = chunk.documents[0].location
        raise RunFailed(f"the documents from {location} on could not be tokenized: {error!r}") from error


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    # "spawn", because a fork would copy the locks of this process' threads in their present state.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=start_worker)
    try:
        yield pool
    except BaseException:  # the results of running workers are not needed, and waiting for them may take minutes
        for worker in list((pool._processes or {}).values()):
            worker.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _source_name(source: Input) -> str:
    return f"{source} at {source.revision}" if isinstance(source, HubDataset) else str(source)


def _no_text(sources: Sequence[Input], settings: TextSettings, messages: Sequence[str]) -> str:
    first = f"; {messages[0]}" if messages else ""
    field, others = f"; the texts of tables and JSON lines are read from {settings.field!r} (--field)", len(sources) - 1
    return f"no text was found in {sources[0]}{f' and {others:,} other inputs' if others else ''}{first or field}"
