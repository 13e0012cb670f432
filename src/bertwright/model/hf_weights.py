"""parameters ↔ tensors of a model folder: under the names of transformers, or under our own names."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bertwright.errors import InputError
from bertwright.model.config import BackboneConfig
from bertwright.model.families import ModelDescription, TransformersFamily, family_of
from bertwright.model.hf_config import stored_family

_FOREIGN_FILES = (
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "tf_model.h5",
    "flax_model.msgpack",
    "bert_config.json",
    "*.ckpt.index",
)
"""Files of weights in other formats; `bertwright import` reads some of them."""
_WRAPPERS = ("module.", "_orig_mod.", "model.")
"""Prefixes that DataParallel, torch.compile and a module with the model as its only part add to every name."""
_QKV = ("query", "key", "value")


def stored_names(weights: Mapping[str, Tensor], config: BackboneConfig, architecture: str) -> dict[str, Tensor]:
    """Return weights under the names by which a model folder stores them; `weights` have our names."""
    family = family_of(config)
    if isinstance(family, TransformersFamily) and family.is_standard(config, architecture):
        return family.weights_to_foreign(weights, architecture)
    return dict(weights)


def named_weights(tensors: Mapping[str, Tensor], description: ModelDescription, source: str) -> dict[str, Tensor]:
    """Return the tensors of a model folder under our names, in fp32; InputError for tensors that do not belong."""
    family = stored_family(description.raw, source)
    if family is not None:
        tied = description.raw.get("tie_word_embeddings") is not False
        return family.weights_from_foreign(tensors, source, tied=tied, architecture=description.architecture)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise InputError(f"{source}: {name} is {tensor.dtype}; weights are floating-point numbers")
    return {name: tensor.float() for name, tensor in tensors.items()}


def name_in_file(name: str, config: BackboneConfig, architecture: str, stored: Collection[str] = ()) -> str:
    """Return the name of a parameter in the file of a model folder, for messages; see `Family.name_in_file`."""
    family = family_of(config)
    if isinstance(family, TransformersFamily) and family.is_standard(config, architecture):
        return family.name_in_file(name, stored, architecture)
    return name


def wrapper_prefix(names: Collection[str]) -> str:
    """Return the prefix that wrappers of a model added to all names; empty where there is none."""
    prefix = ""
    while names:
        wrapped = [wrapper for wrapper in _WRAPPERS if all(name.startswith(prefix + wrapper) for name in names)]
        if not wrapped:
            break
        prefix += wrapped[0]
    return prefix


def our_names(
    tensors: Mapping[str, Tensor],
    tables: Sequence[Mapping[str, str]],
    *,
    kind: str,
    source: str,
    in_file: Mapping[str, str] | None = None,
) -> dict[str, Tensor]:
    """Return stored tensors under our names; `tables` map our modules to stored modules.

    in_file: name of a tensor → its name in the file, which may be older or have a prefix; None: the same names.
    Raises InputError with the names of tensors that do not belong to a model of this kind.
    """
    back = {module_of(f"{stored}.weight"): ours for table in tables for ours, stored in table.items()}
    if strange := [(in_file or {}).get(name, name) for name in tensors if module_of(name) not in back]:
        names = ", ".join(strange[:4]) + ", …" * (len(strange) > 4)
        raise InputError(f"{source}: {len(strange)} of {len(tensors)} tensors do not belong to a {kind}: {names}")
    return {rename(name, back): tensor for name, tensor in tensors.items()}


def without_tied_output(
    tensors: Mapping[str, Tensor], output: str, tied_to: str, *, source: str, in_file: Mapping[str, str] | None = None
) -> dict[str, Tensor]:
    """Return the tensors without `output`, which repeats the tensor `tied_to` or is stored in its place.

    in_file: as in `our_names`. Raises InputError where the two differ.
    """
    rest = {name: tensor for name, tensor in tensors.items() if name != output}
    if output in tensors and tied_to not in tensors:
        rest[tied_to] = tensors[output]
    elif output in tensors and not torch.equal(tensors[output], tensors[tied_to]):
        first, second = ((in_file or {}).get(name, name) for name in (output, tied_to))
        raise InputError(f"{source}: {first} is not {second}; only models that tie the two can be read")
    return rest


def split_qkv(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights in which each `attention.qkv` is split into `attention.query`, `.key` and `.value`."""
    split: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if ".attention.qkv." in name:
            for part, piece in zip(_QKV, tensor.chunk(3), strict=True):
                split[name.replace(".qkv.", f".{part}.")] = piece
        else:
            split[name] = tensor
    return split


def fuse_qkv(weights: Mapping[str, Tensor], *, source: str, in_file: Callable[[str], str] = str) -> dict[str, Tensor]:
    """Return weights in which query, key and value are fused as `attention.qkv`; InputError where shapes differ.

    in_file: our name of a parameter → its name in the file.
    """
    fused = dict(weights)
    for name in [name for name in weights if ".attention.query." in name]:
        names = [name.replace(".query.", f".{part}.") for part in _QKV]
        shapes = {part: tuple(weights[part].shape) for part in names if part in weights}
        if len(shapes) < len(names) or len(set(shapes.values())) > 1 or not shapes[name]:
            listed = ", ".join(f"{in_file(part)} {shape}" for part, shape in shapes.items())
            raise InputError(f"{source}: expected query, key and value of the same shape, got {listed}")
        fused[name.replace(".query.", ".qkv.")] = torch.cat([fused.pop(part) for part in names])
    return fused


def num_parameters(weights: Mapping[str, Tensor]) -> int:
    """Return the number of parameters; a tensor under two names, such as a head that two tasks begin with, is one."""
    return sum({(tensor.data_ptr(), tensor.numel()): tensor.numel() for tensor in weights.values()}.values())


def module_of(name: str) -> str:
    """Return the module of a parameter: `a.3.b.weight` → `a.#.b`."""
    return re.sub(r"\.\d+\.", ".#.", name.rpartition(".")[0])


def rename(name: str, table: Mapping[str, str]) -> str:
    """Return a parameter's name with its module renamed: `a.3.b.weight` → `c.3.d.weight` for `a.#.b` → `c.#.d`."""
    layer = re.search(r"\.(\d+)\.", name)
    renamed = f"{table[module_of(name)]}.{name.rpartition('.')[2]}"
    return renamed.replace("#", layer[1]) if layer else renamed


def stored_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a model folder by their stored names; InputError where there is no file of weights."""
    path = folder / "model.safetensors"
    if not path.is_file():
        hint = foreign_hint(folder)
        raise InputError(f"{path}: there is no such file; a model folder holds its weights there{hint}")
    return read_safetensors(path)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by their stored names; InputError where it is broken or truncated.

    The library refuses a hostile header: one that is larger than the file, or whose offsets leave it or overlap.
    """
    try:
        with safe_open(path, framework="pt") as stored:
            return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(f"{path}: broken or truncated safetensors file: {error}") from None


def foreign_hint(folder: Path) -> str:
    """Return the end of a message that names a file in the folder that can be imported; empty where there is none."""
    files = [file.name for name in _FOREIGN_FILES for file in sorted(folder.glob(name))]
    if not files:
        return ""
    return f"; {files[0]} is of another format: make a model folder of it: bertwright import {folder} --out MODEL"
