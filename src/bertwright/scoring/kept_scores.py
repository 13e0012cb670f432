"""scores of minimal pairs ↔ a folder that keeps those of each paradigm, so that a stopped evaluation continues."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError, shown
from bertwright.files import read_object, refuse_occupied, write_json
from bertwright.locks import locked_file
from bertwright.scoring.pairs import Paradigm, pairs_digest

_IDENTITY: Final = "evaluation.json"
_SCORES: Final = "scores"
_LOCK: Final = "lock"


class KeptScores:
    """The scores of the paradigms that are computed; a file is written when its paradigm is complete.

    identity: all that decides the scores beside the sentences: model, tokenizer, settings, precision.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Open the folder, or make it. Raises InputError where it holds anything else, or scores of another model."""
        self._folder = folder
        path = folder / _IDENTITY
        if not path.is_file():
            refuse_occupied(folder)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(path, dict(identity))
            return
        stored = read_object(path)
        for name in {**stored, **identity}:
            if identity.get(name) != stored.get(name):
                raise InputError(
                    f"--out {folder}: its scores were computed with {name} {shown(stored.get(name))}, now it is "
                    f"{shown(identity.get(name))}; name another folder"
                )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process write to the folder meanwhile. Raises InputError where one does."""
        with locked_file(self._folder / _LOCK, f"--out {self._folder}: another process is writing to this folder"):
            yield

    def read(self, paradigm: Paradigm) -> NDArray[np.float64] | None:
        """Return the scores [N, 2] of a paradigm; None where they are not computed. InputError for other pairs."""
        path = self._path(paradigm)
        if not path.is_file():
            return None
        stored = read_object(path)
        if stored.get("pairs") != pairs_digest(paradigm):
            raise InputError(
                f"{path}: holds the scores of other pairs than those of --data and --pairs; name another folder with "
                "--out"
            )
        try:
            scores = np.array(stored.get("scores"), dtype=np.float64)
        except (TypeError, ValueError):
            scores = np.zeros(0)
        if scores.shape != (len(paradigm.pairs), 2) or not np.isfinite(scores).all():
            raise InputError(f"{path}: expected two scores for each of {len(paradigm.pairs)} pairs; remove the file")
        return scores

    def write(self, paradigm: Paradigm, scores: NDArray[np.float64]) -> None:
        """Keep the scores [N, 2] of a paradigm."""
        self._path(paradigm).parent.mkdir(exist_ok=True)
        write_json(self._path(paradigm), {"pairs": pairs_digest(paradigm), "scores": scores.tolist()})

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write the metrics of all paradigms beside the scores."""
        write_json(self._folder / "metrics.json", dict(metrics))

    def _path(self, paradigm: Paradigm) -> Path:
        return self._folder / _SCORES / f"{paradigm.uid}.json"
