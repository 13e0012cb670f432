"""ModernBERT → the same encoder whose attention starts at the first token of a text, at neighbours, at the same piece.

An initialisation changes no shape, and every weight remains a learned parameter; see `model/attention_init.py` for
BERT. Rotary positions turn queries and keys by angles that grow with their positions. So a query and a key that are the
same at every token have a score that depends on their distance alone. Pairs of dimensions that turn fast tell
neighbours apart; those that hardly turn compare what two tokens are.

Three dimensions of the word embeddings become marks: one for every token, one for [CLS], one for [SEP]. The dimensions
before them hold word embeddings alone. The layers below the head for the same piece do not change these at the start.

Shapes: D hidden, H heads, K head width; pair k of a head are its dimensions k and k + K/2.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bertwright.errors import InputError
from bertwright.model.attention_init import require_layers
from bertwright.model.config import Start
from bertwright.model.modern_config import ModernBertConfig
from bertwright.model.modern_encoder import ModernEncoder, ModernLayer

ROTARY_LAYERS = {"random": 0, "local": 1, "matching": 3}
"""Number of layers that the initialisation covers."""
NARROWEST_ROTARY_HEADS = {"local": 16, "matching": 32}
"""Smallest width of a head that tells neighbours apart, and of one that tells pieces apart."""
_MARK = 4.0
"""Value of a mark, in standard deviations of the word embeddings."""
_NEXT_TO, _ITSELF, _SIDES = (0.2, 2.0), (0.05, 2.0), (0.0015, 0.5)
"""Radians from one position to the next of the pairs that tell neighbours apart, find the token itself, and tell left
from right."""
_NEIGHBOUR, _SAME, _SELF, _UNMATCHED = 12.0, 10.0, -6.0, 6.0
"""Scores of the neighbour, of the same piece, of the token itself, and of [CLS] in the head for the same piece."""
_LEFT, _SEPARATOR, _SPECIAL = 24.0, 6.0, 14.0
"""Scores of the head for sides: of the sine of the distance, of [SEP] beyond [CLS], and of both."""


def init_rotary_attention(
    encoder: ModernEncoder, start: Start, *, special: Sequence[int], marked: Sequence[int]
) -> None:
    """Initialise the attention of an encoder with fresh weights (in place).

    special: ids of the special tokens; with `matching` they do not attend to other positions of the same token.
    marked: ids of [CLS] and [SEP]. Raises InputError for a model with too few layers or heads, or too narrow heads.
    """
    if start == "random":
        return
    config = encoder.config
    require_layers(start, ROTARY_LAYERS[start], config.layers)
    if not has_heads_for(start, config):
        raise InputError(
            f"start {start} needs two heads of width {NARROWEST_ROTARY_HEADS[start]} or more; this model has "
            f"{config.heads} of width {config.hidden // config.heads}"
        )
    table = encoder.embeddings.word.weight
    with torch.no_grad():
        if start == "local":
            _mark(table, marked)
            _attend_to_neighbours(encoder, 0)
            return
        table[torch.tensor(special), _words(config)] = 0.0
        _mark(table, marked)
        if len({*marked}) == len(marked):
            _attend_to_first_of_text(encoder)
        _attend_to_neighbours(encoder, 1)
        _attend_to_same_piece(encoder)


def has_heads_for(start: Start, config: ModernBertConfig) -> bool:
    """Return True where the heads are many and wide enough for an initialisation."""
    return config.heads > 1 and config.hidden // config.heads >= NARROWEST_ROTARY_HEADS[start]


def _mark(table: Tensor, marked: Sequence[int]) -> None:
    """Write the marks into the last three dimensions of the word embeddings [V, D].

    The other dimensions of [CLS] and [SEP] get one norm, so that the LayerNorm leaves both marks alike.
    """
    deviation, others = float(table.std()), table.shape[1] - 3
    table[:, -3:] = 0.0
    table[:, -1] = _MARK * deviation
    for dimension, token in zip((-2, -3), marked, strict=True):
        table[token, :-3] *= deviation * math.sqrt(others) / table[token, :-3].norm()
        table[token, dimension] = _MARK * deviation


def _words(config: ModernBertConfig) -> slice:
    """Return the dimensions that hold word embeddings alone at the start: half of the width of a head."""
    return slice(config.hidden - 3 - config.hidden // config.heads // 4 * 2, config.hidden - 3)


def _attend_to_neighbours(encoder: ModernEncoder, layer: int) -> None:
    """Let the heads of a layer attend to neighbours: offsets -1, +1, -2, +2, …."""
    for head in range(encoder.config.heads):
        part = _Head(encoder, layer, head)
        offset = (head // 2 + 1) * (1 if head % 2 else -1)
        pairs = part.pairs(*_NEXT_TO)
        part.clear(pairs)
        for pair in pairs:
            part.add(pair, _NEIGHBOUR / len(pairs), reads=(-1,), angle=part.speeds[pair] * offset)


def _attend_to_first_of_text(encoder: ModernEncoder) -> None:
    """Let a head of the first layer attend to [CLS] from the first text of a row, and to [SEP] from the second.

    ModernBERT has no segments; so the values of this head tell which text a token is in. A token attends to a special
    token on its left. [SEP] has a higher score than [CLS], which is to the left of both texts. The score falls near the
    token, so that the tokens beside a special one attend to both.
    """
    part = _Head(encoder, 0, 0)
    pairs = part.pairs(*_SIDES)
    part.clear(range(part.width // 2))
    for pair in pairs:  # the sine of the distance: positive to the left
        part.add(pair, _LEFT / len(pairs), reads=(-2, -3), angle=-math.pi / 2)
    slowest = part.width // 2 - 1
    part.add(slowest, _SEPARATOR, reads=(-3,))
    part.add(slowest - 1, _SPECIAL, reads=(-2, -3))


def _attend_to_same_piece(encoder: ModernEncoder) -> None:
    """Let a head of the third layer attend to the same piece elsewhere, and less to [CLS].

    The half of its pairs that hardly turn read the same word dimensions in queries and keys. Fast pairs read the mark
    of every token with opposite signs, so that the token itself and its neighbours get less. The layer is a local one:
    the piece must be in its window.
    """
    part = _Head(encoder, ROTARY_LAYERS["matching"] - 1, encoder.config.heads - 1)
    words = _words(encoder.config)
    half, free = part.width // 2, words.stop - words.start
    slow = [*range(half - free // 2, half), *range(part.width - free // 2, part.width)]
    for maps in (part.query, part.key):
        maps[slow, range(words.start, words.stop)] += math.sqrt(_SAME * math.sqrt(part.width) / free)
    fast = part.pairs(*_ITSELF)
    part.clear(fast)
    for pair in fast:
        part.add(pair, _SELF / len(fast), reads=(-1,))
    part.query[half - 1], part.key[half - 1] = 0.0, 0.0
    part.add(half - 1, _UNMATCHED, reads=(-2,))
    for below in encoder.layers[: ROTARY_LAYERS["matching"] - 1]:
        assert isinstance(below, ModernLayer)
        below.attention.output.weight[words.start :] = 0.0
        below.contract.weight[words.start :] = 0.0


class _Head:
    """Query and key maps [K, D] of a head, and the radians by which its pairs turn from one position to the next."""

    def __init__(self, encoder: ModernEncoder, layer: int, head: int) -> None:
        config, module = encoder.config, encoder.layers[layer]
        assert isinstance(module, ModernLayer)
        maps = module.attention.qkv.weight.unflatten(0, (3, config.heads, -1))  # [3, H, K, D]
        self.query, self.key = maps[0, head], maps[1, head]
        self.width, self.hidden = config.hidden // config.heads, config.hidden
        base = config.global_rope_theta if config.is_global(layer) else config.local_rope_theta
        self.speeds = [base ** (-2 * pair / self.width) for pair in range(self.width // 2)]

    def pairs(self, slowest: float, fastest: float) -> list[int]:
        """Return the pairs whose speed lies between two numbers."""
        return [pair for pair, speed in enumerate(self.speeds) if slowest <= speed < fastest]

    def clear(self, pairs: Sequence[int]) -> None:
        """Set the maps of pairs to zero."""
        for pair in pairs:
            for maps in (self.query, self.key):
                maps[[pair, pair + self.width // 2]] = 0.0

    def add(self, pair: int, score: float, *, reads: Sequence[int], angle: float = 0.0) -> None:
        """Let a pair give `score` times the cosine of the angle between a query and keys with a mark in `reads`.

        angle: radians by which the query stands ahead of its position. The query reads the mark of every token. A
        negative score is the same with opposite signs.
        """
        for_all = _MARK / math.sqrt(1.0 + _MARK**2 / self.hidden)  # after the LayerNorm
        other = for_all if reads == (-1,) else _MARK / math.sqrt(1.0 + 2.0 * _MARK**2 / self.hidden)
        size = math.sqrt(abs(score) * math.sqrt(self.width))
        sign = math.copysign(1.0, score)
        self.query[pair, -1] += sign * size / for_all * math.cos(angle)
        self.query[pair + self.width // 2, -1] += sign * size / for_all * math.sin(angle)
        for dimension in reads:
            self.key[pair, dimension] += size / other
