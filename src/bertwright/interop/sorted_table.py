"""bytes of a file → keys with their values: LevelDB's sorted table, the format of TensorFlow's indexes.

A table consists of data blocks, a block about the table ("meta index"), a block with the positions of the data blocks
("index"), and a footer of 48 bytes. The footer holds the positions of the last two blocks, zeros and a magic number.
After every block stand one byte that names its compression and the masked CRC-32C of block and byte.

A block holds entries in the order of their keys, then the positions of the entries with a complete key, and their
number. An entry is three varints (bytes shared with the previous key, further bytes of the key, bytes of the value),
then the key without its shared bytes, then the value.

The checksum is CRC-32C (polynomial 1EDC6F41, bits reflected). Eight tables of remainders process eight bytes in a
step. numba, a core dependency, compiles that to more than a gigabyte a second. So checksums of a large checkpoint cost
less than reading it, and no other package is needed.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bertwright.errors import InputError
from bertwright.jit import compiled

_POLYNOMIAL = np.uint32(0x82F63B78)  # 1EDC6F41 with its bits in reverse
_ALL = np.uint32(0xFFFFFFFF)
_8, _16, _24 = np.uint32(8), np.uint32(16), np.uint32(24)


def crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """Return the CRC-32C of `data`, 0 to 2**32 - 1. A contiguous array of bytes is not copied."""
    array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.view()
    array.flags.writeable = False  # the same type for both, so that numba compiles one function
    return int(_crc_after(_ALL, array, _TABLES) ^ _ALL)


def masked_crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """Return the CRC-32C as TensorFlow stores it: rotated by 15 bits, plus a constant.

    The mask keeps the checksum useful for bytes that hold checksums themselves.
    """
    plain = crc32c(data)
    return ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _tables() -> npt.NDArray[np.uint32]:
    """Return tables [k, byte] with the remainder of a byte before k zero bytes."""
    tables = np.empty((8, 256), np.uint32)
    tables[0] = np.arange(256)
    for _ in range(8):
        tables[0] = tables[0] >> 1 ^ _POLYNOMIAL * (tables[0] & 1)
    for before, after in pairwise(tables):
        after[:] = tables[0][before & 255] ^ before >> 8
    return tables


_TABLES = _tables()


@compiled
def _crc_after(state: np.uint32, data: npt.NDArray[np.uint8], tables: npt.NDArray[np.uint32]) -> np.uint32:
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
_TRAILER = 5  # bytes after every block: compression and checksum
_MOST_BYTES = 100_000_000  # of an index, and of its keys and values; a BERT with its optimiser has 100 kB
_LONGEST_KEY = 4_096
_MOST_COMPRESSION = 32  # snappy's longest copy, 64 bytes, takes 3 bytes; no snappy block compresses better


def is_table(path: Path) -> bool:
    """Return whether the file ends with the magic number of a sorted table."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - len(_MAGIC)))
        return stream.read() == _MAGIC


def read_sorted_table(path: Path) -> list[tuple[bytes, bytes]]:
    """Return all keys and values in the order of the keys. Every checksum is verified.

    Raises InputError with the position where the file is cut off, damaged, or compressed with an unknown method, and
    for a file that is no sorted table.
    """
    with path.open("rb") as stream:
        raw = stream.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise InputError(f"{path}: over {_MOST_BYTES // 10**6} MB, too large for the index of a checkpoint")
    if len(raw) < _FOOTER:
        raise InputError(f"{path}: {len(raw)} bytes are too few for the index of a checkpoint; the file is cut off")
    if not raw.endswith(_MAGIC):
        raise InputError(
            f"{path}: does not end as the index of a checkpoint does (its last 8 bytes are {raw[-8:].hex()}, "
            f"expected {_MAGIC.hex()}); the file is cut off or of another kind"
        )
    try:
        start = len(raw) - _FOOTER
        about_at, about_size, after = _block_position(raw, start)
        index_at, index_size, after = _block_position(raw, after)
        if any(raw[after : -len(_MAGIC)]):
            raise ValueError(f"its footer (bytes {start} to {len(raw)}) is damaged")
        _entries(_block(raw, "meta index block", at=about_at, size=about_size))
        entries: list[tuple[bytes, bytes]] = []
        block_bytes = key_bytes = 0
        for _, handle in _entries(_block(raw, "index block", at=index_at, size=index_size)):
            at, size, _ = _block_position(handle, 0)
            block_bytes += size  # a damaged index may name a block a million times
            if block_bytes > len(raw):
                raise ValueError(f"its data blocks have over {len(raw)} bytes together, more than the file")
            known = max(0, len(entries) - 1)
            entries += _entries(_block(raw, "data block", at=at, size=size))
            key_bytes += sum(len(key) for key, _ in entries[known:])
            if key_bytes > _MOST_BYTES:
                raise ValueError(f"its keys have over {_MOST_BYTES // 10**6} MB, too much for names of variables")
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    for (before, _), (key, _) in pairwise(entries):
        if key <= before:
            raise InputError(f"{path}: the key {key!r} follows {before!r}; the keys of an index must ascend")
    return entries


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of up to 64 bits, 7 in each byte, lowest first, and the position after it.

    Raises ValueError where the number is cut off or too large.
    """
    value = 0
    for index, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * index
        if byte < 128:
            if value >> 64:
                break
            return value, at + index + 1
    raise ValueError(f"no complete number at byte {at} of {len(data)}")


def _block_position(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the beginning of a block, its size, and the position after these two numbers."""
    begin, at = varint(data, at)
    size, at = varint(data, at)
    return begin, size, at


def _block(raw: bytes, what: str, *, at: int, size: int) -> bytes:
    """Return the uncompressed bytes of a block. Raises ValueError where the block is not complete."""
    where = f"its {what} (bytes {at} to {at + size})"
    if at + size + _TRAILER > len(raw) - _FOOTER:
        raise ValueError(f"{where} reaches past its {len(raw)} bytes; the file is cut off or damaged")
    trailer = raw[at + size : at + size + _TRAILER]
    stored, computed = int.from_bytes(trailer[1:], "little"), masked_crc32c(raw[at : at + size + 1])
    if stored != computed:
        raise ValueError(f"{where} has the checksum {computed:08x}, but {stored:08x} is stored; the file is damaged")
    data = raw[at : at + size]
    match trailer[0]:
        case 0:
            return data
        case 1:
            return _uncompressed(data, where)
        case other:
            raise ValueError(f"{where} is compressed by method {other}; those read are 0 (none) and 1 (snappy)")


def _uncompressed(data: bytes, where: str) -> bytes:
    size, _ = varint(data, 0)
    if size > min(_MOST_COMPRESSION * len(data), _MOST_BYTES):
        raise ValueError(f"{where} is no snappy block: {len(data)} bytes cannot hold {size}")
    try:
        return bytes(pa.Codec("snappy").decompress(data, decompressed_size=size))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{where} is no snappy block: {error}") from None


def _entries(block: bytes) -> list[tuple[bytes, bytes]]:
    """Return keys and values of a block. Raises ValueError where an entry is not complete."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    if len(block) < 4 or end < 0:
        raise ValueError(f"one of its blocks has {len(block)} bytes, too few for the positions of {restarts} keys")
    entries: list[tuple[bytes, bytes]] = []
    key, at, total = b"", 0, 0
    while at < end:
        shared, at = varint(block, at)
        further, at = varint(block, at)
        size, at = varint(block, at)
        if shared > len(key) or at + further + size > end:
            raise ValueError(f"an entry after the key {key!r} reaches past its block")
        key = key[:shared] + block[at : at + further]
        at += further
        total += len(key)
        if len(key) > _LONGEST_KEY or total > _MOST_BYTES:
            raise ValueError(f"keys of {len(key):,} bytes, {total:,} in one block, too long for names of variables")
        entries.append((key, block[at : at + size]))
        at += size
    return entries
