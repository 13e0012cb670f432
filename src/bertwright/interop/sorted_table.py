"""bytes of a foreign file → keys with their values: the sorted table of LevelDB, in which TensorFlow keeps its indexes.

A table is data blocks, a block about the table ("meta index"), a block of where the data blocks lie ("index"), and a
footer of 48 bytes: where those two blocks lie, zeros, a magic number. Behind every block stand one byte that names its
compression and the masked CRC-32C of block and byte.

A block is entries in the order of their keys, then the places of entries whose key is spelled out, and their number.
An entry is three varints (bytes shared with the key before, further bytes of the key, bytes of the value), then the key
without its shared beginning, then the value.
"""

from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from bertwright.errors import InputError
from bertwright.interop.crc32c import masked_crc32c

_MAGIC = bytes.fromhex("57fb808b247547db")
_FOOTER = 48
_TRAILER = 5  # behind every block: compression and checksum
_MOST_BYTES = 100_000_000  # of an index, and of all its keys and values; those of a BERT with its optimiser are 100 kB
_LONGEST_KEY = 4_096
_MOST_SHRINKAGE = 32  # snappy's longest copy, 64 bytes, takes 3; a claim of more is none of a snappy block


def is_table(path: Path) -> bool:
    """Whether the file ends as a sorted table does."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - len(_MAGIC)))
        return stream.read() == _MAGIC


def read_table(path: Path) -> list[tuple[bytes, bytes]]:
    """All keys and values in the order of the keys, every checksum verified.

    Raises InputError, with the place, where the file is cut off, damaged, compressed otherwise, or no such table.
    """
    with path.open("rb") as stream:
        raw = stream.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise InputError(f"{path}: over {_MOST_BYTES // 10**6} MB, which no index of a checkpoint has")
    if len(raw) < _FOOTER:
        raise InputError(f"{path}: {len(raw)} bytes are too few for the index of a checkpoint; the file is cut off")
    if not raw.endswith(_MAGIC):
        raise InputError(
            f"{path}: does not end as the index of a checkpoint does (its last 8 bytes are {raw[-8:].hex()}, "
            f"expected {_MAGIC.hex()}); the file is cut off or of another kind"
        )
    try:
        start = len(raw) - _FOOTER
        about_at, about_size, after = _handle(raw, start)
        index_at, index_size, after = _handle(raw, after)
        if any(raw[after : -len(_MAGIC)]):
            raise ValueError(f"its footer (bytes {start} to {len(raw)}) is damaged")
        _entries(_block(raw, "meta index block", at=about_at, size=about_size))
        found: list[tuple[bytes, bytes]] = []
        read = held = 0
        for _, place in _entries(_block(raw, "index block", at=index_at, size=index_size)):
            at, size, _ = _handle(place, 0)
            read += size  # a block may be named a million times
            if read > len(raw):
                raise ValueError(f"its data blocks have over {len(raw)} bytes together, more than the file")
            known = max(0, len(found) - 1)
            found += _entries(_block(raw, "data block", at=at, size=size))
            held += sum(len(key) for key, _ in found[known:])
            if held > _MOST_BYTES:
                raise ValueError(f"its keys have over {_MOST_BYTES // 10**6} MB; no variables' names are as long")
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    for (before, _), (key, _) in pairwise(found):
        if key <= before:
            raise InputError(f"{path}: the key {key!r} follows {before!r}; the keys of an index ascend")
    return found


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of up to 64 bits, 7 in each byte, lowest first, and the place behind it; ValueError where it breaks."""
    value = 0
    for index, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * index
        if byte < 128:
            if value >> 64:
                break
            return value, at + index + 1
    raise ValueError(f"byte {at} of {len(data)} begins no whole number")


def _handle(data: bytes, at: int) -> tuple[int, int, int]:
    """Where a block begins, its size, and the place behind the two numbers."""
    begin, at = varint(data, at)
    size, at = varint(data, at)
    return begin, size, at


def _block(raw: bytes, what: str, *, at: int, size: int) -> bytes:
    """The bytes of a block, unpacked; ValueError where it is not whole."""
    place = f"its {what} (bytes {at} to {at + size})"
    if at + size + _TRAILER > len(raw) - _FOOTER:
        raise ValueError(f"{place} reaches past its {len(raw)} bytes; the file is cut off or damaged")
    trailer = raw[at + size : at + size + _TRAILER]
    stored, computed = int.from_bytes(trailer[1:], "little"), masked_crc32c(raw[at : at + size + 1])
    if stored != computed:
        raise ValueError(f"{place} has the checksum {computed:08x}, but {stored:08x} is stored; the file is damaged")
    data = raw[at : at + size]
    match trailer[0]:
        case 0:
            return data
        case 1:
            return _unpacked(data, place)
        case other:
            raise ValueError(f"{place} is compressed by method {other}; those read are 0 (none) and 1 (snappy)")


def _unpacked(data: bytes, place: str) -> bytes:
    size, _ = varint(data, 0)
    if size > min(_MOST_SHRINKAGE * len(data), _MOST_BYTES):
        raise ValueError(f"{place} is no snappy block: {len(data)} bytes cannot hold {size}")
    try:
        return bytes(pa.Codec("snappy").decompress(data, decompressed_size=size))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{place} is no snappy block: {error}") from None


def _entries(block: bytes) -> list[tuple[bytes, bytes]]:
    """Keys and values of a block; ValueError where an entry is not whole."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    if len(block) < 4 or end < 0:
        raise ValueError(f"one of its blocks has {len(block)} bytes, too few for its {restarts} places of keys")
    found: list[tuple[bytes, bytes]] = []
    key, at, total = b"", 0, 0
    while at < end:
        shared, at = varint(block, at)
        further, at = varint(block, at)
        size, at = varint(block, at)
        if shared > len(key) or at + further + size > end:
            raise ValueError(f"an entry behind the key {key!r} reaches past its block")
        key = key[:shared] + block[at : at + further]
        at += further
        total += len(key)
        if len(key) > _LONGEST_KEY or total > _MOST_BYTES:
            raise ValueError(f"keys of {len(key):,} bytes, {total:,} in one block; no variable's name is as long")
        found.append((key, block[at : at + size]))
        at += size
    return found
