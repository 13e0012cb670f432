"""weights → disk: checkpoints that are whole or absent, without pickle, and from which a run goes on bit for bit.

Row order, masks and dropout are functions of (seed, step), so a checkpoint is weights, moments and the step alone.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bertwright.console import say
from bertwright.errors import InputError, RunFailed
from bertwright.files import atomic_folder, file_digest, read_json, write_json
from bertwright.training.optimizer import trained_parameters

_FILES = ("model.safetensors", "optimizer.safetensors")


def save_checkpoint(
    folder: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    step: int,
    notes: Mapping[str, Any],
    keep: int = 2,
) -> Path:
    """Write `folder/step-…` after `step` steps, then remove all but the `keep` newest."""
    target = folder / f"step-{step:09d}"
    with atomic_folder(target) as temporary:
        try:
            save_file(dict(module.state_dict()), temporary / _FILES[0])
            save_file(_moments(module, optimizer), temporary / _FILES[1])
        except SafetensorError as error:  # it has no number: a full disk looks like this as well
            raise RunFailed(f"{target}: the checkpoint cannot be written (is the disk full?): {error}") from error
        sums = {name: file_digest(temporary / name) for name in _FILES}
        write_json(temporary / "state.json", {"step": step, "notes": dict(notes), "sha256": sums})
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return target


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, oldest first; each was whole when it was written."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def load_checkpoint(
    folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[int, dict[str, Any]] | None:
    """Load the newest good checkpoint in place; (steps done, notes), or None where there is none yet.

    A damaged one is named and the one before it used; InputError when every one is damaged.
    """
    found = list_checkpoints(folder)
    for path in reversed(found):
        state = _state(path)
        broken = [name for name in _FILES if not _whole(path / name, state.get("sha256", {}).get(name))]
        if broken:
            say(f"{path / broken[0] if state else path / 'state.json'} is damaged; trying the checkpoint before it")
            continue
        module.load_state_dict(load_file(path / _FILES[0]))
        moments = load_file(path / _FILES[1])
        missing = [key for key in _moments(module, optimizer) if key not in moments]
        if missing:
            raise InputError(
                f"{path}: was written by another version of bertwright (it lacks {missing[0]}); begin anew"
            )
        for key, tensor in _moments(module, optimizer).items():
            tensor.copy_(moments[key])
        return int(state["step"]), state["notes"]
    if found:
        raise InputError(f"{folder}: every checkpoint is damaged ({', '.join(path.name for path in found)})")
    return None


def _moments(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimiser holds, by names as they are in the file."""
    return {
        f"{key}.{name}": tensor
        for name, parameter in trained_parameters(module)
        for key, tensor in optimizer.state[parameter].items()
    }


def _state(path: Path) -> dict[str, Any]:
    """What state.json says; empty where it cannot be read."""
    try:
        state = read_json(path / "state.json")
    except InputError:
        return {}
    return state if isinstance(state, dict) else {}


def _whole(path: Path, digest: str | None) -> bool:
    return path.is_file() and file_digest(path) == digest
