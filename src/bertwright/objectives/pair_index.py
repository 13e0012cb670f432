"""Shards → batches: the pair index of each epoch, computed once and saved beside the shards (paper §A.2).

A pair index, in the source a plan, lists the sentences of each row of an epoch.
"""

import hashlib
import json
import os
from pathlib import Path

import numpy as np

from bertwright.console import say
from bertwright.corpus.shards import Corpus
from bertwright.files import atomic_file
from bertwright.leftovers import remove_leftovers
from bertwright.objectives.sentence_pairs import PLAN, PLAN_VERSION, plan_rows
from bertwright.objectives.settings import ExampleSettings
from bertwright.portable import remove_unused

_IN_MEMORY = 2  # number of plans: a batch may span two epochs
_IN_FILES = 3  # number of plans: the newest two, and the one that is being written
_SMALL = 1 << 16  # number of rows: a smaller plan is computed again in milliseconds and gets no file
_KINDS = {"next": "pairs", "order": "order", "none": "segments"}  # word in the file names


class Plans:
    """Plans of a corpus for given settings, in CORPUS/plans/, or in memory where that folder cannot be written.

    A plan's file name holds a hash of everything that decides the plan, so no file is ever out of date. The plans of
    the newest two epochs are kept; with static masks, all plans. An older plan is replaced by its number of rows, which
    a resumed run needs to find its position. A process that has the file mapped can still read it.
    """

    def __init__(
        self,
        corpus: Corpus,
        settings: ExampleSettings,
        documents: np.ndarray,
        *,
        length: int,
        seed: int,
        write: bool = True,
    ) -> None:
        self._write = write
        self._corpus = corpus
        self._settings = settings
        self._documents = documents
        self._documents_hash = hashlib.sha256(documents.tobytes()).hexdigest()
        self._length = length
        self._seed = seed
        self._plans: dict[int, np.ndarray] = {}
        self._num_rows: dict[int, int] = {}

    def num_rows(self, epoch: int) -> int:
        """Return the number of rows of an epoch."""
        if epoch not in self._num_rows:
            count = self._noted_rows(epoch)
            if count is None:
                self.of(epoch)
            else:
                self._num_rows[epoch] = count
        return self._num_rows[epoch]

    def missing_bytes(self, epochs: int) -> int:
        """Return the largest number of bytes that the plans of the first `epochs` epochs add to CORPUS/plans.

        Every plan is taken to be as long as the first. With static masks all plans are counted, otherwise the newest
        two and the one that is being written.
        """
        rows = self.num_rows(0)
        if rows < _SMALL:
            return 0
        kept = range(min(epochs, self._settings.static_masks or _IN_FILES))
        return sum(rows * PLAN.itemsize for epoch in kept if not self._path(epoch).exists())

    def of(self, epoch: int) -> np.ndarray:
        """Return the plan of an epoch, read-only."""
        plan = self._plans.get(epoch)
        if plan is None:
            plan = self._read(epoch)
            if plan is None:
                plan = self._saved(epoch, self._walk(epoch))
            kept = [*self._plans.items(), (epoch, plan)][-_IN_MEMORY:]
            self._plans = dict(kept)
            self._num_rows[epoch] = plan.size
        return plan

    def _walk(self, epoch: int) -> np.ndarray:
        plan = plan_rows(
            self._corpus.sentence_lengths(),
            self._corpus.document_first(),
            length=self._length,
            seed=self._seed,
            epoch=epoch,
            second_sentence=self._settings.second_sentence,
            short_share=self._settings.short_share,
            documents=self._documents,
        )
        plan.flags.writeable = False
        return plan

    def _path(self, epoch: int) -> Path:
        kind = _KINDS[self._settings.second_sentence]
        decides = {
            "version": PLAN_VERSION,
            "file": 2,  # version of the file: a digest at its end
            "corpus": self._corpus.fingerprint,
            "kind": kind,
            "length": self._length,
            "seed": self._seed,
            "epoch": epoch,
            "short_share": self._settings.short_share,
            "documents": self._documents_hash,
        }
        digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]
        return self._corpus.folder / "plans" / f"{kind}-{self._length}-epoch-{epoch}-{digest}.npy"

    def _read(self, epoch: int) -> np.ndarray | None:
        path = self._path(epoch)
        if not path.exists():
            return None
        try:
            plan = np.load(path, mmap_mode="r", allow_pickle=False)
            with path.open("rb") as stream:
                stream.seek(plan.offset + plan.nbytes)
                digest = stream.read()
        except Exception as error:  # any damage: the plan can be computed again
            say(f"{path}: not a readable pair index ({error}); it is not used")
            return None
        if plan.dtype != PLAN or plan.ndim != 1 or digest != hashlib.sha256(plan.data).digest():
            say(f"{path}: damaged; it is not used, and the pair index is made again")
            return None
        return np.asarray(plan)

    def _saved(self, epoch: int, plan: np.ndarray) -> np.ndarray:
        """Save a plan and return it as a memory map; return it unsaved if small or if the folder is read-only."""
        folder = self._corpus.folder / "plans"
        if (
            not self._write
            or plan.size < _SMALL
            or not os.access(folder if folder.exists() else folder.parent, os.W_OK)
        ):
            return plan
        try:
            folder.mkdir(exist_ok=True)
            remove_leftovers(folder)
            with atomic_file(self._path(epoch)) as stream:
                np.save(stream, plan, allow_pickle=False)
                stream.write(hashlib.sha256(plan.data).digest())
            if not self._settings.static_masks:
                self._remove_before(epoch - 1)
        except OSError as error:
            say(f"{folder}: cannot be written ({error}); the pair index of epoch {epoch} stays in memory")
            return plan
        written = self._read(epoch)
        return plan if written is None else written

    def _remove_before(self, epoch: int) -> None:
        """Replace each saved plan of an epoch before `epoch` by its number of rows."""
        for earlier in range(epoch):
            path, plan = self._path(earlier), self._read(earlier)
            if plan is not None:
                with atomic_file(path.with_suffix(".rows")) as stream:
                    stream.write(_rows_line(path, plan.size))
            del plan  # Windows removes no file that is mapped
            remove_unused(path)

    def _noted_rows(self, epoch: int) -> int | None:
        """Return the number of rows of a removed plan; None where the plan exists or the note cannot be read."""
        path = self._path(epoch)
        try:
            line = path.with_suffix(".rows").read_bytes()
            size = int(line.split()[0])
        except (OSError, ValueError, IndexError):
            return None
        return size if line == _rows_line(path, size) else None


def _rows_line(path: Path, size: int) -> bytes:
    """Return the note of a number of rows, with a digest of the number and of the plan's file name."""
    return f"{size} {hashlib.sha256(f'{path.name} {size}'.encode()).hexdigest()[:16]}\n".encode()
