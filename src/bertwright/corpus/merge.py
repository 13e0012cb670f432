"""corpora → corpus: merge the parts of a corpus under one manifest; shuffle the sentences of a corpus.

Shuffled sentences show the value of documents: documents, sentences and tokens keep their number and lengths, and only
the order of the sentences is lost (beside paper §3.1).
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertwright.corpus.duplicates import find_duplicates, write_drop_list
from bertwright.corpus.encode import EncodedDocuments
from bertwright.corpus.manifest import (
    TOKENIZER,
    Manifest,
    ShardEntry,
    Skipped,
    check_sizes,
    differing_text,
    read_manifest,
    write_manifest,
)
from bertwright.corpus.shards import Corpus, Tokens
from bertwright.corpus.writer import CorpusWriter
from bertwright.errors import InputError
from bertwright.files import new_folder

_SENTENCES = 100_000
"""Number of sentences in a record batch of a shuffled corpus, about."""


def merge_corpora(parts: Sequence[Path], out: Path, *, keep_duplicates: bool = False) -> Manifest:
    """Merge corpora in this order into `out`, whose manifest names their shards where they are.

    Duplicates are found across all parts by the hashes beside the shards; no shard is read or written.
    Raises InputError for corpora of different tokenizers or text settings, and for an `out` that is not empty.
    """
    if not parts:
        raise InputError("expected one corpus or more to merge; name their folders")
    if len({part.resolve() for part in parts}) < len(parts):
        raise InputError(f"{len(parts)} corpora to merge, some of which are the same; name each once")
    manifests = [read_manifest(part) for part in parts]
    first = manifests[0]
    for part, manifest in zip(parts, manifests, strict=True):
        check_sizes(part, manifest)
        if manifest.tokenizer != first.tokenizer:
            raise InputError(
                f"{part}: was built with another tokenizer than {parts[0]}; corpora to merge must have the same"
            )
        if difference := differing_text(manifest.text, first.text):
            raise InputError(
                f"{part}: its text was read in another way than that of {parts[0]} ({difference}); corpora to merge "
                "must have the same settings and rules: build one of them again"
            )
    shards = [
        _relative_to(out, part, entry)
        for part, manifest in zip(parts, manifests, strict=True)
        for entry in manifest.shards
    ]
    skipped = Skipped()
    for manifest in manifests:
        skipped = skipped.combined(manifest.skipped)
    if not keep_duplicates:
        _refuse_without_hashes(parts, manifests)
    tokenizer = Corpus.open(parts[0]).tokenizer
    with new_folder(out) as folder:
        # The shards are named by their path from `out`, which may not exist yet; then `folder` is beside it.
        start = out if out.is_dir() else folder
        drop_list = None if keep_duplicates else write_drop_list(folder, find_duplicates(start, shards))
        tokenizer.save(folder / TOKENIZER)
        return write_manifest(
            folder,
            shards,
            tokenizer=first.tokenizer,
            vocab_size=first.vocab_size,
            text=first.text,
            sources=tuple(source for manifest in manifests for source in manifest.sources),
            dropped=sum(manifest.dropped_documents for manifest in manifests),
            skipped=skipped,
            duplicates=drop_list,
        )


def _refuse_without_hashes(parts: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    for part, manifest in zip(parts, manifests, strict=True):
        for entry in manifest.shards:
            if not (part / entry.hashes).is_file():
                raise InputError(
                    f"{part / entry.hashes}: there is no such file; put it back, or add --keep-duplicates, which needs "
                    "no hashes"
                )


def _relative_to(out: Path, part: Path, entry: ShardEntry) -> ShardEntry:
    """Return the entry of a shard of `part`, with its path from `out`."""
    path = os.path.relpath((part / entry.name).resolve(), out.resolve())
    return entry.model_copy(update={"name": Path(path).as_posix()})


def shuffle_sentences(source: Path, out: Path, *, seed: int = 0) -> Manifest:
    """Write the corpus `out` with the sentences of `source` in random order, in documents of the same lengths.

    Duplicates are left out. The same corpus and seed give the same bytes. Raises InputError for an `out` that is not
    empty.
    """
    corpus = Corpus.open(source)
    first = corpus.document_first()
    used = np.setdiff1d(np.arange(corpus.num_documents), corpus.duplicates, assume_unique=True)
    counts = np.diff(first)[used]
    sentences = np.concatenate([np.arange(first[document], first[document + 1]) for document in used])
    order = np.random.default_rng(seed).permutation(sentences)
    ends = np.cumsum(counts)
    with new_folder(out) as folder, CorpusWriter(folder, tokenizer=corpus.tokenizer) as writer:
        begin = 0
        while begin < len(counts):
            before = ends[begin] - counts[begin]
            end = max(begin + 1, int(np.searchsorted(ends, before + _SENTENCES, side="right")))
            writer.add(_documents(corpus, order[before : ends[end - 1]], counts[begin:end]))
            begin = end
        manifest = corpus.manifest
        return writer.finish(
            text={**manifest.text, "sentences_shuffled": seed},
            sources=manifest.sources,
            dropped=manifest.dropped_documents,
            keep_duplicates=True,
        )


def _documents(corpus: Corpus, sentences: NDArray[np.int64], counts: NDArray[np.int64]) -> EncodedDocuments:
    """Return the sentences with these numbers as documents of `counts` sentences each."""
    shard, start, length = corpus.locate(sentences, np.ones(len(sentences), np.int32))
    spans = zip(shard.tolist(), start.tolist(), length.tolist(), strict=True)
    ids: Tokens = np.concatenate([corpus.views[s][begin : begin + size] for s, begin, size in spans])
    return EncodedDocuments(
        ids,
        np.concatenate([[0], np.cumsum(length, dtype=np.int64)]),
        np.concatenate([[0], np.cumsum(counts)]),
    )
