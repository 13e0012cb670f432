"""A text per line, in; the states of a frozen encoder for each, out, as one .npz file (paper §5.3)."""

import sys
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bertwright.console import Status, clock
from bertwright.errors import InputError
from bertwright.files import atomic_file, refuse_target
from bertwright.model.folder import open_model
from bertwright.prediction.feature_based import frozen_encoder
from bertwright.prediction.features import Features, Pool, check_pool, features_of, pooled
from bertwright.prediction.work import open_tokenizer
from bertwright.training.machine import keep_memory

_PATIENCE = 2.0
"""Seconds after which it is said how far it came."""


def write_features(
    model: str,
    source: str,
    target: Path,
    *,
    layers: str = "all",
    pool: Pool = "none",
    max_length: int | None = None,
) -> dict[str, Any]:
    """Write the features of every line of `source` (- for standard input); returns what was written.

    With pool none, text I has `hidden_I` [S, T, D], `tokens_I` [T] and `offsets_I` [T, 2]; else there is one array
    `vectors` [N, S, D]: the state of [CLS], or the mean or maximum over all tokens. `layers` [S] says which states.
    """
    keep_memory()
    refuse_target(str(target), source=source)
    if model.startswith("random:"):
        raise InputError(f"{model}: random weights have learned nothing; name a model folder or a run")
    saved = open_model(model)
    check_pool(saved.config, pool)
    words = open_tokenizer(saved)
    encoder = frozen_encoder(saved)
    chosen = parse_layers(layers, saved.config.layers)
    wanted: Any = {"layers": chosen, "max_length": max_length}
    texts = tokens = cut = 0
    vectors = []
    with atomic_file(target) as stream, zipfile.ZipFile(stream, "w") as archive:
        _put(archive, "layers", np.array(chosen))
        for found in _aloud(source, lambda texts: features_of(encoder, words, texts, **wanted)):
            if pool == "none":
                _put(archive, f"hidden_{texts}", found.states)
                _put(archive, f"tokens_{texts}", np.array([words.pieces[id] for id in found.ids]))
                _put(archive, f"offsets_{texts}", found.offsets)
            else:
                vectors.append(pooled(found, pool))
            texts, tokens, cut = texts + 1, tokens + len(found.ids), cut + found.truncated
        if not texts:
            raise InputError(f"{source}: holds no line of text")
        if pool != "none":
            _put(archive, "vectors", np.stack(vectors))
    return {"texts": texts, "tokens": tokens, "truncated": cut, "layers": chosen, "output": str(target)}


def parse_layers(given: str, layers: int) -> list[int]:
    """`all`, `last`, or numbers such as 0,11,12 or -1 (0 is the embeddings) → states in the order asked for."""
    if given == "all":
        return list(range(layers + 1))
    if given == "last":
        return [layers]
    try:
        numbers = [int(part) for part in given.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(-layers - 1 <= number <= layers for number in numbers):
        raise InputError(
            f"--layers {given}: write all, last, or numbers with commas between, 0 (the embeddings) to {layers}; "
            "-1 is the last layer"
        )
    return [number % (layers + 1) for number in numbers]


def lines(source: str) -> Iterator[str]:
    """Every line of a UTF-8 file, or of standard input, the empty ones too: the I-th line is the I-th text."""
    if source == "-":
        yield from _decoded(sys.stdin.buffer, "standard input")
        return
    path = Path(source)
    if not path.is_file():
        raise InputError(f"{source}: there is no such file; it holds one text on every line")
    with path.open("rb") as stream:
        yield from _decoded(stream, source)


def _aloud(source: str, computed: Callable[[Iterator[str]], Iterator[Features]]) -> Iterator[Features]:
    """What is `computed` from the lines of `source`, with a word on how far it came where it takes long."""
    size = Path(source).stat().st_size if Path(source).is_file() else 0
    waiting: deque[int] = deque()  # bytes of the lines that were read and not yet computed
    begin, done = time.monotonic(), 0

    def counted() -> Iterator[str]:
        for line in lines(source):
            waiting.append(len(line.encode()) + 1)
            yield line

    with Status(ends=False) as status:
        for number, found in enumerate(computed(counted()), start=1):
            yield found
            done += waiting.popleft()
            spent = time.monotonic() - begin
            if spent > _PATIENCE:
                left = f" · {clock(spent * max(0.0, size / done - 1))} left" if size else ""
                status.update(f"{number:,} lines{left}")


def _decoded(stream: IO[bytes], place: str) -> Iterator[str]:
    for number, line in enumerate(stream, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise InputError(f"{place}:{number}: not UTF-8 text (byte {error.start} of the line)") from None


def _put(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    """Add one array as numpy does, with a fixed date: the same input gives the same bytes."""
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
        np.lib.format.write_array(stream, array, allow_pickle=False)
