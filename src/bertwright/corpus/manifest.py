"""text → shards: what the manifest of a corpus says, and the checks that need no shard byte (paper §3.1)."""

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import JsonValue, ValidationError

from bertwright.config import Settings
from bertwright.errors import InputError
from bertwright.files import read_json

MANIFEST = "manifest.json"


class ShardEntry(Settings):
    """One shard file as the manifest knows it."""

    name: str
    bytes: int
    documents: int
    sentences: int
    tokens: int
    sha256: str


class Source(Settings):
    """One input file, as it was when it was read; `bytes` and `sha256` are those of the file, compressed or not."""

    path: str
    bytes: int
    sha256: str


class Manifest(Settings):
    """What manifest.json holds."""

    format: Literal[1] = 1
    made_by: str
    tokenizer: str
    vocab_size: int
    documents: int
    sentences: int
    tokens: int
    dropped_documents: int
    fingerprint: str
    text: dict[str, JsonValue]
    sources: tuple[Source, ...]
    shards: tuple[ShardEntry, ...]


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
        raise InputError(f"{path}: {place}: {first['msg']} (this version reads corpora of format 1)") from None
    if not manifest.shards:
        raise InputError(f"{path}: the corpus has no shards")
    if manifest.fingerprint != corpus_fingerprint(manifest.tokenizer, [entry.sha256 for entry in manifest.shards]):
        raise InputError(f"{path}: the fingerprint does not belong to the shards and tokenizer listed; was it edited?")
    for count in ("documents", "sentences", "tokens"):
        if getattr(manifest, count) != sum(getattr(entry, count) for entry in manifest.shards):
            raise InputError(f"{path}: {count} is not the sum over the shards; was it edited?")
    return manifest


def corpus_fingerprint(tokenizer_hash: str, shard_hashes: list[str]) -> str:
    """One name for the bytes of a whole corpus, without reading them again."""
    return hashlib.sha256("\n".join([tokenizer_hash, *shard_hashes]).encode()).hexdigest()


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """InputError names the shard that is missing, truncated or too long."""
    for entry in manifest.shards:
        path = folder / entry.name
        if not path.is_file():
            raise InputError(f"{path}: this shard is missing; the manifest lists {len(manifest.shards)} shards")
        size = path.stat().st_size
        if size != entry.bytes:
            what = "truncated" if size < entry.bytes else "too long"
            raise InputError(f"{path}: {what}: {size:,} bytes, the manifest says {entry.bytes:,}")
