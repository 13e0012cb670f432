"""URL of a run ↔ its working folder on this machine: what is fetched before a run starts, and what is refused.

The run works in a folder of the cache that belongs to the URL. `uploads.py` copies it to the store while it runs.
"""

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bertwright.console import say
from bertwright.errors import Damaged, InputError, RunFailed
from bertwright.files import atomic_folder, file_digest, named_cache, read_object, read_object_if_there, write_json
from bertwright.locks import locked_file
from bertwright.stores.cache import download, local_name
from bertwright.stores.listing import files_below
from bertwright.stores.remote import RemoteFile, read_remote_object
from bertwright.training.checkpoint import list_checkpoints
from bertwright.training.run_files import (
    IDENTITY,
    RUN_FILE,
    STATE,
    checkpoint_of,
    is_of_machine,
    seed_folder,
    step_name,
    step_of,
    trained_part,
)
from bertwright.training.run_lock import is_locked
from bertwright.training.uploads import PAUSES, RunUploads, StoredRun

_LOCK: Final = ".uploads.lock"
"""File of a working folder whose lock a process holds from before it reads the store until its last upload."""
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
    folder.mkdir(parents=True, exist_ok=True)
    # The run takes a lock of its own only after its data are read; this one keeps a second process from the folder.
    with locked_file(folder / _LOCK, f"{url}: another process works on this run in {folder}; wait for it or stop it"):
        stored = _prepare(url.rstrip("/"), folder, resume=resume)
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
        is_finished, finished_seeds = _finished_in_store(remote)
        steps = [step for part in _parts(remote, finished_seeds) for step in _remote_steps(remote, part)]
        progress = (is_finished, len(finished_seeds), max(steps, default=-1))
        if not has_local or (folder / _FETCHING).exists() or _progress(folder) < progress:
            damaged = _fetch(url, remote, folder, _parts(remote, finished_seeds))
    (folder / _FETCHING).unlink(missing_ok=True)
    return StoredRun(identity, has_run, frozenset(damaged))


def _identity(folder: Path) -> dict[str, str]:
    """Return the content of the local .store.json; empty where there is none."""
    return read_object_if_there(folder / IDENTITY)


def _progress(folder: Path) -> tuple[bool, int, int]:
    """Return whether a run has finished, how many seeds have, and the step of the newest undamaged checkpoint, or -1.

    A finished seed needs no checkpoint. Seeds are trained one after the other.
    """
    seeds = {path.parent: bool(read_object(path).get("finished")) for path in folder.glob(f"*/{RUN_FILE}")}
    step = max(_undamaged_step(part) for part in (folder, *(seed for seed, finished in seeds.items() if not finished)))
    return bool(read_object(folder / RUN_FILE).get("finished")), sum(seeds.values()), step


def _finished_in_store(remote: Mapping[str, RemoteFile]) -> tuple[bool, set[str]]:
    """Return whether the run of a store has finished, and the folders of the seeds that have."""
    seeds = {seed for name, file in remote.items() if (seed := seed_folder(name)) and _is_finished(file)}
    return _is_finished(remote[RUN_FILE]), seeds


def _is_finished(record: RemoteFile) -> bool:
    return bool(read_remote_object(record).get("finished"))


def _parts(remote: Mapping[str, RemoteFile], finished: Set[str]) -> list[str]:
    """Return the parts of a run in a store that continue from a checkpoint: the run itself, and unfinished seeds."""
    return ["", *sorted(seed for name in remote if (seed := seed_folder(name)) and seed not in finished)]


def _undamaged_step(folder: Path) -> int:
    """Return the step of the newest undamaged checkpoint of a folder; -1 where there is none."""
    return next(
        (step_of(path.name) for path in reversed(list_checkpoints(folder / "checkpoints")) if _is_undamaged(path)), -1
    )


def _remote_steps(remote: Mapping[str, RemoteFile], part: str) -> list[int]:
    """Return the steps of the complete checkpoints of a part, ascending: those with the file that comes last."""
    names = [checkpoint_of(name) for name in remote if name.endswith(f"/{STATE}")]
    return sorted(step_of(name) for name in names if name and trained_part(name) == part)


def _fetch(url: str, remote: Mapping[str, RemoteFile], folder: Path, parts: Sequence[str]) -> list[str]:
    """Copy the newest undamaged checkpoint of each part of a run into the working folder, and then the other files.

    run.json of the seeds comes before their models, which a run may replace meanwhile, and run.json of the run last.
    Undamaged checkpoints of the folder stay. Where the store has no undamaged checkpoint of a pre-training after them,
    nothing is copied. After a kill in between, the marker makes the next call copy again. Returns the damaged
    checkpoints of the store. Raises RunFailed where neither side has an undamaged one; a seed begins again.
    """
    say(f"{url}: is newer than {folder}, and is copied there")
    is_partial = (folder / _FETCHING).exists() or not (folder / RUN_FILE).is_file()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _FETCHING).touch()
    all_damaged = list[str]()
    for part in parts:
        newest = _undamaged_step(folder / part)
        damaged, is_new = _fetch_newest(url, remote, folder, part, after=newest)
        all_damaged += damaged
        if damaged and newest < 0 and not is_new:
            if not part:
                raise RunFailed(
                    f"{url}: every checkpoint in the store is damaged; start the run again at another --out"
                )
            say(f"{url}/{part.rstrip('/')}: every checkpoint in the store is damaged; the seed begins again")
        elif damaged and not is_new and not is_partial:
            say(
                f"{url}: the run continues from step {newest} of {folder}; the store has no undamaged checkpoint "
                "after it"
            )
            return all_damaged
    for name in sorted(remote, key=lambda name: seed_folder(name) is None):
        if name != RUN_FILE and trained_part(checkpoint_of(name) or "") is None and not is_of_machine(name):
            download(remote[name], folder / name)
    download(remote[RUN_FILE], folder / RUN_FILE)
    return all_damaged


def _fetch_newest(
    url: str, remote: Mapping[str, RemoteFile], folder: Path, part: str, *, after: int
) -> tuple[list[str], bool]:
    """Copy the newest undamaged checkpoint of a part after a step; return the damaged ones, and True for a copy."""
    damaged = list[str]()
    for step in (step for step in reversed(_remote_steps(remote, part)) if step > after):
        name = f"{part}checkpoints/{step_name(step)}"
        if _fetch_checkpoint(url, remote, folder, name):
            return damaged, True
        damaged.append(name)
    return damaged, False


def _fetch_checkpoint(url: str, remote: Mapping[str, RemoteFile], folder: Path, checkpoint: str) -> bool:
    """Copy a checkpoint of a store to the working folder, unless it is damaged; return whether it is there."""
    begin = f"{checkpoint}/"
    try:
        with atomic_folder(folder / checkpoint) as temporary:
            for name, file in remote.items():
                if name.startswith(begin):
                    download(file, temporary / name.removeprefix(begin))
            if not _is_undamaged(temporary):
                raise Damaged(f"{url}/{begin}")
    except Damaged:
        say(f"{url}/{checkpoint} is damaged; trying the checkpoint before it")
        return False
    return True


def _is_undamaged(checkpoint: Path) -> bool:
    """Return whether all files of a checkpoint have the digests in its state.json."""
    try:
        digests = read_object(checkpoint / STATE)["sha256"]
        return all(file_digest(checkpoint / name) == digest for name, digest in digests.items())
    except (InputError, KeyError, AttributeError, OSError):
        return False
