"""Checkpoints whose digests match but whose content is wrong are refused with a message."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import nn

from bertwright.errors import InputError
from bertwright.training.checkpoint import load_checkpoint, save_checkpoint
from bertwright.training.optimizer import build_optimizer
from bertwright.training.settings import OptimizerSettings


def load_forged(folder: Path, *, files: dict[str, bytes], without: str = "") -> Any:
    """Save a checkpoint, replace files, remove a key of its state, make all digests match, and load it."""
    module = nn.Linear(2, 2)
    optimizer = build_optimizer(module, OptimizerSettings())
    path = save_checkpoint(folder, module, optimizer, step=1, notes={})
    state = json.loads((path / "state.json").read_text())
    for name, content in files.items():
        (path / name).write_bytes(content)
        state["sha256"][name] = hashlib.sha256(content).hexdigest()
    state = {key: value for key, value in state.items() if key not in ("digest", without)}
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    (path / "state.json").write_text(json.dumps({**state, "digest": digest}))
    return load_checkpoint(folder, module, optimizer)


@pytest.mark.parametrize("content", [b"", b"not safetensors", (10**6).to_bytes(8, "little") + b"{}"])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_a_file_that_is_not_safetensors_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(
        InputError,
        match=rf"step-000000001/{name}: expected a safetensors file.*to resume from the checkpoint before it",
    ):
        load_forged(tmp_path, files={name: content})


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    weights = save({"weight": torch.ones(1, 2), "bias": torch.ones(2)})  # [1, 2] could be broadcast to [2, 2]
    with pytest.raises(InputError, match=r"expected the tensor weight of shape \[2, 2\], got \[1, 2\]"):
        load_forged(tmp_path, files={"model.safetensors": weights})


@pytest.mark.parametrize("key", ["step", "notes", "sha256"])
def test_a_state_without_one_of_its_entries_is_damaged(tmp_path: Path, key: str) -> None:
    with pytest.raises(InputError, match="every checkpoint is damaged"):
        load_forged(tmp_path, files={}, without=key)


def test_a_forged_checkpoint_that_is_right_is_loaded(tmp_path: Path) -> None:
    weights = save({"weight": torch.ones(2, 2), "bias": torch.ones(2)})
    assert load_forged(tmp_path, files={"model.safetensors": weights}) == (1, {})
