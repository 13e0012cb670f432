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

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bertwright.errors import InputError
from bertwright.jit import compiled

# bytes of a foreign file → their CRC-32C (polynomial 1EDC6F41, bits reflected), the checksum in TensorFlow's files.
#
# Eight tables of remainders take eight bytes at a step. numba, which is a core dependency, compiles that to more than
# a gigabyte a second, so the checksums of a large checkpoint cost less than reading it and no other package is
# needed.

_POLYNOMIAL = np.uint32(0x82F63B78)  # 1EDC6F41 with its bits in reverse
_ALL = np.uint32(0xFFFFFFFF)
_8, _16, _24 = np.uint32(8), np.uint32(16), np.uint32(24)


def crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """The CRC-32C of `data`, 0 to 2**32 - 1; a contiguous array of bytes is not copied."""
    given = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.view()
    given.flags.writeable = False  # one kind of array, one compiled function
    return int(_extended(_ALL, given, _TABLES) ^ _ALL)


def masked_crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """The CRC-32C as TensorFlow stores it: rotated by 15 bits, plus a constant.

    So the checksum of bytes that hold checksums does not degenerate.
    """
    plain = crc32c(data)
    return ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _tables() -> npt.NDArray[np.uint32]:
    """`[k, byte]`: the remainder of a byte that k zero bytes follow."""
    tables = np.empty((8, 256), np.uint32)
    tables[0] = np.arange(256)
    for _ in range(8):
        tables[0] = tables[0] >> 1 ^ _POLYNOMIAL * (tables[0] & 1)
    for before, after in pairwise(tables):
        after[:] = tables[0][before & 255] ^ before >> 8
    return tables


_TABLES = _tables()


@compiled
def _extended(state: np.uint32, data: npt.NDArray[np.uint8], tables: npt.NDArray[np.uint32]) -> np.uint32:
    whole = data.size - data.size % 8
    for at in range(0, whole, 8):
        state = (
            tables[7, np.uint8(state) ^ data[at]]
            ^ tables[6, np.uint8(state >> _8) ^ data[at + 1]]
            ^ tables[5, np.uint8(state >> _16) ^ data[at + 2]]
            ^ tables[4, np.uint8(state >> _24) ^ data[at + 3]]
            ^ tables[3, data[at + 4]]
            ^ tables[2, data[at + 5]]
            ^ tables[1, data[at + 6]]
            ^ tables[0, data[at + 7]]
        )
    for at in range(whole, data.size):
        state = tables[0, np.uint8(state) ^ data[at]] ^ state >> _8
    return state


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
