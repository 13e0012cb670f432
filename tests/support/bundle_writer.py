"""Checkpoints of TensorFlow's second format as its own writer would not make them: small blocks, snappy, mistakes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bertwright.interop.sorted_table import masked_crc32c

MAGIC = bytes.fromhex("57fb808b247547db")
KINDS = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}
HEADER = b"\x08\x01\x1a\x02\x08\x01"  # one data file, version {producer 1}
Records = Sequence[tuple[bytes, bytes]]


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value) if value else b""


def part(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def entry(
    kind: int, shape: Sequence[int], *, offset: int = 0, size: int = 0, checksum: int = 0, shard: int = 0
) -> bytes:
    sizes = b"".join(part(2, number(1, width)) for width in shape)
    stored = varint(6 << 3 | 5) + checksum.to_bytes(4, "little")
    return number(1, kind) + part(2, sizes) + number(3, shard) + number(4, offset) + number(5, size) + stored


def block(records: Records, every: int = 16) -> bytes:
    """Keys share their beginnings, except every sixteenth."""
    encoded, places, before = bytearray(), [], b""
    for index, (key, value) in enumerate(records):
        shared = 0
        if index % every == 0:
            places.append(len(encoded))
        else:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        encoded += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    places = places or [0]
    return bytes(encoded) + b"".join(offset.to_bytes(4, "little") for offset in (*places, len(places)))


def with_trailer(data: bytes, compression: int = 0) -> bytes:
    if compression == 1:
        data = bytes(pa.Codec("snappy").compress(data))
    whole = data + bytes([compression])
    return whole + masked_crc32c(whole).to_bytes(4, "little")


def table(blocks: Sequence[bytes], keys: Sequence[bytes]) -> bytes:
    """A table of finished data blocks; `keys` are those that the index gives for them."""
    written, places = b"", []
    for data in blocks:
        places.append(varint(len(written)) + varint(len(data) - 5))
        written += data
    footer = b""
    for data in (with_trailer(block([])), with_trailer(block(list(zip(keys, places, strict=True)), 1))):
        footer += varint(len(written)) + varint(len(data) - 5)
        written += data
    return written + footer.ljust(40, b"\0") + MAGIC


def write_index(path: Path, records: Records, *, most: int = 1000, compression: int = 0) -> None:
    """Records as they come, `most` in a block."""
    groups = [records[start : start + most] for start in range(0, len(records), most)]
    blocks = [with_trailer(block(group), compression) for group in groups]
    path.write_bytes(table(blocks, [group[-1][0] for group in groups]))


def write_bundle(prefix: Path, arrays: Mapping[str, npt.NDArray[Any]], **options: Any) -> None:
    """Write a data file and its index."""
    data, records = b"", [(b"", HEADER)]
    for name in sorted(arrays, key=str.encode):
        raw = np.ascontiguousarray(arrays[name]).tobytes()
        kind, checksum = KINDS[str(arrays[name].dtype)], masked_crc32c(raw)
        record = entry(kind, arrays[name].shape, offset=len(data), size=len(raw), checksum=checksum)
        records.append((name.encode(), record))
        data += raw
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(data)
    write_index(prefix.with_name(f"{prefix.name}.index"), records, **options)
