"""shards → batches: the layout of a corpus on disk and its reader (paper §3.1).

A corpus folder holds shard-00000.arrow and so on (Arrow streams with one column `document`: document → sentence →
token), the tokenizer that made the ids, and manifest.json, which is written last; see writer.py. Documents and
sentences keep their order. Opening a corpus maps its shards into memory and copies no token.
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

_HASH_KEY = b"bertwright.tokenizer"  # key in the metadata of the schema: the tokenizer's hash
SUMS_KEY = b"bertwright.crc32"
"""Key in the metadata of a record batch: the checksums of its offsets and of its tokens, in hex."""

Tokens = NDArray[np.uint16] | NDArray[np.uint32]


@dataclass(frozen=True)
class _Batches:
    """Layout of C record batches in their files. Positions count items: 8-byte words or tokens."""

    documents: NDArray[np.int64]  # [C] number of documents
    sentences: NDArray[np.int64]  # [C] number of sentences
    document_offsets: NDArray[np.int64]  # [C] position of the first document offset, in 8-byte words
    sentence_offsets: NDArray[np.int64]  # [C] position of the first sentence offset, in 8-byte words
    ids: NDArray[np.int64]  # [C] position of the first token, in tokens
    tokens: NDArray[np.int64]  # [C] number of tokens
    offset_sums: NDArray[np.int64]  # [C] CRC-32 of the offsets
    id_sums: NDArray[np.int64]  # [C] CRC-32 of the tokens


class Corpus:
    """Reader of a corpus; offsets and tokens stay in the memory-mapped files.

    Documents and sentences are numbered across all shards in the order of the text. Opening checks sizes and manifest.
    The first read of a record batch checks its checksums. `verify` checks everything.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Map the shards of a corpus whose sizes were checked; `Corpus.open` checks them."""
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
        """Open a corpus folder. Raises InputError for a file that is missing, truncated or of another corpus."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        check_sizes(folder, manifest)
        return cls(folder, manifest)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process maps the files itself. Pickled views would be a copy of the corpus.
        return Corpus.open, (self.folder,)

    @cached_property
    def tokenizer(self) -> BaseTokenizer:
        """Tokenizer that made the ids. Raises InputError where the folder holds another one."""
        # Imported here, because training reads shards without the package `tokenizers`.
        from bertwright.text.open_tokenizer import open_tokenizer_folder

        folder = self.folder / TOKENIZER
        tokenizer = open_tokenizer_folder(folder)
        if tokenizer.hash != self.tokenizer_hash:
            raise InputError(
                f"{folder}: expected the tokenizer that made the corpus ({self.tokenizer_hash[:12]}…), got another one "
                f"({tokenizer.hash[:12]}…); put the right one back or build the corpus again"
            )
        return tokenizer

    @cached_property
    def duplicates(self) -> NDArray[np.int64]:
        """Numbers of the documents that equal an earlier one and are not used: int64, ascending."""
        listed = self.manifest.duplicates
        return read_drop_list(self.folder, listed) if listed else np.zeros(0, np.int64)

    def document_first(self) -> NDArray[np.int64]:
        """Return the first sentence of each document, then the number of sentences: int64 [num_documents + 1]."""
        self._check_offsets(np.arange(len(self._shard)))
        batches, words = self._batches, self._words
        first = np.empty(self.num_documents + 1, np.int64)
        filled = 0
        for b, shard in enumerate(self._shard):
            begin, number = batches.document_offsets[b], batches.documents[b]
            first[filled : filled + number] = words[shard][begin : begin + number] + self._first_sentence[b]
            filled += number
        first[filled] = self.num_sentences
        return first

    def sentence_lengths(self) -> NDArray[np.int32]:
        """Return the number of tokens in each sentence: int32 [num_sentences]."""
        self._check_offsets(np.arange(len(self._shard)))
        lengths = np.empty(self.num_sentences, np.int32)
        for b, shard in enumerate(self._shard):
            begin, number = self._batches.sentence_offsets[b], self._batches.sentences[b]
            first = self._first_sentence[b]
            lengths[first : first + number] = np.diff(self._words[shard][begin : begin + number + 1])
        return lengths

    def blocks(self) -> Iterator[tuple[slice, Tokens]]:
        """Yield (numbers of sentences, their tokens) of the corpus in order, a record batch at a time.

        The tokens are views of the mapped files; nothing is copied.
        """
        for batch, shard in enumerate(self._shard):
            self._check_ids(np.array([batch]))
            first, number = self._first_sentence[batch], self._batches.sentences[batch]
            word, start = self._batches.sentence_offsets[batch], self._batches.ids[batch]
            begin, end = self._words[shard][[word, word + number]]
            yield slice(int(first), int(first + number)), self.views[shard][start + begin : start + end]

    def locate(
        self, first: NDArray[np.int64], count: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
        """Return where the tokens of `count[i]` consecutive sentences from `first[i]` on lie, all of one document.

        first   int64 [N]
        count   int32 [N]

        Returns shard int32 [N], start int64 [N], length int32 [N]. The ids are `views[shard][start : start + length]`.
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
        """Check the offsets of batches that are read for the first time. Raises InputError where they were changed."""
        for b in np.unique(batches[self._offsets_unread[batches]]):
            documents, sentences = self._offsets(b)
            self._refuse_changed(b, "offsets", _crc(documents, sentences), self._batches.offset_sums[b])
            self._refuse_outside(b, documents, sentences)
            self._offsets_unread[b] = False

    def _check_ids(self, batches: NDArray[np.int64]) -> None:
        """Check batches that are read for the first time. Raises InputError where offsets or tokens were changed."""
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
        """Raise InputError for offsets that decrease or lead out of the batch: their checksum may have been forged."""
        batches = self._batches
        for what, offsets, number, last in (
            ("documents", documents, batches.documents[b], batches.sentences[b]),
            ("sentences", sentences, batches.sentences[b], batches.tokens[b]),
        ):
            in_range = len(offsets) == number + 1 and offsets[0] >= 0 and offsets[-1] <= last
            if not in_range or bool((offsets[1:] < offsets[:-1]).any()):
                raise InputError(
                    f"{self._batch_name(b)}: expected offsets of {number:,} {what} that rise from 0 to {last:,}; build "
                    "the corpus again"
                )

    def _refuse_changed(self, b: int, what: str, checksum: int, noted: int) -> None:
        """Raise InputError where a checksum is not the noted one."""
        if checksum != noted:
            raise InputError(
                f"{self._batch_name(b)}: its {what} were changed after they were written (CRC-32 {checksum:08x}, "
                f"noted {noted:08x}); put the file back or build the corpus again"
            )

    def _batch_name(self, b: int) -> str:
        shard = self._shard[b]
        number = b - int(np.argmax(self._shard == shard))
        return f"{self.folder / self.manifest.shards[shard].name}: record batch {number}"


def record_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a shard, mapped into memory. Raises InputError where it is no Arrow stream."""
    yield from (batch for batch, _ in _record_batches(path, _map(path)))


def shard_schema(vocab_size: int, tokenizer_hash: str) -> pa.Schema:
    """Return the Arrow schema of a shard, with the tokenizer's hash in its metadata."""
    ids = pa.from_numpy_dtype(token_dtype(vocab_size))
    field = pa.field("document", pa.large_list(pa.large_list(ids)))
    return pa.schema([field], metadata={_HASH_KEY: tokenizer_hash.encode()})


def checksums(document_first: NDArray[np.int64], sentence_first: NDArray[np.int64], ids: Tokens) -> tuple[int, int]:
    """Return the CRC-32 of a record batch's offsets and of its tokens."""
    return _crc(document_first, sentence_first), _crc(ids)


def _noted_sums(name: str, metadata: Mapping[bytes, bytes]) -> tuple[int, int]:
    """Return the checksums that were noted when a record batch was written. Raises InputError where there are none."""
    try:
        offsets, ids = (int(each, 16) for each in metadata[SUMS_KEY].split())
    except (KeyError, ValueError):
        raise InputError(f"{name} has no checksums; build the corpus again") from None
    return offsets, ids


def _crc(*arrays: NDArray[Any]) -> int:
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
    return checksum


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _record_batches(path: Path, mapped: mmap.mmap) -> Iterator[tuple[pa.RecordBatch, Mapping[bytes, bytes]]]:
    try:
        with pa.ipc.open_stream(pa.py_buffer(mapped)) as reader:
            for batch, metadata in reader.iter_batches_with_custom_metadata():
                yield batch, metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable Arrow stream: {error}") from None


def _layout(folder: Path, mapped: mmap.mmap, manifest: Manifest, entry: ShardEntry) -> NDArray[np.int64]:
    """Return the layout of a shard's record batches: int64 [batches, fields of _Batches].

    Positions come from the addresses of Arrow's buffers. Raises InputError where the shard has another layout or
    tokenizer than the manifest, or other counts.
    """
    path = folder / entry.name
    base = pa.py_buffer(mapped).address
    schema = shard_schema(manifest.vocab_size, manifest.tokenizer)
    width = token_dtype(manifest.vocab_size).itemsize
    rows: list[list[int]] = []
    for batch, metadata in _record_batches(path, mapped):
        if not batch.schema.equals(schema, check_metadata=True):
            raise InputError(
                f"{path}: expected the tokenizer and layout of {MANIFEST} ({schema.metadata} {schema.types}), got "
                f"{batch.schema.metadata} {batch.schema.types}"
            )
        column = batch.column(0)
        _, outer, _, inner, _, ids = column.buffers()
        buffers = [(outer, 8), (inner, 8), (ids, width)]
        positions = [_position(path, buffer, item, base=base, size=len(mapped)) for buffer, item in buffers]
        sums = _noted_sums(f"{path}: record batch {len(rows)}", metadata)
        rows.append([_length(path, column), _length(path, column.values), *positions, ids.size // width, *sums])
    table = np.array(rows, np.int64).reshape(-1, 8)
    documents, sentences = int(table[:, 0].sum()), int(table[:, 1].sum())
    if (documents, sentences) != (entry.documents, entry.sentences):
        raise InputError(
            f"{path}: {documents:,} documents and {sentences:,} sentences, but {entry.documents:,} and "
            f"{entry.sentences:,} in the manifest"
        )
    return table


def _length(path: Path, array: pa.Array) -> int:
    try:
        return len(array)
    except SystemError:  # `len` fails for a negative number
        raise InputError(f"{path}: the length of a column is negative; build the corpus again") from None


def _position(path: Path, buffer: pa.Buffer, item: int, *, base: int, size: int) -> int:
    """Return the position of a buffer in the mapped file, in items of `item` bytes.

    Raises InputError for a buffer that is a copy, outside of the file, as in a compressed stream.
    """
    start = int(buffer.address) - base
    if not 0 <= start <= start + buffer.size <= size or start % item:
        raise InputError(f"{path}: a buffer lies outside the file or is not aligned; expected an uncompressed stream")
    return start // item
