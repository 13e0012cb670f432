"""encoder → features: the states of a frozen encoder for each text (paper §5.3, the feature-based way).

Shapes: S states (layers asked for), T tokens of one text with [CLS] and [SEP], D hidden.
"""

import sys
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertwright.console import Status, clock
from bertwright.errors import InputError
from bertwright.files import atomic_file, refuse_target
from bertwright.model.backbones import Backbone
from bertwright.model.config import BackboneConfig, SingleBackboneConfig
from bertwright.model.folder import open_model
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.feature_based import frozen_encoder
from bertwright.tasks.frozen_features import Places, states_for
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.bpe import BPETokenizer
from bertwright.training.hardware import keep_memory

_TEXTS = 256
"""Texts held at a time."""

_TOKENS = 8192
"""Tokens whose states are held at a time, if a text has no more; texts of like length are computed together."""


Pool = Literal["none", "cls", "mean", "max"]
"""How the states of a text's tokens become one: that of [CLS], or the mean or maximum over all of them."""

Pieces = tuple[list[int], list[tuple[int, int]], bool]
"""The ids of a text, where each lies in it, and whether some were cut off."""


@dataclass(frozen=True)
class Features:
    """One text: `states` [S, T, D], `ids` [T], and where each piece lies in it, (first, one past last) [T, 2]."""

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
) -> Iterator[Features]:
    """The states of each text, in the order of the texts, of which only a few hundred are held.

    layers: 0 for the embeddings, then the layers, the last one is `encoder.config.layers`. A text of more than
    `max_length` tokens (default: the model's positions) is cut at its end. The caller puts the encoder in evaluation
    mode.
    """
    limit = encoder.config.max_positions if max_length is None else max_length
    if not 3 <= limit <= encoder.config.max_positions:
        raise InputError(f"max_length {limit}: allowed are 3 to {encoder.config.max_positions}, this model's positions")
    remaining = iter(texts)
    while block := list(islice(remaining, _TEXTS)):
        yield from _block(encoder, tokenizer, block, layers, limit)


def check_pool(config: BackboneConfig, pool: Pool) -> None:
    """InputError for the state of the first token where that one sees itself alone: it says nothing of the text."""
    if pool == "cls" and isinstance(config, SingleBackboneConfig) and config.attends == "left":
        raise InputError(
            "pool cls: this model looks to the left, so its first token knows nothing of the text; take mean or max"
        )


def pooled(found: Features, pool: Pool) -> NDArray[np.float32]:
    """One vector for each state: [S, D]."""
    if pool == "cls":
        return found.states[:, 0].copy()  # a view would keep the states of all tokens
    vectors: NDArray[np.float32] = found.states.mean(axis=1) if pool == "mean" else found.states.max(axis=1)
    return vectors


def _block(
    encoder: Backbone, tokenizer: BaseTokenizer, texts: Sequence[str], layers: Sequence[int], limit: int
) -> Iterator[Features]:
    room = limit - sum(map(len, _framing(tokenizer)))
    pieces = [(ids[:room], offsets[:room], len(ids) > room) for ids, offsets in tokenizer.offsets(texts)]
    begin = held = 0
    for place, (ids, _, _) in enumerate(pieces):
        if held + len(ids) + 2 > _TOKENS and place > begin:
            yield from _computed(encoder, tokenizer, pieces[begin:place], layers)
            begin, held = place, 0
        held += len(ids) + 2
    yield from _computed(encoder, tokenizer, pieces[begin:], layers)


def _computed(
    encoder: Backbone, tokenizer: BaseTokenizer, pieces: Sequence[Pieces], layers: Sequence[int]
) -> list[Features]:
    begins, closes = _framing(tokenizer)
    before, behind = ([(0, 0)] * len(ids) for ids in (begins, closes))
    rows = [np.array([*begins, *ids, *closes] or [tokenizer.unk_id], dtype=np.int32) for ids, _, _ in pieces]
    ends = np.cumsum([0, *map(len, rows)])
    asks = [
        (row, np.arange(len(row)), np.arange(begin, begin + len(row)))
        for row, begin in zip(rows, ends[:-1], strict=True)
    ]
    states = states_for(encoder, Places(asks, ends), layers).values  # [all tokens, S, D]
    return [
        Features(
            states=states[begin:end].swapaxes(0, 1),
            ids=row.astype(np.int64),
            offsets=np.array([*before, *offsets, *behind] or [(0, 0)], dtype=np.int64),
            truncated=truncated,
        )
        for row, (_, offsets, truncated), (begin, end) in zip(rows, pieces, pairwise(ends), strict=True)
    ]


def _framing(tokenizer: BaseTokenizer) -> tuple[list[int], list[int]]:
    """What stands before a text and behind it; nothing where a GPT-1 was published without such tokens.

    There an empty text is its token for what no piece stands for.
    """
    if isinstance(tokenizer, BPETokenizer) and not tokenizer.has_special:
        return [], []
    return [tokenizer.begin_id], [tokenizer.end_id]


# A text per line, in; the states of a frozen encoder for each, out, as one .npz file (paper §5.3).

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
