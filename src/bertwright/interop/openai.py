"""a GPT-1 in OpenAI's or Hugging Face's format → weights by bertwright's names.

OpenAI's release is the folder `model` of openai/finetune-transformer-lm. All weights are flattened and stored one
after another in ten numpy files of float32, params_0.npy … params_9.npy. params_shapes.json lists their shapes in
order, without names: positions, pieces, then twelve tensors for each layer. A linear layer is stored as a convolution
of width one [1, in, out]; queries, keys and values are one tensor. encoder_bpe_40000.json numbers the pieces,
vocab_40000.bpe lists the merges. The files do not give the number of heads: the release has 12.

Hugging Face's format is a folder with config.json (model_type openai-gpt), model.safetensors or pytorch_model.bin, in
one file or in shards, and tokenizer.json or vocab.json with merges.txt.
"""

import math
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertwright.errors import InputError
from bertwright.files import read_json, read_object
from bertwright.interop.checkpoint import ForeignCheckpoint
from bertwright.interop.huggingface import read_weights
from bertwright.model.families.gpt import (
    GPT_ARCHITECTURE,
    GPT_FAMILY,
    GPT_MODEL_TYPE,
    GPTConfig,
    is_transposed,
)
from bertwright.model.hf_weights import wrapper_prefix
from bertwright.text.bpe import BPETokenizer, read_bpe

_SHAPES = "params_shapes.json"
_SHARDS = tuple(f"params_{index}.npy" for index in range(10))
_VOCABULARY, _MERGES = "encoder_bpe_40000.json", "vocab_40000.bpe"
_HEADS = 12
_EMBEDDINGS = ("encoder.embeddings.position.weight", "encoder.embeddings.word.weight")
_PER_LAYER = {
    "attention.qkv.weight": (1, 3),
    "attention.qkv.bias": (3,),
    "attention.output.weight": (1, 1),
    "attention.output.bias": (1,),
    "attention_norm.weight": (1,),
    "attention_norm.bias": (1,),
    "expand.weight": (1, 4),
    "expand.bias": (4,),
    "contract.weight": (4, 1),
    "contract.bias": (1,),
    "output_norm.weight": (1,),
    "output_norm.bias": (1,),
}
"""Parameters of a layer by bertwright's names, with their widths in multiples of hidden.

The order is that of the release: c_attn w b, c_proj w b, ln_1 g b, c_fc w b, c_proj w b, ln_2 g b.
"""


def is_gpt1(source: Path) -> bool:
    """Return whether a folder holds a GPT-1: a file of OpenAI's release, or a config.json with its model type."""
    if _is_release(source):
        return True
    try:
        config = read_json(source / "config.json")
    except (InputError, OSError):  # missing or broken: the importer that reads it next reports it
        return False
    return isinstance(config, dict) and config.get("model_type") == GPT_MODEL_TYPE


def read_gpt(source: Path) -> ForeignCheckpoint:
    """Read the GPT-1 of a folder. Raises InputError for a file that is missing, broken, or does not fit the others."""
    return _read_openai(source) if _is_release(source) else _read_huggingface(source)


def _is_release(source: Path) -> bool:
    return any((source / name).is_file() for name in (_SHAPES, *_SHARDS, _VOCABULARY, _MERGES))


def _read_huggingface(folder: Path) -> ForeignCheckpoint:
    path = folder / "config.json"
    config = GPT_FAMILY.config_from_json(read_object(path), path).config
    assert isinstance(config, GPTConfig)
    stored, files = read_weights(folder)
    return ForeignCheckpoint(
        source=str(folder),
        layout=f"a GPT-1 in Hugging Face's layout, {files}",
        config=config,
        architecture=GPT_ARCHITECTURE,
        weights=GPT_FAMILY.weights_from_foreign(stored, str(folder)),
        tokenizer=BPETokenizer.load(folder),
        left_out=tuple(name for name in stored if GPT_FAMILY.is_constant(name.removeprefix(wrapper_prefix(stored)))),
        name_in_file=lambda name: GPT_FAMILY.name_in_file(name, stored),
        is_transposed=is_transposed,
    )


def _read_openai(folder: Path) -> ForeignCheckpoint:
    config, shapes = _read_shapes(folder / _SHAPES)
    tokenizer = read_bpe(folder / _VOCABULARY, folder / _MERGES)
    if tokenizer.vocab_size != config.vocab_size:
        raise InputError(
            f"{folder / _VOCABULARY}: holds {tokenizer.vocab_size} pieces, "
            f"but {_SHAPES} has embeddings for {config.vocab_size}; the numbers must be equal"
        )
    return ForeignCheckpoint(
        source=str(folder),
        layout=f"a GPT-1 as OpenAI released it, {len(_SHARDS)} numpy files",
        config=config,
        architecture=GPT_ARCHITECTURE,
        weights=dict(_split(_read_shards(folder, shapes), shapes)),
        tokenizer=tokenizer,
    )


def _read_shapes(path: Path) -> tuple[GPTConfig, list[list[int]]]:
    """Return the configuration and the list of shapes. Raises InputError where the shapes are not those of a GPT-1."""
    shapes = read_json(path)
    is_list = isinstance(shapes, list) and all(
        isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape) for shape in shapes
    )
    if not is_list:
        raise InputError(f"{path}: not a list of shapes, each a list of whole numbers above 0")
    layers, rest = divmod(len(shapes) - len(_EMBEDDINGS), len(_PER_LAYER))
    if layers < 1 or rest:
        raise InputError(
            f"{path}: lists {len(shapes)} tensors; a GPT-1 has {len(_EMBEDDINGS)} and then {len(_PER_LAYER)} a layer"
        )
    if [len(shape) for shape in shapes[:2]] != [2, 2]:
        raise InputError(f"{path}: begins with {shapes[:2]}; a GPT-1 has [positions, hidden] and [pieces, hidden]")
    (positions, hidden), (pieces, _) = shapes[:2]
    expected_shapes = [[positions, hidden], [pieces, hidden], *_layer_shapes(hidden) * layers]
    for number, (shape, expected) in enumerate(zip(shapes, expected_shapes, strict=True)):
        if shape != expected:
            raise InputError(f"{path}: tensor {number}: expected the shape {expected} of a GPT-1, got {shape}")
    if hidden % _HEADS:
        raise InputError(f"{path}: hidden is {hidden}, which is not a multiple of the {_HEADS} heads of the release")
    config = GPTConfig(
        vocab_size=pieces,
        hidden=hidden,
        layers=layers,
        heads=_HEADS,
        intermediate=4 * hidden,
        max_positions=positions,
    )
    return config, shapes


def _layer_shapes(hidden: int) -> list[list[int]]:
    return [[1] * (len(widths) == 2) + [width * hidden for width in widths] for widths in _PER_LAYER.values()]


def _read_shards(folder: Path, shapes: list[list[int]]) -> npt.NDArray[np.float32]:
    """Return all weights in one row.

    Raises InputError for shards that are missing, unknown or broken, and for a wrong total length.
    """
    names = {path.name for path in folder.glob("params_*.npy")}
    if missing := [name for name in _SHARDS if name not in names]:
        raise InputError(f"{folder}: {', '.join(missing)} missing; the release has {_SHARDS[0]} … {_SHARDS[-1]}")
    if surplus := sorted(names.difference(_SHARDS)):
        raise InputError(f"{folder}: {', '.join(surplus)} is no part of the release, which ends with {_SHARDS[-1]}")
    shards = [_read_shard(folder / name) for name in _SHARDS]
    total, expected = sum(len(shard) for shard in shards), sum(map(math.prod, shapes))
    if total != expected:
        raise InputError(f"{folder}: the shards hold {total:,} numbers, but {_SHAPES} has places for {expected:,}")
    return np.concatenate(shards)


def _read_shard(path: Path) -> npt.NDArray[np.float32]:
    # The file is mapped, not loaded. Objects cannot be mapped, so nothing is unpickled. A header cannot ask for more
    # memory than the file has bytes.
    try:
        shard: npt.NDArray[np.float32] = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a broken header raises errors of many classes
        raise InputError(f"{path}: not a complete numpy file of plain numbers: {error}") from None
    if shard.dtype != np.float32 or shard.ndim != 1:
        raise InputError(f"{path}: holds {shard.dtype} of shape {shard.shape}; a shard is one row of float32")
    return shard


def _split(row: npt.NDArray[np.float32], shapes: list[list[int]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a row by bertwright's names; linear layers are [out, in]."""
    layers = (len(shapes) - len(_EMBEDDINGS)) // len(_PER_LAYER)
    names = [*_EMBEDDINGS, *(f"encoder.layers.{layer}.{name}" for layer in range(layers) for name in _PER_LAYER)]
    ends = pairwise(accumulate(map(math.prod, shapes), initial=0))
    for name, shape, (first, last) in zip(names, shapes, ends, strict=True):
        tensor = torch.from_numpy(row[first:last].reshape(shape))
        yield name, tensor[0].T if len(shape) == 3 else tensor
