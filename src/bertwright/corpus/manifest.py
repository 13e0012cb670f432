"""text → shards: what the manifest of a corpus says, and the checks that need no shard byte (paper §3.1)."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import JsonValue, ValidationError

from bertwright.config import Settings
from bertwright.errors import InputError, shown
from bertwright.files import file_digest, json_bytes, read_json, write_json
from bertwright.version import __version__

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"
"""The folder in a corpus folder that holds its tokenizer."""

SKIPPED_SHOWN = 20
"""Messages that are kept about what was left out."""


class ShardEntry(Settings):
    """One shard file as the manifest knows it; `name` is its path from the corpus folder.

    Beside it lies its sidecar, named `….hashes`: 16 bytes for each of its documents, in order.
    """

    name: str
    bytes: int
    documents: int
    sentences: int
    tokens: int
    sha256: str
    hashes_sha256: str

    @property
    def hashes(self) -> str:
        """The path of the sidecar from the corpus folder."""
        return self.name.removesuffix(".arrow") + ".hashes"


class Source(Settings):
    """One input as it was when it was read: a file's bytes, packed or not, with their sha256; a dataset's revision."""

    path: str
    bytes: int
    fingerprint: str


class Skipped(Settings):
    """What could not be read and was left out, as asked: files from some place on, records, and the first messages."""

    files: int = 0
    records: int = 0
    first: tuple[str, ...] = ()

    def and_more(self, message: str, *, files: int = 0, records: int = 0) -> "Skipped":
        """With one more."""
        first = (*self.first, message)[:SKIPPED_SHOWN]
        return Skipped(files=self.files + files, records=self.records + records, first=first)

    def together(self, other: "Skipped") -> "Skipped":
        """Both."""
        first = (*self.first, *other.first)[:SKIPPED_SHOWN]
        return Skipped(files=self.files + other.files, records=self.records + other.records, first=first)


class DropList(Settings):
    """The file that lists the documents not to be used: their numbers, ascending, as little-endian int64."""

    name: str
    documents: int
    sha256: str


class Manifest(Settings):
    """What manifest.json holds. `documents`, `sentences` and `tokens` count what the shards hold, duplicates too."""

    format: Literal[2] = 2
    made_by: str
    tokenizer: str
    vocab_size: int
    documents: int
    sentences: int
    tokens: int
    dropped_documents: int
    """Documents in which no token was left; no shard holds them."""
    duplicates: DropList | None
    """Documents equal to an earlier one; None where none was looked for."""
    skipped: Skipped = Skipped()
    fingerprint: str
    text: dict[str, JsonValue]
    sources: tuple[Source, ...]
    shards: tuple[ShardEntry, ...]
    tokenizer_files: dict[str, str] | None = None
    """sha256 of each file of the tokenizer's folder; None, as the digest below, where an earlier version wrote it."""
    digest: str | None = None
    """sha256 of manifest.json's bytes, with nothing in the place of this one."""


def read_manifest(folder: Path) -> Manifest:
    """Read and check manifest.json; InputError says what is wrong with it."""
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder}: not a corpus (it has no {MANIFEST}); make one with 'bertwright corpus build'")
    try:
        manifest = Manifest.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{path}: {place}: {first['msg']} (this version reads corpora of format 2; build older ones again)"
        ) from None
    if not manifest.shards:
        raise InputError(f"{path}: the corpus has no shards")
    if manifest.fingerprint != corpus_fingerprint(manifest.tokenizer, manifest.shards, manifest.duplicates):
        raise InputError(f"{path}: the fingerprint does not belong to the shards and tokenizer listed; was it edited?")
    for count in ("documents", "sentences", "tokens"):
        if getattr(manifest, count) != sum(getattr(entry, count) for entry in manifest.shards):
            raise InputError(f"{path}: {count} is not the sum over the shards; was it edited?")
    return manifest


def write_manifest(
    folder: Path,
    shards: Sequence[ShardEntry],
    *,
    tokenizer: str,
    vocab_size: int,
    text: dict[str, JsonValue],
    sources: tuple[Source, ...],
    dropped: int,
    skipped: Skipped,
    duplicates: DropList | None,
) -> Manifest:
    """Write manifest.json, the last file of a corpus."""
    manifest = Manifest(
        made_by=f"bertwright {__version__}",
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        documents=sum(entry.documents for entry in shards),
        sentences=sum(entry.sentences for entry in shards),
        tokens=sum(entry.tokens for entry in shards),
        dropped_documents=dropped,
        duplicates=duplicates,
        skipped=skipped,
        fingerprint=corpus_fingerprint(tokenizer, shards, duplicates),
        text=text,
        sources=sources,
        shards=tuple(shards),
        tokenizer_files={path.name: file_digest(path) for path in sorted((folder / TOKENIZER).glob("*"))},
        digest="",
    )
    digest = hashlib.sha256(json_bytes(manifest.model_dump(mode="json"))).hexdigest()
    manifest = manifest.model_copy(update={"digest": digest})
    write_json(folder / MANIFEST, manifest.model_dump(mode="json"))
    return manifest


def manifest_digest(folder: Path, noted: str) -> str:
    """What the digest that manifest.json notes of itself has to be."""
    raw = (folder / MANIFEST).read_bytes()
    return hashlib.sha256(raw.replace(noted.encode(), b"", 1)).hexdigest()


def corpus_fingerprint(tokenizer_hash: str, shards: Sequence[ShardEntry], duplicates: DropList | None) -> str:
    """One name for the bytes of a whole corpus and for what of it is used, without reading them again."""
    dropped = [duplicates.sha256] if duplicates and duplicates.documents else []
    return hashlib.sha256(
        "\n".join([tokenizer_hash, *(entry.sha256 for entry in shards), *dropped]).encode()
    ).hexdigest()


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """InputError names the file that is missing, truncated or too long."""
    expected = {entry.name: entry.bytes for entry in manifest.shards}
    if manifest.duplicates:
        expected[manifest.duplicates.name] = 8 * manifest.duplicates.documents
    for name, wanted in expected.items():
        path = folder / name
        try:
            there = path.is_file()
        except OSError as error:
            raise InputError(f"{folder / MANIFEST}: {shown(name)} cannot be a file's name: {error.strerror}") from None
        if not there:
            raise InputError(f"{path}: this file of the corpus is missing; the manifest lists {len(expected)}")
        size = path.stat().st_size
        if size != wanted:
            what = "truncated" if size < wanted else "too long"
            raise InputError(f"{path}: {what}: {size:,} bytes, the manifest says {wanted:,}")
