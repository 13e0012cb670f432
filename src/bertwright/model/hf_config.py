"""model ↔ config.json: the form of transformers where one of its classes computes the model, otherwise our own form.

Our own form has a `model_type` that begins with "bertwright-", so that transformers raises an error and does not
compute another model. Its config.json holds the configuration as `body`, and its tensors have our names.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bertwright.errors import InputError
from bertwright.files import read_object
from bertwright.model.config import BackboneConfig
from bertwright.model.families import ModelDescription, TransformersFamily, families, family_of

MULTI_LABEL = "multi_label_classification"
"""Value of `problem_type` by which transformers recognises a classifier with independent labels."""
UNWRITABLE = re.compile("[\x00-\x1f\ud800-\udfff]")
"""Control characters, which would break a table, and surrogates, which no file can hold."""
STATIC = "model2vec"
"""Value of `model_type` in a folder with a table of one vector a piece, which is no model folder."""
_OWN = "bertwright-"


def describe_model(config: BackboneConfig, architecture: str, labels: tuple[str, ...]) -> dict[str, Any]:
    """Return config.json of a model; `architecture` is the class of transformers that has the same heads."""
    family = family_of(config)
    if isinstance(family, TransformersFamily) and family.is_standard(config, architecture):
        return family.config_to_json(config, architecture, labels)
    [(kind, body)] = _to_json(config).items()
    return {"architectures": [architecture], "model_type": _OWN + kind, "body": body, **labels_to_json(labels)}


def read_description(path: Path) -> ModelDescription:
    """Read the config.json of a model folder; InputError for a model that bertwright cannot build."""
    return describe_settings(read_object(path), path)


def describe_settings(raw: Mapping[str, Any], path: Path) -> ModelDescription:
    """Return what the entries of a config.json describe; InputError for a model that bertwright cannot build."""
    if raw.get("model_type") == STATIC:
        raise InputError(
            f"{path}: expected an encoder, got a table of static vectors (model2vec), which gives vectors and nothing "
            "else: index, search, serve, evaluate embed, features --pool folder and bertwright.load read it"
        )
    family = stored_family(raw, path)
    if family is not None:
        return family.config_from_json(raw, path)
    architectures, notes = raw.get("architectures"), notes_in(raw, path)
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise InputError(f"{path}: expected a list with a class name in architectures, got {architectures!r}")
    config = _from_json({str(raw["model_type"]).removeprefix(_OWN): raw.get("body")}, path)
    return ModelDescription(config, architectures[0], read_labels(raw.get("id2label") or {}, path), notes, raw)


def stored_family(raw: Mapping[str, Any], path: Path | str) -> TransformersFamily[Any] | None:
    """Return the family in whose form a model folder with this config.json is stored; None for our own form.

    The default for a missing `model_type` is BERT: the first BERTs have no such entry. Raises InputError for a model
    type that no family has, and without one for a class that is not BERT's.
    """
    model_type, classes = raw.get("model_type", "bert"), raw.get("architectures")
    if (
        "model_type" not in raw
        and isinstance(classes, list)
        and not all(str(name).startswith("Bert") for name in classes)
    ):
        raise InputError(
            f"{path}: has no model_type, and architectures is {classes!r}; expected a model_type, or a class of BERT"
        )
    stored = [family for family in families().values() if isinstance(family, TransformersFamily)]
    for family in stored:
        if model_type in family.model_types:
            return family
    if isinstance(model_type, str) and model_type.startswith(_OWN):
        return None
    known = ", ".join(sorted(name for family in stored for name in family.model_types if not name.startswith(_OWN)))
    raise InputError(f"{path}: model_type is {model_type!r}, which no family here has; families have {known}")


def labels_to_json(labels: tuple[str, ...]) -> dict[str, Any]:
    """Return the entries of config.json for the label names; none where there are no labels."""
    if not labels:
        return {}
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }


def read_labels(id2label: Any, path: Path) -> tuple[str, ...]:
    """Return the label names of `id2label` in the order of the outputs.

    Raises InputError, with the output and its name, for a name that is missing, is no text, or would break a table.
    """
    advice = "correct it, or give all names to bertwright import: --label NAME, once for each output"
    if not isinstance(id2label, dict):
        kind = f"a {type(id2label).__name__}"
        raise InputError(
            f"{path}: expected an object in id2label, number of an output → its name, got {kind}; {advice}"
        )
    labels = []
    for index in range(len(id2label)):
        if str(index) not in id2label:
            numbers = ", ".join(list(id2label)[:8])
            raise InputError(
                f"{path}: id2label has {len(id2label)} names, and none of them for output {index}: its keys are "
                f"{numbers}; {advice}"
            )
        label = id2label[str(index)]
        if not isinstance(label, str):
            raise InputError(
                f"{path}: id2label: expected a text as the name of output {index}, got {label!r}; {advice}"
            )
        if UNWRITABLE.search(label):
            raise InputError(
                f"{path}: id2label: the name of output {index} is {label!r}; a control character in it would break a "
                f"table; {advice}"
            )
        labels.append(label)
    return tuple(labels)


def notes_in(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return bertwright's notes in a config.json; InputError where they are not an object."""
    notes = raw.get("bertwright", {})
    if not isinstance(notes, dict):
        raise InputError(f"{path}: bertwright is {notes!r}; it must be an object")
    return notes


def our_values(raw: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a config.json by our names; `names` maps each of our names to the stored name.

    A pad_id of null is left out: transformers writes it for a model without padding.
    """
    values = {ours: raw[stored] for ours, stored in names.items() if stored in raw}
    if values.get("pad_id", 0) is None:
        del values["pad_id"]
    return values


def check_values(path: Path, wanted: Mapping[str, tuple[Any, Any]]) -> None:
    """Raise InputError for the first entry of config.json, name → (value, allowed), whose value is not allowed."""
    for name, (value, allowed) in wanted.items():
        if value != allowed:
            raise InputError(f"{path}: {name} is {value!r}; only {allowed!r} can be read")


def _to_json(config: BackboneConfig) -> dict[str, Any]:
    """Return a configuration as {name of its family: its fields}; configurations inside have the same form."""
    values = config.model_dump(mode="json")
    parts = {name: getattr(config, name) for name in type(config).model_fields}
    nested = {name: _to_json(part) for name, part in parts.items() if isinstance(part, BackboneConfig)}
    return {family_of(config).name: values | nested}


def _from_json(named: Any, path: Path) -> BackboneConfig:
    """Read the configuration that `_to_json` wrote; InputError for anything else."""
    known = families()
    if not isinstance(named, dict) or len(named) != 1 or (kind := next(iter(named))) not in known:
        allowed = ", ".join(known)
        raise InputError(f"{path}: expected one of {allowed} with its configuration as body, got {str(named)[:80]!r}")
    body = named[kind]
    if not isinstance(body, dict):
        raise InputError(f"{path}: expected an object with the configuration of {kind} as body, got {str(body)[:80]!r}")
    config_class = known[kind].config_class
    nested = {name: _from_json(value, path) for name, value in body.items() if _holds_config(config_class, name)}
    try:
        config: BackboneConfig = config_class.model_validate({**body, **nested})
    except ValidationError as error:
        raise InputError(f"{path}: body of kind {kind}: {error}") from None
    return config


def _holds_config(config_class: type[BackboneConfig], name: str) -> bool:
    """Return whether a field holds the configuration of another backbone."""
    field = config_class.model_fields.get(name)
    return field is not None and isinstance(field.annotation, type) and issubclass(field.annotation, BackboneConfig)
