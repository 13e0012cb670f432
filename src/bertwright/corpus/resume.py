"""shards of an unfinished build → corpus: a build that was stopped or killed continues from its last complete shard.

The output folder holds `.building/` until the build ends: the shards so far, and build.json with the configuration and
the state, which is written after each shard. At the end the files move up, the manifest last: a folder without it is no
corpus.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bertwright.config import Settings
from bertwright.console import say
from bertwright.corpus.inputs import Position, stamp_of
from bertwright.corpus.manifest import MANIFEST, Manifest, ShardEntry, Skipped, differing_text, read_manifest
from bertwright.errors import InputError
from bertwright.files import read_object, sync, write_json
from bertwright.locks import locked_file
from bertwright.portable import IS_POSIX, replace_path
from bertwright.stores.remote import RemoteFile
from bertwright.text.documents import Input
from bertwright.text.records import HubDataset

_BUILDING = ".building"
_STATE = "build.json"


class BuildState(Settings):
    """State of a build after its last complete shard.

    position    position of the reader; holds the records and files that the reader left out
    documents   number of documents in the shards
    dropped     number of documents without a token
    skipped     documents that the tokenizing processes left out
    """

    position: Position = Position()
    shards: tuple[ShardEntry, ...] = ()
    documents: int = 0
    dropped: int = 0
    skipped: Skipped = Skipped()


class UnfinishedBuild:
    """Folder of a running build; `state` is the state that was saved last."""

    def __init__(self, building: Path, config: dict[str, Any], state: BuildState) -> None:
        self._building = building
        self._config = config
        self.state = state
        self.folder = building / "corpus"

    def save(self, state: BuildState) -> None:
        """Write `state`, whose shards are on the disk."""
        write_json(self._building / _STATE, {"config": self._config, "state": state.model_dump(mode="json")})
        self.state = state


def recover_finished(out: Path, config: dict[str, Any], inputs: Sequence[Input]) -> Manifest | None:
    """Finish a build that was killed after its last write and before its clean-up, and return its manifest.

    Returns None where there is no such build of this configuration. Raises InputError for inputs changed since then.
    """
    building = out / _BUILDING
    if not building.is_dir() or not any((folder / MANIFEST).is_file() for folder in (out, building / "corpus")):
        return None
    with _locked(building, out, is_new=False):
        if (building / _STATE).is_file():
            if read_object(building / _STATE).get("config") != config:
                return None
        elif not _is_of(read_manifest(out), config):
            return None
        _refuse_newer(inputs, building / "corpus" if (building / "corpus" / MANIFEST).is_file() else out, out)
        _move_up(building, out)
    return read_manifest(out)


def _refuse_newer(inputs: Sequence[Input], corpus: Path, out: Path) -> None:
    """Raise InputError for files that were changed after the corpus was written, or have another size than was read."""
    written = (corpus / MANIFEST).stat().st_mtime_ns
    for source, read in zip(inputs, read_manifest(corpus).sources, strict=False):
        if isinstance(source, HubDataset) or (isinstance(source, Path) and not source.exists()):
            continue
        size, changed = stamp_of(source)
        is_later = source.mark != read.fingerprint if isinstance(source, RemoteFile) else changed > written
        if size != read.bytes or is_later:
            raise InputError(f"{source}: was changed after the build in {out} read it; remove {out} to start again")


def has_unfinished(out: Path) -> bool:
    """Return whether `out` holds an unfinished build, also one that ended while its files were moved."""
    return (out / _BUILDING).is_dir()


def refuse_taken(out: Path) -> None:
    """Raise InputError where `out` is neither absent nor empty and does not hold an unfinished build alone."""
    if out.exists() and not (out.is_dir() and all(path.name == _BUILDING for path in out.iterdir())):
        raise InputError(f"{out}: exists already and is not an empty folder; name another one or remove it")


@contextmanager
def resume_build(out: Path, config: dict[str, Any], inputs: Sequence[Input]) -> Iterator[UnfinishedBuild]:
    """Start or continue the build of `out`; when the block ends without an error, its files move there.

    `config` is JSON and decides the bytes. After an error the complete shards are kept. Raises InputError for a build
    of another configuration, for one that another process is running, and for inputs changed since they were read.
    """
    building = out / _BUILDING
    is_new = not out.exists()
    try:
        building.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: the folder cannot be created: {error.strerror}") from None
    with _locked(building, out, is_new=is_new):
        build = UnfinishedBuild(building, config, _read_state(building, config, inputs))
        _clear(build.folder, build.state)
        if build.state.shards:
            say(f"continues after {len(build.state.shards)} shard(s), {build.state.documents:,} documents")
        try:
            if not build.state.shards:
                build.save(build.state)
            yield build
        except BaseException:
            if build.state.shards:
                say(f"{len(build.state.shards)} complete shard(s) are kept in {building}; the same command continues")
            else:
                _remove(building, out, is_new=is_new)
            raise
        _move_up(building, out)


@contextmanager
def _locked(building: Path, out: Path, *, is_new: bool) -> Iterator[None]:
    try:
        with locked_file(building / "lock", f"{out}: another process is building this corpus") as is_locked_here:
            if is_locked_here:
                yield
                return
    finally:
        if not IS_POSIX and not (building / _STATE).exists():  # Windows keeps the lock's file while it is open
            _remove(building, out, is_new=is_new)
    if [path.name for path in building.iterdir()] == ["lock"]:
        _remove(building, out, is_new=is_new)
    raise InputError(f"{out}: this file system has no locks, which a build needs; name another disk")


def _remove(building: Path, out: Path, *, is_new: bool) -> None:
    """Remove a build without a complete shard, and `out` where the build made it and it is empty."""
    shutil.rmtree(building, ignore_errors=True)
    if is_new:
        with suppress(OSError):  # a file that another program wrote there stays
            out.rmdir()


def _move_up(building: Path, out: Path) -> None:
    """Move the files of a complete build to `out`. After a kill at any point the call can be repeated."""
    folder = building / "corpus"
    if folder.exists():
        if taken := next((path.name for path in sorted(folder.iterdir()) if os.path.lexists(out / path.name)), None):
            raise InputError(
                f"{out / taken}: another process wrote this file while the corpus was built; move it away and give the "
                f"same command again, which continues with the shards in {building}"
            )
        sync(folder)
        for path in sorted(folder.iterdir(), key=lambda path: path.name == MANIFEST):
            replace_path(path, out / path.name)
        folder.rmdir()
    sync(out)
    (building / _STATE).unlink(missing_ok=True)  # first, because the manifest holds the configuration as well
    # On NFS the open lock file keeps the folder; the next call removes it.
    shutil.rmtree(building, ignore_errors=True)  # the lock, and the temporary file of a write that was killed


def _is_of(manifest: Manifest, config: dict[str, Any]) -> bool:
    """Return whether a complete corpus has this configuration, as far as its manifest shows."""
    sample = manifest.sample.settings.model_dump(mode="json") if manifest.sample else None
    is_same_text = not differing_text(manifest.text, config["text"])
    return manifest.tokenizer == config["tokenizer"] and is_same_text and sample == config["sample"]


def _read_state(building: Path, config: dict[str, Any], inputs: Sequence[Input]) -> BuildState:
    """Return the saved state, or a new one where no shard is complete.

    Raises InputError where configuration, inputs or shards differ from those of the saved state.
    """
    path = building / _STATE
    if not path.exists():
        return BuildState()
    saved = read_object(path)
    hint = f"; remove {building} to start again"
    try:
        state = BuildState.model_validate(saved["state"])
    except (ValidationError, KeyError, TypeError):
        raise InputError(f"{path}: expected the state of a build{hint}") from None
    if not state.shards:
        return BuildState()
    before = saved.get("config")
    before = before if isinstance(before, dict) else {}
    differing = [name for name in config if before.get(name) != config[name]]
    if isinstance(before.get("text"), dict) and (difference := differing_text(config["text"], before["text"])):
        differing[differing.index("text")] = f"text ({difference})"
    if differing:
        raise InputError(f"{building}: holds an unfinished build with other {', '.join(differing)}{hint}")
    num_opened = state.position.input + (state.position.documents > 0)
    for source, stamp in zip(inputs[:num_opened], state.position.stamps, strict=False):
        if stamp != stamp_of(source):
            raise InputError(f"{source}: was changed after the unfinished build in {building} read it{hint}")
    for entry in state.shards:
        shard = building / "corpus" / entry.name
        if not shard.is_file() or shard.stat().st_size != entry.bytes:
            raise InputError(f"{shard}: is missing, or its size is not that in {path}{hint}")
    return state


def _clear(folder: Path, state: BuildState) -> None:
    """Remove the files of shards that were not complete when the build ended."""
    kept = {name for entry in state.shards for name in (entry.name, entry.hashes)}
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in kept:
            path.unlink()
