"""model folder → what it answers with: one head for each kind of task, all with the same two functions.

Encoding and decoding are those of training, evaluation and `predict`; here inputs are values instead of files.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
from torch import nn

from bertwright.errors import InputError, RunFailed, shown
from bertwright.model.backbones import Backbone
from bertwright.model.config import attends_both_ways
from bertwright.model.folder import SavedModel
from bertwright.objectives.masked_lm import open_pretrained
from bertwright.serving.embeddings import Pool, check_pool, features_of, pooled
from bertwright.serving.results import (
    Answer,
    Choice,
    Entities,
    Entity,
    Filled,
    Follows,
    Label,
    Labels,
    Piece,
    Result,
    Score,
    Vector,
)
from bertwright.tables.reader import refuse_halves
from bertwright.tasks.classification.encoding import decode, encode
from bertwright.tasks.classification.model import noted_task, predict_logits
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.classification.task import open_logits
from bertwright.tasks.feature_based import frozen_encoder
from bertwright.tasks.fill_mask import fill_masks, next_sentence_probability, open_next_sentence
from bertwright.tasks.inference import ready
from bertwright.tasks.kinds import task_of
from bertwright.tasks.multiple_choice.spec import Choices, ChoiceTask, decode_choices, encode_choices
from bertwright.tasks.multiple_choice.task import open_chooser
from bertwright.tasks.question_answering import answers as spans
from bertwright.tasks.question_answering.data import Question, Questions
from bertwright.tasks.question_answering.spec import SpanTask
from bertwright.tasks.question_answering.task import open_span_model, span_logits
from bertwright.tasks.question_answering.windows import encode_windows, longest_question, window_tokens
from bertwright.tasks.tagging.spec import TaggingTask
from bertwright.tasks.tagging.task import open_tagging, tag_texts
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.open_tokenizer import wordpiece

Item = TypeVar("Item")


class Head(ABC, Generic[Item]):
    """A model ready to answer inputs of one form."""

    kind: ClassVar[str]
    """What it does, in a word."""
    form: str
    """What one input is, for messages."""
    max_length: int
    """Tokens of an input; longer ones are cut, or read in windows."""
    labels: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    """Of a table of inputs, those that make one; none where a table has no such names."""
    example: Item
    """An input on which a model is tried."""

    @abstractmethod
    def item(self, given: Any) -> Item | None:
        """One input, checked; None where `given` is not of its form."""

    @abstractmethod
    def answers(self, items: Sequence[Item]) -> list[Any]:
        """A result for each input, in order. RunFailed where the model's numbers are not finite."""

    @abstractmethod
    def texts(self, item: Item) -> tuple[str, ...]:
        """The texts of an input, which decide how long it takes."""

    @property
    def limit(self) -> str:
        """What is read of an input that is cut, for messages."""
        return f"the {self.max_length} tokens"

    def tokens(self, item: Item, words: BaseTokenizer) -> int:
        """About how many tokens are computed for an input."""
        return min(_length(words, self.texts(item)), self.max_length)


def head_of(saved: SavedModel, words: BaseTokenizer) -> "Head[Any]":
    """The head that a model folder was trained with; an encoder alone gives vectors."""
    if "task" not in saved.extra:
        return FillHead(saved, words) if has_masked_lm(saved) else VectorHead(saved, words)
    task = task_of(saved)
    if isinstance(task, ClassificationTask):
        return ClassificationHead(saved, words)
    if isinstance(task, ChoiceTask):
        return ChoiceHead(saved, words)
    if isinstance(task, TaggingTask):
        return TaggingHead(saved, words)
    assert isinstance(task, SpanTask)
    return QuestionHead(saved, words)


def has_masked_lm(saved: SavedModel) -> bool:
    """Whether a model folder has the head that fills [MASK]; with one-sided attention it predicts the next token."""
    return attends_both_ways(saved.config) and any(name.startswith("masked_lm.") for name in saved.weights or {})


class TextHead(Head[str]):
    """An input is one text."""

    form = "a text"
    example = "The old mill stands by the river, and nobody knows who built it."

    def item(self, given: Any) -> str | None:
        """A text."""
        return given if isinstance(given, str) else None

    def texts(self, item: str) -> tuple[str, ...]:
        """It."""
        return (item,)


class ClassificationHead(Head[tuple[str, ...]]):
    """Labels, any number of them, or a number, for a text or a pair."""

    kind = "classification"

    def __init__(self, saved: SavedModel, words: BaseTokenizer) -> None:
        self.task, self.max_length = noted_task(saved)
        self.labels, self.columns, self.words = self.task.labels, self.task.text, words
        self.example = (TextHead.example,) * len(self.task.text)
        self.form = "a text" if len(self.task.text) == 1 else "a pair: a tuple of two texts"
        self._logits = open_logits(saved)

    def item(self, given: Any) -> tuple[str, ...] | None:
        """A text, or a tuple of two."""
        if len(self.task.text) == 1:
            return (given,) if isinstance(given, str) else None
        return given if isinstance(given, tuple) and len(given) == 2 and _are_texts(given) else None

    def texts(self, item: tuple[str, ...]) -> tuple[str, ...]:
        """Both."""
        return item

    def tokens(self, item: tuple[str, ...], words: BaseTokenizer) -> int:
        """Windows overlap by half."""
        length = _length(words, item)
        return _in_halves(length, self.max_length) if self.task.long == "windows" else min(length, self.max_length)

    def answers(self, items: Sequence[tuple[str, ...]]) -> list[Result]:
        """Label, Labels or Score."""
        sides = list(zip(*items, strict=True))
        encoded = encode(
            self.words, sides[0], sides[1] if len(sides) > 1 else None, max_length=self.max_length, long=self.task.long
        )
        found = decode(self.task, self._logits(encoded))
        cut = encoded.cut.tolist()
        if found.labels is None or found.probabilities is None:
            return [Score(float(value), lost) for value, lost in zip(found.values, cut, strict=True)]
        shares = [dict(zip(self.task.labels, row, strict=True)) for row in found.probabilities.tolist()]
        if self.task.kind == "multilabel":
            return [Labels(names, share, lost) for names, share, lost in zip(found.labels, shares, cut, strict=True)]
        return [
            Label(name, share[name], share, lost) for name, share, lost in zip(found.labels, shares, cut, strict=True)
        ]


class TaggingHead(TextHead):
    """The names in a text, or its words with their tags."""

    kind = "tagging"

    def __init__(self, saved: SavedModel, words: BaseTokenizer) -> None:
        self.task, self._tagged = open_tagging(saved, words)
        self.labels, self.words, self.max_length = self.task.labels, words, saved.max_length

    def tokens(self, item: str, words: BaseTokenizer) -> int:
        """Windows overlap by half."""
        return _in_halves(_length(words, self.texts(item)), self.max_length)

    def answers(self, items: Sequence[str]) -> list[Entities]:
        """Each text alone, without its neighbours as context."""
        found, _ = tag_texts(self.task, self._tagged, self.words, items, source="texts")
        return [_entities(answer) for answer in found]


class QuestionHead(Head[tuple[str, str]]):
    """The piece of a passage that answers a question."""

    kind, form = "questions", "a tuple of a question and a passage, or a dict with 'question' and 'context'"
    columns = ("question", "context")
    example = ("Who built the old mill?", TextHead.example)

    def __init__(self, saved: SavedModel, words: BaseTokenizer) -> None:
        self.model, self.task, self.max_length, self.threshold = open_span_model(saved)
        self.words = words

    def item(self, given: Any) -> tuple[str, str] | None:
        """(question, passage), or {"question", "context"}."""
        if isinstance(given, Mapping):
            given = (given.get("question"), given.get("context"))
        if not (isinstance(given, tuple) and len(given) == 2 and _are_texts(given)):
            return None
        for name, text in zip(("question", "passage"), given, strict=True):
            if not text.strip():
                raise InputError(f"the {name} is empty")
        return given

    def texts(self, item: tuple[str, str]) -> tuple[str, ...]:
        """Both."""
        return item

    @property
    def limit(self) -> str:
        """Passages are read whole."""
        return f"the {longest_question(self.task, self.max_length)} pieces of a question"

    def tokens(self, item: tuple[str, str], words: BaseTokenizer) -> int:
        """The question is read with each window of the passage; windows overlap by what the stride leaves."""
        question, passage = map(len, words.ids(item))
        return window_tokens(question, passage, self.task, max_length=self.max_length)

    def answers(self, items: Sequence[tuple[str, str]]) -> list[Answer]:
        """The best span over all windows of a passage, however long it is."""
        asked = tuple(Question(str(row), question, passage) for row, (question, passage) in enumerate(items))
        questions = Questions(asked, self.task.version, "questions")
        windows = encode_windows(self.words, questions, self.task, max_length=self.max_length)
        logits = span_logits(self.model, windows)
        found = spans.decode_spans(windows, logits, questions, self.task, threshold=self.threshold)
        return [self._answer(answer, cut) for answer, cut in zip(found, windows.cut.tolist(), strict=True)]

    def _answer(self, found: spans.Answer, cut: bool) -> Answer:
        none = None if found.null_odds is None else _logistic(found.null_odds - self.threshold)
        chosen = found.chosen
        probability = found.probability if chosen.text or none is None else none
        return Answer(chosen.text, chosen.first, chosen.last, probability, none, cut)


class ChoiceHead(Head[tuple[str, tuple[str, ...]]]):
    """The likeliest of several continuations."""

    kind, form = "choice", "a tuple of a context and its choices, or a dict with 'context' and 'choices'"
    columns = ("context", "choices")
    example = (TextHead.example, ("It turns.", "It sings."))

    def __init__(self, saved: SavedModel, words: BaseTokenizer) -> None:
        self.model, self.max_length = open_chooser(saved)
        self.words = words

    def item(self, given: Any) -> tuple[str, tuple[str, ...]] | None:
        """(context, choices), or {"context", "choices"}."""
        if isinstance(given, Mapping):
            given = (given.get("context"), given.get("choices"))
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], list | tuple | np.ndarray)):
            return None
        context, choices = given[0], tuple(given[1])
        if not _are_texts((context, *choices)):
            return None
        if len(choices) < 2:
            raise InputError(f"{len(choices)} choices; at least two are due")
        if not all(choice.strip() for choice in choices):
            raise InputError("a choice is empty; each is a text")
        return context, choices

    def texts(self, item: tuple[str, tuple[str, ...]]) -> tuple[str, ...]:
        """The context and all choices."""
        return (item[0], *item[1])

    def tokens(self, item: tuple[str, tuple[str, ...]], words: BaseTokenizer) -> int:
        """The context is read with each of the choices."""
        context, *choices = map(len, words.ids(self.texts(item)))
        return sum(min(context + choice + 3, self.max_length) for choice in choices)

    def answers(self, items: Sequence[tuple[str, tuple[str, ...]]]) -> list[Choice]:
        """A softmax over each row's choices."""
        contexts, choices = zip(*items, strict=True)
        rows = Choices(contexts, choices, None, "choices", tuple(range(1, len(items) + 1)))
        encoded = encode_choices(self.words, rows, max_length=self.max_length)
        best, shares = decode_choices(predict_logits(self.model, encoded)[:, 0], rows.first)
        lost = np.logical_or.reduceat(encoded.cut, rows.first[:-1])
        return [
            Choice(index, given[index], float(share[index]), tuple(share.tolist()), cut)
            for index, given, share, cut in zip(best.tolist(), choices, shares, lost.tolist(), strict=True)
        ]


class VectorHead(TextHead):
    """The state of a text: no head at all, so every model has it."""

    kind = "vectors"

    def __init__(self, saved: SavedModel, words: BaseTokenizer) -> None:
        self.encoder = cast(Backbone, ready(nn.ModuleDict({"encoder": frozen_encoder(saved)}), saved)["encoder"])
        self.words, self.max_length = words, saved.config.max_positions

    def answers(self, items: Sequence[str], *, pool: Pool = "mean", layer: int = -1) -> list[Vector]:
        """One vector for each text; layer 0 is the embeddings, -1 the last."""
        check_pool(self.encoder.config, pool)
        layers = [layer % (self.encoder.config.layers + 1)]
        found = features_of(self.encoder, self.words, items, layers=layers)
        vectors = [Vector(pooled(one, pool)[0], one.truncated) for one in found]
        for vector in vectors:
            _finite(float(vector.values.sum()))
        return vectors


class FollowHead(Head[tuple[str, str]]):
    """Whether the second text of a pair follows the first (paper §3.1, task 2)."""

    kind, form = "next sentence", "a tuple of two texts"
    example = (TextHead.example, TextHead.example)

    def __init__(self, saved: SavedModel, words: BaseTokenizer) -> None:
        self.model, self.words = ready(open_next_sentence(saved), saved), words
        self.max_length = saved.config.max_positions

    def item(self, given: Any) -> tuple[str, str] | None:
        """A tuple of two texts."""
        return given if isinstance(given, tuple) and len(given) == 2 and _are_texts(given) else None

    def texts(self, item: tuple[str, str]) -> tuple[str, ...]:
        """Both."""
        return item

    def answers(self, items: Sequence[tuple[str, str]]) -> list[Follows]:
        """Pair by pair."""
        found = []
        for pair in items:
            (probability,) = _finite(next_sentence_probability(self.model, self.words, *pair))
            found.append(Follows(probability, _length(self.words, pair) > self.max_length))
        return found


class FillHead(TextHead):
    """What stands behind [MASK]."""

    kind, form = "fill", "a text with [MASK] in it"
    example = f"[MASK] {TextHead.example}"

    def __init__(self, saved: SavedModel, words: BaseTokenizer) -> None:
        self.model = ready(open_pretrained(saved), saved)
        self.words = wordpiece(words, place=saved.place, advice="only a BERT fills gaps")
        self.max_length = saved.config.max_positions

    def item(self, given: Any) -> str | None:
        """A text that holds [MASK] and is not too long."""
        if not isinstance(given, str):
            return None
        refuse_halves([given])
        pieces = self.words.ids([given], special=True)[0]
        if self.words.mask_id not in pieces:
            raise InputError(f"{shown(given)!r} holds no [MASK]")
        if len(pieces) + 2 > self.max_length:
            raise InputError(f"the text has {len(pieces) + 2} pieces; this model takes at most {self.max_length}")
        return given

    def answers(self, items: Sequence[str], *, top_k: int = 5) -> list[Filled]:
        """Text by text: what one is answered does not depend on the others."""
        return [
            Filled(
                tuple(
                    tuple(map(Piece, mask.pieces, _finite(*mask.probabilities)))
                    for mask in fill_masks(self.model, self.words, text, top_k=top_k)
                )
            )
            for text in items
        ]


def _entities(found: Mapping[str, Any]) -> Entities:
    rows, name = (found["entities"], "type") if "entities" in found else (found["words"], "tag")
    return Entities(tuple(Entity(row[name], row["text"], row["start"], row["end"], row["probability"]) for row in rows))


def _length(words: BaseTokenizer, texts: Sequence[str]) -> int:
    """Tokens of a text or pair, with those at the beginning, between and at the end."""
    return sum(map(len, words.ids(texts))) + 1 + len(texts)


def _in_halves(length: int, room: int) -> int:
    """Tokens of a text that is read in windows which overlap by half, where it does not fit."""
    return length if length <= room else 2 * length


def _finite(*values: float) -> tuple[float, ...]:
    if not all(map(math.isfinite, values)):
        raise RunFailed("the model's output holds numbers that are not finite")
    return values


def _logistic(value: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * value))


def _are_texts(given: Sequence[Any]) -> bool:
    return all(isinstance(text, str) for text in given)
