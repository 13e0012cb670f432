"""scores of minimal pairs ↔ a folder that keeps those of each paradigm, so that a stopped evaluation continues."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from bertwright.errors import InputError, shown
from bertwright.files import read_object, refuse_occupied, write_json
from bertwright.locks import locked_file
from bertwright.scoring.pairs import Paradigm, pairs_digest

_IDENTITY: Final = "evaluation.json"
_SCORES: Final = "scores"
_METRICS: Final = "metrics.json"
_LOCK: Final = "lock"
_Fraction = Annotated[float, Field(ge=0, le=1)]


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

    def refuse_fewer(self, paradigms: Sequence[Paradigm]) -> None:
        """Raise InputError where the folder has metrics of paradigms that are not to be measured now."""
        path = self._folder / _METRICS
        earlier = read_object(path).get("paradigms") if path.is_file() else None
        names = earlier if isinstance(earlier, dict) else {}
        if absent := [name for name in names if name not in {paradigm.uid for paradigm in paradigms}]:
            raise InputError(
                f"{path}: has metrics of paradigms that are not measured now ({len(absent)} of them, such as "
                f"{absent[0]}), and they would be lost; name another folder with --out"
            )

    def write(self, paradigm: Paradigm, scores: NDArray[np.float64]) -> None:
        """Keep the scores [N, 2] of a paradigm."""
        self._path(paradigm).parent.mkdir(exist_ok=True)
        write_json(self._path(paradigm), {"pairs": pairs_digest(paradigm), "scores": scores.tolist()})

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write the metrics of all paradigms beside the scores."""
        write_json(self._folder / _METRICS, dict(metrics))

    def _path(self, paradigm: Paradigm) -> Path:
        return _scores_file(self._folder, paradigm.uid)


class KeptEvaluation(BaseModel):
    """Metrics of a finished evaluation, as fractions; see `MinimalPairMetrics`.

    weights: sha256 of the file of weights; None for random weights. digests: those of the pairs of each paradigm.
    """

    weights: str | None
    digests: dict[str, str]
    accuracy: _Fraction
    phenomena_accuracy: _Fraction
    phenomena: dict[str, _Fraction]
    pairs: int
    precision: str
    masking: str | None = None
    first_token: str | None = None

    @property
    def scored_by(self) -> str:
        """Settings of the scores in words."""
        return f"{f'masking {self.masking}' if self.masking else f'first token {self.first_token}'}, {self.precision}"

    @property
    def way(self) -> str:
        """Number of pairs, and settings of their scores, in words."""
        return f"{self.pairs:,} pairs, {self.scored_by}"


def is_evaluation(folder: Path) -> bool:
    """Return True for a folder that keeps the scores of minimal pairs."""
    return (folder / _IDENTITY).is_file()


def keeps_scores(folder: Path) -> bool:
    """Return True for a folder with the scores of pairs; records that were published have the metrics alone."""
    return (folder / _SCORES).is_dir()


def read_evaluation(folder: Path) -> KeptEvaluation | None:
    """Return the metrics in a folder of `KeptScores`; None where not all paradigms are scored.

    Raises InputError for files that are broken.
    """
    path = folder / _METRICS
    if not path.is_file():
        return None
    weights, metrics = read_object(folder / _IDENTITY).get("weights"), read_object(path)
    broken = path
    try:
        digests = {uid: read_object(_scores_file(folder, uid)).get("pairs") for uid in metrics["paradigms"]}
        return KeptEvaluation.model_validate({**metrics, "weights": weights, "digests": digests})
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        if first["loc"][0] == "digests":
            broken = _scores_file(folder, str(first["loc"][1]))
    except (KeyError, TypeError):
        problem = "no object 'paradigms'"
    raise InputError(
        f"{broken}: expected the results of an evaluation, got {problem}; remove the file, and repeat the command, "
        "which writes it again"
    )


def _scores_file(folder: Path, uid: str) -> Path:
    return folder / _SCORES / f"{uid}.json"
