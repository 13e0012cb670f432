"""Reading and changing the files that a command has written."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a folder, by its path there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def update_json(path: Path, **changes: Any) -> None:
    """Set keys of the object in a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}), "utf-8")


def weights_in(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a model folder."""
    return load_file(folder / "model.safetensors")


def without_words(corpus: Path) -> Path:
    """Rewrite the manifest of a corpus as it was before words were counted, and return its folder."""
    return with_words(corpus, None)


def with_words(corpus: Path, words: int | None) -> Path:
    """Rewrite the manifest of a corpus of one shard, as if its text had so many words, and return its folder."""
    path = corpus / "manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    (entry,) = manifest["shards"]
    for part in (manifest, entry):
        del part["words"]
        part |= {} if words is None else {"words": words}
    path.write_text(json.dumps(manifest), "utf-8")
    return corpus
