"""Working folder of a run → store: a thread uploads what is complete while the run goes on.

Order makes the copy in the store valid at any moment: metrics first, then the files of models and seeds, then run.json
of the seeds, then checkpoints, then the report and other files, and run.json of a finished run last. The file that
makes a model or checkpoint complete (config.json, state.json) goes after its other files. The run never waits for the
store.

A fine-tuning replaces the model of a seed while it trains. A run that continues from a checkpoint computes the epochs
after it again, and saves those that are better than the best one in run.json. So the store may have a model that is
newer than run.json, and a run.json that is newer than the checkpoint, but never an older one. The files are read in
the opposite order: checkpoints are listed, then run.json is read, then the model.

Files whose name, or the name of a folder of theirs, begins with a dot belong to this machine: they are neither uploaded
nor fetched. `.store.json` of the store is written apart.
"""

import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from bertwright.console import say
from bertwright.errors import InputError, RunFailed
from bertwright.stores.listing import files_below
from bertwright.stores.remote import RemoteFile, current_file, fault_text, named_faults, open_store, read_remote_object
from bertwright.training.run_files import (
    CONFIG,
    IDENTITY,
    RUN_FILE,
    STATE,
    checkpoint_of,
    is_fixed,
    is_metrics,
    is_of_machine,
    is_result,
    is_weights,
    seed_folder,
    step_of,
    trained_part,
    upload_rank,
)

PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each new try at the end of a run where the store is away."""
_EVERY: Final = 15.0
"""Seconds between two looks at the run folder."""
_LONGEST_PAUSE: Final = 120.0
"""Seconds between two tries while the store is away, at most."""
_LOOKS: Final = 3
"""Number of uploads in a row in which a model may be replaced meanwhile."""
_END_SECONDS: Final = 30.0
"""Seconds that a stopped run waits for its last upload."""
_SILENT_SECONDS: Final = 3600.0
"""Seconds without any progress of an upload after which the end of a run gives the store up."""
_LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the progress."""
_DIGEST: Final = ".sha256"
"""Ending of the file that holds the digest of the file beside it."""

FileStamp = tuple[int, int]
"""Size and time of change (ns) of a local file."""


class OtherRun(InputError):
    """A store that holds another run than the folder, or to which another process writes this run."""


@dataclass(frozen=True)
class StoredRun:
    """Run of a store as this process read it at the start.

    identity    content of `.store.json`; None where there is none
    has_run     whether there is a run.json
    damaged     checkpoints whose files have other digests than noted, as paths from the run folder
    """

    identity: Mapping[str, Any] | None = None
    has_run: bool = False
    damaged: frozenset[str] = frozenset()


class RunUploads:
    """Uploads of one run; `start` begins the thread, and `finish` or `abandon` ends it.

    before: the run that the store held at the start, which this run continues. pauses: seconds before each new try of
    `finish`.
    """

    def __init__(
        self, folder: Path, url: str, *, before: StoredRun = StoredRun(), pauses: Sequence[float] = PAUSES
    ) -> None:
        self._folder, self._url, self._before, self._pauses = folder, url, before, pauses
        self._identity = (folder / IDENTITY).read_bytes()
        self._uploaded: dict[str, FileStamp] | None = None  # None: the store was not listed yet
        self._records: dict[str, bytes] = {}  # run.json of the run and of its seeds, as they were uploaded
        self._has_old = False  # the store may have checkpoints that the run has removed
        self._num_failures = 0
        self._fault: str | None = "the thread of the uploads failed"  # until its last try
        self._refusal: OtherRun | None = None
        self._ending, self._is_abandoned = threading.Event(), False
        self._progress_at = monotonic()  # moment at which the store last took something or failed
        self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)

    def start(self) -> None:
        """Begin to upload in the background."""
        self._thread.start()

    def finish(self) -> None:
        """Wait until the thread has uploaded the rest. Raises RunFailed where the store stays away or is silent."""
        self._note_progress()
        self._ending.set()
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            say(f"{self._url}: waiting for the upload; Ctrl-C ends the wait, and {self._folder} holds all of this run")
        while self._thread.is_alive():
            if monotonic() - self._progress_at > _SILENT_SECONDS:
                self._fault = f"no answer from the store for {_SILENT_SECONDS / 60:g} minutes"
                break
            self._thread.join(_LOOK_SECONDS)
        if self._refusal:
            raise RunFailed(
                f"{self._fault}; nothing is lost: {self._folder} holds all of this run. Copy it to another URL"
            )
        if self._fault is not None:
            raise RunFailed(
                f"{self._url}: the run could not be uploaded ({self._fault}); nothing is lost: {self._folder} holds "
                "all of it. Give the same command with --resume to upload the rest"
            )

    def abandon(self) -> None:
        """End the thread, which tries once more to upload the rest, at a stop or an error; wait 30 s at most."""
        self._is_abandoned = True
        self._ending.set()
        self._thread.join(_END_SECONDS)
        fault = f"no end after {_END_SECONDS:g} s" if self._thread.is_alive() else self._fault
        if fault is not None:
            say(
                f"{self._url}: the last files could not be uploaded ({fault}); {self._folder} holds all of them, and "
                "the same command with --resume uploads them"
            )

    def _work(self) -> None:
        """Upload again and again until the run ends, then the rest: with new tries after pauses, or once at a stop."""
        pause = _EVERY
        while not self._ending.wait(pause):
            is_away = self._try() is not None
            pause = min(_EVERY * 2 ** min(self._num_failures, 10), _LONGEST_PAUSE) if is_away else _EVERY
        self._fault = self._try()
        for pause in () if self._is_abandoned else self._pauses:
            if self._fault is None or self._refusal:
                return
            sleep(pause)
            self._fault = self._try()

    def _try(self) -> str | None:
        """Upload once; return the fault as text, or None. The first fault and its end are printed."""
        if self._refusal:
            return fault_text(self._refusal)
        try:
            self.upload()
        except Exception as error:  # a run must not end because of its store
            self._note_progress()
            self._num_failures += 1
            if isinstance(error, OtherRun):
                self._refusal = error
                say(f"{error}; nothing more is uploaded, and the run goes on in {self._folder}")
            elif self._num_failures == 1:
                say(
                    f"{self._url}: uploading failed ({fault_text(error)}); the run goes on, and uploads are tried again"
                )
            return fault_text(error)
        if self._num_failures:
            say(f"{self._url}: uploading works again")
        self._num_failures = 0
        return None

    def upload(self) -> None:
        """Upload all that is complete and not in the store; remove checkpoints that the run removed.

        Raises OtherRun where the store holds another run, InputError or RunFailed where it fails.
        """
        if not any(self._upload() for _ in range(_LOOKS)):
            raise RunFailed(f"{self._folder}: a model was replaced in each of {_LOOKS} looks at it")

    def _upload(self) -> bool:
        """Upload once; return False where a model was replaced meanwhile, so that it must be looked at again."""
        if not (self._folder / RUN_FILE).is_file():
            return True
        # Read before the files are listed: where it says that the run has finished, the model is among them.
        record = (self._folder / RUN_FILE).read_bytes()
        is_finished = bool(json.loads(record).get("finished"))
        self._claim()
        listed = {name: stamp for name, stamp in self._stamps().items() if checkpoint_of(name)}
        seeds = {seed: (self._folder / seed / RUN_FILE).read_bytes() for seed in self._seeds()}
        stamps = {name: stamp for name, stamp in self._stamps().items() if not checkpoint_of(name)}
        facts = {seed: json.loads(content) for seed, content in seeds.items()}
        finished = {seed for seed, fact in facts.items() if fact.get("finished")}
        checkpoints = {name: stamp for name, stamp in listed.items() if not name.startswith(tuple(finished))}
        if any("best" in fact and f"{seed}model/{CONFIG}" not in stamps for seed, fact in facts.items()):
            return False
        if self._uploaded is None:
            self._uploaded = self._in_store(stamps | checkpoints)
        if not is_finished:
            self._put_record(RUN_FILE, record)
        results = {name: stamp for name, stamp in stamps.items() if is_result(name, seeds)}
        if not self._put_changed(results):
            return False
        for seed, content in seeds.items():
            self._has_old |= self._put_record(f"{seed}{RUN_FILE}", content) and seed in finished
        self._put_changed({name: stamp for name, stamp in stamps.items() if name not in results} | checkpoints)
        if is_finished:
            self._put_record(RUN_FILE, record)
            self._remove(name for name in list(self._uploaded) if name not in stamps and not checkpoint_of(name))
        if self._has_old:
            self._remove_old({folder for name in checkpoints if (folder := checkpoint_of(name))}, finished)
            self._has_old = False
        return True

    def _seeds(self) -> list[str]:
        """Return the folders of the seeds that have begun, each with a slash."""
        return sorted(f"{path.parent.name}/" for path in self._folder.glob(f"*/{RUN_FILE}"))

    def _put_changed(self, stamps: Mapping[str, FileStamp]) -> bool:
        """Upload the files that the store does not have; return False where one vanished meanwhile."""
        assert self._uploaded is not None
        vanished, is_whole = set[str | None](), True  # checkpoints that the run removed meanwhile
        weights: dict[str, FileStamp | None] = {}  # of models, when they were read
        for name in sorted(stamps, key=lambda name: (upload_rank(name), name)):
            checkpoint = checkpoint_of(name)
            if stamps[name] == self._uploaded.get(name) or (checkpoint and checkpoint in vanished):
                continue
            if is_weights(name):
                weights[name] = self._stamp(name)
            read = {other: stamp for other, stamp in weights.items() if name == f"{other.rpartition('/')[0]}/{CONFIG}"}
            if any(self._stamp(other) != stamp for other, stamp in read.items()):
                return False  # replaced meanwhile: the store may have weights of one model and the digest of another
            try:
                self._put(name)
            except (OSError, InputError, RunFailed):
                if (self._folder / name).exists():
                    raise
                vanished.add(checkpoint)
                is_whole = False
                continue
            self._uploaded[name] = stamps[name]
            self._has_old |= name.endswith(f"/{STATE}")
        return is_whole

    def _claim(self) -> None:
        """Note in the store that this process writes the run there.

        Raises OtherRun where the store no longer holds what this process read at the start, or noted itself.
        """
        mine, url = json.loads(self._identity), f"{self._url}/{IDENTITY}"
        file = current_file(url)
        theirs = read_remote_object(file) if file else None
        if theirs == mine:
            return
        is_mine = theirs == self._before.identity
        if theirs is None:  # a new folder, or one whose run this process took at the start
            is_mine = (is_mine and self._before.has_run) or current_file(f"{self._url}/{RUN_FILE}") is None
        if not is_mine:
            is_same = theirs is not None and theirs.get("run") == mine["run"]
            event = "another process continued this run" if is_same else "another run was started there"
            raise OtherRun(f"{self._url}: {event} meanwhile")
        self._write(url, self._identity)
        self._before = StoredRun(mine, True, self._before.damaged)
        self._uploaded, self._records = None, {}

    def _stamp(self, name: str) -> FileStamp | None:
        """Return the stamp of a file by its path from the run folder; None where it is gone."""
        try:
            stat = (self._folder / name).stat()
        except FileNotFoundError:
            return None
        return stat.st_size, stat.st_mtime_ns

    def _stamps(self) -> dict[str, FileStamp]:
        """Return the stamp of each complete file of the run but each run.json, by its path from the run folder."""
        stamps = {}
        for parent, folders, names in os.walk(self._folder):
            folders[:] = [name for name in folders if not is_of_machine(name)]
            for path in (Path(parent, name) for name in names if not is_of_machine(name)):
                name = path.relative_to(self._folder).as_posix()
                if stamp := self._stamp(name):  # else the run removed it meanwhile
                    stamps[name] = stamp
        return {name: stamp for name, stamp in stamps.items() if name != RUN_FILE and not seed_folder(name)}

    def _in_store(self, stamps: Mapping[str, FileStamp]) -> dict[str, FileStamp]:
        """Return the stamps of files that an earlier process uploaded, as a file with their digests says.

        It is state.json for a checkpoint, and NAME.sha256 for a file NAME; the store has the same bytes of it. Of a
        model without config.json in the store nothing counts: its upload did not end, and may be of two models.
        """
        remote, covered = files_below(self._url), set[str]()
        for name in stamps.keys() & remote.keys():
            checkpoint = checkpoint_of(name)
            is_digests = name.endswith((f"/{STATE}", _DIGEST)) and checkpoint not in self._before.damaged
            if is_weights(name.removesuffix(_DIGEST)) and f"{name.rpartition('/')[0]}/{CONFIG}" not in remote:
                continue
            if is_digests and _content(remote[name]) == (self._folder / name).read_bytes():
                covered |= {name, name.removesuffix(_DIGEST)}
                if name.endswith(f"/{STATE}"):
                    covered |= {other for other in stamps if checkpoint_of(other) == checkpoint}
        return {
            name: stamps[name]
            for name in covered & stamps.keys() & remote.keys()
            if remote[name].size == stamps[name][0]
        }

    def _put_record(self, name: str, content: bytes) -> bool:
        """Upload the content of a run.json; return False where the store has it already."""
        if self._records.get(name) == content:
            return False
        self._write(f"{self._url}/{name}", content)
        self._records[name] = content
        return True

    def _put(self, name: str) -> None:
        """Upload one file; raises any of several errors where the run removed it meanwhile."""
        path, url = self._folder / name, f"{self._url}/{name}"
        if is_weights(name):
            self._make_incomplete(name)
        if not is_fixed(name):  # it may grow meanwhile, so it is uploaded as it is read
            content = path.read_bytes()
            self._write(url, content[: content.rfind(b"\n") + 1] if is_metrics(name) else content)
            return
        size = path.stat().st_size
        system, target = open_store(url)
        with named_faults(url):
            system.put_file(str(path), target, callback=self._part_callback())
        self._refuse_short(url, size)

    def _write(self, url: str, content: bytes) -> None:
        system, target = open_store(url)
        with named_faults(url):
            system.pipe_file(target, content)
        self._refuse_short(url, len(content))

    def _part_callback(self) -> Any:
        """Return fsspec's callback that is called after each part of a file, where the store uploads it in parts."""
        from fsspec.callbacks import Callback

        return Callback(hooks={"progress": lambda *_, **__: self._note_progress()})

    def _note_progress(self) -> None:
        self._progress_at = monotonic()

    def _refuse_short(self, url: str, size: int) -> None:
        """Raise RunFailed where a file in the store has another size than was uploaded."""
        file = current_file(url)
        self._note_progress()
        if file is None or file.size != size:
            raise RunFailed(f"{url}: expected {size:,} bytes in the store, got {file.size if file else 0:,}")

    def _make_incomplete(self, weights: str) -> None:
        """Remove the file that makes a model complete before its weights are replaced: no reader gets a mixture."""
        assert self._uploaded is not None
        config = f"{weights.rpartition('/')[0]}/{CONFIG}"
        if current_file(f"{self._url}/{config}"):
            self._remove([config])
        self._uploaded.pop(config, None)

    def _remove_old(self, kept: set[str], finished: set[str]) -> None:
        """Remove checkpoints that the run has removed: the file that makes them complete goes first.

        A checkpoint above the newest one of this machine stays: another machine may have written it. finished: seeds
        that need none.
        """
        newest: dict[str | None, int] = {}
        for checkpoint in kept:
            part = trained_part(checkpoint)
            newest[part] = max(step_of(checkpoint), newest.get(part, -1))
        old = []
        for name in files_below(self._url):
            checkpoint = checkpoint_of(name) or ""
            part = trained_part(checkpoint)
            if part is not None and checkpoint not in kept:
                old += [name] if part in finished or step_of(checkpoint) <= newest.get(part, -1) else []
        self._remove(sorted(old, key=lambda name: not name.endswith(f"/{STATE}")))

    def _remove(self, names: Iterable[str]) -> None:
        """Remove files from the store."""
        assert self._uploaded is not None
        for name in names:
            system, path = open_store(url := f"{self._url}/{name}")
            with named_faults(url):
                system.rm_file(path)
            self._uploaded.pop(name, None)


def _content(file: RemoteFile) -> bytes:
    with file.open() as stream:
        return stream.read()
