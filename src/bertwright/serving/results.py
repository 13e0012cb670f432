"""model's outputs → one typed result for each input, as plain data: `dataclasses.asdict` makes JSON of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True, slots=True)
class ExplainedPiece:
    """A piece of an explained text, from character `start` to before `end`, and its part of the score."""

    piece: str
    start: int
    end: int
    score: float


@dataclass(frozen=True, slots=True)
class ExplainedWord:
    """A word of an explained input, from character `start` to before `end`, its part of the score, and its pieces.

    `input` is the number of its text within the input, from 0 on: 1 for the second text of a pair or the passage of a
    question, and 1, 2, … for the choices.
    """

    input: int
    text: str
    start: int
    end: int
    score: float
    pieces: tuple[ExplainedPiece, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Words that spoke for an answer (score above 0) and against it (below 0), in the order of the texts.

    answer      label, tag, choice or part of the passage that is explained; "" for a number and for "no answer"
    start, end  characters of the word whose tag is explained, or of the part of the passage; None for all others
    measure     kind of score: log-odds of a label, tag or choice; number of a regression; logits of a span (the sum of
                that of its first and that of its last piece)
    score       score of the answer for the input
    baseline    score of the same answer where every piece is replaced
    difference  score minus baseline
    remaining   difference minus the sum of all pieces, 0 for exact integrated gradients; None for occlusion, where
                the drops need not add up
    method      gradients or occlusion
    replaced    what replaces the pieces: mask, pad or zero
    steps       number of points of integrated gradients; None for occlusion
    """

    answer: str
    start: int | None
    end: int | None
    measure: Literal["log-odds", "number", "logits"]
    score: float
    baseline: float
    difference: float
    remaining: float | None
    method: Literal["gradients", "occlusion"]
    replaced: Literal["mask", "pad", "zero"]
    steps: int | None
    words: tuple[ExplainedWord, ...]


PredictResult = Label | Labels | Score | Entities | ExtractedAnswer | Choice | FilledText
