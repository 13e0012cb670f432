"""Weights → disk: checkpoints that are complete or absent, without pickle. A run resumes from them bit for bit.

Row order, masks and dropout are functions of (seed, step). A checkpoint therefore needs the weights, the moments and
the step alone.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import atomic_folder, file_digest, read_json, write_error, write_json
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, copy_full_tensor, full_tensor
from bertwright.training.optimizer import trained_parameters
from bertwright.training.run_files import step_folders, step_name

_KINDS = ("model", "optimizer")


def save_checkpoint(
    folder: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    step: int,
    notes: Mapping[str, Any],
    keep: int = 2,
    ranks: Ranks = SINGLE_PROCESS,
) -> Path:
    """Write `folder/step-…` after `step` steps. Keep the `keep` newest checkpoints up to that step, remove all others.

    Checkpoints of later steps are removed as well: they were damaged, otherwise the run would have continued from them.
    Each rank writes some of the tensors, as full tensors, so that a run resumes with any number of ranks. Raises
    RunFailed where the files cannot be written.
    """
    target = folder / step_name(step)
    with atomic_folder(target) if ranks.is_main else nullcontext() as temporary:
        path = Path(ranks.broadcast(str(temporary)))
        try:
            for kind, tensors in zip(_KINDS, (module.state_dict(), _moments(module, optimizer)), strict=True):
                mine = {}
                for index, (name, tensor) in enumerate(tensors.items()):
                    value = full_tensor(tensor)
                    if index % ranks.world_size == ranks.rank:
                        mine[name] = value.cpu()
                save_file(mine, path / _file_name(kind, ranks))
        except SafetensorError as error:
            raise write_error(error, f"{target}: the checkpoint") from error
        ranks.barrier()
        if ranks.is_main:
            digests = {file.name: file_digest(file) for file in sorted(path.iterdir())}
            state = {"step": step, "notes": dict(notes), "sha256": digests}
            write_json(path / "state.json", {**state, "digest": _digest(state)})
    ranks.wait_for_main()
    if ranks.is_main:
        checkpoints = list_checkpoints(folder)
        end = checkpoints.index(target) + 1
        for other in [*checkpoints[: max(0, end - keep)], *checkpoints[end:]]:
            shutil.rmtree(other, ignore_errors=True)  # a file may be open for an upload; the next save tries again
    return target


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint folders, oldest first; copies under other names are not listed."""
    return [*step_folders(folder).values()]


def load_checkpoint(
    folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, *, ranks: Ranks = SINGLE_PROCESS
) -> tuple[int, dict[str, Any]] | None:
    """Load the newest undamaged checkpoint in place; return (steps done, notes), or None where there is none.

    A damaged checkpoint is named, and the one before it is used. Raises InputError where every checkpoint is damaged.
    """
    newest = _newest_undamaged(folder) if ranks.is_main else None
    ranks.wait_for_main()
    path, state = ranks.broadcast(newest)
    if path is None:
        return None
    weights, moments = (_read_tensors(Path(path), state, kind) for kind in _KINDS)
    _convert_tables(weights, moments, _moments(module, optimizer))
    for targets, saved in ((module.state_dict(), weights), (_moments(module, optimizer), moments)):
        missing = [name for name in targets if name not in saved]
        if missing:
            raise InputError(
                f"{path}: expected the tensor {missing[0]}, which is missing: another version of bertwright wrote this "
                "checkpoint; start a new run"
            )
        for name, target in targets.items():
            if saved[name].shape != target.shape:
                expected, got = list(target.shape), list(saved[name].shape)
                raise InputError(f"{path}: expected the tensor {name} of shape {expected}, got {got}; start a new run")
            copy_full_tensor(target, saved[name])
    return int(state["step"]), state["notes"]


def _newest_undamaged(folder: Path) -> tuple[str | None, dict[str, Any]]:
    """Return the newest undamaged checkpoint and the content of its state.json."""
    if folder.is_symlink() and not folder.exists():
        raise InputError(
            f"{folder}: links to {folder.readlink()}, which does not exist; remove the link if the checkpoints are lost"
        )
    checkpoints = list_checkpoints(folder)
    for path in reversed(checkpoints):
        state = _read_state(path)
        digests = state.get("sha256", {})
        damaged = next((name for name, digest in digests.items() if not _has_digest(path / name, digest)), None)
        if damaged is None and {name.split("-")[0].split(".")[0] for name in digests} == set(_KINDS):
            return str(path), state
        say(f"{path / (damaged or 'state.json')} is damaged; trying the checkpoint before it")
    if checkpoints:
        raise InputError(f"{folder}: every checkpoint is damaged ({', '.join(path.name for path in checkpoints)})")
    return None, {}


def _read_tensors(path: Path, state: Mapping[str, Any], kind: str) -> dict[str, Tensor]:
    """Return the tensors of one kind from the files of all ranks; InputError for a file that is not safetensors."""
    tensors: dict[str, Tensor] = {}
    for name in state["sha256"]:
        if name.startswith(kind):
            try:
                tensors |= load_file(path / name)
            except SafetensorError as error:
                raise InputError(
                    f"{path / name}: expected a safetensors file, got another file with the noted digest ({error}); "
                    f"remove {path} to resume from the checkpoint before it"
                ) from None
    return tensors


def _convert_tables(weights: Mapping[str, Tensor], moments: dict[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    """Convert tables with sparse gradients in place, to the way in which this run updates them.

    One process updates the rows that were read; several processes update the whole table.
    """
    for name, weight in weights.items():
        seen, decay = f"seen.{name}", f"decay.{name}"
        if seen in moments and seen not in targets:
            weight[~moments[seen]] *= float(moments[decay])
        elif seen in targets and seen not in moments and f"exp_avg.{name}" in moments:
            moments[seen], moments[decay] = torch.ones_like(targets[seen]), torch.ones_like(targets[decay])


def _file_name(kind: str, ranks: Ranks) -> str:
    if ranks.world_size == 1:
        return f"{kind}.safetensors"
    return f"{kind}-{ranks.rank + 1:05d}-of-{ranks.world_size:05d}.safetensors"


def _moments(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's tensors by their names in the file."""
    return {
        f"{key}.{name}": tensor
        for name, parameter in trained_parameters(module)
        for key, tensor in optimizer.state[parameter].items()
    }


def _read_state(path: Path) -> dict[str, Any]:
    """Return the content of state.json without its digest; empty where the file is damaged."""
    try:
        state = read_json(path / "state.json")
    except InputError:
        return {}
    if not isinstance(state, dict) or not state.keys() >= {"step", "notes", "sha256"}:
        return {}
    if state.pop("digest", None) != _digest(state):
        return {}
    return state if path.name == step_name(state["step"]) else {}


def _digest(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _has_digest(path: Path, digest: str) -> bool:
    return path.is_file() and file_digest(path) == digest
