"""text → shards → batches: the corpus on disk, its layout and its reader (paper §3.1).

A corpus folder holds shard-00000.arrow … (Arrow streams with one column `document`, document → sentence → token), the
tokenizer that made the ids, and manifest.json, written last; see `writer`. Sentences keep their order and documents
their bounds. Opening maps the shards and copies no token.
"""

import mmap
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertwright.corpus.duplicates import read_drop_list
from bertwright.corpus.encode import token_dtype
from bertwright.corpus.manifest import MANIFEST, TOKENIZER, Manifest, ShardEntry, check_sizes, read_manifest
from bertwright.errors import InputError
from bertwright.text.base_tokenizer import BaseTokenizer

_HASH_KEY = b"bertwright.tokenizer"  # of the schema
SUMS_KEY = b"bertwright.crc32"
"""In the metadata of a record batch: the checksums of its offsets and of its tokens, in hex."""

Tokens = NDArray[np.uint16] | NDArray[np.uint32]


@dataclass(frozen=True)
class _Batches:
    """Where the record batches of one shard lie in its file: C batches; positions count items of their own width."""

    documents: NDArray[np.int64]  # [C] how many
    sentences: NDArray[np.int64]  # [C] how many
    document_offsets: NDArray[np.int64]  # [C] position of the first document offset, in 8-byte words
    sentence_offsets: NDArray[np.int64]  # [C] position of the first sentence offset, in 8-byte words
    ids: NDArray[np.int64]  # [C] position of the first token, in tokens
    tokens: NDArray[np.int64]  # [C] how many lie there
    offset_sums: NDArray[np.int64]  # [C] CRC-32 of the offsets
    id_sums: NDArray[np.int64]  # [C] CRC-32 of the tokens


class Corpus:
    """A corpus opened for reading; everything big stays in the memory-mapped files.

    Documents and sentences are numbered through all shards in the order of the text. Sizes and manifest are checked at
    opening, the checksum of a record batch when something in it is read for the first time, everything by `verify`.
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
        self._offsets_unread = np.ones(len(self._shard), np.bool_)
        self._ids_unread = np.ones(len(self._shard), np.bool_)

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
    def tokenizer(self) -> "BaseTokenizer":
        """The tokenizer that made the ids; InputError where the folder holds another one."""
        from bertwright.text.open_tokenizer import open_tokenizer_folder

        folder = self.folder / TOKENIZER
        tokenizer = open_tokenizer_folder(folder)
        if tokenizer.hash != self.tokenizer_hash:
            raise InputError(
                f"{folder}: this tokenizer ({tokenizer.hash[:12]}…) is not the one that made the corpus "
                f"({self.tokenizer_hash[:12]}…); put the right one back or build the corpus again"
            )
        return tokenizer

    @cached_property
    def duplicates(self) -> NDArray[np.int64]:
        """The numbers of the documents that are not to be used because they equal an earlier one: int64, ascending."""
        listed = self.manifest.duplicates
        return read_drop_list(self.folder, listed) if listed else np.zeros(0, np.int64)

    def document_first(self) -> NDArray[np.int64]:
        """First sentence of each document, then the number of sentences: int64 [num_documents + 1]."""
        self._check_offsets(np.arange(len(self._shard)))
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
        self._check_offsets(np.arange(len(self._shard)))
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
            self._check_ids(np.array([batch]))
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
        self._check_ids(batch)
        shard = self._shard[batch]
        word = self._batches.sentence_offsets[batch] + (first - self._first_sentence[batch])
        start, end = np.empty_like(word), np.empty_like(word)
        for s in np.unique(shard):
            rows = shard == s
            start[rows] = self._words[s][word[rows]]
            end[rows] = self._words[s][word[rows] + count[rows]]
        return shard, start + self._batches.ids[batch], (end - start).astype(np.int32)

    def _check_offsets(self, batches: NDArray[np.int64]) -> None:
        """Compare the offsets of the batches that are read for the first time with their checksums."""
        for b in np.unique(batches[self._offsets_unread[batches]]):
            documents, sentences = self._offsets(b)
            self._refuse_changed(b, "offsets", _crc(documents, sentences), self._batches.offset_sums[b])
            self._refuse_outside(b, documents, sentences)
            self._offsets_unread[b] = False

    def _check_ids(self, batches: NDArray[np.int64]) -> None:
        """The same for tokens, which the offsets lead to."""
        self._check_offsets(batches)
        for b in np.unique(batches[self._ids_unread[batches]]):
            tokens = self.views[self._shard[b]][self._batches.ids[b] :][: self._offsets(b)[1][-1]]
            self._refuse_changed(b, "tokens", _crc(tokens), self._batches.id_sums[b])
            self._ids_unread[b] = False

    def _offsets(self, b: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        batches, words = self._batches, self._words[self._shard[b]]
        documents = words[batches.document_offsets[b] :][: batches.documents[b] + 1]
        sentences = words[batches.sentence_offsets[b] :][: batches.sentences[b] + 1]
        return documents, sentences

    def _refuse_outside(self, b: int, documents: NDArray[np.int64], sentences: NDArray[np.int64]) -> None:
        """InputError for offsets that fall, or lead out of the batch: whoever made them made the checksums as well."""
        batches, shard = self._batches, self._shard[b]
        for what, offsets, number, last in (
            ("documents", documents, batches.documents[b], batches.sentences[b]),
            ("sentences", sentences, batches.sentences[b], batches.tokens[b]),
        ):
            whole = len(offsets) == number + 1 and offsets[0] >= 0 and offsets[-1] <= last
            if not whole or bool((offsets[1:] < offsets[:-1]).any()):
                raise InputError(
                    f"{self.folder / self.manifest.shards[shard].name}: record batch "
                    f"{b - int(np.argmax(self._shard == shard))}: the offsets of its {number:,} {what} do not rise "
                    f"from 0 to {last:,}; build the corpus again"
                )

    def _refuse_changed(self, b: int, what: str, found: int, noted: int) -> None:
        if found != noted:
            shard = self._shard[b]
            path = self.folder / self.manifest.shards[shard].name
            raise InputError(
                f"{path}: record batch {b - int(np.argmax(self._shard == shard))}: its {what} were changed after they "
                f"were written (CRC-32 {found:08x}, noted {noted:08x}); put the file back or build the corpus again"
            )


def record_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The record batches of a shard, mapped; InputError where it is no Arrow stream."""
    yield from (batch for batch, _ in _record_batches(path, _map(path)))


def shard_schema(vocab_size: int, tokenizer_hash: str) -> pa.Schema:
    """The layout of a shard, with the tokenizer's hash in its metadata."""
    ids = pa.from_numpy_dtype(token_dtype(vocab_size))
    field = pa.field("document", pa.large_list(pa.large_list(ids)))
    return pa.schema([field], metadata={_HASH_KEY: tokenizer_hash.encode()})


def checksums(document_first: NDArray[np.int64], sentence_first: NDArray[np.int64], ids: Tokens) -> tuple[int, int]:
    """CRC-32 of a record batch's offsets and of its tokens."""
    return _crc(document_first, sentence_first), _crc(ids)


def _noted_sums(metadata: Mapping[bytes, bytes]) -> tuple[int, int] | None:
    """What `checksums` were when the batch was written; None where that cannot be read."""
    try:
        offsets, ids = (int(each, 16) for each in metadata[SUMS_KEY].split())
    except (KeyError, ValueError):
        return None
    return offsets, ids


def _crc(*arrays: NDArray[Any]) -> int:
    found = 0
    for array in arrays:
        found = zlib.crc32(np.ascontiguousarray(array).data, found)
    return found


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _record_batches(path: Path, mapped: mmap.mmap) -> Iterator[tuple[pa.RecordBatch, Mapping[bytes, bytes]]]:
    try:
        with pa.ipc.open_stream(pa.py_buffer(mapped)) as reader:
            while True:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
                yield batch, metadata or {}
    except StopIteration:
        return
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable Arrow stream: {error}") from None


def _layout(folder: Path, mapped: mmap.mmap, manifest: Manifest, entry: ShardEntry) -> NDArray[np.int64]:
    """Find the record batches of a shard by the addresses of their buffers: int64 [batches, fields of _Batches]."""
    path = folder / entry.name
    base = pa.py_buffer(mapped).address
    schema = shard_schema(manifest.vocab_size, manifest.tokenizer)
    width = token_dtype(manifest.vocab_size).itemsize
    rows: list[list[int]] = []
    for batch, metadata in _record_batches(path, mapped):
        if not batch.schema.equals(schema, check_metadata=True):
            raise InputError(
                f"{path}: made with another tokenizer or another layout than {MANIFEST} says "
                f"({batch.schema.metadata} {batch.schema.types}, expected {schema.metadata} {schema.types})"
            )
        documents = batch.column(0)
        _, outer, _, inner, _, ids = documents.buffers()
        places = [(outer, 8), (inner, 8), (ids, width)]
        positions = [_position(path, buffer, item, base=base, size=len(mapped)) for buffer, item in places]
        sums = _noted_sums(metadata)
        if sums is None:
            raise InputError(f"{path}: record batch {len(rows)} has no checksums; build the corpus again")
        rows.append([_length(path, documents), _length(path, documents.values), *positions, ids.size // width, *sums])
    table = np.array(rows, np.int64).reshape(-1, 8)
    found = (int(table[:, 0].sum()), int(table[:, 1].sum()))
    if found != (entry.documents, entry.sentences):
        raise InputError(
            f"{path}: {found[0]:,} documents and {found[1]:,} sentences, "
            f"the manifest says {entry.documents:,} and {entry.sentences:,}"
        )
    return table


def _length(path: Path, array: pa.Array) -> int:
    try:
        return len(array)
    except SystemError:  # Python knows no negative length
        raise InputError(f"{path}: a column says that its length is negative; build the corpus again") from None


def _position(path: Path, buffer: pa.Buffer, item: int, *, base: int, size: int) -> int:
    """Place of a buffer in the mapped file, in items; anything that is not plainly in the map would be a copy."""
    at = int(buffer.address) - base
    if not 0 <= at <= at + buffer.size <= size or at % item:
        raise InputError(f"{path}: a buffer lies outside the file or at an odd address (compressed Arrow stream?)")
    return at // item
