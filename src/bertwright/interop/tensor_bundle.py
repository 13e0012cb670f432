"""a checkpoint in TensorFlow's second format ("tensor bundle") → arrays by name, without TensorFlow.

PREFIX.index is a sorted table. The empty key holds the number of data files. The name of each variable holds the data
file (PREFIX.data-00000-of-00001 and so on), the bytes of its values and their checksum. Both records are protocol
buffers; this file reads only the fields that it needs.

Values are read and checked when they are needed, so that those of an optimiser are never read. A caller gets the bytes
that were checked, never a view of a file that may change.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertwright.errors import InputError
from bertwright.interop.sorted_table import is_table, masked_crc32c, read_sorted_table, varint

_TYPES = (
    "float32 float64 int32 uint8 int16 int8 string complex64 int64 bool qint8 quint8 qint32 bfloat16 qint16 quint16 "
    "uint16 complex128 float16 resource variant uint32 uint64"
).split()
"""Names of TensorFlow's types; the first one has the number 1."""
_NUMPY_TYPES = {
    "float32": "<f4",
    "float64": "<f8",
    "int32": "<i4",
    "int64": "<i8",
    "bfloat16": "<u2",
    "float16": "<f2",
}
"""Name of a type → numpy type of its bytes; other types are not read."""
_MOST_DIMENSIONS = 8
_VERSION = 1  # newest version of the format that this reader knows
_PART_OF_A_VARIABLE = b"\0"  # first byte of the keys of partitioned variables' slices; no name begins with it
_BYTES, _WIDTHS = 2, {1: 8, 5: 4}  # wire types of protocol buffers; 0 is a varint


@dataclass(frozen=True)
class Entry:
    """Position of a variable's values: `size` bytes from `offset` of data file number `shard`.

    `kind` is TensorFlow's number of the type. `checksum` is the masked CRC-32C of the bytes. `partitioned` is True for
    a variable that was saved in parts; then only kind and shape are valid.
    """

    kind: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    partitioned: bool

    @property
    def type_name(self) -> str:
        """TensorFlow's name of the type."""
        return _TYPES[self.kind - 1] if 0 < self.kind <= len(_TYPES) else f"number {self.kind}"


@dataclass(frozen=True)
class Bundle:
    """A checkpoint whose index was read: `entries` by name of the variable, in the order of the names."""

    prefix: Path
    num_shards: int
    entries: Mapping[str, Entry]

    def data_file(self, shard: int) -> Path:
        """Return the path of the data file with the number `shard`."""
        return self.prefix.with_name(f"{self.prefix.name}.data-{shard:05d}-of-{self.num_shards:05d}")

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return the checked values of a variable, in its shape and type; bfloat16 becomes float32.

        Raises InputError for a name that is not in `entries`, a type that is not read, a variable saved in parts, and
        bytes that are missing or have a wrong checksum.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise InputError(f"{self.prefix}: holds no variable {name!r}")
        if entry.partitioned:
            raise InputError(f"{self.prefix}: {name} was saved in parts, which cannot be read; save it as one variable")
        if entry.type_name not in _NUMPY_TYPES:
            allowed = ", ".join(_NUMPY_TYPES)
            raise InputError(f"{self.prefix}: {name} is of type {entry.type_name}; allowed are {allowed}")
        stored = np.dtype(_NUMPY_TYPES[entry.type_name])
        if entry.size != math.prod(entry.shape) * stored.itemsize:
            raise InputError(
                f"{self.prefix}: {name} has {entry.size} bytes, but its shape {entry.shape} and type "
                f"{entry.type_name} need {math.prod(entry.shape) * stored.itemsize}; the index is damaged"
            )
        raw = self._bytes(name, entry)
        if entry.type_name == "bfloat16":  # the upper half of a float32
            return (raw.view(stored).astype("<u4") << 16).view("<f4").reshape(entry.shape)
        return raw.view(stored).reshape(entry.shape)

    def _bytes(self, name: str, entry: Entry) -> npt.NDArray[np.uint8]:
        path = self.data_file(entry.shard)
        where = f"{path}: {name} (bytes {entry.offset} to {entry.offset + entry.size})"
        try:
            raw = np.fromfile(path, np.uint8, entry.size, offset=entry.offset)
        except OSError as error:
            raise InputError(f"{where} cannot be read: {error.strerror}") from None
        if raw.size < entry.size:
            raise InputError(f"{where} is not complete: the file is cut off")
        computed = masked_crc32c(raw)
        if computed != entry.checksum:
            raise InputError(
                f"{where} has the checksum {computed:08x}, but {entry.checksum:08x} is stored; the file is damaged"
            )
        return raw


def open_bundle(prefix: Path) -> Bundle:
    """Read PREFIX.index and check the sizes of the data files. No values are read.

    Raises InputError for an index that is missing, cut off or damaged, or was written on a big-endian machine or by a
    newer format, for data files that are missing or too short, and for checkpoints of the first format.
    """
    index = index_file(prefix)
    if not index.is_file():
        if prefix.is_file() and is_table(prefix):
            raise InputError(
                f"{prefix}: a checkpoint of TensorFlow's first format (one file, no .index), which cannot be read; "
                "restore it with TensorFlow and save it again with tf.compat.v1.train.Saver()"
            )
        raise InputError(f"{index}: there is no such file; name the checkpoint without .index or .data-…")
    records = dict(read_sorted_table(index))
    try:
        if b"" not in records:
            raise ValueError("has no header under the empty key; it is not the index of a checkpoint")
        num_shards = _num_shards(records.pop(b""))
        entries = {
            _name(key): _entry(key, value) for key, value in records.items() if not key.startswith(_PART_OF_A_VARIABLE)
        }
    except ValueError as error:
        raise InputError(f"{index}: {error}") from None
    bundle = Bundle(prefix, num_shards, entries)
    _check_data_files(bundle)
    return bundle


def index_file(prefix: Path) -> Path:
    """Return the path of a checkpoint's index."""
    return prefix.with_name(f"{prefix.name}.index")


def _check_data_files(bundle: Bundle) -> None:
    entries = {name: entry for name, entry in bundle.entries.items() if not entry.partitioned}
    used = sorted({entry.shard for entry in entries.values()})
    if used and used[-1] >= bundle.num_shards:
        raise InputError(f"{bundle.prefix}.index: names data file {used[-1]}, but there are {bundle.num_shards}")
    paths = {shard: bundle.data_file(shard) for shard in used}
    if missing := [path.name for path in paths.values() if not path.is_file()]:
        raise InputError(
            f"{bundle.prefix}: of its {bundle.num_shards} data files {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not beside the index"
        )
    sizes = {shard: path.stat().st_size for shard, path in paths.items()}
    for name, entry in entries.items():
        if entry.offset + entry.size > sizes[entry.shard]:
            raise InputError(
                f"{paths[entry.shard]}: {name} is at bytes {entry.offset} to {entry.offset + entry.size}, "
                f"but the file has {sizes[entry.shard]}; it is cut off"
            )


def _num_shards(header: bytes) -> int:
    """Return the number of data files. Raises ValueError where this reader cannot understand their values."""
    numbers, parts = _message(header, numbers=(1, 2), parts=(3,))
    if numbers[2] != 0:
        raise ValueError("written on a big-endian machine; only little-endian checkpoints are read")
    for version in parts[3]:
        needed, _ = _message(version, numbers=(1, 2))
        if needed[2] > _VERSION:
            raise ValueError(f"needs a reader of format {needed[2]}; formats up to {_VERSION} are read")
    return numbers[1]


def _name(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the name {key!r} is not UTF-8") from None


def _entry(key: bytes, value: bytes) -> Entry:
    try:
        numbers, parts = _message(value, numbers=(1, 3, 4, 5, 6), parts=(2, 7))
        shape = tuple(size for part in parts[2] for size in _shape(part))
        if len(shape) > _MOST_DIMENSIONS or max(shape, default=0) >= 2**63:
            raise ValueError(f"its {len(shape)} dimensions are too many or too large")
    except ValueError as error:
        raise ValueError(f"the entry of {_name(key)} cannot be read: {error}") from None
    kind, shard, offset, size, checksum = (numbers[field] for field in (1, 3, 4, 5, 6))
    return Entry(kind, shape, shard, offset, size, checksum, bool(parts[7]))


def _shape(data: bytes) -> list[int]:
    unknown, parts = _message(data, numbers=(3,), parts=(2,))
    if unknown[3]:
        raise ValueError("its number of dimensions is unknown")
    return [_message(part, numbers=(1,), parts=(2,))[0][1] for part in parts[2]]


def _message(
    data: bytes, *, numbers: tuple[int, ...], parts: tuple[int, ...] = ()
) -> tuple[dict[int, int], dict[int, list[bytes]]]:
    """Return the fields of a protocol buffer by number: whole numbers (0 where absent), and lists of byte strings.

    numbers, parts: the fields of each kind that are expected. Raises ValueError for any other field.
    """
    whole = dict.fromkeys(numbers, 0)
    strings: dict[int, list[bytes]] = {field: [] for field in parts}
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        field, kind = divmod(tag, 8)
        if kind == _BYTES and field in strings:
            size, at = varint(data, at)
            strings[field].append(data[at : at + size])
        elif kind in _WIDTHS and field in whole:
            size = _WIDTHS[kind]
            whole[field] = int.from_bytes(data[at : at + size], "little")
        elif kind == 0 and field in whole:
            size = 0
            whole[field], at = varint(data, at)
        else:
            raise ValueError(f"field {field} of wire type {kind} is unknown")
        at += size
        if at > len(data):
            raise ValueError(f"field {field} is cut off")
    return whole, strings
