"""bytes of a foreign file → what its pickle would call, found without calling it: only what makes plain tensors.

torch's `weights_only` runs no code of a file, but allows calls that fill the memory (a bytearray of any length, a
tensor of any size over one number), and unpacks whatever an archive holds. What torch.save writes needs none of it.
"""

import io
import pickletools
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from torch import Tensor

from bertwright.errors import InputError, shown

_CALLED = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    "torch.serialization _get_layout",
    "torch Size",
    "torch device",
}
_CALLING = {"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4", "NEWOBJ", "NEWOBJ_EX"}
_MOST_PICKLE = 10_000_000  # bytes of names and shapes; those of a BERT are 50 kB
_OLD_PICKLES = 5  # of a file before torch 1.6: magic number, protocol, machine, state dict, names of storages
_END = b"PK\x05\x06"
_END_BYTES = 22


def is_zip(path: Path) -> bool:
    """Whether torch wrote the file as it does since 1.6; only such a file can be mapped into memory."""
    with path.open("rb") as stream:
        return stream.read(2) == b"PK"


def check_pickle(path: Path) -> None:
    """InputError for a file that would call more than plain tensors need, or unpack to more than itself."""
    try:
        if not is_zip(path):
            with path.open("rb") as stream:
                begin = io.BytesIO(stream.read(_MOST_PICKLE))  # a file would take the memory that a length claims
            for _ in range(_OLD_PICKLES):
                _check_calls(begin, path)
            return
        with path.open("rb") as stream:
            stream.seek(-_END_BYTES, 2)
            if stream.read(len(_END)) != _END:  # so that every reader finds the same list of contents
                raise InputError(f"{path}: broken or truncated: the archive does not end as those that torch writes")
        with zipfile.ZipFile(path) as archive:
            _check_archive(archive, path)
            for name in archive.namelist():
                if name.endswith(".pkl"):
                    _check_calls(io.BytesIO(archive.read(name)), path)
    except (OSError, EOFError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: broken or truncated, or not a file of torch's: {error}") from None


def check_held(found: Mapping[str, Tensor], path: Path) -> None:
    """InputError for tensors that are larger than what the file holds for them, or together far larger than it."""
    total = 0
    for name, tensor in found.items():
        size = tensor.numel() * tensor.element_size()
        total += size
        if size > tensor.untyped_storage().nbytes() or total > 4 * path.stat().st_size:
            raise InputError(
                f"{path}: {name} has the shape {tuple(tensor.shape)}, for which the file holds too few numbers; refused"
            )


def _check_archive(archive: zipfile.ZipFile, path: Path) -> None:
    entries = archive.infolist()
    if len({entry.filename for entry in entries}) < len(entries):
        raise InputError(f"{path}: the archive holds two files of one name; refused")
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise InputError(f"{path}: {entry.filename!r} in it is compressed, which torch never does; refused")
        if entry.flag_bits & 1:
            raise InputError(f"{path}: {entry.filename!r} in it is encrypted, which torch never does; refused")
        if entry.filename.endswith(".pkl") and entry.file_size > _MOST_PICKLE:
            raise InputError(
                f"{path}: {entry.filename!r} in it has {entry.file_size:,} bytes; names and shapes have at most "
                f"{_MOST_PICKLE:,}"
            )
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise InputError(f"{path}: the files in it are larger than it is; refused")


def _check_calls(stream: IO[bytes], path: Path) -> None:
    """Go through one pickle, opcode by opcode, up to its end."""
    for opcode, value, _ in pickletools.genops(stream):
        is_storage = isinstance(value, str) and value.startswith("torch ") and value.endswith("Storage")
        if opcode.name in _CALLING and not (opcode.name == "GLOBAL" and (is_storage or value in _CALLED)):
            raise InputError(
                f"{path}: holds more than tensors, so it is not opened (it could run code; weights_only): "
                f"{opcode.name} {shown(value or '')}"
            )
