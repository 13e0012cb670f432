"""A model folder is a Hugging Face folder: config.json, model.safetensors, tokenizer.json, vocab.txt.

Here stands the one table between our parameter names and Hugging Face's for BERT; GPT-1's is in gpt_folder.py.
"""

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bertwright.errors import InputError, RunFailed
from bertwright.files import atomic_folder, read_object
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

FEATURES, FEATURES_TYPE = "BertwrightFeatures", "bertwright-features"
"""A frozen encoder with a BiLSTM on its states: no class of transformers' has these heads, so none is named."""
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
MULTI_LABEL = "multi_label_classification"
"""The `problem_type` by which transformers knows a classifier whose outputs are each a yes or no of their own."""
_UNWRITABLE = re.compile("[\x00-\x1f\ud800-\udfff]")
"""Control characters, which would tear a table, and halves of characters, which no file can hold."""
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


@dataclass(frozen=True)
class Described:
    """What a config.json says; `architecture` is None where it names none, `raw` is the whole of it."""

    config: EncoderConfig
    architecture: str | None
    labels: tuple[str, ...]
    extra: Mapping[str, Any]
    raw: Mapping[str, Any]


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
    noted = dict(extra or {})
    described = _foreign_config(config, architecture, labels) | {"bertwright": noted}
    if isinstance(noted.get("task"), Mapping) and noted["task"].get("kind") == "multilabel":
        described |= {"problem_type": MULTI_LABEL}
    write_folder(folder, to_foreign(weights), described=described, beside=map(tokenizer.joinpath, _TOKENIZER_FILES))


def write_folder(
    folder: Path, tensors: Mapping[str, Tensor], *, described: Mapping[str, Any], beside: Iterable[Path]
) -> None:
    """Write tensors, `described` as config.json and the files `beside` that exist as one folder, atomically."""
    named = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with atomic_folder(folder) as temporary:
        try:
            save_file(named, temporary / "model.safetensors", metadata={"format": "pt"})
        except SafetensorError as error:  # without a number: a full disk looks like any other trouble
            raise RunFailed(f"{folder}: the model cannot be written (is the disk full?): {error}") from error
        for file in beside:
            if file.is_file():  # a published folder may lack vocab.txt or tokenizer.json
                shutil.copyfile(file, temporary / file.name)
        (temporary / "config.json").write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", "utf-8")


def copy_description(saved: SavedModel, folder: Path) -> None:
    """Copy what a model folder says of itself into `folder`: config.json and the tokenizer's files, but no weights."""
    for name in ("config.json", *_TOKENIZER_FILES):
        if (saved.tokenizer / name).is_file():
            shutil.copyfile(saved.tokenizer / name, folder / name)


def open_model(source: str, *, tokenizer: Path | None = None, vocab_size: int | None = None) -> SavedModel:
    """Open MODEL: a model folder, a run folder holding `model/`, or `random:SIZE` (which needs `vocab_size`)."""
    if source.startswith("random:"):
        return _random(source, tokenizer, vocab_size)
    folder = model_within(Path(source))
    if not (folder / "config.json").is_file():
        hint = "; its run has not finished yet" if (folder / "run.json").is_file() else ""
        hint = hint or _foreign_hint(folder)
        raise InputError(f"{source}: not a model folder (no config.json){hint}; a size is written random:SIZE")
    described = read_config(folder / "config.json")
    weights = own_weights(stored_tensors(folder), str(folder / "model.safetensors"))
    return SavedModel(
        str(folder),
        described.config,
        weights,
        folder,
        described.architecture or "BertModel",
        described.labels,
        described.extra,
    )


def model_within(folder: Path) -> Path:
    """The model folder of a run folder, or the folder itself."""
    return folder / "model" if (folder / "model" / "config.json").is_file() else folder


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
    return {rename(name, _NAMES): tensor for name, tensor in split.items()}


def from_foreign(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Hugging Face's parameter names → ours, query, key and value fused; ValueError names those that have no place."""
    back = {theirs: ours for ours, theirs in _NAMES.items()}
    check_places(weights, back, kind="BERT")
    own = {rename(name, back): tensor for name, tensor in weights.items()}
    for name in [name for name in own if ".attention.query." in name]:
        parts = [own.pop(name.replace(".query.", f".{part}.")) for part in ("query", "key", "value")]
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


def _foreign_config(config: EncoderConfig, architecture: str, labels: tuple[str, ...]) -> dict[str, Any]:
    own = config.model_dump()
    foreign = {
        "architectures": [architecture],
        "model_type": FEATURES_TYPE if architecture == FEATURES else "bert",
        "hidden_act": _ACTIVATIONS[config.activation],
        "position_embedding_type": "absolute",
        **{theirs: own[ours] for ours, theirs in _CONFIG_NAMES.items()},
    }
    if labels:
        foreign["id2label"] = {str(index): label for index, label in enumerate(labels)}
        foreign["label2id"] = {label: index for index, label in enumerate(labels)}
    return foreign


def read_config(path: Path) -> Described:
    """Read a config.json; InputError for one that is not an encoder's of the kind built here."""
    raw = read_object(path)
    if raw.get("model_type") == "openai-gpt":
        hint = "is needed here; open_gpt of bertwright.model.gpt_folder opens a GPT-1 in Python"
        raise InputError(f"{path}: model_type is 'openai-gpt': it is a GPT-1, and a BERT (model_type 'bert') {hint}")
    wanted = {
        "model_type": ("bert" if raw.get("model_type") == FEATURES_TYPE else raw.get("model_type", "bert"), "bert"),
        "position_embedding_type": (raw.get("position_embedding_type", "absolute"), "absolute"),
        "is_decoder": (raw.get("is_decoder", False), False),
        "add_cross_attention": (raw.get("add_cross_attention", False), False),
    }
    check_values(path, wanted)
    values = {ours: raw[theirs] for ours, theirs in _CONFIG_NAMES.items() if theirs in raw}
    if values.get("pad_id", 0) is None:  # transformers' way of saying that there is none
        del values["pad_id"]
    activations = {theirs: ours for ours, theirs in _ACTIVATIONS.items()} | {"gelu_pytorch_tanh": "gelu_tanh"}
    activation = raw.get("hidden_act")
    if not isinstance(activation, str) or activation not in activations:
        raise InputError(f"{path}: hidden_act is {activation!r}; allowed are {', '.join(activations)}")
    try:
        config = EncoderConfig.model_validate({**values, "activation": activations[activation]})
    except ValidationError as error:
        raise InputError(f"{path}: {_in_words(error)}") from None
    named, noted = raw.get("architectures") or [None], raw.get("bertwright", {})
    if not isinstance(named, list) or not isinstance(named[0], str | None):
        raise InputError(f"{path}: architectures is {named!r}; a list with the name of a class is due")
    if not isinstance(noted, dict):
        raise InputError(f"{path}: bertwright is {noted!r}; it must be an object")
    return Described(config, named[0], _labels_of(raw.get("id2label") or {}, path), noted, raw)


def _in_words(error: ValidationError) -> str:
    """What is wrong with a configuration, by the names of the file."""
    wrong = []
    for part in error.errors():
        name = _CONFIG_NAMES.get(str(part["loc"][0]), str(part["loc"][0])) if part["loc"] else ""
        wrong.append(f"{name} is {part['input']!r}: {part['msg']}" if name else part["msg"])
    return "; ".join(wrong)


def check_values(path: Path, wanted: Mapping[str, tuple[Any, Any]]) -> None:
    """InputError for the first name whose value in a config.json is not the one that can be read."""
    for name, (value, allowed) in wanted.items():
        if value != allowed:
            raise InputError(f"{path}: {name} is {value!r}; only {allowed!r} can be read")


def _labels_of(named: Any, path: Path) -> tuple[str, ...]:
    labels = [named.get(str(index)) for index in range(len(named))] if isinstance(named, dict) else [None]
    if not all(isinstance(label, str) and not _UNWRITABLE.search(label) for label in labels):
        last = max(0, len(labels) - 1)
        raise InputError(f"{path}: id2label must name the labels 0 to {last}, each a text; got {named!r}")
    return tuple(map(str, labels))


def stored_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a model folder under the names that stand there; InputError where it has none."""
    path = folder / "model.safetensors"
    if not path.is_file():
        hint = _foreign_hint(folder)
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
    if "cls.predictions.decoder.bias" in found:  # the same tensor under its other name
        found.setdefault("cls.predictions.bias", found.pop("cls.predictions.decoder.bias"))
    try:
        return from_foreign(found)
    except ValueError as error:
        raise InputError(f"{place}: {error}") from None


def _full_name(name: str) -> str:
    """A parameter's name as transformers has it today: a bare encoder's and the first BERTs' are spelled otherwise."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


def _foreign_hint(folder: Path) -> str:
    found = [file.name for name in _FOREIGN_FILES for file in sorted(folder.glob(name))]
    if not found:
        return ""
    return f"; {found[0]} is of another format: make a model folder of it: bertwright import {folder} --out MODEL"


def _random(source: str, tokenizer: Path | None, vocab_size: int | None) -> SavedModel:
    size = source.removeprefix("random:")
    if size not in SIZES:
        size_config(size, 1)  # raises with the list of sizes
    if tokenizer is None or vocab_size is None:
        raise InputError(f"{source}: random weights need a vocabulary: --tokenizer DIR (a tokenizer or model folder)")
    return SavedModel(source, size_config(size, vocab_size), None, tokenizer)
