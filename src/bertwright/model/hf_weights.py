"""parameters ↔ tensors of a model folder: under the names of transformers, or under our own names."""

import re
from collections.abc import Mapping
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
_QKV = ("query", "key", "value")


def stored_names(weights: Mapping[str, Tensor], config: BackboneConfig, architecture: str) -> dict[str, Tensor]:
    """Return weights under the names by which a model folder stores them; `weights` have our names."""
    family = family_of(config)
    if isinstance(family, TransformersFamily) and family.is_standard(config, architecture):
        return family.weights_to_foreign(weights)
    return dict(weights)


def named_weights(tensors: Mapping[str, Tensor], description: ModelDescription, source: str) -> dict[str, Tensor]:
    """Return the tensors of a model folder under our names, in fp32; InputError for tensors that do not belong."""
    family = stored_family(description.raw)
    if family is not None:
        return family.weights_from_foreign(tensors, source)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise InputError(f"{source}: {name} is {tensor.dtype}; weights are floating-point numbers")
    return {name: tensor.float() for name, tensor in tensors.items()}


def our_names(tensors: Mapping[str, Tensor], table: Mapping[str, str], *, kind: str, source: str) -> dict[str, Tensor]:
    """Return stored tensors under our names; `table` maps each of our modules to the stored module.

    Raises InputError with the names of all tensors that do not belong to a model of this kind.
    """
    back = {stored: ours for ours, stored in table.items()}
    if strange := [name for name in tensors if module_of(name) not in back]:
        raise InputError(
            f"{source}: {len(strange)} of {len(tensors)} tensors do not belong to a {kind}: {', '.join(strange)}"
        )
    return {rename(name, back): tensor for name, tensor in tensors.items()}


def without_tied_output(
    tensors: Mapping[str, Tensor], output: str, embeddings: str, *, source: str
) -> dict[str, Tensor]:
    """Return the tensors without `output`; InputError where it is not equal to the word embeddings `embeddings`."""
    if output in tensors and not (embeddings in tensors and torch.equal(tensors[output], tensors[embeddings])):
        raise InputError(f"{source}: {output} is not {embeddings}; only models that tie the two can be read")
    return {name: tensor for name, tensor in tensors.items() if name != output}


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


def fuse_qkv(weights: Mapping[str, Tensor], *, source: str) -> dict[str, Tensor]:
    """Return weights in which query, key and value are fused as `attention.qkv`; InputError where shapes differ."""
    fused = dict(weights)
    for name in [name for name in weights if ".attention.query." in name]:
        names = [name.replace(".query.", f".{part}.") for part in _QKV]
        shapes = {part: tuple(weights[part].shape) for part in names if part in weights}
        if len(shapes) < len(names) or len(set(shapes.values())) > 1 or not shapes[name]:
            raise InputError(f"{source}: expected query, key and value of the same shape, got {shapes}")
        fused[name.replace(".query.", ".qkv.")] = torch.cat([fused.pop(part) for part in names])
    return fused


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
