"""Copies of the model that a run keeps: after fractions of its steps, and after numbers of words seen."""

import re
from collections.abc import Sequence
from pathlib import Path

from bertwright.pretraining.exposure import Exposure
from bertwright.pretraining.settings import PretrainSettings
from bertwright.text.word_counts import MILLION
from bertwright.training.run_files import step_name


def kept_models(settings: PretrainSettings, exposure: Exposure, run: Path, steps: int) -> dict[int, list[Path]]:
    """Return the steps after which models are kept in the run folder `run`, with the model folders of each.

    Raises InputError where --checkpoints-by-words keeps none; see `Exposure.marks`.
    """
    kept = {step: [snapshot_folder(run, step)] for step in snapshot_steps(settings.snapshots, steps)}
    if settings.checkpoints_by_words:
        for words, step in exposure.marks(steps).items():
            kept.setdefault(step, []).append(words_folder(run, words))
    return kept


def snapshot_steps(fractions: Sequence[float], steps: int) -> list[int]:
    """Return the steps after which a snapshot is made, ascending, for fractions of `steps`; never the last step."""
    return sorted({step for fraction in fractions if (step := max(1, round(fraction * steps))) < steps})


def snapshot_folder(run: Path, step: int) -> Path:
    """Return the model folder of a run's snapshot after a step."""
    return run / "snapshots" / step_name(step)


def words_folder(run: Path, words: int) -> Path:
    """Return the model folder that a run keeps after so many million words, such as words/10M."""
    return run / "words" / f"{words // MILLION}M"


def words_folders(folder: Path) -> list[Path]:
    """Return the model folders in `folder` that are named after words, such as 10M, in the order of their words."""
    named = [path for path in folder.glob("*M") if re.fullmatch("[0-9]+M", path.name) and path.is_dir()]
    return sorted(named, key=lambda path: int(path.name[:-1]))
