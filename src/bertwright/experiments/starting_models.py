"""pre-trained models → the model folder from which a fine-tuning starts: one of them, joined, or with another head."""

import shutil
from pathlib import Path
from typing import Final

from bertwright.errors import InputError
from bertwright.experiments.heads import change_head
from bertwright.experiments.jobs import Finetuning
from bertwright.files import file_digest, read_object_if_there, write_json
from bertwright.model.folder import WEIGHTS
from bertwright.pretraining.elmo import join

_SOURCES: Final = "sources.json"
"""File of a model that is made of others: the sha256 of their weights."""


def starting_model(job: Finetuning, out: Path) -> Path:
    """Return the model folder from which a fine-tuning starts; write it where it is made of pre-trained models.

    It is written again where one of them was trained again meanwhile.
    """
    paths = [model.folder_after(job.fraction) for model in job.models]
    if len(paths) == 1 and job.head is None:
        return paths[0]
    name = "+".join(model.name for model in job.models)
    kind = "joined" if job.head is None else f"head-{job.head}"
    folder = out / kind / (name if job.fraction == 1.0 else f"{name}-{paths[0].name}")
    weights = {"weights": [file_digest(path / WEIGHTS) for path in paths]}
    note = folder.parent / f"{folder.name}.{_SOURCES}"  # written before the folder, which it may outlive
    if folder.exists() and weights not in map(read_object_if_there, (note, folder / _SOURCES)):
        shutil.rmtree(folder)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_json(note, weights)
        try:
            if job.head is None:
                join(str(paths[0]), str(paths[1]), folder)
            else:
                change_head(job.head, [str(path) for path in paths], folder)
        except (InputError, OSError):
            if not folder.exists():  # otherwise another process was the first to write it
                raise
    return folder
