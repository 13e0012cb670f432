"""input → its rows, and for each token of a row the piece of the text that it is.

Rows are made by the functions of the tasks, which cut long texts or divide them into windows. Here they get the numbers
of the pieces in place of the ids, so that each token of each row has its place in the texts.

Shapes: T tokens.
"""

import copy
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertwright.serving.pipeline import EncodedInputs, Pipeline
from bertwright.serving.task_pipelines import (
    ChoicePipeline,
    ClassificationPipeline,
    EncodedSentences,
    QuestionPipeline,
    TaggingPipeline,
)
from bertwright.text.base_tokenizer import BaseTokenizer, PlacedPieces

_SPECIAL = -1


@dataclass(frozen=True, order=True)
class PlacedPiece:
    """A piece of a text of an input, from character `start` to before `end`; `order` counts the pieces of the text."""

    input: int
    order: int
    start: int
    end: int
    id: int


@dataclass(frozen=True)
class PlacedRows:
    """The rows of one input.

    inputs   the rows, as the pipeline encodes them
    pieces   the pieces that the rows hold, in the order of the texts; a piece of several windows is there once
    numbers  [rows] of [T]: the number of each token's piece in `pieces`; -1 for special tokens
    """

    inputs: EncodedInputs
    pieces: tuple[PlacedPiece, ...]
    numbers: tuple[NDArray[np.int64], ...]


class NumberedPieces:
    """A tokenizer whose ids are the numbers of the pieces, over all texts; special tokens are -1."""

    begin_id = end_id = unk_id = _SPECIAL

    def __init__(self, tokenizer: PlacedPieces) -> None:
        self._tokenizer = tokenizer
        before, between, after = ((_SPECIAL,) * len(ids) for ids in tokenizer.row_frame)
        self.row_frame, self.between_ids = (before, between, after), between
        self.places: list[tuple[int, int, int]] = []
        """(id, first, one past last character) of each number."""
        self._known: dict[str, list[int]] = {}

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the numbers of the pieces of each text; equal texts have equal numbers."""
        for text, (ids, spans) in zip(texts, self._tokenizer.offsets(texts), strict=True):
            if text not in self._known:
                self._known[text] = list(range(len(self.places), len(self.places) + len(ids)))
                self.places += [(id, *span) for id, span in zip(ids, spans, strict=True)]
        return [self._known[text] for text in texts]

    def offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Return the numbers of the pieces of each text and their characters."""
        return [(numbers, [self.places[number][1:] for number in numbers]) for numbers in self.ids(texts)]


def placed_rows(pipeline: Pipeline[Any, Any], item: Any) -> PlacedRows:
    """Return the rows of an input of a fine-tuned model with the place of each token."""
    inputs: EncodedInputs = pipeline.encode([item])
    if isinstance(pipeline, TaggingPipeline):
        assert isinstance(inputs, EncodedSentences)
        return _of_words(pipeline.tokenizer, inputs)
    assert isinstance(pipeline, ClassificationPipeline | QuestionPipeline | ChoicePipeline)
    tokenizer = NumberedPieces(pipeline.tokenizer)
    numbered: Any = copy.copy(pipeline)
    numbered.tokenizer = tokenizer
    tokens: list[list[PlacedPiece | None]] = []
    for index, row in enumerate(numbered.encode([item]).rows):
        second = 1 + index if isinstance(pipeline, ChoicePipeline) else 1
        texts = [0 if position < row.first else second for position in range(len(row))]
        tokens.append([_piece(tokenizer, *token) for token in zip(texts, row.ids.tolist(), strict=True)])
    return _numbered(inputs, tokens)


def _piece(tokenizer: NumberedPieces, text: int, number: int) -> PlacedPiece | None:
    if number == _SPECIAL:
        return None
    id, start, end = tokenizer.places[number]
    return PlacedPiece(text, number, start, end, id)


def _of_words(tokenizer: BaseTokenizer, inputs: EncodedSentences) -> PlacedRows:
    """Return the rows of a text whose words are tokenised one by one; a piece has the characters of its word."""
    words, spans = inputs.sentences.words[0], inputs.spans[0]
    ids = [of_word or [tokenizer.unk_id] for of_word in tokenizer.word_ids(words)]
    first = np.cumsum([0, *map(len, ids)])
    flat = [(id, *span) for of_word, span in zip(ids, spans, strict=True) for id in of_word]
    pieces = [PlacedPiece(0, order, start, end, id) for order, (id, start, end) in enumerate(flat)]
    before, after = ([None] * len(tokenizer.row_frame[side]) for side in (0, 2))
    tokens: list[list[PlacedPiece | None]] = []
    for row, of_row in zip(inputs.rows, inputs.words, strict=True):
        begin = int(first[of_row[0]] - row.at[0] + len(before))
        tokens.append([*before, *pieces[begin : begin + len(row) - len(before) - len(after)], *after])
    return _numbered(inputs, tokens)


def _numbered(inputs: EncodedInputs, tokens: Sequence[Sequence[PlacedPiece | None]]) -> PlacedRows:
    pieces = tuple(sorted({piece for row in tokens for piece in row if piece is not None}))
    number_of = {piece: number for number, piece in enumerate(pieces)}
    numbers = [[-1 if piece is None else number_of[piece] for piece in row] for row in tokens]
    return PlacedRows(inputs, pieces, tuple(np.array(row, dtype=np.int64) for row in numbers))


def words_of_pieces(
    tokenizer: BaseTokenizer, texts: Sequence[str], pieces: Sequence[PlacedPiece]
) -> dict[tuple[int, int, int], list[int]]:
    """Return (text, first, one past last character) of each word → numbers of its pieces, in the order of the pieces.

    A piece outside of all words is a word of its own.
    """
    spans = tokenizer.words(texts)
    begins = [[begin for begin, _ in of_text] for of_text in spans]
    words: dict[tuple[int, int, int], list[int]] = {}
    for number, piece in enumerate(pieces):
        last = max(piece.start, piece.end - 1)  # a byte-level piece may begin with the blank before its word
        index = bisect_right(begins[piece.input], last) - 1
        begin, end = spans[piece.input][index] if index >= 0 else (0, 0)
        word = (begin, end) if begin <= last < end else (piece.start, piece.end)
        words.setdefault((piece.input, *word), []).append(number)
    return words
