"""weights → disk: checkpoints that are whole or absent, without pickle, and from which a run goes on bit for bit.

Row order, masks and dropout are functions of (seed, step), so a checkpoint is weights, moments and the step alone.
"""

import hashlib
import json
import re
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
from bertwright.errors import InputError, RunFailed
from bertwright.files import atomic_folder, file_digest, read_json, write_json
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, fill, whole
from bertwright.training.optimizer import trained_parameters

_KINDS = ("model", "optimizer")
_NAMED = re.compile(r"step-\d{9,}")


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
    """Write `folder/step-…` after `step` steps, then remove all but the `keep` newest up to it.

    Any of later steps are removed too: they were damaged, or the run would have gone on from them.

    Each of several ranks writes some of the tensors, whole, so that any number of ranks can go on from them.
    """
    target = folder / _name(step)
    with atomic_folder(target) if ranks.is_main else nullcontext() as temporary:
        place = Path(ranks.broadcast(str(temporary)))
        try:
            for kind, tensors in zip(_KINDS, (module.state_dict(), _moments(module, optimizer)), strict=True):
                own = {}
                for number, (name, tensor) in enumerate(tensors.items()):
                    value = whole(tensor)
                    if number % ranks.world_size == ranks.rank:
                        own[name] = value.cpu()
                save_file(own, place / _file(kind, ranks))
        except SafetensorError as error:  # it has no number: a full disk looks like this as well
            raise RunFailed(f"{target}: the checkpoint cannot be written (is the disk full?): {error}") from error
        ranks.barrier()
        if ranks.is_main:
            sums = {path.name: file_digest(path) for path in sorted(place.iterdir())}
            state = {"step": step, "notes": dict(notes), "sha256": sums}
            write_json(place / "state.json", {**state, "digest": _digest(state)})
    ranks.barrier()
    if ranks.is_main:
        found = list_checkpoints(folder)
        end = found.index(target) + 1
        for other in [*found[: max(0, end - keep)], *found[end:]]:
            shutil.rmtree(other)
    return target


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, oldest first; each was whole when it was written. A person's copies, under other names, are none."""
    found = [path for path in folder.glob("step-*") if _NAMED.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def load_checkpoint(
    folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, *, ranks: Ranks = SINGLE_PROCESS
) -> tuple[int, dict[str, Any]] | None:
    """Load the newest good checkpoint in place; (steps done, notes), or None where there is none yet.

    A damaged one is named and the one before it used; InputError when every one is damaged.
    """
    path, state = ranks.broadcast(_newest_good(folder) if ranks.is_main else None)
    if path is None:
        return None
    weights, moments = (_read(Path(path), state, kind) for kind in _KINDS)
    _fit_tables(weights, moments, _moments(module, optimizer))
    for wanted, there in ((module.state_dict(), weights), (_moments(module, optimizer), moments)):
        missing = [name for name in wanted if name not in there]
        if missing:
            raise InputError(
                f"{path}: was written by another version of bertwright (it lacks {missing[0]}); begin anew"
            )
        for name, tensor in wanted.items():
            fill(tensor, there[name])
    return int(state["step"]), state["notes"]


def _newest_good(folder: Path) -> tuple[str | None, dict[str, Any]]:
    """The newest checkpoint that is whole, and what its state.json says."""
    if folder.is_symlink() and not folder.exists():
        raise InputError(
            f"{folder}: leads to {folder.readlink()}, which is not there; remove the link if they are lost"
        )
    found = list_checkpoints(folder)
    for path in reversed(found):
        state = _state(path)
        sums = state.get("sha256", {})
        broken = next((name for name, digest in sums.items() if not _whole(path / name, digest)), None)
        if broken is None and {name.split("-")[0].split(".")[0] for name in sums} == set(_KINDS):
            return str(path), state
        say(f"{path / (broken or 'state.json')} is damaged; trying the checkpoint before it")
    if found:
        raise InputError(f"{folder}: every checkpoint is damaged ({', '.join(path.name for path in found)})")
    return None, {}


def _read(path: Path, state: Mapping[str, Any], kind: str) -> dict[str, Tensor]:
    """The tensors of one kind, from all the files that ranks wrote."""
    found: dict[str, Tensor] = {}
    for name in state["sha256"]:
        if name.startswith(kind):
            found |= load_file(path / name)
    return found


def _fit_tables(weights: Mapping[str, Tensor], moments: dict[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """In place: one process updates the rows of a sparse table by themselves, several the whole table; each goes on
    from the other."""
    for name, weight in weights.items():
        seen, decay = f"seen.{name}", f"decay.{name}"
        if seen in moments and seen not in wanted:
            weight[~moments[seen]] *= float(moments[decay])
        elif seen in wanted and seen not in moments and f"exp_avg.{name}" in moments:
            moments[seen], moments[decay] = torch.ones_like(wanted[seen]), torch.ones_like(wanted[decay])


def _file(kind: str, ranks: Ranks) -> str:
    return (
        f"{kind}.safetensors"
        if ranks.world_size == 1
        else f"{kind}-{ranks.rank + 1:05d}-of-{ranks.world_size:05d}.safetensors"
    )


def _moments(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimiser holds, by names as they are in the file."""
    return {
        f"{key}.{name}": tensor
        for name, parameter in trained_parameters(module)
        for key, tensor in optimizer.state[parameter].items()
    }


def _state(path: Path) -> dict[str, Any]:
    """What state.json says; empty where it cannot be read, or is not what was written there.

    Those of earlier versions have no digest: of them the step has to be the folder's, and the rest of the right kind.
    """
    try:
        state = read_json(path / "state.json")
    except InputError:
        return {}
    if not isinstance(state, dict):
        return {}
    digest = state.pop("digest", None)
    is_fit = path.name == _name(state.get("step")) and all(
        isinstance(state.get(name), dict) for name in ("notes", "sha256")
    )
    return state if is_fit and digest in (None, _digest(state)) else {}


def _digest(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _name(step: object) -> str:
    return f"step-{step:09d}" if type(step) is int else ""


def _whole(path: Path, digest: str | None) -> bool:
    return path.is_file() and file_digest(path) == digest
