"""checkpoint of another format → weights by our names: BERT as Google released it, and as its scripts save it.

A checkpoint is bert_config.json, vocab.txt and the weights in TensorFlow's second format, pre-trained or fine-tuned
by run_classifier.py or run_squad.py. This file alone holds the names of Google's variables and settings.

No file says which GELU "gelu" means. The models of 2018 were trained with the exact one (erf); since February 2019
Google's code has computed an approximation (tanh) under the same name. Hugging Face's conversions of all of them take
the exact one, and so does this file; the two differ by less than 5e-4.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from bertwright.errors import InputError
from bertwright.files import read_json
from bertwright.interop.checkpoint import Foreign
from bertwright.interop.sorted_table import is_table
from bertwright.interop.tensor_bundle import Bundle, index_file, open_bundle
from bertwright.model.config import EncoderConfig
from bertwright.text.wordpiece import Tokenizer, import_vocabulary

_MODULES = {
    "bert/embeddings/LayerNorm": "encoder.embeddings.norm",
    "bert/encoder/layer_#/attention/self/query": "encoder.layers.#.attention.query",
    "bert/encoder/layer_#/attention/self/key": "encoder.layers.#.attention.key",
    "bert/encoder/layer_#/attention/self/value": "encoder.layers.#.attention.value",
    "bert/encoder/layer_#/attention/output/dense": "encoder.layers.#.attention.output",
    "bert/encoder/layer_#/attention/output/LayerNorm": "encoder.layers.#.attention_norm",
    "bert/encoder/layer_#/intermediate/dense": "encoder.layers.#.expand",
    "bert/encoder/layer_#/output/dense": "encoder.layers.#.contract",
    "bert/encoder/layer_#/output/LayerNorm": "encoder.layers.#.output_norm",
    "bert/pooler/dense": "pooler.dense",
    "cls/predictions/transform/dense": "masked_lm.transform",
    "cls/predictions/transform/LayerNorm": "masked_lm.norm",
}
"""Google's module → ours, # is the layer; each has the two variables of `_LEAVES`."""
_LEAVES = {"dense": {"kernel": "weight", "bias": "bias"}, "LayerNorm": {"gamma": "weight", "beta": "bias"}}
_VARIABLES = {
    "bert/embeddings/word_embeddings": "encoder.embeddings.word.weight",
    "bert/embeddings/position_embeddings": "encoder.embeddings.position.weight",
    "bert/embeddings/token_type_embeddings": "encoder.embeddings.segment.weight",
    "cls/predictions/output_bias": "masked_lm.bias",
    "cls/seq_relationship/output_weights": "next_sentence.linear.weight",
    "cls/seq_relationship/output_bias": "next_sentence.linear.bias",
    "output_weights": "classifier.linear.weight",
    "output_bias": "classifier.linear.bias",
    "cls/squad/output_weights": "span.linear.weight",
    "cls/squad/output_bias": "span.linear.bias",
} | {
    f"{module}/{leaf}": f"{ours}.{name}"
    for module, ours in _MODULES.items()
    for leaf, name in _LEAVES["LayerNorm" if module.endswith("LayerNorm") else "dense"].items()
}
"""Google's variable → our parameter, # is the layer; query, key and value are fused afterwards."""
_TRANSPOSED = "/kernel"
_OPTIMIZER = ("/adam_m", "/adam_v")
_STEP = "global_step"

_ARCHITECTURES = {
    frozenset(): "BertModel",
    frozenset({"masked_lm"}): "BertForMaskedLM",
    frozenset({"next_sentence"}): "BertForNextSentencePrediction",
    frozenset({"masked_lm", "next_sentence"}): "BertForPreTraining",
    frozenset({"classifier"}): "BertForSequenceClassification",
    frozenset({"span"}): "BertForQuestionAnswering",
}
"""Heads beside encoder and pooler → the architecture that has them."""

_CONFIG_NAMES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "intermediate",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "num_segments",
    "hidden_dropout_prob": "hidden_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "initializer_range",
}
_WITHOUT_MEANING = (
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
)
"""Settings that the multilingual and the Chinese models carry and that Google's own code never reads."""


def recognises(source: Path) -> bool:
    """Whether a folder holds Google's settings or TensorFlow's weights, or a path is what their files begin with."""
    if source.is_dir():
        return (source / "bert_config.json").is_file() or any(source.glob("*.index"))
    return index_file(_without_index(source)).is_file() or (source.is_file() and is_table(source))


def read_google(source: Path, *, cased: bool | None) -> Foreign:
    """Read a checkpoint in Google's format.

    `source` is its folder, or the prefix of its files such as DIR/model.ckpt-343, which is needed where the folder
    holds several. `cased` says whether the vocabulary keeps upper case; None takes that from a tokenizer_config.json.
    The heads decide the architecture. An optimiser's moments and the step counter are left out, unread. Labels are
    empty: no file of Google's holds them.

    Raises InputError for files that are missing, damaged or contradict each other, settings and variables that are not
    known, and where nothing says whether upper case is kept.
    """
    prefix = _prefix(source)
    folder = prefix.parent
    bundle = open_bundle(prefix)
    named = _our_names(bundle)
    architecture = _architecture(named, bundle.prefix)
    tokenizer = _tokenizer(folder, cased)
    config = _config(_beside(folder, "bert_config.json"), tokenizer)
    weights = _fused({ours: _read(bundle, name) for name, ours in named.items()}, bundle.prefix)
    return Foreign(
        place=str(prefix),
        found=f"Google's layout, {prefix.name}",
        config=config,
        architecture=architecture,
        weights=weights,
        tokenizer=tokenizer,
        left_out=tuple(name for name in bundle.entries if name not in named),
    )


def _prefix(source: Path) -> Path:
    """What the names of the checkpoint's files begin with; InputError where a folder holds none or several."""
    if not source.is_dir():
        return _without_index(source)
    found = sorted(_without_index(path) for path in source.glob("*.index"))
    found = found or sorted(path for path in source.iterdir() if path.is_file() and is_table(path))  # the first format
    if not found and any((source / name).is_file() for name in ("pytorch_model.bin", "model.safetensors")):
        raise InputError(
            f"{source}: its weights are torch's, its bert_config.json is of old: rename that to config.json"
        )
    if not found:
        raise InputError(f"{source}: holds no checkpoint in Google's format, whose weights begin with a PREFIX.index")
    if len(found) > 1:
        raise InputError(f"{source}: holds {len(found)} checkpoints, name one: {', '.join(map(str, found))}")
    return found[0]


def _without_index(path: Path) -> Path:
    return path.with_suffix("") if path.suffix == ".index" else path


def _beside(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise InputError(
            f"{path}: there is no such file, but it must lie beside the weights; a fine-tuned model has that of the "
            "model it began with"
        )
    return path


def _config(path: Path, tokenizer: Tokenizer) -> EncoderConfig:
    raw = read_json(path)
    if not isinstance(raw, dict):
        raise InputError(f"{path}: holds a JSON {type(raw).__name__}; it must be an object")
    wanted = {*_CONFIG_NAMES, "hidden_act"}
    if missing := sorted(wanted - raw.keys()):
        raise InputError(f"{path}: lacks {', '.join(missing)}")
    if unknown := sorted(raw.keys() - wanted - set(_WITHOUT_MEANING)):
        raise InputError(f"{path}: {', '.join(unknown)} is no setting of Google's BERT; is this another model?")
    if raw["hidden_act"] != "gelu":
        raise InputError(f"{path}: hidden_act is {raw['hidden_act']!r}; only 'gelu' can be read")
    values = {ours: raw[theirs] for theirs, ours in _CONFIG_NAMES.items()}
    try:
        return EncoderConfig.model_validate({**values, "pad_id": tokenizer.pad_id})
    except ValidationError as error:
        back = {ours: theirs for theirs, ours in _CONFIG_NAMES.items()}
        wrong = [": ".join([*(back[str(name)] for name in part["loc"]), part["msg"]]) for part in error.errors()]
        raise InputError(f"{path}: {'; '.join(wrong)}") from None


def _tokenizer(folder: Path, cased: bool | None) -> Tokenizer:
    path = folder / "tokenizer_config.json"
    said: Any = read_json(path) if path.is_file() else {}
    if not isinstance(said, dict):
        raise InputError(f"{path}: holds a JSON {type(said).__name__}; it must be an object")
    lower, strip = said.get("do_lower_case"), said.get("strip_accents")
    if cased is None and not isinstance(lower, bool):
        raise InputError(
            f"{folder}: Google's files do not say whether upper case is kept; give --casing cased or --casing uncased"
        )
    keeps = not lower if cased is None else cased
    if lower is keeps:
        option = "--casing cased" if keeps else "--casing uncased"
        raise InputError(f"{path}: do_lower_case is {lower}, but {option} was given; they must agree")
    if strip is keeps:
        raise InputError(f"{path}: strip_accents is {strip}; Google's rules strip accents unless upper case is kept")
    return import_vocabulary(_beside(folder, "vocab.txt"), cased=keeps)


def _our_names(bundle: Bundle) -> dict[str, str]:
    """Google's names → ours for all weights; InputError with all variables that are neither weights nor left out."""
    named: dict[str, str] = {}
    unknown: list[str] = []
    for name in bundle.entries:
        ours = _our_name(name)
        if ours is not None:
            named[name] = ours
        elif name != _STEP and not (name.endswith(_OPTIMIZER) and _our_name(name.rpartition("/")[0])):
            unknown.append(name)
    if unknown:
        raise InputError(
            f"{bundle.prefix}: {len(unknown)} of {len(bundle.entries)} variables have no place in Google's BERT: "
            f"{', '.join(unknown)}"
        )
    return named


def _our_name(name: str) -> str | None:
    layer = re.search(r"/layer_(\d+)/", name)
    if layer is None:
        return _VARIABLES.get(name)
    ours = _VARIABLES.get(name.replace(layer[0], "/layer_#/", 1))
    return ours and ours.replace("#", layer[1])


def _architecture(named: Mapping[str, str], place: Path) -> str:
    heads = {name: ours.partition(".")[0] for name, ours in named.items()}
    found = frozenset(heads.values()) - {"encoder", "pooler"}
    if found not in _ARCHITECTURES:
        variables = ", ".join(name for name, head in heads.items() if head in found)
        raise InputError(f"{place}: has the heads of several tasks, which no architecture has at once: {variables}")
    return _ARCHITECTURES[found]


def _read(bundle: Bundle, name: str) -> Tensor:
    """A weight as torch has it, in float32."""
    values = bundle.read(name)
    if values.dtype.kind != "f":
        raise InputError(f"{bundle.prefix}: {name} is of type {values.dtype}; weights are floating-point numbers")
    tensor = torch.from_numpy(values.astype(np.float32, copy=False))
    return tensor.t() if name.endswith(_TRANSPOSED) else tensor


def _fused(weights: Mapping[str, Tensor], place: Path) -> dict[str, Tensor]:
    """Query, key and value of each layer in one; InputError where they do not go together."""
    fused = dict(weights)
    for query in [name for name in weights if ".attention.query." in name]:
        names = [query.replace(".query.", f".{part}.") for part in ("query", "key", "value")]
        if missing := [name for name in names if name not in weights]:
            raise InputError(f"{place}: {query} is there, but not {', '.join(missing)}")
        parts = [fused.pop(name) for name in names]
        if len({part.shape for part in parts}) > 1:
            raise InputError(f"{place}: {_shapes(names, parts)}; they must have the same shape")
        fused[query.replace(".query.", ".qkv.")] = torch.cat(parts)
    return fused


def _shapes(names: Iterable[str], tensors: Iterable[Tensor]) -> str:
    return ", ".join(f"{name} is {tuple(tensor.shape)}" for name, tensor in zip(names, tensors, strict=True))
