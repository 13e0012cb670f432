"""encoder → encoder whose attention starts at neighbouring positions, or at positions of the same piece.

An initialisation changes no shape, and every weight remains a learned parameter. It gives a small model patterns of
attention that the model may otherwise learn only late in a run, or never.

Shapes: D hidden, K head width.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bertwright.errors import InputError
from bertwright.model.config import EncoderConfig, Start
from bertwright.model.encoder import Embeddings, Encoder, EncoderLayer

_LAYERS = {"random": 0, "local": 1, "matching": 2}
"""Number of layers that the initialisation covers."""
NARROWEST_HEAD = 4
"""Smallest width of a head that has dimensions for a wave and for word embeddings alone."""
_NEIGHBOUR = math.sqrt(2.0)
"""Scale of the query and key maps; with it about four fifths of the attention go to the neighbour."""
_SAME = 1.6
"""Scale of the maps for the same piece; in sentence pairs about three tenths of the attention then go to it."""
_ELSEWHERE = 0.8
"""Scale of the maps that reduce the attention of a token to itself."""


def init_attention(encoder: Encoder, start: Start, *, generator: torch.Generator, special: Sequence[int] = ()) -> None:
    """Initialise the attention of an encoder with fresh weights (in place).

    special: ids of the special tokens; with `matching` they do not attend to other positions of the same token.
    Raises InputError for a model with too few layers or too narrow heads.
    """
    require_layers(start, encoder.config.first_normed_layer + _LAYERS[start], encoder.config.layers)
    shape = encoder.config
    if start != "random" and (shape.projects_embeddings or shape.distinct_layers != shape.layers):
        raise InputError(
            f"start {start} needs embeddings as wide as the states, and layers that share no weights; choose random"
        )
    hidden, width = encoder.config.hidden, encoder.config.hidden // encoder.config.heads  # D, K
    if start != "random" and (width < NARROWEST_HEAD or hidden % 2):
        raise InputError(
            f"start {start} needs heads of width {NARROWEST_HEAD} or more and an even hidden size; "
            f"this model has heads of width {width} and hidden size {hidden}"
        )
    if start == "local":
        _attend_to_neighbours(encoder, generator)
    if start == "matching":
        free = width // 2
        _attend_to_neighbours(encoder, generator, free=free)
        _attend_to_same_piece(encoder, free, special)


def require_layers(start: Start, needed: int, layers: int) -> None:
    """Raise InputError where a model has fewer layers than the initialisation needs."""
    if layers < needed:
        raise InputError(f"start {start} needs at least {needed} layers, and this model has {layers}")


def matching_head(config: EncoderConfig) -> tuple[int, int]:
    """Return layer and head, from 0, that the start `matching` lets attend to the same piece.

    Layers are counted from the first one that reads states after a LayerNorm.
    """
    return 1, config.heads - 1


def _attend_to_neighbours(encoder: Encoder, generator: torch.Generator, *, free: int = 0) -> None:
    """Let the heads of a layer attend to neighbours: offsets -1, +1, -2, +2, … (-1, -2, -3, … for one direction).

    Position embeddings become waves of random frequencies, so that the vectors of different positions are nearly
    orthogonal. A head's keys read its part of the waves; its queries read the same part rotated by the head's offset.
    Without this initialisation a small model stays for thousands of steps at the loss of a bag of words, until a head
    learns to attend to neighbours. The last `free` dimensions hold no waves.
    """
    config = encoder.config
    width, num_waved = config.hidden // config.heads, config.hidden - free
    per_head = num_waved // config.heads // 2 * 2  # wave dimensions of a head
    sharpness = _NEIGHBOUR * math.sqrt(width / per_head)
    frequencies = torch.rand(config.hidden // 2, generator=generator) * math.pi
    angles = torch.arange(config.max_positions)[:, None] * frequencies  # [positions, D/2]
    waves = torch.stack((angles.cos(), angles.sin()), dim=2).flatten(1)  # [positions, D]: cos, sin, cos, sin, …
    waves[:, num_waved:] = 0.0
    with torch.no_grad():
        table = encoder.embeddings.position.weight[config.first_position :]
        table.copy_(waves * config.initializer_range * math.sqrt(2))
    for head in range(config.heads):
        offsets = {"both": (head // 2 + 1) * (1 if head % 2 else -1), "left": -head - 1, "right": head + 1}
        offset = offsets[config.attends]
        read = slice(head * per_head, (head + 1) * per_head)
        of_head = frequencies[read.start // 2 : read.stop // 2]
        rotation = torch.block_diag(*(_rotation(float(frequency) * offset) for frequency in of_head))
        _add(_layer(encoder, 0), head, slice(0, per_head), read, rotation * sharpness, torch.eye(per_head) * sharpness)


def _attend_to_same_piece(encoder: Encoder, free: int, special: Sequence[int]) -> None:
    """Let a head of the second layer attend to other positions of the same piece.

    The last `free` dimensions hold word embeddings alone, and the layers below the head do not change them at the
    start. In one half of the head, queries and keys both read these dimensions. In the other half they read waves with
    opposite signs, so that the position of the token itself gets the least attention.
    """
    config, rest = encoder.config, encoder.config.hidden // encoder.config.heads - free
    words, waves = slice(config.hidden - free, config.hidden), slice(0, rest)
    number, head = matching_head(config)
    layer = _layer(encoder, number)
    _add(layer, head, slice(0, free), words, torch.eye(free) * _SAME, torch.eye(free) * _SAME)
    _add(layer, head, slice(free, None), waves, torch.eye(rest) * -_ELSEWHERE, torch.eye(rest) * _ELSEWHERE)
    with torch.no_grad():
        encoder.embeddings.word.weight[list(special), words] = 0.0
        if isinstance(encoder.embeddings, Embeddings) and encoder.embeddings.segment is not None:
            encoder.embeddings.segment.weight[:, words] = 0.0
        for below in encoder.layers[: config.first_normed_layer + 1]:
            assert isinstance(below, EncoderLayer)
            below.attention.output.weight[words] = 0.0
            below.contract.weight[words] = 0.0


def _layer(encoder: Encoder, number: int) -> EncoderLayer:
    """Return layer `number`, counted from the first layer that reads states after a LayerNorm."""
    layer = encoder.layers[encoder.config.first_normed_layer + number]
    assert isinstance(layer, EncoderLayer)
    return layer


def _add(layer: EncoderLayer, head: int, rows: slice, read: slice, query: Tensor, key: Tensor) -> None:
    """Add maps from the dimensions `read` to the dimensions `rows` of a head's queries and keys (in place)."""
    maps = layer.attention.qkv.weight.unflatten(0, (3, layer.attention.heads, -1))  # [3, heads, K, D]
    with torch.no_grad():
        maps[0, head, rows, read] += query
        maps[1, head, rows, read] += key


def _rotation(angle: float) -> Tensor:
    """Return the matrix [2, 2] that maps (cos a, sin a) to (cos(a + angle), sin(a + angle))."""
    cosine, sine = math.cos(angle), math.sin(angle)
    return torch.tensor([[cosine, -sine], [sine, cosine]])
