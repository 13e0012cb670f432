"""Weights that replace those of a model folder on purpose."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from bertwright.files import digest_note
from bertwright.model.folder import WEIGHTS


def put(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write other weights, and remove the digest of those before, as a person has to."""
    save_file(dict(tensors), folder / WEIGHTS, metadata={"format": "pt"})
    digest_note(folder / WEIGHTS).unlink(missing_ok=True)
