"""URL of a run ↔ its working folder on this machine: what is fetched before a run starts, and what is refused.

The run works in a folder of the cache that belongs to the URL. `uploads.py` copies it to the store while it runs.
"""

import hashlib
import json
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bertwright.console import say
from bertwright.errors import InputError, RunFailed
from bertwright.files import atomic_folder, file_digest, named_cache, read_object, write_json
from bertwright.stores.cache import download
from bertwright.stores.listing import files_below
from bertwright.stores.remote import RemoteFile
from bertwright.training.checkpoint import list_checkpoints
from bertwright.training.run_lock import is_locked
from bertwright.training.uploads import IDENTITY, PAUSES, STATE, RunUploads, checkpoint_of

_RECORD = "run.json"


def working_folder(url: str) -> Path:
    """Return the folder on this machine in which the run of a URL works; it may not exist."""
    base = url.rstrip("/")
    return named_cache("stores") / "runs" / hashlib.sha256(base.encode()).hexdigest()[:16] / base.rpartition("/")[2]


@contextmanager
def run_by_url(url: str, *, resume: bool, pauses: Sequence[float] = PAUSES) -> Iterator[Path]:
    """Yield the working folder of the run of a URL, whose files are uploaded while the block runs and at its end.

    pauses: seconds before each new try at the end where the store is away.
    With `resume` the newest complete checkpoint of folder and store is in the folder. Raises InputError where a new run
    would hide another one, or folder and store hold different runs. Raises RunFailed where the store is away at the
    end; the folder then holds everything.
    """
    folder = working_folder(url)
    _prepare(url.rstrip("/"), folder, resume=resume)
    if not (folder / IDENTITY).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / IDENTITY, {"run": secrets.token_hex(16)})
    uploads = RunUploads(folder, url.rstrip("/"), pauses=pauses)
    uploads.start()
    try:
        yield folder
    except BaseException:
        uploads.abandon()
        raise
    uploads.finish()


def _prepare(url: str, folder: Path, *, resume: bool) -> None:
    """Bring the newest state of the run into the working folder."""
    if is_locked(folder):
        raise InputError(f"{url}: another process works on this run in {folder}; wait for it or stop it")
    remote = files_below(url)
    if not resume:
        if _RECORD in remote:
            raise InputError(f"{url}: already holds a run; continue it with --resume or choose another --out")
        if remote:
            raise InputError(f"{url}: is not empty and holds no run ({next(iter(remote))}); choose another --out")
        if (folder / _RECORD).exists():
            raise InputError(
                f"{url}: {folder} holds a run of this URL that is not in the store; --resume continues and uploads it. "
                "To give it up, remove the folder"
            )
        return
    if IDENTITY in remote:
        _refuse_other_run(url, remote[IDENTITY], folder)
    if _RECORD in remote and _newest(folder) < _newest_remote(remote):
        _fetch(url, remote, folder)


def _refuse_other_run(url: str, theirs: RemoteFile, folder: Path) -> None:
    """Raise InputError where folder and store hold different runs; a folder without a run takes the store's."""
    if not (folder / IDENTITY).is_file() or not (folder / _RECORD).is_file():
        download(theirs, folder / IDENTITY)
        return
    with theirs.open() as stream:
        content = stream.read()
    if json.loads(content) != read_object(folder / IDENTITY):
        raise InputError(
            f"{url}: holds another run than {folder}, where this machine trained to the same URL; name another --out, "
            "or remove the one of the two that you do not need"
        )


def _newest(folder: Path) -> tuple[bool, int]:
    """Return whether the run of a folder has finished, and the step of its newest checkpoint; -1 without a run."""
    if not (folder / _RECORD).is_file():
        return False, -1
    steps = [int(path.name.removeprefix("step-")) for path in list_checkpoints(folder / "checkpoints")]
    return bool(read_object(folder / _RECORD).get("finished")), max(steps, default=0)


def _newest_remote(remote: Mapping[str, RemoteFile]) -> tuple[bool, int]:
    """Return the same of a run in a store."""
    with remote[_RECORD].open() as stream:
        record = json.loads(stream.read())
    return bool(record.get("finished")), max(_remote_steps(remote), default=0)


def _remote_steps(remote: Mapping[str, RemoteFile]) -> list[int]:
    """Return the steps of the complete checkpoints of a store, ascending: those with the file that comes last."""
    names = [checkpoint_of(name) for name in remote if name.endswith(f"/{STATE}")]
    return sorted(int(name.rpartition("step-")[2]) for name in names if name and name.startswith("checkpoints/"))


def _fetch(url: str, remote: Mapping[str, RemoteFile], folder: Path) -> None:
    """Copy the run of a store into the working folder: metrics and models, then the newest checkpoint, then run.json.

    After a kill in between, the next call copies again, since run.json or the checkpoint is the older one.
    """
    say(f"{url}: is newer than {folder}, and is copied there")
    for name, file in remote.items():
        if name != _RECORD and not name.startswith("checkpoints/"):
            download(file, folder / name)
    for step in reversed(_remote_steps(remote)):
        target = folder / "checkpoints" / f"step-{step:09d}"
        with atomic_folder(target) as temporary:
            begin = f"checkpoints/{target.name}/"
            for name, file in remote.items():
                if name.startswith(begin):
                    download(file, temporary / name.removeprefix(begin))
        if _is_undamaged(target):
            break
        shutil.rmtree(target)
        say(f"{url}/checkpoints/{target.name} is damaged; trying the checkpoint before it")
    else:
        if _remote_steps(remote):
            raise RunFailed(f"{url}: every checkpoint in the store is damaged")
    download(remote[_RECORD], folder / _RECORD)


def _is_undamaged(checkpoint: Path) -> bool:
    """Return whether all files of a checkpoint have the digests in its state.json."""
    try:
        digests = read_object(checkpoint / STATE)["sha256"]
        return all(file_digest(checkpoint / name) == digest for name, digest in digests.items())
    except (InputError, KeyError, AttributeError, OSError):
        return False
