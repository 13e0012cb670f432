"""nats → bits for a character: what makes losses comparable over vocabularies, whose pieces differ in length."""

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bertwright.corpus.shards import Corpus

_MARKS = ("##", "</w>")
"""Before a WordPiece that continues a word, and behind a byte pair that ends one; no piece of text looks like that."""


def characters_of(corpus: "Corpus") -> np.ndarray:
    """How many characters of text each piece of the vocabulary stands for: int64 [V], 0 for special tokens.

    White space is not counted, which no piece holds. What the vocabulary has no piece for counts as one.
    """
    tokenizer = corpus.tokenizer
    counts = np.array([len(piece.removeprefix(_MARKS[0]).removesuffix(_MARKS[1])) for piece in tokenizer.pieces])
    counts[list(tokenizer.special_ids)] = 0
    counts[tokenizer.unk_id] = 1
    return counts


def bits_per_character(nats: float, characters: float) -> float:
    """Of a summed loss over so many characters."""
    return nats / math.log(2) / characters
