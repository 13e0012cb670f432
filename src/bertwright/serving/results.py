"""model's outputs → one typed result for each input, as plain data: `dataclasses.asdict` makes JSON of it.

A notebook displays a result as HTML, together with the texts of its input.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bertwright.markup import MOST_ROWS, Html, Mark, bars, bold, marked, note, stacked, table
from bertwright.serving.displayed import Displayed

_CUT = "a part of the input was not read"
_MASK = re.compile(r"\[MASK\]|<mask>")


@dataclass(frozen=True, slots=True)
class Label(Displayed):
    """The likeliest label of a text or pair, and the probabilities of all labels.

    In this and all other results `truncated` is True where a part of the input was not read.
    """

    label: str
    probability: float
    probabilities: Mapping[str, float]
    truncated: bool = False

    def _repr_html_(self) -> Html:
        return _with_texts(self, bars(self.probabilities.items(), chosen=(self.label,)), cut=self.truncated)


@dataclass(frozen=True, slots=True)
class Labels(Displayed):
    """All labels of a text or pair whose probability is over one half, and the probabilities of all labels."""

    labels: tuple[str, ...]
    probabilities: Mapping[str, float]
    truncated: bool = False

    def _repr_html_(self) -> Html:
        return _with_texts(self, bars(self.probabilities.items(), chosen=self.labels), cut=self.truncated)


@dataclass(frozen=True, slots=True)
class Score(Displayed):
    """The number that a regression gives a text or pair."""

    score: float
    truncated: bool = False

    def _repr_html_(self) -> Html:
        return _with_texts(self, bold(f"{self.score:.4f}"), cut=self.truncated)


@dataclass(frozen=True, slots=True)
class RankedText(Displayed):
    """A document that a reranker scored: its index among the documents, from 0 on, its relevance, and its text."""

    index: int
    score: float
    text: str
    truncated: bool = False

    def _repr_html_(self) -> Html:
        return stacked([bold(f"{self.score:.4f}"), marked(self.text), note(_CUT if self.truncated else "")])


@dataclass(frozen=True, slots=True)
class TextEntity:
    """A name in a text, from character `start` to before `end`; with plain tags, a word."""

    type: str
    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True, slots=True)
class Entities(Displayed):
    """The names in a text in their order, or its words with their tags."""

    entities: tuple[TextEntity, ...]

    def _repr_html_(self) -> Html:
        types = sorted({entity.type for entity in self.entities})
        if not self.texts:
            return table([[entity.type, entity.text, f"{entity.probability:.1%}"] for entity in self.entities])
        marks = [
            Mark(each.start, each.end, each.type, f"{each.type} {each.probability:.1%}", types.index(each.type))
            for each in self.entities
        ]
        return marked(self.text_of(0), marks)


@dataclass(frozen=True, slots=True)
class ExtractedAnswer(Displayed):
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

    def _repr_html_(self) -> Html:
        span = [] if self.start is None or self.end is None else [Mark(self.start, self.end)]
        answer = table([[f"{self.probability:.1%}", bold(self.text if span else "no answer")]])
        passage = marked(self.text_of(1), span) if self.texts else Html("")
        return stacked([bold(self.text_of(0)), answer, passage, note(_CUT if self.truncated else "")])


@dataclass(frozen=True, slots=True)
class Choice(Displayed):
    """The likeliest continuation, its index from 0 on, and the probabilities of all continuations."""

    index: int
    text: str
    probability: float
    probabilities: tuple[float, ...]
    truncated: bool = False

    def _repr_html_(self) -> Html:
        choices = self.texts[1:] or [f"choice {number}" for number in range(len(self.probabilities))]
        rows = bars(zip(choices, self.probabilities, strict=True), chosen=(choices[self.index],))
        return stacked([marked(self.text_of(0)), rows, note(_CUT if self.truncated else "")])


@dataclass(frozen=True, slots=True)
class Piece:
    """A candidate for a [MASK]."""

    piece: str
    probability: float


@dataclass(frozen=True, slots=True)
class FilledText(Displayed):
    """The candidates for each [MASK] of a text, in order, the likeliest first."""

    masks: tuple[tuple[Piece, ...], ...]

    def _repr_html_(self) -> Html:
        marks = [
            Mark(*match.span(), hint=f"mask {number}")
            for number, match in enumerate(_MASK.finditer(self.text_of(0)), 1)
        ]
        rows = [bars((each.piece, each.probability) for each in mask) for mask in self.masks]
        return stacked([marked(self.text_of(0), marks), *rows])


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
class Explanation(Displayed):
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

    def _repr_html_(self) -> Html:
        largest = max((abs(word.score) for word in self.words), default=0.0) or 1.0
        texts = [
            marked(text, [_scored(word, largest) for word in self.words if word.input == number])
            for number, text in enumerate(self.texts)
        ]
        strongest = sorted(self.words, key=lambda word: -abs(word.score))[:MOST_ROWS]
        head = note(
            f"{self.measure} of {self.answer or 'the answer'}: {self.score:.3f}, "
            f"without the words {self.baseline:.3f}. Blue words spoke for the answer, orange ones against it."
        )
        return stacked([head, *texts, table([[word.text, f"{word.score:+.3f}"] for word in strongest])])


PredictResult = Label | Labels | Score | Entities | ExtractedAnswer | Choice | FilledText


def _scored(word: ExplainedWord, largest: float) -> Mark:
    """Return the mark of a word; `largest` is the largest absolute score."""
    against, strength = int(word.score < 0), abs(word.score) / largest
    return Mark(word.start, word.end, hint=f"{word.score:+.3f}", colour=against, strength=strength)


def _with_texts(result: Displayed, html: Html, *, cut: bool) -> Html:
    """Return the texts of the input above the HTML of its result, with a remark where it was cut."""
    return stacked([*map(marked, result.texts), html, note(_CUT if cut else "")])
