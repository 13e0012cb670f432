"""prediction → what a program gets: one typed value for each input. All are plain data: `dataclasses.asdict` → JSON."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Label:
    """The likeliest label of a text or pair, and the probabilities of all; `truncated`: part of it was not read."""

    label: str
    probability: float
    probabilities: Mapping[str, float]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Labels:
    """All labels that apply to a text or pair, those over one half; each has a probability of its own."""

    labels: tuple[str, ...]
    probabilities: Mapping[str, float]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """The number that a regression gives a text or pair."""

    score: float
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Entity:
    """A name in a text, from character `start` to before `end`; of plain tags, a word."""

    type: str
    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True, slots=True)
class Entities:
    """The names of a text in their order, or its words with their tags."""

    entities: tuple[Entity, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A piece of a passage, from character `start` to before `end`; "" and None for no answer.

    probability   of a piece, its share of a softmax over the best ones, and over "no answer" where the model knows it;
                  of no answer, `no_answer`
    no_answer     over one half where the passage is taken to hold none: the logistic function of how far "no answer"
                  scores above the best piece and the threshold of training; None where the model always answers
    truncated     part of the question was not read; a passage is, however long
    """

    text: str
    start: int | None
    end: int | None
    probability: float
    no_answer: float | None = None
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The likeliest continuation, by its place from 0 on, and the probabilities of all."""

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
class Filled:
    """For each [MASK] of a text, in order, its candidates, the likeliest first."""

    masks: tuple[tuple[Piece, ...], ...]


@dataclass(frozen=True, slots=True)
class Vector:
    """The state of a text [D]."""

    values: NDArray[np.float32]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Follows:
    """How likely the second text of a pair follows the first."""

    probability: float
    truncated: bool = False


Result = Label | Labels | Score | Entities | Answer | Choice | Filled
