"""shards → list of exact duplicates, found by a hash of 128 bits per document.

Each shard has a sidecar with the hashes of its documents. The first of equal documents is used. The others are listed
in a file beside the manifest; no shard is written again. Hashes are compared range by range, and a range fits into
memory, so neither the size of the corpus nor the number of equal documents is limited.
"""

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertwright.corpus.manifest import DropList, ShardEntry
from bertwright.errors import InputError
from bertwright.files import atomic_file

DROP_LIST = "duplicates.i8"
"""Name of the file that lists the duplicates."""

HASH_BYTES = 16
"""Bytes of a document's hash."""

RANGE_DOCUMENTS = 4_000_000
"""Number of hashes that are compared at a time, about; comparing them takes some 250 MB."""

_AT_ONCE = 1_000_000  # hashes of a sidecar read at a time

Hashes = NDArray[np.bytes_]


def document_hashes(ids: NDArray[np.uint16] | NDArray[np.uint32], first: NDArray[np.int64]) -> bytes:
    """Return the hashes of D documents, one after the other.

    first   int64 [D + 1], the first token of each document in `ids`, then the end of the last one
    """
    data, width = np.ascontiguousarray(ids).data.cast("B"), ids.itemsize
    bounds = (first * width).tolist()
    return b"".join(
        hashlib.blake2b(data[begin:end], digest_size=HASH_BYTES).digest() for begin, end in pairwise(bounds)
    )


def find_duplicates(folder: Path, shards: Sequence[ShardEntry]) -> NDArray[np.int64]:
    """Return the numbers of all documents that equal an earlier one: int64, ascending."""
    documents = sum(entry.documents for entry in shards)
    num_ranges = -(-documents // RANGE_DOCUMENTS)
    bounds = [(1 << 16) * n // num_ranges for n in range(num_ranges + 1)] if documents else [0]
    duplicates = [_duplicates_in_range(folder, shards, low, high) for low, high in pairwise(bounds)]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *duplicates]))


def write_drop_list(folder: Path, duplicates: NDArray[np.int64]) -> DropList:
    """Write the numbers of the documents that are not used, and return the entry for the manifest."""
    data = duplicates.astype("<i8").tobytes()
    with atomic_file(folder / DROP_LIST) as stream:
        stream.write(data)
    return DropList(name=DROP_LIST, documents=len(duplicates), sha256=hashlib.sha256(data).hexdigest())


def read_drop_list(folder: Path, listed: DropList) -> NDArray[np.int64]:
    """Read the file of `write_drop_list`. Raises InputError where it was changed."""
    path = folder / listed.name
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != listed.sha256:
        raise InputError(f"{path}: was changed after it was written; put it back or build the corpus again")
    return np.frombuffer(data, "<i8").astype(np.int64)


def _duplicates_in_range(folder: Path, shards: Sequence[ShardEntry], low: int, high: int) -> NDArray[np.int64]:
    """Return the duplicates among documents whose hash begins with 16 bits in low … high-1."""
    seen: Hashes = np.zeros(0, f"S{HASH_BYTES}")
    duplicates = []
    before = 0
    for entry in shards:
        hashes = read_hashes(folder / entry.hashes, entry.documents)
        for begin in range(0, entry.documents, _AT_ONCE):
            part = np.asarray(hashes[begin : begin + _AT_ONCE])
            leading = part.view(">u2").reshape(-1, HASH_BYTES // 2)[:, 0]
            rows = np.flatnonzero((leading >= low) & (leading < high))
            unique, first = np.unique(part[rows], return_index=True)
            is_new = ~np.isin(unique, seen, assume_unique=True)
            used = np.zeros(len(rows), np.bool_)
            used[first[is_new]] = True
            duplicates.append(before + begin + rows[~used])
            seen = np.concatenate([seen, unique[is_new]])
        before += entry.documents
    return np.concatenate([np.zeros(0, np.int64), *duplicates])


def read_hashes(path: Path, documents: int) -> Hashes:
    """Return the hashes of the documents of a shard from its sidecar. Raises InputError where it is damaged."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: the hashes of a shard cannot be read: {error.strerror}") from None
    if size != HASH_BYTES * documents:
        raise InputError(f"{path}: expected {HASH_BYTES} bytes for each of {documents:,} documents, got {size:,} bytes")
    return np.memmap(path, f"S{HASH_BYTES}", "r") if documents else np.zeros(0, f"S{HASH_BYTES}")
