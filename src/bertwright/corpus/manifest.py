"""shards → manifest.json: the entries of a corpus, and the checks that read no byte of a shard (paper §3.1)."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import JsonValue, ValidationError

from bertwright.config import Settings
from bertwright.errors import InputError, shown
from bertwright.files import file_digest, json_bytes, read_json, write_json
from bertwright.text.document import TEXT_RULES, TextSettings
from bertwright.version import __version__

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"
"""Name of the folder in a corpus folder that holds its tokenizer."""

SKIPPED_SHOWN = 20
"""Number of messages about records and files left out that are kept, the first ones."""


class ShardEntry(Settings):
    """Entry of a shard file in the manifest; `name` is its path from the corpus folder.

    A sidecar lies beside the file, named `….hashes`: 16 bytes for each of its documents, in order.
    """

    name: str
    bytes: int
    documents: int
    sentences: int
    tokens: int
    sha256: str
    hashes_sha256: str
    words: int | None = None
    """Number of words of its documents in the text; None where they were not counted."""

    @property
    def hashes(self) -> str:
        """Return the path of the sidecar from the corpus folder."""
        return self.name.removesuffix(".arrow") + ".hashes"


class Source(Settings):
    """Entry of an input in the manifest: its bytes (packed where it is packed) and their sha256, or a Hub revision."""

    path: str
    bytes: int
    fingerprint: str


class Skipped(Settings):
    """Counts of what was left out because it could not be read, with the first messages.

    files     files of which the rest was left out
    records   records left out
    """

    files: int = 0
    records: int = 0
    first: tuple[str, ...] = ()

    def with_message(self, message: str, *, files: int = 0, records: int = 0) -> "Skipped":
        """Return the counts with these added."""
        return self.combined(Skipped(files=files, records=records, first=(message,)))

    def combined(self, other: "Skipped") -> "Skipped":
        """Return the sum of two counts."""
        first = (*self.first, *other.first)[:SKIPPED_SHOWN]
        return Skipped(files=self.files + other.files, records=self.records + other.records, first=first)


class DropList(Settings):
    """Entry of the file that lists duplicates: numbers of documents, ascending, as little-endian int64."""

    name: str
    documents: int
    sha256: str


class SampleSource(Settings):
    """Source of a sample: a file, folder, pattern or dataset, and its fraction of the words."""

    name: str
    fraction: float


class SampleSettings(Settings):
    """Settings of a sample: its words, its seed, and its sources with fractions; none: all inputs are one source."""

    words: int
    seed: int = 0
    mix: tuple[SampleSource, ...] = ()


class Drawn(Settings):
    """Words and documents that were drawn from a source, and those that it has. name: empty for all inputs."""

    name: str
    words: int
    documents: int
    of_words: int
    of_documents: int


class Sample(Settings):
    """Entry of the manifest: the settings of a sample, and what was drawn from each source."""

    settings: SampleSettings
    drawn: tuple[Drawn, ...]


class Manifest(Settings):
    """Content of manifest.json. Documents, sentences, tokens and words are those of all shards, duplicates too."""

    format: Literal[2] = 2
    made_by: str
    tokenizer: str
    vocab_size: int
    documents: int
    sentences: int
    tokens: int
    words: int | None = None
    """Number of words of the text; None for a corpus that was built before words were counted."""
    dropped_documents: int
    """Number of documents without a token; no shard holds them."""
    duplicates: DropList | None
    """Documents that equal an earlier one; None where duplicates were kept."""
    skipped: Skipped = Skipped()
    sample: Sample | None = None
    """The documents that were drawn, where `corpus build` had a number of words."""
    fingerprint: str
    text: dict[str, JsonValue]
    """Settings and version of the rules by which documents and sentences were made."""
    sources: tuple[Source, ...]
    shards: tuple[ShardEntry, ...]
    tokenizer_files: dict[str, str]
    """sha256 of each file of the tokenizer's folder."""
    digest: str
    """sha256 of manifest.json's bytes with this value empty."""

    @property
    def text_rules(self) -> int:
        """Return the version of the rules by which documents and sentences were made."""
        return int(str(self.text.get("rules", 1)))


def text_record(settings: TextSettings) -> dict[str, JsonValue]:
    """Return what decides the documents and sentences of a corpus: the settings, and the version of the rules."""
    return {**settings.model_dump(mode="json"), "rules": TEXT_RULES}


def differing_text(text: Mapping[str, JsonValue], other: Mapping[str, JsonValue]) -> str:
    """Return the differences of two text records, as "rules 2, not 1"; empty where they are equal."""
    texts = [{"rules": 1, **record} for record in (text, other)]
    names = dict.fromkeys(name for record in texts for name in record)
    differing = [name for name in names if texts[0].get(name) != texts[1].get(name)]
    return ", ".join(f"{name} {texts[0].get(name)}, not {texts[1].get(name)}" for name in differing)


def read_manifest(folder: Path) -> Manifest:
    """Read and check manifest.json. Raises InputError where it is missing, broken or contradicts itself."""
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder}: not a corpus (it has no {MANIFEST}); make one with 'bertwright corpus build'")
    try:
        manifest = Manifest.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{path}: {key}: {first['msg']} (this version reads corpora of format 2; build older ones again)"
        ) from None
    if not manifest.shards:
        raise InputError(f"{path}: the corpus has no shards")
    if manifest.fingerprint != corpus_fingerprint(manifest.tokenizer, manifest.shards, manifest.duplicates):
        raise InputError(f"{path}: the fingerprint is not that of the listed shards and tokenizer; was it edited?")
    for count in ("documents", "sentences", "tokens"):
        if getattr(manifest, count) != sum(getattr(entry, count) for entry in manifest.shards):
            raise InputError(f"{path}: {count} is not the sum over the shards; was it edited?")
    if manifest.words != words_of_shards(manifest.shards):
        raise InputError(f"{path}: words is not the sum over the shards; was it edited?")
    return manifest


def words_of_shards(shards: Sequence[ShardEntry]) -> int | None:
    """Return the number of words of several shards; None where those of any shard are unknown."""
    counts = [entry.words for entry in shards if entry.words is not None]
    return sum(counts) if len(counts) == len(shards) else None


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
    sample: Sample | None = None,
) -> Manifest:
    """Write manifest.json, the last file of a corpus."""
    manifest = Manifest(
        made_by=f"bertwright {__version__}",
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        documents=sum(entry.documents for entry in shards),
        sentences=sum(entry.sentences for entry in shards),
        tokens=sum(entry.tokens for entry in shards),
        words=words_of_shards(shards),
        dropped_documents=dropped,
        duplicates=duplicates,
        skipped=skipped,
        sample=sample,
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
    """Return the digest of manifest.json, whose own `digest` is `noted`."""
    raw = (folder / MANIFEST).read_bytes()
    return hashlib.sha256(raw.replace(noted.encode(), b"", 1)).hexdigest()


def corpus_fingerprint(tokenizer_hash: str, shards: Sequence[ShardEntry], duplicates: DropList | None) -> str:
    """Return a hash of all bytes of a corpus and of the list of its duplicates, made from the noted hashes."""
    dropped = [duplicates.sha256] if duplicates and duplicates.documents else []
    return hashlib.sha256(
        "\n".join([tokenizer_hash, *(entry.sha256 for entry in shards), *dropped]).encode()
    ).hexdigest()


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raise InputError where a file of the corpus is missing, truncated or too long."""
    sizes = {entry.name: entry.bytes for entry in manifest.shards}
    if manifest.duplicates:
        sizes[manifest.duplicates.name] = 8 * manifest.duplicates.documents
    for name, expected in sizes.items():
        path = folder / name
        try:
            is_file = path.is_file()
        except OSError as error:
            raise InputError(f"{folder / MANIFEST}: {shown(name)} cannot be a file's name: {error.strerror}") from None
        if not is_file:
            raise InputError(f"{path}: this file of the corpus is missing; the manifest lists {len(sizes)}")
        size = path.stat().st_size
        if size != expected:
            problem = "truncated" if size < expected else "too long"
            raise InputError(f"{path}: {problem}: {size:,} bytes, but {expected:,} in the manifest")
