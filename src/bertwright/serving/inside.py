"""text → what a model makes of it: pieces, segments and places (the paper's figure 2), and a layer's attention."""

from dataclasses import dataclass
from typing import Any

import torch

from bertwright.errors import InputError
from bertwright.model.encoder import Encoder, EncoderLayer, kept
from bertwright.prediction.classifier import padded
from bertwright.serving.predictor import Predictor
from bertwright.tasks.classify import encode
from bertwright.text.tokenizer import Tokenizer

MOST_TOKENS = 96
"""Tokens of an input that is looked into: the answer has their square."""


@dataclass(frozen=True)
class Inside:
    """`pieces` and `segments` [T] of an input as the model gets it; `attention` [H, T, T] of one layer, from and to."""

    pieces: list[str]
    segments: list[int]
    attention: list[list[list[float]]]


def look_inside(model: Predictor, text: str, second: str | None = None, layer: int = 1) -> Inside:
    """The input that a text, or two, become, and how much each token attends to each in `layer` (from 1 on)."""
    if not 1 <= layer <= model.config.layers:
        raise InputError(f"layer {layer}: allowed are 1 to {model.config.layers}")
    limit = min(MOST_TOKENS, model.config.max_positions)
    texts = [text] if second is None else [text, second]
    sides = model.words.ids(texts, special=True) if isinstance(model.words, Tokenizer) else model.words.ids(texts)
    if sum(map(len, sides)) + 1 + len(sides) > limit:
        raise InputError(f"the input has more than {limit} tokens; so much is not drawn")
    words = _Read(model.words, sides)
    encoded = encode(words, [text], None if second is None else [second], max_length=limit)
    rows = padded(encoded, [0], pad_id=model.words.pad_id)
    with torch.inference_mode():
        encoder = model.plain_encoder()
        if not isinstance(encoder, Encoder):
            raise InputError("this model is no single Transformer: there is no attention to look at")
        keep = kept(rows.mask, encoder.config.attends)
        hidden = encoder.embeddings(rows.ids, rows.segments)
        for block in list(encoder.layers)[: layer - 1]:
            hidden = block(hidden, keep)
        chosen = encoder.layers[layer - 1]
        assert isinstance(chosen, EncoderLayer)
        shares = chosen.attention.probabilities(hidden, keep)[0]  # [H, T, T]
    return Inside(
        pieces=[model.words.pieces[id] for id in rows.ids[0].tolist()],
        segments=rows.segments[0].tolist(),
        attention=[[[round(share, 4) for share in row] for row in head] for head in shares.tolist()],
    )


class _Read:
    """A tokenizer whose texts were read already, [MASK] as the token."""

    def __init__(self, words: Any, sides: list[list[int]]) -> None:
        self.begin_id, self.between_id, self.end_id = words.begin_id, words.between_id, words.end_id
        self._sides = iter(sides)

    def ids(self, texts: Any) -> list[list[int]]:
        return [next(self._sides) for _ in texts]
