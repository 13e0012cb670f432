"""stored tensors ↔ parameters: Hugging Face's names for BERT and ours, and what every table of names needs.

Here stands the one table between our parameter names and Hugging Face's for BERT; GPT-1's is in gpt_naming.py.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bertwright.errors import InputError
from bertwright.model.config import BackboneConfig
from bertwright.model.hf_config import (
    _OWN,
    FEATURES_TYPE,
    MODEL_TYPE,
    Described,
    is_bert,
    is_gpt,
)

_FOREIGN_FILES = (
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "tf_model.h5",
    "flax_model.msgpack",
    "bert_config.json",
    "*.ckpt.index",
)
"""Weights as they were published before; `bertwright import` makes a model folder of some."""
_NAMES = {
    "encoder.embeddings.word": "bert.embeddings.word_embeddings",
    "encoder.embeddings.position": "bert.embeddings.position_embeddings",
    "encoder.embeddings.segment": "bert.embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "bert.embeddings.LayerNorm",
    "encoder.layers.#.attention.query": "bert.encoder.layer.#.attention.self.query",
    "encoder.layers.#.attention.key": "bert.encoder.layer.#.attention.self.key",
    "encoder.layers.#.attention.value": "bert.encoder.layer.#.attention.self.value",
    "encoder.layers.#.attention.output": "bert.encoder.layer.#.attention.output.dense",
    "encoder.layers.#.attention_norm": "bert.encoder.layer.#.attention.output.LayerNorm",
    "encoder.layers.#.expand": "bert.encoder.layer.#.intermediate.dense",
    "encoder.layers.#.contract": "bert.encoder.layer.#.output.dense",
    "encoder.layers.#.output_norm": "bert.encoder.layer.#.output.LayerNorm",
    "pooler.dense": "bert.pooler.dense",
    "masked_lm.transform": "cls.predictions.transform.dense",
    "masked_lm.norm": "cls.predictions.transform.LayerNorm",
    "masked_lm": "cls.predictions",
    "next_sentence.linear": "cls.seq_relationship",
    "classifier.linear": "classifier",
    "span.linear": "qa_outputs",
    "head.recurrent": "bertwright.recurrent",
    "head.recurrent.lstm": "bertwright.recurrent.lstm",
    "head.classifier.linear": "bertwright.classifier",
}
"""Our module → Hugging Face's; # is the layer, the leaf (weight or bias) stays, qkv is split in three before."""

_BUFFERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
"""Constants that older versions of transformers stored among the weights."""


def to_foreign(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our parameter names → Hugging Face's, qkv split in three."""
    split: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if ".attention.qkv." in name:
            for part, piece in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                split[name.replace(".qkv.", f".{part}.")] = piece
        else:
            split[name] = tensor
    return {rename(name, _NAMES): tensor for name, tensor in split.items()}


def from_foreign(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Hugging Face's parameter names → ours, query, key and value fused; ValueError names those that have no place."""
    back = {theirs: ours for ours, theirs in _NAMES.items()}
    check_places(weights, back, kind="BERT")
    own = {rename(name, back): tensor for name, tensor in weights.items()}
    for name in [name for name in own if ".attention.query." in name]:
        names = [name.replace(".query.", f".{part}.") for part in ("query", "key", "value")]
        shapes = {part: tuple(own[part].shape) for part in names if part in own}
        if len(shapes) < len(names) or len(set(shapes.values())) > 1 or not shapes[name]:
            raise ValueError(f"query, key and value of one shape are due; there is {shapes}")
        parts = [own.pop(part) for part in names]
        own[name.replace(".query.", ".qkv.")] = torch.cat(parts)
    return own


def check_places(names: Iterable[str], table: Mapping[str, str], *, kind: str) -> None:
    """ValueError with all names of parameters whose module is not in the table."""
    names = list(names)
    if strange := [name for name in names if module_of(name) not in table]:
        raise ValueError(f"{len(strange)} of {len(names)} tensors have no place in a {kind}: {', '.join(strange)}")


def module_of(name: str) -> str:
    """`a.3.b.weight` → `a.#.b`."""
    return re.sub(r"\.\d+\.", ".#.", name.rpartition(".")[0])


def rename(name: str, table: Mapping[str, str]) -> str:
    """A parameter's name with its module as the table says: `a.3.b.weight` → `c.3.d.weight` by `a.#.b` → `c.#.d`."""
    layer = re.search(r"\.(\d+)\.", name)
    renamed = f"{table[module_of(name)]}.{name.rpartition('.')[2]}"
    return renamed.replace("#", layer[1]) if layer else renamed


def stored_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a model folder under the names that stand there; InputError where it has none."""
    path = folder / "model.safetensors"
    if not path.is_file():
        hint = foreign_hint(folder)
        raise InputError(f"{path}: there is no such file; a model folder holds its weights there{hint}")
    return read_safetensors(path)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file under the names that stand there; InputError where it is broken or truncated."""
    try:
        with safe_open(path, framework="pt") as stored:
            return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(f"{path}: broken or truncated safetensors file: {error}") from None


def own_weights(given: Mapping[str, Tensor], place: str) -> dict[str, Tensor]:
    """Hugging Face's tensors, as spelled today or before, → ours in fp32; InputError names those without a place."""
    named: dict[str, Tensor] = {}
    for name, tensor in given.items():
        if (full := _full_name(name)) in _BUFFERS:
            continue
        if full in named and not torch.equal(named[full], tensor):
            raise InputError(f"{place}: {name} is there twice, spelled in two ways and with two values")
        if not tensor.is_floating_point() or tensor.layout is not torch.strided or tensor.is_meta:
            kind = "without values" if tensor.is_meta else f"{tensor.dtype}, {tensor.layout}"
            raise InputError(f"{place}: {name} is {kind}; weights are plain floating-point numbers")
        named[full] = tensor
    found = {name: tensor.float() for name, tensor in named.items()}
    decoder, words = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"
    if decoder in found and not (words in found and torch.equal(found[decoder], found[words])):
        raise InputError(f"{place}: {decoder} is not {words}; only models that tie the two can be read")
    found.pop(decoder, None)
    bias = found.pop("cls.predictions.decoder.bias", None)  # the same tensor under its other name
    if bias is not None and not torch.equal(found.setdefault("cls.predictions.bias", bias), bias):
        raise InputError(f"{place}: cls.predictions.decoder.bias is not cls.predictions.bias; they are one tensor")
    try:
        return from_foreign(found)
    except ValueError as error:
        raise InputError(f"{place}: {error}") from None


def _full_name(name: str) -> str:
    """A parameter's name as transformers has it today: a bare encoder's and the first BERTs' are spelled otherwise."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


def foreign_hint(folder: Path) -> str:
    """What lies in a folder that can be imported, as the end of a message; nothing where nothing does."""
    found = [file.name for name in _FOREIGN_FILES for file in sorted(folder.glob(name))]
    if not found:
        return ""
    return f"; {found[0]} is of another format: make a model folder of it: bertwright import {folder} --out MODEL"


# A GPT-1 folder is a Hugging Face folder: config.json, model.safetensors, tokenizer.json, vocab.json, merges.txt.
#
# Here stands the one table between our parameter names and those of transformers' OpenAIGPTLMHeadModel, which stores
# the weight of a linear layer transposed.

_GPT_NAMES = {
    "encoder.embeddings.word": "transformer.tokens_embed",
    "encoder.embeddings.position": "transformer.positions_embed",
    "encoder.layers.#.attention.qkv": "transformer.h.#.attn.c_attn",
    "encoder.layers.#.attention.output": "transformer.h.#.attn.c_proj",
    "encoder.layers.#.attention_norm": "transformer.h.#.ln_1",
    "encoder.layers.#.expand": "transformer.h.#.mlp.c_fc",
    "encoder.layers.#.contract": "transformer.h.#.mlp.c_proj",
    "encoder.layers.#.output_norm": "transformer.h.#.ln_2",
}
"""Our module → Hugging Face's; # is the layer, the leaf (weight or bias) stays."""
_LINEAR = ("qkv", "output", "expand", "contract")
"""Where our module's name ends so, its weight stands transposed in the file."""
_CONSTANT = re.compile(r"(transformer\.)?(position_ids|h\.\d+\.attn\.(bias|masked_bias))")
"""The causal mask and the numbers of the positions, which older versions of transformers stored among the weights."""


def gpt_to_foreign(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our parameter names → Hugging Face's; the tied output is not written."""
    return {rename(name, _GPT_NAMES): _turned(name, tensor) for name, tensor in weights.items()}


def gpt_from_foreign(weights: Mapping[str, Tensor], place: str) -> dict[str, Tensor]:
    """Hugging Face's parameter names, a bare body's too, → ours in fp32; constants are left out.

    InputError with the names of tensors that have no place in a GPT-1, and for an output that is not tied.
    """
    kept = {_gpt_full_name(name): tensor.float() for name, tensor in weights.items() if not is_constant(name)}
    output, words = "lm_head.weight", "transformer.tokens_embed.weight"
    if output in kept and not (words in kept and torch.equal(kept[output], kept[words])):
        raise InputError(f"{place}: {output} is not {words}; only models that tie the two can be read")
    kept.pop(output, None)
    back = {theirs: ours for ours, theirs in _GPT_NAMES.items()}
    try:
        check_places(kept, back, kind="GPT-1")
    except ValueError as error:
        raise InputError(f"{place}: {error}") from None
    named = {rename(name, back): tensor for name, tensor in kept.items()}
    return {name: _turned(name, tensor) for name, tensor in named.items()}


def is_constant(name: str) -> bool:
    """Whether a tensor of this name in a file is no weight."""
    return _CONSTANT.fullmatch(name) is not None


def _gpt_full_name(name: str) -> str:
    return f"transformer.{name}" if name.startswith(("tokens_embed.", "positions_embed.", "h.")) else name


def _turned(name: str, tensor: Tensor) -> Tensor:
    """A tensor by our name, transposed where the two forms differ."""
    turns = name.endswith(".weight") and module_of(name).rpartition(".")[2] in _LINEAR
    return tensor.T if turns else tensor


def stored_names(weights: Mapping[str, Tensor], config: BackboneConfig, architecture: str) -> dict[str, Tensor]:
    """Weights by our names as `described` says that they are stored."""
    if is_gpt(config, architecture):
        return gpt_to_foreign(weights)
    return to_foreign(weights) if is_bert(config, architecture) else dict(weights)


def named_weights(tensors: Mapping[str, Tensor], found: Described, place: str) -> dict[str, Tensor]:
    """The tensors of a model folder by our names, in fp32; InputError names those without a place."""
    kind = str(found.raw.get("model_type", "bert"))
    if kind == MODEL_TYPE:
        return gpt_from_foreign(tensors, place)
    if not kind.startswith(_OWN) or kind == FEATURES_TYPE:
        return own_weights(tensors, place)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise InputError(f"{place}: {name} is {tensor.dtype}; weights are floating-point numbers")
    return {name: tensor.float() for name, tensor in tensors.items()}
