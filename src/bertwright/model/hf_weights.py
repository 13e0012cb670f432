"""parameters ↔ tensors of a model folder: under the names of transformers, or under our own names."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from bertwright.errors import InputError
from bertwright.model.config import BackboneConfig
from bertwright.model.families import ModelDescription, family_of
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


def stored_names(weights: Mapping[str, Tensor], config: BackboneConfig, architecture: str) -> dict[str, Tensor]:
    """Return weights by our names under the names of the folder whose config.json is that of `describe_model`."""
    family = family_of(config)
    return family.weights_to_foreign(weights) if family.is_standard(config, architecture) else dict(weights)


def named_weights(tensors: Mapping[str, Tensor], description: ModelDescription, source: str) -> dict[str, Tensor]:
    """Return the tensors of a model folder under our names, in fp32; InputError for tensors that do not belong."""
    family = stored_family(description.raw)
    if family is not None:
        tied = description.raw.get("tie_word_embeddings") is not False
        return family.weights_from_foreign(tensors, source, tied=tied)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise InputError(f"{source}: {name} is {tensor.dtype}; weights are floating-point numbers")
    return {name: tensor.float() for name, tensor in tensors.items()}


def name_in_file(name: str, config: BackboneConfig, architecture: str, stored: Collection[str] = ()) -> str:
    """Return the name of a parameter in the file of a model folder, for messages; see `Family.name_in_file`."""
    family = family_of(config)
    return family.name_in_file(name, stored) if family.is_standard(config, architecture) else name


def wrapper_prefix(names: Collection[str]) -> str:
    """Return the prefix that wrappers of a model added to all names; empty where there is none."""
    prefix = ""
    while names:
        wrapped = [wrapper for wrapper in _WRAPPERS if all(name.startswith(prefix + wrapper) for name in names)]
        if not wrapped:
            break
        prefix += wrapped[0]
    return prefix


def check_names(stored: Mapping[str, str], table: Mapping[str, str], *, kind: str, source: str) -> None:
    """Raise InputError with the names of all tensors whose module is not in the table.

    stored: name of a parameter in its family's convention → its name in the file.
    """
    if strange := [in_file for name, in_file in stored.items() if module_of(name) not in table]:
        raise InputError(
            f"{source}: {len(strange)} of {len(stored)} tensors do not belong to a {kind}: {', '.join(strange)}"
        )


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
