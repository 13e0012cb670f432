"""URL of a run ↔ its working folder on this machine: what is fetched before a run starts, and what is refused.

The run works in a folder of the cache that belongs to the URL. `uploads.py` copies it to the store while it runs.
"""

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bertwright.console import say
from bertwright.errors import Damaged, InputError, RunFailed
from bertwright.files import atomic_folder, file_digest, named_cache, read_object, write_json
from bertwright.stores.cache import download, local_name
from bertwright.stores.listing import files_below
from bertwright.stores.remote import RemoteFile, read_remote_object
from bertwright.training.checkpoint import list_checkpoints
from bertwright.training.run_lock import is_locked
from bertwright.training.uploads import (
    IDENTITY,
    PAUSES,
    RUN_FILE,
    STATE,
    RunUploads,
    StoredRun,
    checkpoint_of,
    is_of_machine,
    step_of,
)

_FETCHING: Final = ".fetching"
"""File of a working folder into which a run is being copied: where it is left, the copy was stopped."""


def working_folder(url: str) -> Path:
    """Return the folder on this machine in which the run of a URL works; it may not exist."""
    base = url.rstrip("/")
    return named_cache("stores") / "runs" / hashlib.sha256(base.encode()).hexdigest()[:16] / local_name(base)


@contextmanager
def run_by_url(url: str, *, resume: bool, pauses: Sequence[float] = PAUSES) -> Iterator[Path]:
    """Yield the working folder of the run of a URL, whose files are uploaded while the block runs and at its end.

    pauses: seconds before each new try at the end where the store is away.
    With `resume` the newest complete checkpoint of folder and store is in the folder. Raises InputError where a new run
    would hide another one, or folder and store hold different runs. Raises RunFailed where the store is away at the
    end; the folder then holds everything.
    """
    folder = working_folder(url)
    stored = _prepare(url.rstrip("/"), folder, resume=resume)
    folder.mkdir(parents=True, exist_ok=True)
    run = (stored.identity or _identity(folder)).get("run") or secrets.token_hex(16)
    write_json(folder / IDENTITY, {"run": run, "process": secrets.token_hex(16)})
    uploads = RunUploads(folder, url.rstrip("/"), before=stored, pauses=pauses)
    uploads.start()
    try:
        yield folder
    except BaseException:
        uploads.abandon()
        raise
    uploads.finish()


def _prepare(url: str, folder: Path, *, resume: bool) -> StoredRun:
    """Bring the newest state of the run into the working folder; return what the store holds."""
    if is_locked(folder):
        raise InputError(f"{url}: another process works on this run in {folder}; wait for it or stop it")
    remote = files_below(url)
    if not resume:
        if RUN_FILE in remote:
            raise InputError(f"{url}: already holds a run; continue it with --resume or choose another --out")
        if remote:
            raise InputError(f"{url}: is not empty and holds no run ({next(iter(remote))}); choose another --out")
        if (folder / RUN_FILE).exists():
            raise InputError(
                f"{url}: {folder} holds a run of this URL that is not in the store; --resume continues and uploads it. "
                "To give it up, remove the folder"
            )
        return StoredRun()
    identity = read_remote_object(remote[IDENTITY]) if IDENTITY in remote else None
    has_run, has_local = RUN_FILE in remote, (folder / RUN_FILE).is_file()
    if has_local and (identity or has_run) and (identity or {}).get("run") != _identity(folder).get("run", ""):
        raise InputError(
            f"{url}: holds another run than {folder}, where this machine trained to the same URL; name another --out, "
            "or remove the one of the two that you do not need"
        )
    damaged: list[str] = []
    if has_run:
        is_finished = bool(read_remote_object(remote[RUN_FILE]).get("finished"))
        newest = max(_remote_steps(remote), default=-1)
        if not has_local or (folder / _FETCHING).exists() or _newest(folder) < (is_finished, newest):
            damaged = _fetch(url, remote, folder)
    (folder / _FETCHING).unlink(missing_ok=True)
    return StoredRun(identity, has_run, frozenset(damaged))


def _identity(folder: Path) -> dict[str, str]:
    """Return the content of the local .store.json; empty where there is none."""
    return read_object(folder / IDENTITY) if (folder / IDENTITY).is_file() else {}


def _newest(folder: Path) -> tuple[bool, int]:
    """Return whether the run of a folder has finished, and the step of its newest undamaged checkpoint, or -1."""
    return bool(read_object(folder / RUN_FILE).get("finished")), _undamaged_step(folder)


def _undamaged_step(folder: Path) -> int:
    """Return the step of the newest undamaged checkpoint of a folder; -1 where there is none."""
    return next(
        (step_of(path.name) for path in reversed(list_checkpoints(folder / "checkpoints")) if _is_undamaged(path)), -1
    )


def _remote_steps(remote: Mapping[str, RemoteFile]) -> list[int]:
    """Return the steps of the complete checkpoints of a store, ascending: those with the file that comes last."""
    names = [checkpoint_of(name) for name in remote if name.endswith(f"/{STATE}")]
    return sorted(step_of(name) for name in names if name and name.startswith("checkpoints/"))


def _fetch(url: str, remote: Mapping[str, RemoteFile], folder: Path) -> list[str]:
    """Copy the newest undamaged checkpoint of a store into the working folder, then metrics and models, then run.json.

    Undamaged checkpoints of the folder stay. Where the store has no undamaged checkpoint after them, nothing is copied.
    After a kill in between, the marker makes the next call copy again. Returns the damaged checkpoints of the store.
    Raises RunFailed where neither side has an undamaged one.
    """
    say(f"{url}: is newer than {folder}, and is copied there")
    is_partial = (folder / _FETCHING).exists() or not (folder / RUN_FILE).is_file()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _FETCHING).touch()
    newest, damaged, is_new = _undamaged_step(folder), list[str](), False
    for step in (step for step in reversed(_remote_steps(remote)) if step > newest):
        if is_new := _fetch_checkpoint(url, remote, folder / "checkpoints" / f"step-{step:09d}"):
            break
        damaged.append(f"checkpoints/step-{step:09d}")
    if damaged and newest < 0 and not is_new:
        raise RunFailed(f"{url}: every checkpoint in the store is damaged; start the run again at another --out")
    if damaged and not is_new and not is_partial:
        say(f"{url}: the run continues from step {newest} of {folder}; the store has no undamaged checkpoint after it")
        return damaged
    for name, file in remote.items():
        if name != RUN_FILE and not name.startswith("checkpoints/") and not is_of_machine(name):
            download(file, folder / name)
    download(remote[RUN_FILE], folder / RUN_FILE)
    return damaged


def _fetch_checkpoint(url: str, remote: Mapping[str, RemoteFile], target: Path) -> bool:
    """Copy a checkpoint of a store to `target`, unless it is damaged; return whether it is there."""
    begin = f"checkpoints/{target.name}/"
    try:
        with atomic_folder(target) as temporary:
            for name, file in remote.items():
                if name.startswith(begin):
                    download(file, temporary / name.removeprefix(begin))
            if not _is_undamaged(temporary):
                raise Damaged(f"{url}/{begin}")
    except Damaged:
        say(f"{url}/checkpoints/{target.name} is damaged; trying the checkpoint before it")
        return False
    return True


def _is_undamaged(checkpoint: Path) -> bool:
    """Return whether all files of a checkpoint have the digests in its state.json."""
    try:
        digests = read_object(checkpoint / STATE)["sha256"]
        return all(file_digest(checkpoint / name) == digest for name, digest in digests.items())
    except (InputError, KeyError, AttributeError, OSError):
        return False
