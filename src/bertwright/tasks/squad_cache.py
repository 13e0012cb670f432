"""question and passage → token ids, once: windows kept by content in the user's cache.

There and not in the run folder, because several runs, seeds and evaluations read the same files; everything in it may
be removed at any time. The name is a hash of all that decides the windows, the code that makes them included.
"""

import dataclasses
import hashlib
import json
import os
import zipfile
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bertwright import files
from bertwright.console import say
from bertwright.files import atomic_file
from bertwright.tasks import squad_windows
from bertwright.tasks.squad import Questions, SpanTask
from bertwright.tasks.squad_windows import Windows, encode_windows
from bertwright.text.pieces import PlacedPieces


class HashedPieces(PlacedPieces, Protocol):
    """What `cached_windows` asks of a tokenizer."""

    @property
    def hash(self) -> str:
        """Equal hashes give equal ids for every text."""
        ...


def cache_folder() -> Path:
    """Where windows are kept: BERTWRIGHT_CACHE, or bertwright in XDG_CACHE_HOME or ~/.cache."""
    named = os.environ.get("BERTWRIGHT_CACHE")
    if named:
        return Path(named) / "squad"
    return files.cache_folder() / "squad"


def cached_windows(
    words: HashedPieces, questions: Questions, task: SpanTask, *, max_length: int, targets: bool = False
) -> Windows:
    """As `encode_windows`; read from the cache where the same was asked for before.

    A folder that cannot be written costs only the time, and that is said.
    """
    make = partial(encode_windows, words, questions, task, max_length=max_length, targets=targets)
    try:
        path = cache_folder() / f"{_key(words, questions, task, max_length, targets)}.npz"
    except OSError as error:
        say(f"the windows of questions are made again next time: {error}")
        return make()
    if path.exists():
        try:
            return _load(path)
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            say(f"{path}: is broken and made anew: {error}")
    windows = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as stream:
            np.savez(stream, **{field.name: getattr(windows, field.name) for field in dataclasses.fields(windows)})
    except OSError as error:
        say(f"{path}: cannot be written, so the windows are made again next time: {error}")
    return windows


def _load(path: Path) -> Windows:
    with path.open("rb") as stream, np.load(stream) as stored:  # numpy refuses pickles unless told otherwise
        arrays = {field.name: stored[field.name] for field in dataclasses.fields(Windows)}
    values: dict[str, Any] = {name: array if array.ndim else int(array) for name, array in arrays.items()}
    return Windows(**values)


def _key(words: HashedPieces, questions: Questions, task: SpanTask, max_length: int, targets: bool) -> str:
    settings = [words.hash, max_length, task.stride, task.question, targets]
    digest = hashlib.sha256(Path(squad_windows.__file__).read_bytes())
    digest.update(json.dumps(settings).encode())
    for question in questions.items:
        digest.update(json.dumps([question.text, question.context, question.answers[:1] if targets else []]).encode())
    return digest.hexdigest()
