"""encoder → features: the states of a frozen encoder for each text (paper §5.3, the feature-based way).

Shapes: S states (layers asked for), T tokens of one text with [CLS] and [SEP], D hidden.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from bertwright.errors import InputError
from bertwright.model.encoder import Encoder
from bertwright.text.tokenizer import Tokenizer

_TEXTS = 256
"""Texts held at a time; those of like length are computed together."""
_TOKENS = 8192
"""Tokens, padding included, computed at a time."""


@dataclass(frozen=True)
class Features:
    """One text: `states` [S, T, D], `ids` [T], and where each piece lies in it, (first, one past last) [T, 2]."""

    states: NDArray[np.float32]
    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    truncated: bool


def features_of(
    encoder: Encoder,
    tokenizer: Tokenizer,
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
    limit = max_length or encoder.config.max_positions
    if not 3 <= limit <= encoder.config.max_positions:
        raise InputError(f"max_length {limit}: allowed are 3 to {encoder.config.max_positions}, this model's positions")
    remaining = iter(texts)
    while block := list(islice(remaining, _TEXTS)):
        yield from _block(encoder, tokenizer, block, layers, limit)


def _block(
    encoder: Encoder, tokenizer: Tokenizer, texts: Sequence[str], layers: Sequence[int], limit: int
) -> list[Features]:
    pieces = [
        (ids[: limit - 2], offsets[: limit - 2], len(ids) > limit - 2) for ids, offsets in tokenizer.offsets(texts)
    ]
    order = sorted(range(len(texts)), key=lambda place: -len(pieces[place][0]))
    found: dict[int, Features] = {}
    while order:
        width = len(pieces[order[0]][0]) + 2
        count = max(1, _TOKENS // width)
        chosen, order = order[:count], order[count:]
        ids = np.full((len(chosen), width), encoder.config.pad_id, dtype=np.int64)
        for row, place in enumerate(chosen):
            ids[row, : len(pieces[place][0]) + 2] = [tokenizer.cls_id, *pieces[place][0], tokenizer.sep_id]
        lengths = np.array([len(pieces[place][0]) + 2 for place in chosen])
        mask = torch.from_numpy(np.arange(width) < lengths[:, None])
        given = torch.from_numpy(ids)
        with torch.inference_mode():
            hidden = encoder(given, torch.zeros_like(given), mask, all_hidden=True).hidden
            states = torch.stack([hidden[layer] for layer in layers], dim=1).numpy()  # [B, S, T, D]
        for row, place in enumerate(chosen):
            _, offsets, truncated = pieces[place]
            found[place] = Features(
                states=states[row, :, : lengths[row]],
                ids=ids[row, : lengths[row]],
                offsets=np.array([(0, 0), *offsets, (0, 0)], dtype=np.int64),
                truncated=truncated,
            )
    return [found[place] for place in range(len(texts))]
