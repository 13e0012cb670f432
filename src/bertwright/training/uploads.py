"""Working folder of a run → store: a thread uploads what is complete while the run goes on.

Order makes the copy in the store valid at any moment: metrics first, then the files of checkpoints and models, then the
file of each that makes it complete (state.json, config.json), and run.json of a finished run last. The run never waits
for the store.
"""

import json
import os
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bertwright.console import say
from bertwright.errors import InputError, RunFailed
from bertwright.leftovers import is_leftover_name
from bertwright.stores.listing import files_below
from bertwright.stores.remote import current_file, fault_text, named_faults, open_store
from bertwright.training.run_lock import LOCK

IDENTITY: Final = ".store.json"
"""File of a run folder that identifies the run, so that two runs never mix in one store."""
STATE: Final = "state.json"
"""File of a checkpoint that is written last."""
PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each new try at the end of a run where the store is away."""
_EVERY: Final = 15.0
"""Seconds between two looks at the run folder."""
_LONGEST_PAUSE: Final = 120.0
"""Seconds between two tries while the store is away, at most."""
_CHECKPOINT: Final = re.compile(r"((?:.*/)?step-\d{9,})/[^/]+")
_LOGS: Final = frozenset({"run.json", "metrics.jsonl"})

FileStamp = tuple[int, int]
"""Size and time of change (ns) of a local file."""


def checkpoint_of(name: str) -> str | None:
    """Return the folder of the checkpoint that a file belongs to, from the run folder; None for another file."""
    match = _CHECKPOINT.fullmatch(name)
    return match[1] if match else None


class OtherRun(InputError):
    """A store that holds another run than the folder."""


class RunUploads:
    """Uploads of one run; `start` begins the thread, and `finish` or `abandon` ends it.

    pauses: seconds before each new try of `finish`.
    """

    def __init__(self, folder: Path, url: str, *, pauses: Sequence[float] = PAUSES) -> None:
        self._folder, self._url, self._pauses = folder, url, pauses
        self._uploaded: dict[str, FileStamp] | None = None  # None: the store was not listed yet
        self._new_checkpoint = False
        self._num_failures = 0
        self._refusal: OtherRun | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)

    def start(self) -> None:
        """Begin to upload in the background."""
        self._thread.start()

    def finish(self) -> None:
        """End the thread and upload the rest. Raises RunFailed where the store stays away."""
        self._end()
        for pause in (*self._pauses, None):
            fault = self._try()
            if fault is None:
                return
            if self._refusal:
                raise RunFailed(
                    f"{fault}; nothing is lost: {self._folder} holds all of this run. Copy it to another URL"
                )
            if pause is None:
                raise RunFailed(
                    f"{self._url}: the run could not be uploaded ({fault}); nothing is lost: {self._folder} holds all "
                    "of it. Give the same command with --resume to upload the rest"
                )
            time.sleep(pause)

    def abandon(self) -> None:
        """End the thread and try once to upload the rest, at a stop or an error."""
        self._end()
        if (fault := self._try()) is not None:
            say(
                f"{self._url}: the last files could not be uploaded ({fault}); {self._folder} holds all of them, and "
                "the same command with --resume uploads them"
            )

    def _end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _work(self) -> None:
        """Look at the folder again and again, until the run ends."""
        pause = _EVERY
        while not self._ending.wait(pause):
            is_away = self._try() is not None
            pause = min(_EVERY * 2 ** min(self._num_failures, 10), _LONGEST_PAUSE) if is_away else _EVERY

    def _try(self) -> str | None:
        """Upload once; return the fault as text, or None. The first fault and its end are printed."""
        if self._refusal:
            return fault_text(self._refusal)
        try:
            self.upload()
        except Exception as error:  # a run must not end because of its store
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
        if not (self._folder / "run.json").is_file():
            return
        self._claim()
        stamps = self._stamps()
        if self._uploaded is None:
            self._uploaded = self._in_store(stamps)
        vanished: set[str | None] = set()  # checkpoints that the run removed meanwhile
        is_finished = self._is_finished()
        for name in sorted(stamps, key=lambda name: (_rank(name, is_finished=is_finished), name)):
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
        if self._new_checkpoint:
            self._remove_old({checkpoint_of(name) for name in stamps})
            self._new_checkpoint = False

    def _claim(self) -> None:
        """Note in the store which run it holds. Raises OtherRun where it holds another one."""
        content = (self._folder / IDENTITY).read_bytes()
        url = f"{self._url}/{IDENTITY}"
        file = current_file(url)
        if file is None:
            self._write(url, content)
            return
        with file.open() as stream:
            if json.loads(stream.read()) != json.loads(content):
                raise OtherRun(f"{self._url}: another run was started there meanwhile")

    def _stamps(self) -> dict[str, FileStamp]:
        """Return the stamp of each complete file of the run, by its path from the run folder."""
        stamps = {}
        for parent, folders, names in os.walk(self._folder):
            folders[:] = [name for name in folders if not is_leftover_name(name)]
            for name in names:
                path = Path(parent, name)
                if name not in (LOCK, IDENTITY) and not is_leftover_name(name) and path.is_file():
                    stat = path.stat()
                    stamps[path.relative_to(self._folder).as_posix()] = (stat.st_size, stat.st_mtime_ns)
        return stamps

    def _in_store(self, stamps: dict[str, FileStamp]) -> dict[str, FileStamp]:
        """Return the stamps of files that an earlier process uploaded: files of folders, which never change."""
        remote = files_below(self._url)
        return {
            name: stamp
            for name, stamp in stamps.items()
            if "/" in name and name in remote and remote[name].size == stamp[0]
        }

    def _is_finished(self) -> bool:
        return bool(json.loads((self._folder / "run.json").read_bytes()).get("finished"))

    def _put(self, name: str) -> None:
        """Upload one file; raises any of several errors where the run removed it meanwhile."""
        path, url = self._folder / name, f"{self._url}/{name}"
        if name in _LOGS:
            content = path.read_bytes()
            self._write(url, content[: content.rfind(b"\n") + 1])
            return
        size = path.stat().st_size
        system, target = open_store(url)
        with named_faults(url):
            system.put_file(str(path), target)
        self._refuse_short(url, size)

    def _write(self, url: str, content: bytes) -> None:
        system, target = open_store(url)
        with named_faults(url):
            system.pipe_file(target, content)
        self._refuse_short(url, len(content))

    def _refuse_short(self, url: str, size: int) -> None:
        """Raise RunFailed where a file in the store has another size than was uploaded."""
        file = current_file(url)
        if file is None or file.size != size:
            raise RunFailed(f"{url}: expected {size:,} bytes in the store, got {file.size if file else 0:,}")

    def _remove_old(self, kept: set[str | None]) -> None:
        """Remove checkpoints that the run has removed: the file that makes them complete goes first."""
        names = [name for name in files_below(self._url) if name.startswith("checkpoints/")]
        for name in sorted(names, key=lambda name: not name.endswith(f"/{STATE}")):
            if checkpoint_of(name) not in kept:
                system, path = open_store(url := f"{self._url}/{name}")
                with named_faults(url):
                    system.rm_file(path)


def _rank(name: str, *, is_finished: bool) -> int:
    """Return when a file is uploaded: 0 first, 3 last."""
    if name in _LOGS:
        return 3 if is_finished and name == "run.json" else 0
    return 2 if name.rpartition("/")[2] in (STATE, "config.json") else 1
