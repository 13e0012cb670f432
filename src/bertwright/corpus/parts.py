"""text → shards on several machines: the inputs dealt into parts, and the parts' shards under one manifest."""

import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from bertwright.corpus.duplicates import find_duplicates, write_drop_list
from bertwright.corpus.manifest import (
    TOKENIZER,
    Manifest,
    ShardEntry,
    Skipped,
    check_sizes,
    read_manifest,
    write_manifest,
)
from bertwright.corpus.reading import size_of
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.files import new_folder
from bertwright.text.documents import Input


def part_of(sources: Sequence[Input], part: tuple[int, int] | None) -> list[Input]:
    """The inputs of part i of n (from 1): n stretches of about equal bytes, none empty, in the order of the inputs.

    InputError where there are fewer inputs than parts.
    """
    if part is None:
        return list(sources)
    i, n = part
    if not 1 <= i <= n:
        raise InputError(f"part {i}/{n}: write i/n with i from 1 to n, such as 2/8")
    if len(sources) < n:
        raise InputError(f"part {i}/{n}: there are {len(sources)} input file(s), and a part is whole files")
    bytes_of = [size_of(source) for source in sources]
    ends = list(accumulate(bytes_of))
    bounds = [0]
    for number in range(1, n):
        # files whose middle lies before the bound: the bound is then at the end of a file that is nearest to it
        nearest = sum((2 * end - size) * n <= 2 * ends[-1] * number for end, size in zip(ends, bytes_of, strict=True))
        bounds.append(min(max(nearest, bounds[-1] + 1), len(sources) - (n - number)))
    bounds.append(len(sources))
    return list(sources[bounds[i - 1] : bounds[i]])


def merge_corpora(parts: Sequence[Path], out: Path, *, keep_duplicates: bool = False) -> Manifest:
    """Make one corpus of several in the given order: a manifest that names their shards, where they lie.

    Duplicates are looked for through all parts, by the hashes that lie beside the shards; no shard is read or written.
    InputError for corpora of different tokenizers or text settings, and for an `out` that is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists already and is not an empty folder; name another one or remove it")
    if not parts:
        raise InputError("no corpus is named; name those to merge")
    if len({part.resolve() for part in parts}) < len(parts):
        raise InputError(f"{len(parts)} corpora to merge, some of them the same; name each once")
    manifests = [read_manifest(part) for part in parts]
    first = manifests[0]
    for part, manifest in zip(parts, manifests, strict=True):
        check_sizes(part, manifest)
        for name in ("tokenizer", "text"):
            if getattr(manifest, name) != getattr(first, name):
                raise InputError(
                    f"{part}: was built with another {name} than {parts[0]}: such corpora cannot be merged"
                )
    shards = [
        _seen_from(out, part, entry)
        for part, manifest in zip(parts, manifests, strict=True)
        for entry in manifest.shards
    ]
    skipped = Skipped()
    for manifest in manifests:
        skipped = skipped.together(manifest.skipped)
    if not keep_duplicates:
        _refuse_without_hashes(parts, manifests)
    tokenizer = Corpus.open(parts[0]).tokenizer
    whole: dict[str, Any] = {
        "tokenizer": first.tokenizer,
        "vocab_size": first.vocab_size,
        "text": first.text,
        "sources": tuple(source for manifest in manifests for source in manifest.sources),
        "dropped": sum(manifest.dropped_documents for manifest in manifests),
        "skipped": skipped,
    }
    with new_folder(out) as folder:
        # Shards are named by the way to them from `out`, or from where `out` will be.
        start = out if out.is_dir() else folder
        found = None if keep_duplicates else write_drop_list(folder, find_duplicates(start, shards))
        tokenizer.save(folder / TOKENIZER)
        return write_manifest(folder, shards, duplicates=found, **whole)


def _refuse_without_hashes(parts: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    for part, manifest in zip(parts, manifests, strict=True):
        for entry in manifest.shards:
            if not (part / entry.hashes).is_file():
                raise InputError(
                    f"{part / entry.hashes}: there is no such file; duplicates are found by it (--keep-duplicates does "
                    "without)"
                )


def _seen_from(out: Path, part: Path, entry: ShardEntry) -> ShardEntry:
    path = os.path.relpath((part / entry.name).resolve(), out.resolve())
    return entry.model_copy(update={"name": Path(path).as_posix()})
