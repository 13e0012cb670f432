"""Shards → checked: every byte of a corpus against its manifest, and what the bytes mean (paper §3.1)."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from bertwright.console import say
from bertwright.corpus.duplicates import document_hashes, find_duplicates
from bertwright.corpus.manifest import (
    MANIFEST,
    TOKENIZER,
    Manifest,
    ShardEntry,
    check_sizes,
    manifest_digest,
    read_manifest,
)
from bertwright.corpus.shards import Corpus, record_batches
from bertwright.errors import InputError, shown
from bertwright.files import file_digest


def verify(folder: str | Path) -> Corpus:
    """Check every byte of a corpus; InputError names the file that is bad. Returns the corpus, opened.

    Corpora of earlier versions note no digest of their manifest and of the tokenizer's files, which is said.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    _check_manifest(folder, manifest)
    check_sizes(folder, manifest)
    refuse_changed(folder, manifest)
    for entry in manifest.shards:
        _refuse_changed(folder / entry.hashes, entry.hashes_sha256)
    corpus = Corpus(folder, manifest)
    for entry in manifest.shards:
        _check_shard(folder, entry, manifest.vocab_size)
    if corpus.tokenizer.vocab_size != manifest.vocab_size:
        raise InputError(
            f"{folder / TOKENIZER}: {corpus.tokenizer.vocab_size} pieces, the manifest says {manifest.vocab_size}"
        )
    _check_tokenizer(folder, manifest)  # after the ids, so that another tokenizer is called so
    if manifest.duplicates and not np.array_equal(corpus.duplicates, find_duplicates(folder, manifest.shards)):
        raise InputError(f"{folder / manifest.duplicates.name}: lists other documents than those that are duplicates")
    return corpus


def refuse_changed(folder: Path, manifest: Manifest) -> None:
    """InputError where a shard is not what the manifest says, to the bit: before a training that may last for weeks."""
    for entry in manifest.shards:
        _refuse_changed(folder / entry.name, entry.sha256)


def _check_manifest(folder: Path, manifest: Manifest) -> None:
    """InputError where manifest.json is not what was written, to the bit; what has no digest is said."""
    if manifest.digest is None or manifest.tokenizer_files is None:
        say(
            f"{folder}: {MANIFEST} and {TOKENIZER}/tokenizer_config.json have no digest, and the tokenizer's other "
            "files one of what decides ids alone: an earlier version built the corpus; built again, all is checked"
        )
    if manifest.digest is not None and (found := manifest_digest(folder, manifest.digest)) != manifest.digest:
        raise InputError(
            f"{folder / MANIFEST}: sha256 is {found}, it notes {shown(manifest.digest)}: the file was changed; put it "
            "back or build the corpus again"
        )


def _check_tokenizer(folder: Path, manifest: Manifest) -> None:
    """InputError where a file of the tokenizer is not what was written, to the bit."""
    for name, noted in (manifest.tokenizer_files or {}).items():
        if Path(name).name != name:
            raise InputError(f"{folder / MANIFEST}: {shown(name)} is no name of a file in {TOKENIZER}/")
        _refuse_changed(folder / TOKENIZER / name, noted)


def _refuse_changed(path: Path, noted: str) -> None:
    if not path.is_file():
        raise InputError(f"{path}: this file of the corpus is missing")
    found = file_digest(path)
    if found != noted:
        raise InputError(f"{path}: sha256 is {found}, the manifest says {noted}: the file was changed")


def _check_shard(folder: Path, entry: ShardEntry, vocab_size: int) -> None:
    path = folder / entry.name
    hashes = []
    for batch in record_batches(path):
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InputError(f"{path}: a record batch is broken: {error}") from None
        sentences = batch.column(0).flatten()
        ids = sentences.flatten().to_numpy()
        largest = int(np.max(ids, initial=0))
        if largest >= vocab_size:
            raise InputError(f"{path}: token id {largest}, but the vocabulary has {vocab_size} pieces")
        first = sentences.offsets.to_numpy()[batch.column(0).offsets.to_numpy()]
        hashes.append(document_hashes(ids, first))
    if b"".join(hashes) != (folder / entry.hashes).read_bytes():
        raise InputError(f"{folder / entry.hashes}: not the hashes of the documents in {path.name}")
