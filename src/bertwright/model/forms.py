"""model ↔ config.json and stored names, in three forms: transformers' BERT, transformers' GPT-1, and our own.

What no class of transformers computes (a left-to-right BERT with a classifier, LSTMs, two models side by side, …) is
written in our own form, under a `model_type` that begins with "bertwright-", so that nobody's AutoModel runs it wrongly
in silence. Its config.json holds the shape as `body`, and its tensors have our names.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from bertwright.errors import InputError
from bertwright.files import read_object
from bertwright.model.described import (
    FEATURES_TYPE,
    Described,
    foreign_config,
    labels_described,
    labels_of,
    left_to_right,
    read_config,
)
from bertwright.model.gpt_naming import (
    ARCHITECTURE,
    MODEL_TYPE,
    gpt_described,
    gpt_from_foreign,
    gpt_to_foreign,
    read_gpt_config,
)
from bertwright.model.naming import own_weights, to_foreign
from bertwright.model.sizes import (
    BodyConfig,
    EncoderConfig,
    GPTConfig,
    LSTMConfig,
    PairConfig,
    TopConfig,
)

_OWN = "bertwright-"
_KINDS: Mapping[str, type[BodyConfig]] = {
    "bert": EncoderConfig,
    "gpt": GPTConfig,
    "lstm": LSTMConfig,
    "pair": PairConfig,
    "top": TopConfig,
}
"""What `body` is called in our own form."""


def described(config: BodyConfig, architecture: str, labels: tuple[str, ...]) -> dict[str, Any]:
    """What config.json says of a model of that shape with the heads of that class."""
    if _is_gpt(config, architecture):
        assert isinstance(config, GPTConfig)
        return gpt_described(config)
    if _is_bert(config, architecture):
        assert isinstance(config, EncoderConfig)
        return foreign_config(config, architecture, labels)
    [(kind, body)] = _written(config).items()
    return {"architectures": [architecture], "model_type": _OWN + kind, "body": body, **labels_described(labels)}


def stored_names(weights: Mapping[str, Tensor], config: BodyConfig, architecture: str) -> dict[str, Tensor]:
    """Weights by our names as `described` says that they are stored."""
    if _is_gpt(config, architecture):
        return gpt_to_foreign(weights)
    return to_foreign(weights) if _is_bert(config, architecture) else dict(weights)


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


def _is_gpt(config: BodyConfig, architecture: str) -> bool:
    return isinstance(config, GPTConfig) and architecture == ARCHITECTURE


def _is_bert(config: BodyConfig, architecture: str) -> bool:
    """Whether a class of transformers' BERT computes it: one that attends left has a language model's head there."""
    if type(config) is not EncoderConfig:
        return False
    return config.attends == "both" or left_to_right(config, architecture)


def _written(config: BodyConfig) -> dict[str, Any]:
    """A shape under the name of its kind."""
    kind = next(name for name, one in _KINDS.items() if type(config) is one)
    if isinstance(config, PairConfig):
        return {kind: {"left": _written(config.left), "right": _written(config.right)}}
    if isinstance(config, TopConfig):
        return {kind: {"inner": _written(config.inner), "width": config.width}}
    return {kind: config.model_dump(mode="json")}


def _read(named: Any, path: Path) -> BodyConfig:
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
