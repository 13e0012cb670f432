"""encoder → features: the states of a frozen encoder for each text (paper §5.3, the feature-based way).

Shapes: S states (layers asked for), T tokens of one text with [CLS] and [SEP], D hidden.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError
from bertwright.model.bodies import Body
from bertwright.model.sizes import BodyConfig, OneBody
from bertwright.prediction.frozen import Places, states_for
from bertwright.text.any_tokenizer import AnyTokenizer
from bertwright.text.bpe import BPETokenizer

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
    encoder: Body,
    tokenizer: AnyTokenizer,
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


def check_pool(config: BodyConfig, pool: Pool) -> None:
    """InputError for the state of the first token where that one sees itself alone: it says nothing of the text."""
    if pool == "cls" and isinstance(config, OneBody) and config.attends == "left":
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
    encoder: Body, tokenizer: AnyTokenizer, texts: Sequence[str], layers: Sequence[int], limit: int
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
    encoder: Body, tokenizer: AnyTokenizer, pieces: Sequence[Pieces], layers: Sequence[int]
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


def _framing(tokenizer: AnyTokenizer) -> tuple[list[int], list[int]]:
    """What stands before a text and behind it; nothing where a GPT-1 was published without such tokens.

    There an empty text is its token for what no piece stands for.
    """
    if isinstance(tokenizer, BPETokenizer) and not tokenizer.has_special:
        return [], []
    return [tokenizer.begin_id], [tokenizer.end_id]
