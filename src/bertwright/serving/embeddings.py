"""texts → states of a frozen encoder, written as one .npz file (paper §5.3, the feature-based approach).

Shapes: S states (requested layers), T tokens of one text with [CLS] and [SEP], D hidden.
"""

import sys
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertwright.console import PATIENCE, Status
from bertwright.errors import InputError
from bertwright.files import atomic_file
from bertwright.model.backbones import Backbone
from bertwright.model.config import BackboneConfig, SingleBackboneConfig
from bertwright.model.folder import open_model
from bertwright.output_paths import refuse_target
from bertwright.tables.bad_rows import is_blank
from bertwright.tables.files import source_name
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.feature_based import frozen_encoder
from bertwright.tasks.finite import check_finite
from bertwright.tasks.frozen_features import every_position, states_for
from bertwright.tasks.static_vectors import open_vectors
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.open_tokenizer import special_ids
from bertwright.training.hardware import prepare_processor

_TEXTS = 256
"""Number of texts in memory at a time."""

_TOKENS = 8192
"""Number of tokens whose states are in memory at a time, unless one text has more."""


Pool = Literal["none", "cls", "mean", "max"]
"""Pooling of a text's token states into one vector: the state of [CLS], or the mean or maximum over all tokens."""

FeaturePool = Literal["none", "cls", "mean", "max", "folder"]
"""Pooling of `write_features`; folder is the vector that the model folder describes."""

TokenizedText = tuple[list[int], list[tuple[int, int]], bool]
"""The ids of a text, their offsets in it, and True where the text was cut."""


@dataclass(frozen=True)
class Features:
    """States of one text [S, T, D], its `ids` [T], and the (first, one past last) character of each piece [T, 2]."""

    states: NDArray[np.float32]
    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    truncated: bool


def features_of(
    encoder: Backbone,
    tokenizer: BaseTokenizer,
    texts: Iterable[str],
    *,
    layers: Sequence[int],
    max_length: int | None = None,
    location: Callable[[int], str] = "input {}".format,
) -> Iterator[Features]:
    """Yield the states of each text, in order; only a few hundred texts are in memory.

    layers: 0 for the embeddings, then the layers up to `encoder.config.layers`. A text with more than `max_length`
    tokens (default: the model's positions) is cut at its end. The encoder must be in evaluation mode. Raises RunFailed
    for states that are not finite; `location` describes the text of an index for the message.
    """
    limit = encoder.config.max_positions if max_length is None else max_length
    if not 3 <= limit <= encoder.config.max_positions:
        raise InputError(
            f"max_length {limit}: expected 3 to {encoder.config.max_positions}, the positions of this model"
        )
    remaining, index = iter(texts), 0
    while block := list(islice(remaining, _TEXTS)):
        for features in _block(encoder, tokenizer, block, layers, limit):
            check_finite([features.states], location, first=index)
            yield features
            index += 1


def check_pool(config: BackboneConfig, pool: Pool) -> None:
    """Raise InputError for the pool cls where the first token attends only to itself."""
    if pool == "cls" and isinstance(config, SingleBackboneConfig) and config.attends == "left":
        raise InputError("pool cls: the first token of this model attends only to itself; use mean or max")


def pooled(states: NDArray[np.float32], pool: Pool) -> NDArray[np.float32]:
    """Return the vectors [S, D] of the states [S, T, D] of a text."""
    if pool == "cls":
        return states[:, 0].copy()  # a view would keep the states of all tokens
    vectors: NDArray[np.float32] = states.mean(axis=1) if pool == "mean" else states.max(axis=1)
    return vectors


def token_states(
    encoder: Backbone, rows: Sequence[NDArray[np.int32]], layers: Sequence[int]
) -> list[NDArray[np.float32]]:
    """Return the states [S, T, D] of each row of token ids [T]."""
    positions = every_position(rows)
    states = states_for(encoder, positions, layers).values  # [all tokens, S, D]
    return [states[begin:end].swapaxes(0, 1) for begin, end in pairwise(positions.ends)]


def _block(
    encoder: Backbone, tokenizer: BaseTokenizer, texts: Sequence[str], layers: Sequence[int], limit: int
) -> Iterator[Features]:
    room = limit - sum(map(len, special_ids(tokenizer)))
    pieces = [(ids[:room], offsets[:room], len(ids) > room) for ids, offsets in tokenizer.offsets(texts)]
    begin = num_tokens = 0
    for index, (ids, _, _) in enumerate(pieces):
        if num_tokens + len(ids) + 2 > _TOKENS and index > begin:
            yield from _computed(encoder, tokenizer, pieces[begin:index], layers)
            begin, num_tokens = index, 0
        num_tokens += len(ids) + 2
    yield from _computed(encoder, tokenizer, pieces[begin:], layers)


def _computed(
    encoder: Backbone, tokenizer: BaseTokenizer, pieces: Sequence[TokenizedText], layers: Sequence[int]
) -> list[Features]:
    before_ids, after_ids = special_ids(tokenizer)
    before, after = ([(0, 0)] * len(ids) for ids in (before_ids, after_ids))
    rows = [np.array([*before_ids, *ids, *after_ids] or [tokenizer.unk_id], dtype=np.int32) for ids, _, _ in pieces]
    return [
        Features(
            states=states,
            ids=row.astype(np.int64),
            offsets=np.array([*before, *offsets, *after] or [(0, 0)], dtype=np.int64),
            truncated=truncated,
        )
        for states, row, (_, offsets, truncated) in zip(token_states(encoder, rows, layers), rows, pieces, strict=True)
    ]


Computed = TypeVar("Computed")
"""Features or vectors of one text."""


def write_features(
    model: str,
    source: str,
    target: Path,
    *,
    layers: str | None = None,
    pool: FeaturePool = "none",
    max_length: int | None = None,
) -> dict[str, Any]:
    """Write the features of every line of `source` (- for standard input); return a summary.

    With pool none, text I has `hidden_I` [S, T, D], `tokens_I` [T] and `offsets_I` [T, 2]. With cls, mean or max, one
    array `vectors` [N, S, D] has the pooled states. `layers` [S] lists the states; None is all. With folder, one array
    `vectors` [N, W] has what the folder describes; `layers` must then be None or last.
    """
    prepare_processor()
    refuse_target(str(target), source=source)
    if model.startswith("random:"):
        raise InputError(f"{model}: expected a model folder or a run; random weights have no useful features")
    if pool == "folder":
        if layers not in (None, "last"):
            raise InputError(f"--layers {layers}: --pool folder computes vectors of the last layer; leave --layers out")
        return _write_described(model, source, target, max_length)
    saved = open_model(model)
    check_pool(saved.config, pool)
    tokenizer = open_tokenizer(saved)
    encoder = frozen_encoder(saved)
    chosen = parse_layers("all" if layers is None else layers, saved.config.layers)
    name = source_name(source)
    options: Any = {"layers": chosen, "max_length": max_length, "location": lambda index: f"{name}:{index + 1}"}
    texts = tokens = cut = 0
    vectors = []
    with atomic_file(target, keep_new=True) as stream, zipfile.ZipFile(stream, "w") as archive:
        _put(archive, "layers", np.array(chosen))
        for features in _with_progress(source, lambda texts: features_of(encoder, tokenizer, texts, **options)):
            if pool == "none":
                _put(archive, f"hidden_{texts}", features.states)
                _put(archive, f"tokens_{texts}", np.array([tokenizer.readable_pieces[id] for id in features.ids]))
                _put(archive, f"offsets_{texts}", features.offsets)
            else:
                vectors.append(pooled(features.states, pool))
            texts, tokens, cut = texts + 1, tokens + len(features.ids), cut + features.truncated
        if not texts:
            raise InputError(f"{source}: expected lines of text, found none")
        if pool != "none":
            _put(archive, "vectors", np.stack(vectors))
    return {"texts": texts, "tokens": tokens, "truncated": cut, "layers": chosen, "output": str(target)}


def _write_described(model: str, source: str, target: Path, max_length: int | None) -> dict[str, Any]:
    """Write the vectors [N, W] that the folder describes; return a summary."""
    encoder, name = open_vectors(model, None, "cpu"), source_name(source)
    tokens = cut = empty = 0
    vectors: list[NDArray[np.float32]] = []

    def compute(texts: Iterator[str]) -> Iterator[tuple[NDArray[np.float32], int, bool, bool]]:
        while block := list(islice(texts, _TEXTS)):
            rows, truncated = encoder.rows(block, max_length=max_length)
            computed = encoder.of_rows(rows)
            check_finite(computed, lambda index: f"{name}:{index + 1}", first=len(vectors))
            yield from zip(computed, map(len, rows), truncated, map(is_blank, block), strict=True)

    with atomic_file(target, keep_new=True) as stream, zipfile.ZipFile(stream, "w") as archive:
        for vector, length, was_cut, was_empty in _with_progress(source, compute):
            vectors.append(vector)
            tokens, cut, empty = tokens + length, cut + was_cut, empty + was_empty
        if not vectors:
            raise InputError(f"{source}: expected lines of text, found none")
        _put(archive, "vectors", np.stack(vectors))
    summary = {"texts": len(vectors), "tokens": tokens, "truncated": cut, "empty": empty}
    return {**summary, "size": encoder.size, "output": str(target)}


def parse_layers(text: str, layers: int) -> list[int]:
    """Return the states for `all`, `last`, or numbers such as 0,11,12 or -1, in the requested order; 0: embeddings."""
    if text == "all":
        return list(range(layers + 1))
    if text == "last":
        return [layers]
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(-layers - 1 <= number <= layers for number in numbers):
        raise InputError(
            f"--layers {text}: expected all, last, or numbers from 0 (the embeddings) to {layers}, separated by "
            "commas; -1 is the last layer"
        )
    return [number % (layers + 1) for number in numbers]


def lines(source: str) -> Iterator[str]:
    """Yield every line of a UTF-8 file or of standard input, empty ones included: line I is text I."""
    if source == "-":
        yield from _decoded(sys.stdin.buffer, source_name(source))
        return
    path = Path(source)
    if not path.is_file():
        raise InputError(f"{source}: no such file; expected a file with one text per line")
    with path.open("rb") as stream:
        yield from _decoded(stream, source)


def _with_progress(source: str, compute: Callable[[Iterator[str]], Iterator[Computed]]) -> Iterator[Computed]:
    """Yield what `compute` returns for the lines of `source`, and show progress after two seconds."""
    size = Path(source).stat().st_size if Path(source).is_file() else 0
    waiting: deque[int] = deque()  # sizes in bytes of lines that were read and not yet computed
    done = 0

    def counted() -> Iterator[str]:
        for line in lines(source):
            waiting.append(len(line.encode()) + 1)
            yield line

    with Status(ends=False, patience=PATIENCE) as status:
        for number, computed in enumerate(compute(counted()), start=1):
            yield computed
            done += waiting.popleft()
            left = f" · {status.remaining(done / size)} left" if size else ""
            status.update(f"{number:,} lines{left}")


def _decoded(stream: IO[bytes], source: str) -> Iterator[str]:
    for number, line in enumerate(stream, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise InputError(f"{source}:{number}: not UTF-8 text (byte {error.start + 1} of the line)") from None


def _put(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    """Add one array as numpy does, with a fixed date, so that equal input gives equal bytes."""
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
        np.lib.format.write_array(stream, array, allow_pickle=False)
