"""--model, or the lock of an earlier run → the model whose uses an experiment compares."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bertwright.errors import InputError
from bertwright.experiments.jobs import UsedModel
from bertwright.files import read_object_if_there
from bertwright.model.config import EncoderConfig
from bertwright.model.folder import open_model, weights_digest
from bertwright.model.system import NAMES, system_of
from bertwright.pretraining.settings import PretrainSettings


def open_used_model(source: str, lock: Path) -> UsedModel:
    """Return the used model of a model folder, a shipped name or a URL.

    Raises InputError for a model that was fine-tuned on a task, and where the lock of an earlier run notes another.
    """
    saved = open_model(source)
    config, system = saved.config, system_of(saved.config)
    if "task" in saved.extra:
        raise InputError(f"--model {source}: expected a pre-trained model, got one that was fine-tuned on a task")
    if not isinstance(config, EncoderConfig) or system is None:
        raise InputError(f"--model {source}: expected a Transformer encoder")
    used = _used_model(
        {
            "name": str(Path(saved.source).resolve()),
            "digest": weights_digest(saved),
            "shape": f"a {NAMES[system]} of {config.layers} layers of {config.hidden}",
            "system": system,
            "size": f"{config.layers}x{config.hidden}x{config.heads}",
        }
    )
    earlier = _noted(lock)
    if earlier and earlier.digest != used.digest:
        raise InputError(
            f"--model {source}: the runs of {lock} are of another model, {earlier.title}; choose another --out"
        )
    return used


def noted_model(lock: Path) -> UsedModel:
    """Return the used model that a lock notes, for a page that is written without the model.

    Raises InputError where there is no lock, or where it notes no model.
    """
    noted = _noted(lock)
    if noted is None:
        raise InputError(f"--page: {lock} notes no model; name it with --model, or choose the --out of an earlier run")
    return noted


def _noted(lock: Path) -> UsedModel | None:
    """Return the used model that a lock notes; None where it notes none."""
    noted = read_object_if_there(lock).get("model")
    if not isinstance(noted, dict) or not {"name", "digest", "shape", "system", "size"} <= noted.keys():
        return None
    return _used_model(noted)


def note_of(used: UsedModel) -> dict[str, Any]:
    """Return the note of a used model for a lock."""
    settings = used.settings
    return {
        "name": used.title,
        "digest": used.digest,
        "shape": used.shape,
        "system": settings.system,
        "size": settings.size,
    }


def _used_model(noted: Mapping[str, Any]) -> UsedModel:
    """Return the used model of a note, as `note_of` makes it; raises InputError for a size that no system has."""
    shape = {"system": noted["system"], "size": noted["size"]}
    try:
        settings = PretrainSettings.model_validate({**shape, "steps": 1})
    except ValidationError as error:
        raise InputError(f"{noted['name']}: {error.errors()[0]['msg']}") from None
    return UsedModel(Path(noted["name"]), str(noted["digest"]), str(noted["shape"]), settings)
