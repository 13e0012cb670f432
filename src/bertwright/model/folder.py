"""A model folder is a Hugging Face folder: config.json, model.safetensors, tokenizer.json, vocab.txt.

This file alone knows files of models, and holds the one table between our parameter names and Hugging Face's.
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.files import atomic_folder, read_json
from bertwright.model.sizes import SIZES, EncoderConfig, size_config

_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json")
_FOREIGN_FILES = (
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "tf_model.h5",
    "flax_model.msgpack",
    "bert_config.json",
    "*.ckpt.index",
)
"""Weights as they were published before; none of these is read."""
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
}
"""Our module → Hugging Face's; # is the layer, the leaf (weight or bias) stays, qkv is split in three before."""

_BUFFERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
"""Constants that older versions of transformers stored among the weights."""

_CONFIG_NAMES = {
    "vocab_size": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "num_segments": "type_vocab_size",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "initializer_range": "initializer_range",
    "layer_norm_eps": "layer_norm_eps",
    "pad_id": "pad_token_id",
}
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new"}


@dataclass(frozen=True)
class SavedModel:
    """What a model folder holds; `weights` is None for `random:SIZE`.

    `architecture` is the class of transformers whose heads the weights have; `labels` are the label names in the order
    of the classifier's outputs; `extra` is what a task notes for itself.
    """

    place: str
    config: EncoderConfig
    weights: Mapping[str, Tensor] | None
    tokenizer: Path
    architecture: str = "BertModel"
    labels: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


def save_model(
    folder: Path,
    module: nn.Module,
    *,
    config: EncoderConfig,
    tokenizer: Path,
    architecture: str,
    labels: tuple[str, ...] = (),
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write `module` (fp32) as a Hugging Face folder with the tokenizer's files beside it, atomically."""
    save_weights(
        folder,
        module.state_dict(),
        config=config,
        tokenizer=tokenizer,
        architecture=architecture,
        labels=labels,
        extra=extra,
    )


def save_weights(
    folder: Path,
    weights: Mapping[str, Tensor],
    *,
    config: EncoderConfig,
    tokenizer: Path,
    architecture: str,
    labels: tuple[str, ...] = (),
    extra: Mapping[str, Any] | None = None,
) -> None:
    """As `save_model`, for weights by our names."""
    named = {name: tensor.contiguous() for name, tensor in to_foreign(weights).items()}
    with atomic_folder(folder) as temporary:
        save_file(named, temporary / "model.safetensors", metadata={"format": "pt"})
        for name in _TOKENIZER_FILES:
            if (tokenizer / name).is_file():  # a published folder may lack vocab.txt or tokenizer.json
                shutil.copyfile(tokenizer / name, temporary / name)
        written = _foreign_config(config, architecture, labels) | {"bertwright": dict(extra or {})}
        (temporary / "config.json").write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n", "utf-8")


def open_model(source: str, *, tokenizer: Path | None = None, vocab_size: int | None = None) -> SavedModel:
    """Open MODEL: a model folder, a run folder holding `model/`, or `random:SIZE` (which needs `vocab_size`)."""
    if source.startswith("random:"):
        return _random(source, tokenizer, vocab_size)
    folder = Path(source)
    if (folder / "model" / "config.json").is_file():
        folder = folder / "model"
    if not (folder / "config.json").is_file():
        hint = "; its run has not finished yet" if (folder / "run.json").is_file() else ""
        hint = hint or _foreign_hint(folder)
        raise InputError(f"{source}: not a model folder (no config.json){hint}; a size is written random:SIZE")
    config, architecture, labels, extra = _own_config(folder / "config.json")
    weights = _read_weights(folder / "model.safetensors")
    return SavedModel(str(folder), config, weights, folder, architecture, labels, extra)


def load_weights(module: nn.Module, saved: SavedModel, *, fresh: tuple[str, ...] = ()) -> None:
    """Copy the saved weights into `module`; parts named in `fresh` may be absent and keep what they have.

    Weights of heads that `module` lacks are left out; a missing or wrongly shaped tensor is an InputError.
    """
    if saved.weights is None:
        return
    own = module.state_dict()
    missing = [name for name in own if name not in saved.weights and not name.startswith(fresh or ("\0",))]
    if missing:
        raise InputError(f"{saved.place}: the model has no weights for {', '.join(missing[:3])}, which this use needs")
    for name, tensor in own.items():
        given = saved.weights.get(name)
        if given is None or (name.startswith(fresh or ("\0",)) and given.shape != tensor.shape):
            continue
        if given.shape != tensor.shape:
            raise InputError(f"{saved.place}: {name} has shape {tuple(given.shape)}, expected {tuple(tensor.shape)}")
        with torch.no_grad():
            tensor.copy_(given)


def to_foreign(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our parameter names → Hugging Face's, qkv split in three."""
    split: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if ".attention.qkv." in name:
            for part, piece in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                split[name.replace(".qkv.", f".{part}.")] = piece
        else:
            split[name] = tensor
    return {_rename(name, _NAMES): tensor for name, tensor in split.items()}


def from_foreign(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Hugging Face's parameter names → ours, query, key and value fused; ValueError names those that have no place."""
    back = {theirs: ours for ours, theirs in _NAMES.items()}
    if strange := [name for name in weights if _module(name) not in back]:
        raise ValueError(f"{len(strange)} of {len(weights)} tensors have no place in a BERT: {', '.join(strange)}")
    own = {_rename(name, back): tensor for name, tensor in weights.items()}
    for name in [name for name in own if ".attention.query." in name]:
        parts = [own.pop(name.replace(".query.", f".{part}.")) for part in ("query", "key", "value")]
        own[name.replace(".query.", ".qkv.")] = torch.cat(parts)
    return own


def _module(name: str) -> str:
    """`a.3.b.weight` → `a.#.b`."""
    return re.sub(r"\.\d+\.", ".#.", name.rpartition(".")[0])


def _rename(name: str, table: Mapping[str, str]) -> str:
    layer = re.search(r"\.(\d+)\.", name)
    renamed = f"{table[_module(name)]}.{name.rpartition('.')[2]}"
    return renamed.replace("#", layer[1]) if layer else renamed


def _foreign_config(config: EncoderConfig, architecture: str, labels: tuple[str, ...]) -> dict[str, Any]:
    own = config.model_dump()
    foreign = {
        "architectures": [architecture],
        "model_type": "bert",
        "hidden_act": _ACTIVATIONS[config.activation],
        "position_embedding_type": "absolute",
        **{theirs: own[ours] for ours, theirs in _CONFIG_NAMES.items()},
    }
    if labels:
        foreign["id2label"] = {str(index): label for index, label in enumerate(labels)}
        foreign["label2id"] = {label: index for index, label in enumerate(labels)}
    return foreign


def _own_config(path: Path) -> tuple[EncoderConfig, str, tuple[str, ...], dict[str, Any]]:
    raw = read_json(path)
    if not isinstance(raw, dict):
        raise InputError(f"{path}: holds a JSON {type(raw).__name__}; it must be an object")
    wanted = {
        "model_type": (raw.get("model_type"), "bert"),
        "position_embedding_type": (raw.get("position_embedding_type", "absolute"), "absolute"),
        "is_decoder": (raw.get("is_decoder", False), False),
        "add_cross_attention": (raw.get("add_cross_attention", False), False),
    }
    for name, (value, allowed) in wanted.items():
        if value != allowed:
            raise InputError(f"{path}: {name} is {value!r}; only {allowed!r} can be read")
    values = {ours: raw[theirs] for ours, theirs in _CONFIG_NAMES.items() if theirs in raw}
    activations = {theirs: ours for ours, theirs in _ACTIVATIONS.items()} | {"gelu_pytorch_tanh": "gelu_tanh"}
    if raw.get("hidden_act") not in activations:
        raise InputError(f"{path}: hidden_act is {raw.get('hidden_act')!r}; allowed are {', '.join(activations)}")
    try:
        config = EncoderConfig.model_validate({**values, "activation": activations[raw["hidden_act"]]})
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    architecture, *_ = raw.get("architectures") or ["BertModel"]
    labels = raw.get("id2label") or {}
    if not isinstance(labels, dict) or set(labels) != {str(index) for index in range(len(labels))}:
        raise InputError(f"{path}: id2label is {labels!r}; its keys must be the outputs, from 0 on, each once")
    return config, architecture, tuple(labels[str(index)] for index in range(len(labels))), raw.get("bertwright", {})


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        hint = _foreign_hint(path.parent)
        raise InputError(f"{path}: there is no such file; a model folder holds its weights there{hint}")
    try:
        with safe_open(path, framework="pt") as stored:
            named = {_full_name(name): name for name in stored.keys()}  # noqa: SIM118
            found = {full: stored.get_tensor(name).float() for full, name in named.items() if full not in _BUFFERS}
    except SafetensorError as error:
        raise InputError(f"{path}: broken or truncated safetensors file: {error}") from None
    decoder, words = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"
    if decoder in found and not (words in found and torch.equal(found[decoder], found[words])):
        raise InputError(f"{path}: {decoder} is not {words}; only models that tie the two can be read")
    found.pop(decoder, None)
    if "cls.predictions.decoder.bias" in found:  # the same tensor under its other name
        found.setdefault("cls.predictions.bias", found.pop("cls.predictions.decoder.bias"))
    try:
        return from_foreign(found)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def _full_name(name: str) -> str:
    """A parameter's name as transformers has it today: a bare encoder's and the first BERTs' are spelled otherwise."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


def _foreign_hint(folder: Path) -> str:
    found = [file.name for name in _FOREIGN_FILES for file in sorted(folder.glob(name))]
    if not found:
        return ""
    return (
        f"; {found[0]} is of another format, which is not read: "
        "open it with transformers, and let save_pretrained write config.json and one model.safetensors"
    )


def _random(source: str, tokenizer: Path | None, vocab_size: int | None) -> SavedModel:
    size = source.removeprefix("random:")
    if size not in SIZES:
        size_config(size, 1)  # raises with the list of sizes
    if tokenizer is None or vocab_size is None:
        raise InputError(f"{source}: random weights need a vocabulary: --tokenizer DIR (a tokenizer or model folder)")
    return SavedModel(source, size_config(size, vocab_size), None, tokenizer)
