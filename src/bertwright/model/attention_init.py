"""encoder → encoder whose attention begins at something: neighbouring places, other places of the same piece.

A start changes no shape, and every weight stays a learned parameter. It says in the first step what a small model may
otherwise take a whole run to find, or never finds.

Shapes: D hidden, K head width.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bertwright.errors import InputError
from bertwright.model.config import Start
from bertwright.model.encoder import Embeddings, Encoder, EncoderLayer

_LAYERS = {"random": 0, "local": 1, "matching": 2}
"""How many it is in."""
_NARROWEST = 4
"""Head that can hold a wave, and words beside it."""
_NEIGHBOUR = math.sqrt(2.0)
"""Size of the query and key maps: some four fifths of the attention then fall on the neighbour."""
_SAME = 1.6
"""The same of what looks for a piece: in pairs of sentences some three tenths of the attention then fall on it."""
_ELSEWHERE = 0.8
"""Size of what keeps a token from looking at itself."""


def init_attention(encoder: Encoder, start: Start, *, generator: torch.Generator, special: Sequence[int] = ()) -> None:
    """Give freshly initialised weights their start (in place); InputError for a model of too few layers.

    special        ids of pieces that are no part of a text: `matching` does not look for them
    """
    needed = _first(encoder) + _LAYERS[start]
    if encoder.config.layers < needed:
        raise InputError(f"start {start} needs {needed} layers, and this model has {encoder.config.layers}")
    hidden, width = encoder.config.hidden, encoder.config.hidden // encoder.config.heads
    if start != "random" and (width < _NARROWEST or hidden % 2):
        raise InputError(
            f"start {start} needs heads {_NARROWEST} wide at least and an even width, and this model has heads {width} "
            f"wide and is {hidden} wide"
        )
    if start == "local":
        _look_beside(encoder, generator)
    if start == "matching":
        free = encoder.config.hidden // encoder.config.heads // 2
        _look_beside(encoder, generator, free=free)
        _look_for_the_same(encoder, free, special)


def _look_beside(encoder: Encoder, generator: torch.Generator, *, free: int = 0) -> None:
    """Let a layer's heads begin by looking at neighbours: offsets -1, +1, -2, +2, …

    Where tokens attend to one side, at those of that side: -1, -2, -3, …

    Positions become waves of random frequencies, so vectors of different places are nearly orthogonal; a head's keys
    read its share of the waves and its queries the same turned by the head's offset. Without it a small model spends
    thousands of steps at the loss of a bag of words before a head finds its neighbours. The last `free` dimensions
    hold no waves.
    """
    config = encoder.config
    width, waved = config.hidden // config.heads, config.hidden - free
    share = waved // config.heads // 2 * 2
    sharpness = _NEIGHBOUR * math.sqrt(width / share)
    frequencies = torch.rand(config.hidden // 2, generator=generator) * math.pi
    angles = torch.arange(config.max_positions)[:, None] * frequencies  # [positions, D/2]
    waves = torch.stack((angles.cos(), angles.sin()), dim=2).flatten(1)  # [positions, D]: cos, sin, cos, sin, …
    waves[:, waved:] = 0.0
    with torch.no_grad():
        encoder.embeddings.position.weight.copy_(waves * config.initializer_range * math.sqrt(2))
    for head in range(config.heads):
        offset = {"both": (head // 2 + 1) * (1 if head % 2 else -1), "left": -head - 1, "right": head + 1}[
            config.attends
        ]
        read = slice(head * share, (head + 1) * share)
        turn = torch.block_diag(
            *(_rotation(float(angle) * offset) for angle in frequencies[read.start // 2 : read.stop // 2])
        )
        _add(_layer(encoder, 0), head, slice(0, share), read, turn * sharpness, torch.eye(share) * sharpness)


def _look_for_the_same(encoder: Encoder, free: int, special: Sequence[int]) -> None:
    """Let the last head of the layer above begin by looking at other places of the token's own piece.

    The last `free` dimensions hold words alone, and nothing below the head changes them at first. In one half of the
    head queries and keys both read them; in the other they read waves, with opposite signs, so that the token's own
    place is the last to be looked at.
    """
    config, rest = encoder.config, encoder.config.hidden // encoder.config.heads - free
    words, waves = slice(config.hidden - free, config.hidden), slice(0, rest)
    head, layer = config.heads - 1, _layer(encoder, 1)
    _add(layer, head, slice(0, free), words, torch.eye(free) * _SAME, torch.eye(free) * _SAME)
    _add(layer, head, slice(free, None), waves, torch.eye(rest) * -_ELSEWHERE, torch.eye(rest) * _ELSEWHERE)
    with torch.no_grad():
        encoder.embeddings.word.weight[list(special), words] = 0.0
        if isinstance(encoder.embeddings, Embeddings):
            encoder.embeddings.segment.weight[:, words] = 0.0
        for below in encoder.layers[: _first(encoder) + 1]:
            assert isinstance(below, EncoderLayer)
            below.attention.output.weight[words] = 0.0
            below.contract.weight[words] = 0.0


def _first(encoder: Encoder) -> int:
    """The first layer whose input has gone through LayerNorm: GPT-1's second."""
    return 0 if isinstance(encoder.embeddings, Embeddings) else 1


def _layer(encoder: Encoder, number: int) -> EncoderLayer:
    """The layer of that number, from the first on whose input has gone through LayerNorm."""
    found = encoder.layers[_first(encoder) + number]
    assert isinstance(found, EncoderLayer)
    return found


def _add(layer: EncoderLayer, head: int, rows: slice, read: slice, query: Tensor, key: Tensor) -> None:
    """Add maps from dimensions `read` to `rows` of a head's queries and keys."""
    maps = layer.attention.qkv.weight.unflatten(0, (3, layer.attention.heads, -1))  # [3, heads, K, D]
    with torch.no_grad():
        maps[0, head, rows, read] += query
        maps[1, head, rows, read] += key


def _rotation(angle: float) -> Tensor:
    """[2, 2]: turns (cos a, sin a) into (cos(a + angle), sin(a + angle))."""
    cosine, sine = math.cos(angle), math.sin(angle)
    return torch.tensor([[cosine, -sine], [sine, cosine]])
