"""text → shards, the state between them: a build that was stopped or killed goes on from its last whole shard.

In the corpus folder to be lies `.building/`: the shards so far, and in build.json what is built and how far it came,
written after each shard. When all is written the files move up, the manifest last: without it the folder is no corpus.
"""

import fcntl
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
from bertwright.corpus.manifest import MANIFEST, Manifest, ShardEntry, Skipped, read_manifest
from bertwright.errors import InputError
from bertwright.files import read_json, sync_folder, write_json
from bertwright.text.documents import Input

_HOME = ".building"
_STATE = "build.json"


class BuildState(Settings):
    """How far a build came: the whole shards, and what was counted on the way to their end."""

    position: Position = Position()
    shards: tuple[ShardEntry, ...] = ()
    documents: int = 0
    dropped: int = 0
    skipped: Skipped = Skipped()
    """What the tokenizing processes left out; the position holds what the reader did."""


class Unfinished:
    """The folder of a build under way; `state` is where it begins."""

    def __init__(self, home: Path, config: dict[str, Any], state: BuildState) -> None:
        self._home = home
        self._config = config
        self.state = state
        self.folder = home / "corpus"

    def save(self, state: BuildState) -> None:
        """Note that the build came to `state`; its shards lie on the disk."""
        write_json(self._home / _STATE, {"config": self._config, "state": state.model_dump(mode="json")})
        self.state = state


def built_already(out: Path, config: dict[str, Any], inputs: Sequence[Input]) -> Manifest | None:
    """The manifest of a build that was killed after its last write and before it was cleaned up, which is done now.

    InputError for inputs that have changed since.
    """
    home = out / _HOME
    if not home.is_dir() or not any((folder / MANIFEST).is_file() for folder in (out, home / "corpus")):
        return None
    with _locked(home, out):
        if (home / _STATE).is_file():
            if read_json(home / _STATE).get("config") != config:
                return None
        elif not _is_of(read_manifest(out), config):
            return None
        _refuse_newer(inputs, home / "corpus" if (home / "corpus" / MANIFEST).is_file() else out, out)
        _move_up(home, out)
    return read_manifest(out)


def _refuse_newer(inputs: Sequence[Input], corpus: Path, out: Path) -> None:
    """InputError for files that were changed after the corpus was written, or are of another size than was read."""
    written = (corpus / MANIFEST).stat().st_mtime_ns
    for source, read in zip(inputs, read_manifest(corpus).sources, strict=False):
        if isinstance(source, Path) and source.exists():
            size, changed = stamp_of(source)
            if size != read.bytes or changed > written:
                raise InputError(f"{source}: was changed since the build in {out} read it; remove {out} to begin anew")


def is_free(out: Path) -> bool:
    """Whether a corpus may be built there: the folder is absent, or holds nothing but an unfinished build."""
    return not out.exists() or (out.is_dir() and all(path.name == _HOME for path in out.iterdir()))


@contextmanager
def unfinished(out: Path, config: dict[str, Any], inputs: Sequence[Input]) -> Iterator[Unfinished]:
    """Begin or take up the build of `out`; when the block ends without an error, its files move there.

    `config` is JSON and decides the bytes. After an error the whole shards are kept, if there are any. InputError for a
    build of another configuration, one that another process is at, and inputs that have changed since they were read.
    """
    home = out / _HOME
    is_new = not out.exists()
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be made: {error.strerror}") from None
    with _locked(home, out):
        work = Unfinished(home, config, _read_state(home, config, inputs))
        _clear(work.folder, work.state)
        if work.state.shards:
            say(f"goes on after {len(work.state.shards)} shard(s), {work.state.documents:,} documents")
        try:
            if not work.state.shards:
                work.save(work.state)
            yield work
        except BaseException:
            if work.state.shards:
                say(f"{len(work.state.shards)} whole shard(s) are kept in {home}: the same command goes on from there")
            else:
                shutil.rmtree(home, ignore_errors=True)
                if is_new:
                    with suppress(OSError):  # a file that somebody else has put there stays
                        out.rmdir()
            raise
        _move_up(home, out)


@contextmanager
def _locked(home: Path, out: Path) -> Iterator[None]:
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{out}: is being built by another process") from None
        yield


def _move_up(home: Path, out: Path) -> None:
    """Finish a build whose files are all written; killed at any point of it, it can be done again."""
    folder = home / "corpus"
    if folder.exists():
        if taken := next((path.name for path in sorted(folder.iterdir()) if os.path.lexists(out / path.name)), None):
            raise InputError(
                f"{out / taken}: was made by another process while the corpus was built. It stays as it is; move it "
                f"away and give the same command again, which goes on with what is kept in {home}"
            )
        sync_folder(folder)
        for path in sorted(folder.iterdir(), key=lambda path: path.name == MANIFEST):
            os.replace(path, out / path.name)
        folder.rmdir()
    sync_folder(out)
    (home / _STATE).unlink(missing_ok=True)  # what tells whose build it was goes first: the manifest tells as well
    shutil.rmtree(home)  # the lock, and what a kill within a write of the state left behind


def _is_of(manifest: Manifest, config: dict[str, Any]) -> bool:
    """Whether a whole corpus is what `config` asks for, as far as its manifest says."""
    return (manifest.tokenizer, manifest.text) == (config["tokenizer"], config["text"])


def _read_state(home: Path, config: dict[str, Any], inputs: Sequence[Input]) -> BuildState:
    path = home / _STATE
    if not path.exists():
        return BuildState()
    found = read_json(path)
    hint = f"; remove {home} to begin anew"
    try:
        state = BuildState.model_validate(found["state"])
    except (ValidationError, KeyError, TypeError):
        raise InputError(f"{path}: not readable as the state of a build{hint}") from None
    if not state.shards:
        return BuildState()
    differing = [name for name in config if found.get("config", {}).get(name) != config[name]]
    if differing:
        raise InputError(f"{home}: an unfinished build with other {', '.join(differing)} lies there{hint}")
    begun = state.position.input + (state.position.documents > 0)
    for source, before in zip(inputs[:begun], state.position.stamps, strict=False):
        if before != stamp_of(source):
            raise InputError(f"{source}: was changed since the unfinished build in {home} read it{hint}")
    for entry in state.shards:
        shard = home / "corpus" / entry.name
        if not shard.is_file() or shard.stat().st_size != entry.bytes:
            raise InputError(f"{shard}: is missing or of another size than {path} says{hint}")
    return state


def _clear(folder: Path, state: BuildState) -> None:
    """Remove what was not whole when the build ended."""
    kept = {name for entry in state.shards for name in (entry.name, entry.hashes)}
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in kept:
            path.unlink()
