"""Shards → which documents are used: exact duplicates, found through a hash of 128 bits for each document.

Each shard has a sidecar with the hashes of its documents. Of equal documents the first one of the corpus is used and
the others are listed in a file beside the manifest; no shard is written again. The hashes are gone through in ranges
that fit into memory, so neither the corpus' size nor how many of its documents are equal matters.
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

HASH_BYTES = 16

RANGE_DOCUMENTS = 4_000_000
"""About how many hashes are compared at a time; they and what sorting them takes come to some 250 MB."""

_AT_ONCE = 1_000_000  # hashes of a sidecar read at a time

Hashes = NDArray[np.bytes_]


def document_hashes(ids: NDArray[np.uint16] | NDArray[np.uint32], first: NDArray[np.int64]) -> bytes:
    """The hashes of D documents in a row; `first`: int64 [D + 1], where each begins in `ids`, then the last's end."""
    data, width = np.ascontiguousarray(ids).data.cast("B"), ids.itemsize
    bounds = (first * width).tolist()
    return b"".join(
        hashlib.blake2b(data[begin:end], digest_size=HASH_BYTES).digest() for begin, end in pairwise(bounds)
    )


def find_duplicates(folder: Path, shards: Sequence[ShardEntry]) -> NDArray[np.int64]:
    """The numbers of all documents that equal one before them: int64, ascending."""
    documents = sum(entry.documents for entry in shards)
    num_ranges = -(-documents // RANGE_DOCUMENTS)
    bounds = [(1 << 16) * n // num_ranges for n in range(num_ranges + 1)] if documents else [0]
    found = [_duplicates_in_range(folder, shards, low, high) for low, high in pairwise(bounds)]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *found]))


def write_drop_list(folder: Path, duplicates: NDArray[np.int64]) -> DropList:
    """Write the numbers of the documents that are not used."""
    data = duplicates.astype("<i8").tobytes()
    with atomic_file(folder / DROP_LIST) as stream:
        stream.write(data)
    return DropList(name=DROP_LIST, documents=len(duplicates), sha256=hashlib.sha256(data).hexdigest())


def read_drop_list(folder: Path, listed: DropList) -> NDArray[np.int64]:
    """Read what `write_drop_list` wrote; InputError where it was changed."""
    path = folder / listed.name
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != listed.sha256:
        raise InputError(f"{path}: was changed since it was written; put it back or build the corpus again")
    return np.frombuffer(data, "<i8").astype(np.int64)


def _duplicates_in_range(folder: Path, shards: Sequence[ShardEntry], low: int, high: int) -> NDArray[np.int64]:
    """Of the documents whose hash begins with 16 bits in low … high-1."""
    seen: Hashes = np.zeros(0, f"S{HASH_BYTES}")
    found = []
    before = 0
    for entry in shards:
        hashes = _sidecar(folder / entry.hashes, entry.documents)
        for begin in range(0, entry.documents, _AT_ONCE):
            part = np.asarray(hashes[begin : begin + _AT_ONCE])
            leading = part.view(">u2").reshape(-1, HASH_BYTES // 2)[:, 0]
            places = np.flatnonzero((leading >= low) & (leading < high))
            unique, first = np.unique(part[places], return_index=True)
            is_new = ~np.isin(unique, seen, assume_unique=True)
            used = np.zeros(len(places), np.bool_)
            used[first[is_new]] = True
            found.append(before + begin + places[~used])
            seen = np.concatenate([seen, unique[is_new]])
        before += entry.documents
    return np.concatenate([np.zeros(0, np.int64), *found])


def _sidecar(path: Path, documents: int) -> Hashes:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: the hashes of a shard cannot be read: {error.strerror}") from None
    if size != HASH_BYTES * documents:
        raise InputError(f"{path}: {size:,} bytes, expected {HASH_BYTES} for each of {documents:,} documents")
    return np.memmap(path, f"S{HASH_BYTES}", "r") if documents else np.zeros(0, f"S{HASH_BYTES}")
