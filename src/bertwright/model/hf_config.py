"""model ↔ config.json and stored names, in three forms: transformers' BERT, transformers' GPT-1, and our own.

What no class of transformers computes (a left-to-right BERT with a classifier, LSTMs, two models side by side, …) is
written in our own form, under a `model_type` that begins with "bertwright-", so that nobody's AutoModel runs it wrongly
in silence. Its config.json holds the shape as `body`, and its tensors have our names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bertwright.errors import InputError
from bertwright.files import read_object
from bertwright.model.config import BackboneConfig, EncoderConfig, GPTConfig, LSTMConfig, PairConfig, TopConfig

# config.json ↔ an encoder's shape: what a model folder says of its model, by Hugging Face's names.

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

    config: BackboneConfig
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


ARCHITECTURE = "OpenAIGPTLMHeadModel"
MODEL_TYPE = "openai-gpt"

_GPT_CONFIG_NAMES = {
    "vocab_size": "vocab_size",
    "hidden": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "max_positions": "n_positions",
    "hidden_dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "initializer_range": "initializer_range",
    "layer_norm_eps": "layer_norm_epsilon",
    "pad_id": "pad_token_id",
}


def gpt_described(config: GPTConfig) -> dict[str, Any]:
    """What config.json says of a GPT-1 of that shape."""
    own = config.model_dump()
    return {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "afn": "gelu",  # the tanh form, by the name it has there
        "embd_pdrop": config.hidden_dropout,
        **{theirs: own[ours] for ours, theirs in _GPT_CONFIG_NAMES.items()},
    }


def read_gpt_config(path: Path) -> tuple[GPTConfig, dict[str, Any]]:
    """Read config.json: the configuration, and what was noted for this project; InputError for other models."""
    raw = read_object(path)
    wanted = {
        "model_type": (raw.get("model_type"), MODEL_TYPE),
        "afn": (raw.get("afn", "gelu"), "gelu"),
        "tie_word_embeddings": (raw.get("tie_word_embeddings", True), True),
        "n_special": (raw.get("n_special", 0), 0),
        "embd_pdrop": (raw.get("embd_pdrop", 0.1), raw.get("resid_pdrop", 0.1)),
    }
    check_values(path, wanted)
    if not isinstance(raw.get("bertwright", {}), dict):
        raise InputError(f"{path}: bertwright is {raw['bertwright']!r}; it must be an object")
    values = {ours: raw[theirs] for ours, theirs in _GPT_CONFIG_NAMES.items() if theirs in raw}
    if values.get("pad_id", 0) is None:  # transformers' way of saying that there is none
        del values["pad_id"]
    hidden = values.get("hidden")
    try:
        config = GPTConfig.model_validate({**values, "intermediate": 4 * hidden if isinstance(hidden, int) else hidden})
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return config, raw.get("bertwright", {})


_OWN = "bertwright-"
_KINDS: Mapping[str, type[BackboneConfig]] = {
    "bert": EncoderConfig,
    "gpt": GPTConfig,
    "lstm": LSTMConfig,
    "pair": PairConfig,
    "top": TopConfig,
}
"""What `body` is called in our own form."""


def described(config: BackboneConfig, architecture: str, labels: tuple[str, ...]) -> dict[str, Any]:
    """What config.json says of a model of that shape with the heads of that class."""
    if is_gpt(config, architecture):
        assert isinstance(config, GPTConfig)
        return gpt_described(config)
    if is_bert(config, architecture):
        assert isinstance(config, EncoderConfig)
        return foreign_config(config, architecture, labels)
    [(kind, body)] = _written(config).items()
    return {"architectures": [architecture], "model_type": _OWN + kind, "body": body, **labels_described(labels)}


def read_described(path: Path) -> Described:
    """What any model folder's config.json says; InputError for a model that is not built here."""
    raw = read_object(path)
    kind = raw.get("model_type")
    if kind == MODEL_TYPE:
        config, extra = read_gpt_config(path)
        return Described(config, ARCHITECTURE, (), extra, raw)
    if not isinstance(kind, str) or not kind.startswith(_OWN) or kind == FEATURES_TYPE:
        return read_config(path)
    named, noted = raw.get("architectures"), raw.get("bertwright", {})
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise InputError(f"{path}: architectures is {named!r}; a list with the name of a class is due")
    if not isinstance(noted, dict):
        raise InputError(f"{path}: bertwright is {noted!r}; it must be an object")
    body = _read({kind.removeprefix(_OWN): raw.get("body")}, path)
    return Described(body, named[0], labels_of(raw.get("id2label") or {}, path), noted, raw)


def is_gpt(config: BackboneConfig, architecture: str) -> bool:
    """Return whether a model is written as a GPT-1 of transformers."""
    return isinstance(config, GPTConfig) and architecture == ARCHITECTURE


def is_bert(config: BackboneConfig, architecture: str) -> bool:
    """Return whether a class of transformers' BERT computes it; if it attends left, with a language model's head."""
    if type(config) is not EncoderConfig:
        return False
    return config.attends == "both" or left_to_right(config, architecture)


def _written(config: BackboneConfig) -> dict[str, Any]:
    """A shape under the name of its kind."""
    kind = next(name for name, one in _KINDS.items() if type(config) is one)
    if isinstance(config, PairConfig):
        return {kind: {"left": _written(config.left), "right": _written(config.right)}}
    if isinstance(config, TopConfig):
        return {kind: {"inner": _written(config.inner), "width": config.width}}
    return {kind: config.model_dump(mode="json")}


def _read(named: Any, path: Path) -> BackboneConfig:
    """The shape that `_written` wrote; InputError for anything else."""
    if not isinstance(named, dict) or len(named) != 1 or (kind := next(iter(named))) not in _KINDS:
        raise InputError(f"{path}: body is {str(named)[:80]!r}; one of {', '.join(_KINDS)} with its figures is due")
    body = named[kind]
    if not isinstance(body, dict):
        raise InputError(f"{path}: body is {str(body)[:80]!r}; an object with the figures of a {kind} is due")
    inner = {name: _read(body[name], path) for name in ("left", "right", "inner") if name in body}
    try:
        return _KINDS[kind].model_validate({**body, **inner})
    except ValidationError as error:
        raise InputError(f"{path}: body of kind {kind}: {error}") from None
