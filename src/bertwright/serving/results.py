"""model's outputs → one typed result for each input, as plain data: `dataclasses.asdict` makes JSON of it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Label:
    """The likeliest label of a text or pair, and the probabilities of all labels.

    In this and all other results `truncated` is True where a part of the input was not read.
    """

    label: str
    probability: float
    probabilities: Mapping[str, float]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Labels:
    """All labels of a text or pair whose probability is over one half, and the probabilities of all labels."""

    labels: tuple[str, ...]
    probabilities: Mapping[str, float]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """The number that a regression gives a text or pair."""

    score: float
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class RankedText:
    """A document that a reranker scored: its index among the documents, from 0 on, its relevance, and its text."""

    index: int
    score: float
    text: str
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class TextEntity:
    """A name in a text, from character `start` to before `end`; with plain tags, a word."""

    type: str
    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True, slots=True)
class Entities:
    """The names in a text in their order, or its words with their tags."""

    entities: tuple[TextEntity, ...]


@dataclass(frozen=True, slots=True)
class ExtractedAnswer:
    """A part of a passage, from character `start` to before `end`; "" and None where there is no answer.

    probability   softmax over the best parts, and over "no answer" where the model was trained with it; for no answer
                  this is `no_answer`
    no_answer     probability that the passage holds no answer: the logistic function of the score of "no answer" minus
                  that of the best part minus the threshold of training; None where the model always answers
    truncated     True where a part of the question was not read; a passage is read as a whole
    """

    text: str
    start: int | None
    end: int | None
    probability: float
    no_answer: float | None = None
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The likeliest continuation, its index from 0 on, and the probabilities of all continuations."""

    index: int
    text: str
    probability: float
    probabilities: tuple[float, ...]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A candidate for a [MASK]."""

    piece: str
    probability: float


@dataclass(frozen=True, slots=True)
class FilledText:
    """The candidates for each [MASK] of a text, in order, the likeliest first."""

    masks: tuple[tuple[Piece, ...], ...]


@dataclass(frozen=True, slots=True)
class Vector:
    """The state [D] of a text."""

    values: NDArray[np.float32]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Follows:
    """The probability that the second text of a pair follows the first."""

    probability: float
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class AttentionView:
    """Pieces and segments [T] of an input as the model reads it, and the attention [H, T, T] of one layer.

    `attention` holds, for each head, the weights from each token (first axis) to each token (second axis).
    """

    pieces: list[str]
    segments: list[int]
    attention: list[list[list[float]]]


PredictResult = Label | Labels | Score | Entities | ExtractedAnswer | Choice | FilledText
