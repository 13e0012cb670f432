"""Runs by URL in the store of `stores.py`, with made-up checkpoints."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bertwright.training.remote_run import run_by_url
from tests.support.stores import FaultyStore

URL = "faulty://b/run"


def checkpoint(folder: Path, step: int, content: bytes = b"weights") -> None:
    """Write a checkpoint as training does: under another name first."""
    new = folder / "checkpoints" / ".new"
    new.mkdir(parents=True)
    (new / "model.safetensors").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    (new / "state.json").write_text(json.dumps({"step": step, "sha256": {"model.safetensors": digest}}))
    new.rename(folder / "checkpoints" / f"step-{step:09d}")


def begin(folder: Path, step: int = 10, **record: Any) -> None:
    """Write a run with one checkpoint."""
    new = folder / ".run.json.new"  # the thread of the uploads may read at any time
    new.write_text(json.dumps({"kind": "pretrain", **record}) + "\n")
    new.replace(folder / "run.json")
    (folder / "metrics.jsonl").write_text('{"step": 5}\n{"step": 10}\n{"st')
    checkpoint(folder, step)


def train(step: int = 10, *, resume: bool = False, **record: Any) -> Path:
    with run_by_url(URL, resume=resume, pauses=()) as folder:
        begin(folder, step, **record)
    return folder


def work(change: Callable[[Path], None], *, resume: bool = False, pauses: Sequence[float] = ()) -> Path:
    """A run whose work is a change of its folder."""
    with run_by_url(URL, resume=resume, pauses=pauses) as folder:
        change(folder)
    return folder


def forget(folder: Path) -> None:
    """The folder as on another machine, where it does not exist."""
    folder.rename(folder.with_name("elsewhere"))


def stored(name: str) -> bytes:
    return bytes(FaultyStore.store[f"/b/run/{name}"].getvalue())
