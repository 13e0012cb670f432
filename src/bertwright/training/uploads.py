"""Working folder of a run → store: a thread uploads what is complete while the run goes on.

Order makes the copy in the store valid at any moment: metrics first, then the files of checkpoints and models, then the
file of each that makes it complete (state.json, config.json), then the report and other files, and run.json of a
finished run last. The run never waits for the store.

Files whose name, or the name of a folder of theirs, begins with a dot belong to this machine: they are neither uploaded
nor fetched. `.store.json` of the store is written apart.
"""

import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from bertwright.console import say
from bertwright.errors import InputError, RunFailed
from bertwright.stores.listing import files_below
from bertwright.stores.remote import RemoteFile, current_file, fault_text, named_faults, open_store, read_remote_object

IDENTITY: Final = ".store.json"
"""File that identifies the run, and the process that writes it to the store: two runs or processes never mix there."""
RUN_FILE: Final = "run.json"
"""File of a run folder with its settings, and whether it has finished."""
METRICS_FILE: Final = "metrics.jsonl"
"""File of a run folder to which lines are added."""
STATE: Final = "state.json"
"""File of a checkpoint that is written last."""
PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each new try at the end of a run where the store is away."""
_EVERY: Final = 15.0
"""Seconds between two looks at the run folder."""
_LONGEST_PAUSE: Final = 120.0
"""Seconds between two tries while the store is away, at most."""
_CHECKPOINT: Final = re.compile(r"((?:.*/)?step-\d{9,})/[^/]+")
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


def checkpoint_of(name: str) -> str | None:
    """Return the folder of the checkpoint that a file belongs to, from the run folder; None for another file."""
    match = _CHECKPOINT.fullmatch(name)
    return match[1] if match else None


def step_of(checkpoint: str) -> int:
    """Return the step of the folder of a checkpoint."""
    return int(checkpoint.rpartition("step-")[2])


def is_of_machine(name: str) -> bool:
    """Return whether a file of a run folder belongs to this machine alone; `name` is its path from the folder."""
    return any(part.startswith(".") for part in name.split("/"))


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
        self._record: bytes | None = None  # run.json as it was uploaded
        self._new_checkpoint = False
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
        if not (self._folder / RUN_FILE).is_file():
            return
        # Read before the files are listed: where it says that the run has finished, the model is among them.
        record = (self._folder / RUN_FILE).read_bytes()
        is_finished = bool(json.loads(record).get("finished"))
        self._claim()
        stamps = self._stamps()
        if self._uploaded is None:
            self._uploaded = self._in_store(stamps)
        if not is_finished:
            self._put_record(record)
        vanished: set[str | None] = set()  # checkpoints that the run removed meanwhile
        for name in sorted(stamps, key=lambda name: (_rank(name), name)):
            checkpoint = checkpoint_of(name)
            if stamps[name] == self._uploaded.get(name) or (checkpoint and checkpoint in vanished):
                continue
            try:
                self._put(name)
            except (OSError, InputError, RunFailed):
                if (self._folder / name).exists():
                    raise
                vanished.add(checkpoint)
                continue
            self._uploaded[name] = stamps[name]
            self._new_checkpoint |= name.endswith(f"/{STATE}")
        if is_finished:
            self._put_record(record)
        if self._new_checkpoint:
            self._remove_old({folder for name in stamps if (folder := checkpoint_of(name))})
            self._new_checkpoint = False

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
        self._uploaded = self._record = None

    def _stamps(self) -> dict[str, FileStamp]:
        """Return the stamp of each complete file of the run but run.json, by its path from the run folder."""
        stamps = {}
        for parent, folders, names in os.walk(self._folder):
            folders[:] = [name for name in folders if not is_of_machine(name)]
            for path in (Path(parent, name) for name in names if not is_of_machine(name)):
                with suppress(FileNotFoundError):  # the run removed it meanwhile
                    stat = path.stat()
                    stamps[path.relative_to(self._folder).as_posix()] = (stat.st_size, stat.st_mtime_ns)
        stamps.pop(RUN_FILE, None)
        return stamps

    def _in_store(self, stamps: Mapping[str, FileStamp]) -> dict[str, FileStamp]:
        """Return the stamps of files that an earlier process uploaded, as a file with their digests says.

        It is state.json for a checkpoint, and NAME.sha256 for a file NAME; the store has the same bytes of it.
        """
        remote, covered = files_below(self._url), set[str]()
        for name in stamps.keys() & remote.keys():
            checkpoint = checkpoint_of(name)
            is_digests = name.endswith((f"/{STATE}", _DIGEST)) and checkpoint not in self._before.damaged
            if is_digests and _content(remote[name]) == (self._folder / name).read_bytes():
                covered |= {name, name.removesuffix(_DIGEST)}
                if name.endswith(f"/{STATE}"):
                    covered |= {other for other in stamps if checkpoint_of(other) == checkpoint}
        return {
            name: stamps[name]
            for name in covered & stamps.keys() & remote.keys()
            if remote[name].size == stamps[name][0]
        }

    def _put_record(self, record: bytes) -> None:
        """Upload the content of run.json, where the store has another one."""
        if record != self._record:
            self._write(f"{self._url}/{RUN_FILE}", record)
            self._record = record

    def _put(self, name: str) -> None:
        """Upload one file; raises any of several errors where the run removed it meanwhile."""
        path, url = self._folder / name, f"{self._url}/{name}"
        if not _is_fixed(name):  # it may grow meanwhile, so it is uploaded as it is read
            content = path.read_bytes()
            self._write(url, content[: content.rfind(b"\n") + 1] if name == METRICS_FILE else content)
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

    def _remove_old(self, kept: set[str]) -> None:
        """Remove checkpoints that the run has removed: the file that makes them complete goes first.

        A checkpoint above the newest one of this machine stays: another machine may have written it.
        """
        newest = max((step_of(name) for name in kept if name.startswith("checkpoints/")), default=-1)
        names = [name for name in files_below(self._url) if name.startswith("checkpoints/")]
        for name in sorted(names, key=lambda name: not name.endswith(f"/{STATE}")):
            checkpoint = checkpoint_of(name)
            if checkpoint and checkpoint not in kept and step_of(checkpoint) <= newest:
                system, path = open_store(url := f"{self._url}/{name}")
                with named_faults(url):
                    system.rm_file(path)


def _content(file: RemoteFile) -> bytes:
    with file.open() as stream:
        return stream.read()


def _is_fixed(name: str) -> bool:
    """Return whether a file is in a folder that is complete when it gets its name: a checkpoint or the model."""
    return checkpoint_of(name) is not None or name.startswith("model/")


def _rank(name: str) -> int:
    """Return when a file is uploaded: 0 first, 3 last."""
    if name == METRICS_FILE or not _is_fixed(name):
        return 0 if name == METRICS_FILE else 3
    return 2 if name.rpartition("/")[2] in (STATE, "config.json") else 1
