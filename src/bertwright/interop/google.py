"""a BERT checkpoint in Google's format → weights by bertwright's names.

A checkpoint is bert_config.json, vocab.txt and the weights in TensorFlow's second format. It was pre-trained, or
fine-tuned by run_classifier.py or run_squad.py. The names of Google's variables and settings stand in this file alone.

Google's files do not say which GELU "gelu" means. The models of 2018 were trained with the exact function (erf). Since
February 2019 Google's code computes an approximation (tanh) under the same name. Hugging Face converts all of these
models with the exact function, and this file does the same. The two functions differ by less than 5e-4.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from bertwright.errors import InputError
from bertwright.files import read_object, read_object_if_there
from bertwright.interop.checkpoint import ForeignCheckpoint
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
"""Google's module → bertwright's; # is the number of the layer. Each module has the two variables of `_LEAVES`."""
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
"""Google's variable → bertwright's parameter; # is the number of the layer. Query, key and value are fused later."""
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
"""Heads beside encoder and pooler → the architecture with these heads."""

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
_UNUSED_SETTINGS = (
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
)
"""Settings of the multilingual and the Chinese models that Google's own code never reads."""


def is_google_checkpoint(source: Path) -> bool:
    """Return whether `source` is a folder with Google's settings or TensorFlow's weights, or a prefix of such files."""
    if source.is_dir():
        return (source / "bert_config.json").is_file() or any(source.glob("*.index"))
    return index_file(_without_index(source)).is_file() or (source.is_file() and is_table(source))


def read_google(source: Path, *, cased: bool | None, as_wordpiece: bool = False) -> ForeignCheckpoint:
    """Read a checkpoint in Google's format.

    source        its folder, or the prefix of its files such as DIR/model.ckpt-343, where the folder holds several
    cased         True where the vocabulary keeps upper case; None: as tokenizer_config.json says
    as_wordpiece  True to read a vocabulary of another convention as WordPiece

    The heads decide the architecture. An optimiser's moments and the step counter are not read. Labels are empty:
    Google's files do not hold them.

    Raises InputError for files that are missing, damaged or contradict each other, for unknown settings and variables,
    and where the files do not say whether upper case is kept.
    """
    prefix = _prefix(source)
    folder = prefix.parent
    bundle = open_bundle(prefix)
    names = _parameter_names(bundle)
    architecture = _architecture(names, bundle.prefix)
    tokenizer = _tokenizer(folder, cased, as_wordpiece=as_wordpiece)
    config = _config(_required_file(folder, "bert_config.json"), tokenizer)
    weights = {parameter: _read_weight(bundle, name) for name, parameter in names.items()}
    return ForeignCheckpoint(
        source=str(prefix),
        layout=f"Google's layout, {prefix.name}",
        config=config,
        architecture=architecture,
        weights=_with_fused_attention(weights, bundle.prefix),
        tokenizer=tokenizer,
        left_out=tuple(name for name in bundle.entries if name not in names),
        name_in_file=_variable_name,
        is_transposed=lambda name: _variable_name(name).endswith(_TRANSPOSED),
    )


def _prefix(source: Path) -> Path:
    """Return the prefix of the checkpoint's files. Raises InputError where a folder holds none or several."""
    if not source.is_dir():
        return _without_index(source)
    prefixes = sorted(_without_index(path) for path in source.glob("*.index"))
    if not prefixes:  # TensorFlow's first format
        prefixes = sorted(path for path in source.iterdir() if path.is_file() and is_table(path))
    if not prefixes and any((source / name).is_file() for name in ("pytorch_model.bin", "model.safetensors")):
        raise InputError(
            f"{source}: its weights are torch's, but its settings have the old name bert_config.json; rename that file "
            "to config.json"
        )
    if not prefixes:
        raise InputError(f"{source}: holds no checkpoint in Google's format: expected a file PREFIX.index")
    if len(prefixes) > 1:
        raise InputError(f"{source}: holds {len(prefixes)} checkpoints, name one: {', '.join(map(str, prefixes))}")
    return prefixes[0]


def _without_index(path: Path) -> Path:
    return path.with_suffix("") if path.suffix == ".index" else path


def _required_file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise InputError(
            f"{path}: there is no such file; it must lie beside the weights. For a fine-tuned model, copy that of its "
            "pre-trained model"
        )
    return path


def _config(path: Path, tokenizer: Tokenizer) -> EncoderConfig:
    raw = read_object(path)
    required = {*_CONFIG_NAMES, "hidden_act"}
    if missing := sorted(required - raw.keys()):
        raise InputError(f"{path}: lacks {', '.join(missing)}")
    if unknown := sorted(raw.keys() - required - set(_UNUSED_SETTINGS)):
        raise InputError(f"{path}: {', '.join(unknown)} is no setting of Google's BERT; is this another model?")
    if raw["hidden_act"] != "gelu":
        raise InputError(f"{path}: hidden_act is {raw['hidden_act']!r}; only 'gelu' can be read")
    settings = {name: raw[google_name] for google_name, name in _CONFIG_NAMES.items()}
    try:
        return EncoderConfig.model_validate({**settings, "pad_id": tokenizer.pad_id})
    except ValidationError as error:
        google_names = {name: google_name for google_name, name in _CONFIG_NAMES.items()}
        errors = [
            ": ".join([*(google_names[str(name)] for name in part["loc"]), part["msg"]]) for part in error.errors()
        ]
        raise InputError(f"{path}: {'; '.join(errors)}") from None


def _tokenizer(folder: Path, cased: bool | None, *, as_wordpiece: bool) -> Tokenizer:
    path = folder / "tokenizer_config.json"
    settings = read_object_if_there(path)
    lower, strip = settings.get("do_lower_case"), settings.get("strip_accents")
    if cased is None and not isinstance(lower, bool):
        raise InputError(
            f"{folder}: Google's files do not say whether upper case is kept; give --casing cased or --casing uncased"
        )
    is_cased = not lower if cased is None else cased
    if lower is is_cased:
        option = "--casing cased" if is_cased else "--casing uncased"
        raise InputError(f"{path}: do_lower_case is {lower}, but {option} was given; they must agree")
    if strip is is_cased:
        raise InputError(f"{path}: strip_accents is {strip}; Google's rules strip accents unless upper case is kept")
    return import_vocabulary(_required_file(folder, "vocab.txt"), cased=is_cased, as_wordpiece=as_wordpiece)


def _parameter_names(bundle: Bundle) -> dict[str, str]:
    """Return Google's name → parameter name for all weights. Raises InputError with all unknown variables."""
    names: dict[str, str] = {}
    unknown: list[str] = []
    for name in bundle.entries:
        parameter = _parameter_name(name)
        if parameter is not None:
            names[name] = parameter
        elif name != _STEP and not (name.endswith(_OPTIMIZER) and _parameter_name(name.rpartition("/")[0])):
            unknown.append(name)
    if unknown:
        raise InputError(
            f"{bundle.prefix}: {len(unknown)} of {len(bundle.entries)} variables have no place in Google's BERT: "
            f"{', '.join(unknown)}"
        )
    return names


def _parameter_name(name: str) -> str | None:
    layer = re.search(r"/layer_(\d+)/", name)
    if layer is None:
        return _VARIABLES.get(name)
    parameter = _VARIABLES.get(name.replace(layer[0], "/layer_#/", 1))
    return parameter and parameter.replace("#", layer[1])


def _variable_name(parameter: str) -> str:
    """Return Google's variable of a parameter by bertwright's name; an unknown name is returned as it is."""
    plain = parameter.replace(".qkv.", ".query.")
    layer = re.search(r"\.(\d+)\.", plain)
    ours = plain.replace(layer[0], ".#.", 1) if layer else plain
    variable = next((name for name, known in _VARIABLES.items() if known == ours), None)
    if variable is None:
        return parameter
    if plain != parameter:
        variable = variable.replace("/query/", "/{query,key,value}/")
    return variable.replace("#", layer[1]) if layer else variable


def _architecture(names: Mapping[str, str], prefix: Path) -> str:
    modules = {name: parameter.partition(".")[0] for name, parameter in names.items()}
    heads = frozenset(modules.values()) - {"encoder", "pooler"}
    if heads not in _ARCHITECTURES:
        variables = ", ".join(name for name, module in modules.items() if module in heads)
        raise InputError(f"{prefix}: has the heads of several tasks, which no architecture has at once: {variables}")
    return _ARCHITECTURES[heads]


def _read_weight(bundle: Bundle, name: str) -> Tensor:
    """Return a weight in torch's layout, in float32."""
    values = bundle.read(name)
    if values.dtype.kind != "f":
        raise InputError(f"{bundle.prefix}: {name} is of type {values.dtype}; weights are floating-point numbers")
    tensor = torch.from_numpy(values.astype(np.float32, copy=False))
    return tensor.t() if name.endswith(_TRANSPOSED) else tensor


def _with_fused_attention(weights: Mapping[str, Tensor], prefix: Path) -> dict[str, Tensor]:
    """Join query, key and value of each layer. Raises InputError where one is missing or their shapes differ."""
    fused = dict(weights)
    for query in [name for name in weights if ".attention.query." in name]:
        names = [query.replace(".query.", f".{part}.") for part in ("query", "key", "value")]
        if missing := [name for name in names if name not in weights]:
            absent = ", ".join(map(_variable_name, missing))
            raise InputError(f"{prefix}: {_variable_name(query)} is there, but not {absent}")
        parts = [fused.pop(name) for name in names]
        if len({part.shape for part in parts}) > 1:
            shapes = {_variable_name(name): tuple(part.shape)[::-1] for name, part in zip(names, parts, strict=True)}
            listed = ", ".join(f"{variable} is {shape}" for variable, shape in shapes.items())
            raise InputError(f"{prefix}: {listed}; they must have the same shape")
        fused[query.replace(".query.", ".qkv.")] = torch.cat(parts)
    return fused
