"""text → shards → batches: the corpus on disk, and the one file that knows its bytes (paper §3.1).

A corpus folder holds shard-00000.arrow … (Arrow streams with one column `document`, document → sentence → token), the
tokenizer that made the ids, and manifest.json, written last. Sentences keep their order and documents their bounds.
Opening maps the shards and copies no token.
"""

import hashlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import JsonValue

from bertwright import __version__
from bertwright.corpus.encode import EncodedDocuments, token_dtype
from bertwright.corpus.manifest import (
    MANIFEST,
    Manifest,
    ShardEntry,
    Source,
    check_sizes,
    corpus_fingerprint,
    read_manifest,
)
from bertwright.errors import InputError
from bertwright.files import write_json

if TYPE_CHECKING:
    from bertwright.text.tokenizer import Tokenizer

SHARD_TOKENS = 64_000_000
"""A shard ends with the record batch that brings it to this many tokens."""

_HASH_KEY = b"bertwright.tokenizer"

Tokens = NDArray[np.uint16] | NDArray[np.uint32]


class CorpusWriter:
    """Write encoded documents into the shards of a folder, then the manifest. Use as a context manager."""

    def __init__(self, folder: Path, *, tokenizer: "Tokenizer", shard_tokens: int = SHARD_TOKENS) -> None:
        self._folder = folder
        self._hash = tokenizer.hash
        self._vocab_size = tokenizer.vocab_size
        self._shard_tokens = shard_tokens
        self._shard: _ShardFile | None = None
        self._entries: list[ShardEntry] = []
        tokenizer.save(folder / "tokenizer")

    def __enter__(self) -> "CorpusWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shard:
            self._shard.abandon()

    def add(self, encoded: EncodedDocuments) -> None:
        """Append documents as one record batch; nothing is written for none."""
        if len(encoded.document_first) == 1:
            return
        if self._shard is None:
            path = self._folder / f"shard-{len(self._entries):05d}.arrow"
            self._shard = _ShardFile(path, _schema(self._vocab_size, self._hash))
        self._shard.add(encoded)
        if self._shard.tokens >= self._shard_tokens:
            self._end_shard()

    def finish(self, *, text: dict[str, JsonValue], sources: tuple[Source, ...], dropped: int) -> Manifest:
        """Close the last shard and write the manifest."""
        self._end_shard()
        entries = self._entries
        manifest = Manifest(
            made_by=f"bertwright {__version__}",
            tokenizer=self._hash,
            vocab_size=self._vocab_size,
            documents=sum(entry.documents for entry in entries),
            sentences=sum(entry.sentences for entry in entries),
            tokens=sum(entry.tokens for entry in entries),
            dropped_documents=dropped,
            fingerprint=corpus_fingerprint(self._hash, [entry.sha256 for entry in entries]),
            text=text,
            sources=sources,
            shards=tuple(entries),
        )
        write_json(self._folder / MANIFEST, manifest.model_dump(mode="json"))
        return manifest

    def _end_shard(self) -> None:
        if self._shard:
            self._entries.append(self._shard.finish())
            self._shard = None


class _ShardFile:
    """One Arrow stream being written; counts and hashes what goes through."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._file = path.open("wb")
        self._digest = hashlib.sha256()
        self._schema = schema
        # Arrow wants a file-like object: this one is both the file's and the digest's way in.
        self._writer = pa.ipc.new_stream(pa.PythonFile(_Tee(self._file, self._digest), mode="w"), schema)
        self.documents = self.sentences = self.tokens = 0

    def add(self, encoded: EncodedDocuments) -> None:
        sentences = pa.LargeListArray.from_arrays(encoded.sentence_first, pa.array(encoded.ids))
        documents = pa.LargeListArray.from_arrays(encoded.document_first, sentences)
        self._writer.write_batch(pa.record_batch([documents], schema=self._schema))
        self.documents += len(documents)
        self.sentences += len(sentences)
        self.tokens += len(encoded.ids)

    def finish(self) -> ShardEntry:
        self._writer.close()
        self._file.close()
        return ShardEntry(
            name=self._path.name,
            bytes=self._path.stat().st_size,
            documents=self.documents,
            sentences=self.sentences,
            tokens=self.tokens,
            sha256=self._digest.hexdigest(),
        )

    def abandon(self) -> None:
        self._file.close()


class _Tee:
    """The little of a file that Arrow's writer needs."""

    closed = False

    def __init__(self, file: BinaryIO, digest: "hashlib._Hash") -> None:
        self._file = file
        self._digest = digest

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


@dataclass(frozen=True)
class _Batches:
    """Where the record batches of one shard lie in its file: C batches; positions count items of their own width."""

    documents: NDArray[np.int64]  # [C] how many
    sentences: NDArray[np.int64]  # [C] how many
    document_offsets: NDArray[np.int64]  # [C] position of the first document offset, in 8-byte words
    sentence_offsets: NDArray[np.int64]  # [C] position of the first sentence offset, in 8-byte words
    ids: NDArray[np.int64]  # [C] position of the first token, in tokens


class Corpus:
    """A corpus opened for reading; everything big stays in the memory-mapped files.

    Documents and sentences are numbered through all shards in the order of the text.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Use `Corpus.open`."""
        self.folder = folder
        self.manifest = manifest
        self.tokenizer_hash = manifest.tokenizer
        self.fingerprint = manifest.fingerprint
        self.num_documents = manifest.documents
        self.num_sentences = manifest.sentences
        self.num_tokens = manifest.tokens
        maps = [_map(folder / entry.name) for entry in manifest.shards]
        dtype: np.dtype[Any] = token_dtype(manifest.vocab_size)
        self.views: tuple[Tokens, ...] = tuple(np.frombuffer(mapped, dtype) for mapped in maps)
        self._words = tuple(np.frombuffer(mapped, np.int64) for mapped in maps)
        tables = [_layout(folder, mapped, manifest, entry) for mapped, entry in zip(maps, manifest.shards, strict=True)]
        self._batches = _Batches(*np.concatenate(tables).T)
        self._shard = np.repeat(np.arange(len(tables), dtype=np.int32), [len(table) for table in tables])
        self._first_sentence = np.concatenate([[0], np.cumsum(self._batches.sentences)])

    @classmethod
    def open(cls, folder: str | Path) -> "Corpus":
        """Open a corpus folder; InputError names the file that is missing, truncated or foreign."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        check_sizes(folder, manifest)
        return cls(folder, manifest)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process maps the files itself; pickling the views would copy the corpus.
        return Corpus.open, (self.folder,)

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer that made the ids; InputError where the folder holds another one."""
        from bertwright.text.tokenizer import Tokenizer

        folder = self.folder / "tokenizer"
        tokenizer = Tokenizer.load(folder)
        if tokenizer.hash != self.tokenizer_hash:
            raise InputError(
                f"{folder}: this tokenizer ({tokenizer.hash[:12]}…) is not the one that made the corpus "
                f"({self.tokenizer_hash[:12]}…); put the right one back or build the corpus again"
            )
        return tokenizer

    def document_first(self) -> NDArray[np.int64]:
        """First sentence of each document, then the number of sentences: int64 [num_documents + 1]."""
        batches, words = self._batches, self._words
        first = np.empty(self.num_documents + 1, np.int64)
        at = 0
        for b, shard in enumerate(self._shard):
            begin, number = batches.document_offsets[b], batches.documents[b]
            first[at : at + number] = words[shard][begin : begin + number] + self._first_sentence[b]
            at += number
        first[at] = self.num_sentences
        return first

    def sentence_lengths(self) -> NDArray[np.int32]:
        """Tokens in each sentence: int32 [num_sentences]."""
        lengths = np.empty(self.num_sentences, np.int32)
        for b, shard in enumerate(self._shard):
            begin, number = self._batches.sentence_offsets[b], self._batches.sentences[b]
            at = self._first_sentence[b]
            lengths[at : at + number] = np.diff(self._words[shard][begin : begin + number + 1])
        return lengths

    def blocks(self) -> Iterator[tuple[slice, Tokens]]:
        """The whole corpus in order, a stretch of whole documents at a time: its sentence numbers and its tokens.

        The tokens are views over the mapped files; nothing is copied.
        """
        for batch, shard in enumerate(self._shard):
            first, number = self._first_sentence[batch], self._batches.sentences[batch]
            word, place = self._batches.sentence_offsets[batch], self._batches.ids[batch]
            begin, end = self._words[shard][[word, word + number]]
            yield slice(int(first), int(first + number)), self.views[shard][place + begin : place + end]

    def locate(
        self, first: NDArray[np.int64], count: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
        """Where the tokens of `count[i]` consecutive sentences from `first[i]` on lie, all of them of one document.

        `first`: int64 [N], `count`: int32 [N]. Returns shard int32 [N], start int64 [N], length int32 [N]:
        the ids are `views[shard][start : start + length]`.
        """
        batch = np.searchsorted(self._first_sentence, first, side="right") - 1
        batch = np.minimum(batch, len(self._shard) - 1)
        shard = self._shard[batch]
        word = self._batches.sentence_offsets[batch] + (first - self._first_sentence[batch])
        start, end = np.empty_like(word), np.empty_like(word)
        for s in np.unique(shard):
            rows = shard == s
            start[rows] = self._words[s][word[rows]]
            end[rows] = self._words[s][word[rows] + count[rows]]
        return shard, start + self._batches.ids[batch], (end - start).astype(np.int32)


def verify(folder: str | Path) -> Corpus:
    """Check every byte of a corpus; InputError names the file that is bad. Returns the corpus, opened."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    check_sizes(folder, manifest)
    for entry in manifest.shards:
        path = folder / entry.name
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != entry.sha256:
            raise InputError(f"{path}: sha256 is {found}, the manifest says {entry.sha256}: the file was changed")
    corpus = Corpus(folder, manifest)
    for entry in manifest.shards:
        path = folder / entry.name
        for batch in _record_batches(path, _map(path)):
            try:
                batch.validate(full=True)
            except pa.ArrowInvalid as error:
                raise InputError(f"{path}: a record batch is broken: {error}") from None
            largest = int(np.max(batch.column(0).flatten().flatten().to_numpy(), initial=0))
            if largest >= manifest.vocab_size:
                raise InputError(f"{path}: token id {largest}, but the vocabulary has {manifest.vocab_size} pieces")
    if corpus.tokenizer.vocab_size != manifest.vocab_size:
        raise InputError(
            f"{folder / 'tokenizer'}: {corpus.tokenizer.vocab_size} pieces, the manifest says {manifest.vocab_size}"
        )
    return corpus


def _schema(vocab_size: int, tokenizer_hash: str) -> pa.Schema:
    ids = pa.from_numpy_dtype(token_dtype(vocab_size))
    field = pa.field("document", pa.large_list(pa.large_list(ids)))
    return pa.schema([field], metadata={_HASH_KEY: tokenizer_hash.encode()})


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _record_batches(path: Path, mapped: mmap.mmap) -> Iterator[pa.RecordBatch]:
    try:
        yield from pa.ipc.open_stream(pa.py_buffer(mapped))
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable Arrow stream: {error}") from None


def _layout(folder: Path, mapped: mmap.mmap, manifest: Manifest, entry: ShardEntry) -> NDArray[np.int64]:
    """Find the record batches of a shard by the addresses of their buffers: int64 [batches, fields of _Batches]."""
    path = folder / entry.name
    base = pa.py_buffer(mapped).address
    schema = _schema(manifest.vocab_size, manifest.tokenizer)
    width = token_dtype(manifest.vocab_size).itemsize
    rows = []
    for batch in _record_batches(path, mapped):
        if not batch.schema.equals(schema, check_metadata=True):
            raise InputError(
                f"{path}: made with another tokenizer or another layout than {MANIFEST} says "
                f"({batch.schema.metadata} {batch.schema.types}, expected {schema.metadata} {schema.types})"
            )
        documents = batch.column(0)
        _, outer, _, inner, _, ids = documents.buffers()
        places = [(outer, 8), (inner, 8), (ids, width)]
        positions = [_position(path, buffer, item, base=base, size=len(mapped)) for buffer, item in places]
        rows.append([len(documents), len(documents.values), *positions])
    table = np.array(rows, np.int64).reshape(-1, 5)
    found = (int(table[:, 0].sum()), int(table[:, 1].sum()))
    if found != (entry.documents, entry.sentences):
        raise InputError(
            f"{path}: {found[0]:,} documents and {found[1]:,} sentences, "
            f"the manifest says {entry.documents:,} and {entry.sentences:,}"
        )
    return table


def _position(path: Path, buffer: pa.Buffer, item: int, *, base: int, size: int) -> int:
    """Place of a buffer in the mapped file, in items; anything that is not plainly in the map would be a copy."""
    at = int(buffer.address) - base
    if not 0 <= at <= at + buffer.size <= size or at % item:
        raise InputError(f"{path}: a buffer lies outside the file or at an odd address (compressed Arrow stream?)")
    return at // item
