"""config.json ↔ an encoder's shape: what a model folder says of its model, by Hugging Face's names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bertwright.errors import InputError
from bertwright.files import read_object
from bertwright.model.sizes import BodyConfig, EncoderConfig

LANGUAGE_MODEL = "BertLMHeadModel"
"""A BERT that predicts the next token at every place."""
FEATURES, FEATURES_TYPE = "BertwrightFeatures", "bertwright-features"
"""A frozen encoder with a BiLSTM on its states: no class of transformers' has these heads, so none is named."""
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
UNWRITABLE = re.compile("[\x00-\x1f\ud800-\udfff]")
"""Control characters, which would tear a table, and halves of characters, which no file can hold."""
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new"}


@dataclass(frozen=True)
class Described:
    """What a config.json says; `architecture` is None where it names none, `raw` is the whole of it."""

    config: BodyConfig
    architecture: str | None
    labels: tuple[str, ...]
    extra: Mapping[str, Any]
    raw: Mapping[str, Any]


def foreign_config(config: EncoderConfig, architecture: str, labels: tuple[str, ...]) -> dict[str, Any]:
    """What config.json says of a model of that shape, with the class of transformers that has its heads."""
    own = config.model_dump()
    foreign = {
        "architectures": [architecture],
        "model_type": FEATURES_TYPE if architecture == FEATURES else "bert",
        "hidden_act": _ACTIVATIONS[config.activation],
        "position_embedding_type": "absolute",
        **{theirs: own[ours] for ours, theirs in _CONFIG_NAMES.items()},
    }
    if left_to_right(config, architecture):
        foreign["is_decoder"] = True
    return foreign | labels_described(labels)


def labels_described(labels: tuple[str, ...]) -> dict[str, Any]:
    """How config.json says what the outputs mean."""
    if not labels:
        return {}
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }


def left_to_right(config: EncoderConfig, architecture: str | None) -> bool:
    """Whether this is transformers' BERT as a decoder: a language model whose tokens attend to those before them."""
    return config.attends == "left" and architecture == LANGUAGE_MODEL


def read_config(path: Path) -> Described:
    """Read a config.json; InputError for one that is not an encoder's of the kind built here."""
    raw = read_object(path)
    named = raw.get("architectures") or [None]
    if not isinstance(named, list) or not isinstance(named[0], str | None):
        raise InputError(f"{path}: architectures is {named!r}; a list with the name of a class is due")
    decodes = named[0] == LANGUAGE_MODEL and raw.get("is_decoder") is True
    wanted = {
        "model_type": ("bert" if raw.get("model_type") == FEATURES_TYPE else raw.get("model_type", "bert"), "bert"),
        "position_embedding_type": (raw.get("position_embedding_type", "absolute"), "absolute"),
        "is_decoder": (raw.get("is_decoder", False), decodes),
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
        values |= {"activation": activations[activation], "attends": "left" if decodes else "both"}
        config = EncoderConfig.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{path}: {_in_words(error)}") from None
    noted = raw.get("bertwright", {})
    if not isinstance(noted, dict):
        raise InputError(f"{path}: bertwright is {noted!r}; it must be an object")
    return Described(config, named[0], labels_of(raw.get("id2label") or {}, path), noted, raw)


def _in_words(error: ValidationError) -> str:
    """What is wrong with a configuration, by the names of the file."""
    wrong = []
    for part in error.errors():
        name = _CONFIG_NAMES.get(str(part["loc"][0]), str(part["loc"][0])) if part["loc"] else ""
        if part["type"] == "missing":
            wrong.append(f"{name} is missing")
        else:
            wrong.append(f"{name} is {part['input']!r}: {part['msg']}" if name else part["msg"])
    return "; ".join(wrong)


def check_values(path: Path, wanted: Mapping[str, tuple[Any, Any]]) -> None:
    """InputError for the first name whose value in a config.json is not the one that can be read."""
    for name, (value, allowed) in wanted.items():
        if value != allowed:
            raise InputError(f"{path}: {name} is {value!r}; only {allowed!r} can be read")


def labels_of(named: Any, path: Path) -> tuple[str, ...]:
    """The label names of a config.json's id2label, in the order of the outputs; InputError for anything else."""
    labels = [named.get(str(index)) for index in range(len(named))] if isinstance(named, dict) else [None]
    if not all(isinstance(label, str) and not UNWRITABLE.search(label) for label in labels):
        last = max(0, len(labels) - 1)
        raise InputError(f"{path}: id2label must name the labels 0 to {last}, each a text; got {named!r}")
    return tuple(map(str, labels))
