"""encoded documents → shards: write a corpus, shard by shard, its manifest last (paper §3.1)."""

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pydantic import JsonValue

from bertwright.corpus.duplicates import document_hashes, find_duplicates, write_drop_list
from bertwright.corpus.encode import EncodedDocuments
from bertwright.corpus.manifest import TOKENIZER, Manifest, Sample, ShardEntry, Skipped, Source, write_manifest
from bertwright.corpus.shards import SUMS_KEY, checksums, shard_schema
from bertwright.files import file_digest
from bertwright.text.base_tokenizer import BaseTokenizer

SHARD_TOKENS = 64_000_000
"""Tokens at which a shard ends, with the last record batch complete."""


class CorpusWriter:
    """Writer of the shards of a folder and then of its manifest. Use as a context manager.

    entries   the shards that the folder holds already; new ones are numbered after them
    """

    def __init__(
        self,
        folder: Path,
        *,
        tokenizer: BaseTokenizer,
        shard_tokens: int = SHARD_TOKENS,
        entries: Sequence[ShardEntry] = (),
    ) -> None:
        self._folder = folder
        self._hash = tokenizer.hash
        self._vocab_size = tokenizer.vocab_size
        self._shard_tokens = shard_tokens
        self._shard: _ShardFile | None = None
        self._entries = list(entries)
        tokenizer.save(folder / TOKENIZER)

    def __enter__(self) -> "CorpusWriter":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shard:
            self._shard.abandon()

    @property
    def entries(self) -> tuple[ShardEntry, ...]:
        """Return the shards that are complete."""
        return tuple(self._entries)

    def add(self, encoded: EncodedDocuments) -> bool:
        """Append documents as one record batch, and return whether it ended a shard. No documents write nothing."""
        if len(encoded.document_first) == 1:
            return False
        if self._shard is None:
            path = self._folder / f"shard-{len(self._entries):05d}.arrow"
            self._shard = _ShardFile(path, shard_schema(self._vocab_size, self._hash))
        self._shard.add(encoded)
        if self._shard.tokens >= self._shard_tokens:
            self._end_shard()
        return self._shard is None

    def finish(
        self,
        *,
        text: dict[str, JsonValue],
        sources: tuple[Source, ...],
        dropped: int,
        skipped: Skipped | None = None,
        keep_duplicates: bool = False,
        sample: Sample | None = None,
    ) -> Manifest:
        """Close the last shard, find duplicates unless `keep_duplicates` is true, and write the manifest."""
        self._end_shard()
        drop_list = None
        if not keep_duplicates:
            drop_list = write_drop_list(self._folder, find_duplicates(self._folder, self._entries))
        return write_manifest(
            self._folder,
            self._entries,
            tokenizer=self._hash,
            vocab_size=self._vocab_size,
            text=text,
            sources=sources,
            dropped=dropped,
            skipped=skipped or Skipped(),
            duplicates=drop_list,
            sample=sample,
        )

    def _end_shard(self) -> None:
        if self._shard:
            self._entries.append(self._shard.finish())
            self._shard = None


class _ShardFile:
    """Writer of one Arrow stream and its sidecar, which counts what is written."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._file = path.open("wb")
        self._sidecar = path.with_suffix(".hashes").open("wb")
        self._schema = schema
        self._writer = pa.ipc.new_stream(self._file, schema)
        self.documents = self.sentences = self.tokens = 0
        self.words: int | None = 0

    def add(self, encoded: EncodedDocuments) -> None:
        sentences = pa.LargeListArray.from_arrays(encoded.sentence_first, pa.array(encoded.ids))
        documents = pa.LargeListArray.from_arrays(encoded.document_first, sentences)
        sums = checksums(encoded.document_first, encoded.sentence_first, encoded.ids)
        self._writer.write_batch(
            pa.record_batch([documents], schema=self._schema), custom_metadata={SUMS_KEY: b"%08x %08x" % sums}
        )
        self._sidecar.write(document_hashes(encoded.ids, encoded.sentence_first[encoded.document_first]))
        self.documents += len(documents)
        self.sentences += len(sentences)
        self.tokens += len(encoded.ids)
        self.words = None if self.words is None or encoded.words is None else self.words + encoded.words

    def finish(self) -> ShardEntry:
        self._writer.close()
        for file in (self._file, self._sidecar):
            file.flush()
            os.fsync(file.fileno())
            file.close()
        return ShardEntry(
            name=self._path.name,
            bytes=self._path.stat().st_size,
            documents=self.documents,
            sentences=self.sentences,
            tokens=self.tokens,
            words=self.words,
            sha256=file_digest(self._path),
            hashes_sha256=file_digest(Path(self._sidecar.name)),
        )

    def abandon(self) -> None:
        self._file.close()
        self._sidecar.close()
