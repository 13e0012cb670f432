"""fine-tuned models → pipelines: labels, entities, answers to questions, choices."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertwright.console import redirect_messages
from bertwright.errors import InputError
from bertwright.model.folder import SavedModel
from bertwright.serving.pipeline import (
    EncodedInputs,
    EncodedT,
    Item,
    ModelRow,
    Pipeline,
    TextPipeline,
    are_texts,
    as_arrays,
    encoded_of_rows,
    padded_batch,
    parse_pair,
    rows_of_encoded,
)
from bertwright.serving.results import Choice, Entities, ExtractedAnswer, Label, Labels, Score, TextEntity
from bertwright.tables.bad_rows import is_blank
from bertwright.tasks.classification.encoding import Encoded, decode, encode
from bertwright.tasks.classification.model import noted_task, open_classifier
from bertwright.tasks.classification.task import positions_of
from bertwright.tasks.feature_based import open_with_features
from bertwright.tasks.finite import logistic_of
from bertwright.tasks.frozen_features import FeaturePositions
from bertwright.tasks.multiple_choice.spec import Choices, decode_choices, encode_choices
from bertwright.tasks.multiple_choice.task import open_chooser
from bertwright.tasks.question_answering.answers import Answer, SpanLogits, decode_spans
from bertwright.tasks.question_answering.data import Question, Questions
from bertwright.tasks.question_answering.task import SpanRows, open_span_model
from bertwright.tasks.question_answering.windows import Windows, encode_windows, longest_question
from bertwright.tasks.tagging import spec as tagging
from bertwright.tasks.tagging.conll import Sentences
from bertwright.tasks.tagging.files import sentences_of_texts, text_answer
from bertwright.tasks.tagging.model import TaggingWindows, open_tagger, tag_rows, windows_of
from bertwright.tasks.tagging.task import task_of_model
from bertwright.text.base_tokenizer import BaseTokenizer


def _open_features(saved: SavedModel) -> Callable[[FeaturePositions], NDArray[np.float32]]:
    """Return the logits of a model on features. It makes batches and a progress display of its own, silenced here."""
    compute = open_with_features(saved)

    def logits(positions: FeaturePositions) -> NDArray[np.float32]:
        with redirect_messages(lambda _: None):
            return compute(positions)

    return logits


class FinetunedPipeline(Pipeline[Item, EncodedT]):
    """Pipeline of a fine-tuned model; `model` is None where the head reads features of a frozen encoder."""

    model: Any

    @abstractmethod
    def logits(self, rows: Sequence[ModelRow]) -> list[Tensor]:
        """Return the logits of each row, with their graph where gradients are on."""

    def forward(self, rows: Sequence[ModelRow]) -> list[NDArray[np.float32]]:
        """Return the logits of each row."""
        with torch.inference_mode():
            return as_arrays(self.logits(rows))


@dataclass(frozen=True)
class EncodedTexts(EncodedInputs):
    """Rows of texts or pairs, with the record of which rows belong to which example."""

    encoded: Encoded

    def input_of(self, row: int) -> int:
        """Return the number of the example that a row is a window of."""
        begins = self.encoded.begins
        return row if begins is None else int(np.searchsorted(begins, row, side="right")) - 1


class ClassificationPipeline(FinetunedPipeline[tuple[str, ...], EncodedTexts]):
    """Labels, any number of them, or a number, for a text or a pair."""

    kind = "classification"

    def __init__(self, saved: SavedModel, tokenizer: BaseTokenizer) -> None:
        self.task, self.max_length = noted_task(saved)
        self.labels, self.columns, self.tokenizer = self.task.labels, self.task.text, tokenizer
        self.example = (TextPipeline.example,) * len(self.task.text)
        self.form = "a text" if len(self.task.text) == 1 else "a pair: a tuple of two texts"
        self.model = None if "features" in saved.extra else open_classifier(saved)[0]
        self._of_features = _open_features(saved) if self.model is None else None

    def parse(self, value: Any) -> tuple[str, ...] | None:
        """Return a text, or a tuple of two."""
        if len(self.task.text) == 1:
            return (value,) if isinstance(value, str) else None
        return parse_pair(value)

    def encode(self, items: Sequence[tuple[str, ...]]) -> EncodedTexts:
        """Return one row for each input, or several where the task reads long texts in windows."""
        first, *second = zip(*items, strict=True)
        encoded = encode(self.tokenizer, first, *second, max_length=self.max_length, long=self.task.long)
        return EncodedTexts(rows_of_encoded(encoded), encoded)

    def logits(self, rows: Sequence[ModelRow]) -> list[Tensor]:
        """Return the logits [L] of each row."""
        assert self.model is not None
        pad_id, both_orders = self.model.encoder.config.pad_id, self.model.both_orders
        return list(self.model(padded_batch(rows, pad_id=pad_id, both_orders=both_orders)))

    def forward(self, rows: Sequence[ModelRow]) -> list[NDArray[np.float32]]:
        """Return the logits [L] of each row."""
        if self._of_features is not None:
            return list(self._of_features(positions_of(encoded_of_rows(rows))))
        return super().forward(rows)

    def decode(
        self, inputs: EncodedTexts, outputs: Sequence[NDArray[np.float32]]
    ) -> list[Label] | list[Labels] | list[Score]:
        """Return label, labels or number of each input; logits of several windows are averaged."""
        predictions = decode(self.task, inputs.encoded.mean_of_rows(np.stack(outputs)))
        truncated = inputs.encoded.cut.tolist()
        if predictions.labels is None or predictions.probabilities is None:
            return [Score(float(value), cut) for value, cut in zip(predictions.values, truncated, strict=True)]
        by_label = [dict(zip(self.task.labels, row, strict=True)) for row in predictions.probabilities.tolist()]
        rows = list(zip(predictions.labels, by_label, truncated, strict=True))
        if self.task.kind == "multilabel":
            return [Labels(names, probabilities, cut) for names, probabilities, cut in rows]
        return [Label(name, probabilities[name], probabilities, cut) for name, probabilities, cut in rows]


@dataclass(frozen=True)
class EncodedSentences(EncodedInputs):
    """Rows of texts whose words are tagged.

    texts      the texts
    spans      for each text the (first, one past last) character of its words
    sentences  the texts as words
    words      [rows] numbers of the words, over all texts, that each row answers
    vanished   numbers of the words of which the tokenizer leaves nothing
    """

    texts: Sequence[str]
    spans: Sequence[Sequence[tuple[int, int]]]
    sentences: Sentences
    words: Sequence[NDArray[np.int64]]
    vanished: Sequence[int]

    def input_of(self, row: int) -> int:
        """Return the number of the text whose words a row answers."""
        ends = np.cumsum([len(of_text) for of_text in self.spans])
        return int(np.searchsorted(ends, self.words[row][0], side="right"))


class TaggingPipeline(TextPipeline[EncodedSentences], FinetunedPipeline[str, EncodedSentences]):
    """The names in a text, or its words with their tags."""

    kind = "tagging"

    def __init__(self, saved: SavedModel, tokenizer: BaseTokenizer) -> None:
        self.task, self.tokenizer, self.max_length = task_of_model(saved), tokenizer, saved.max_length
        self.labels = self.task.labels
        self.model = None if "features" in saved.extra else open_tagger(saved, len(self.task.labels))
        self._of_features = _open_features(saved) if self.model is None else None

    def encode(self, items: Sequence[str]) -> EncodedSentences:
        """Return the windows of each text, which stands alone, without its neighbours as context."""
        spans, sentences = sentences_of_texts(self.tokenizer, items, "texts")
        windows = windows_of(self.tokenizer, sentences, context="off", max_length=self.max_length)
        rows = [ModelRow(ids, len(ids), at) for ids, at in zip(windows.ids, windows.at, strict=True)]
        return EncodedSentences(rows, items, spans, sentences, windows.words, windows.vanished)

    def warnings(self, inputs: EncodedSentences) -> list[str]:
        """Return a message where the tokenizer leaves nothing of some words."""
        if not inputs.vanished:
            return []
        word = [word for words in inputs.sentences.words for word in words][inputs.vanished[0]]
        return [
            f"the tokenizer leaves nothing of {len(inputs.vanished)} words; [UNK] stands for them, first for {word!a}"
        ]

    def logits(self, rows: Sequence[ModelRow]) -> list[Tensor]:
        """Return the logits [Q, L] at the words that each row answers."""
        assert self.model is not None
        at = tuple(row.at for row in rows)
        windows = TaggingWindows(tuple(row.ids for row in rows), at, words=at, vanished=())
        logits = self.model(tag_rows(windows, range(len(rows)), pad_id=self.model.encoder.config.pad_id))
        return [values[: len(row.at)] for values, row in zip(logits, rows, strict=True)]

    def forward(self, rows: Sequence[ModelRow]) -> list[NDArray[np.float32]]:
        """Return the logits [Q, L] of each row."""
        if self._of_features is not None:
            ends = np.cumsum([0, *(len(row.at) for row in rows)])
            targets = [np.arange(begin, begin + len(row.at)) for row, begin in zip(rows, ends[:-1], strict=True)]
            asks = [(row.ids, row.at, target) for row, target in zip(rows, targets, strict=True)]
            return np.split(self._of_features(FeaturePositions(asks, ends)), ends[1:-1])
        return super().forward(rows)

    def decode(self, inputs: EncodedSentences, outputs: Sequence[NDArray[np.float32]]) -> list[Entities]:
        """Return the entities of each text, or its words with their tags."""
        logits = np.zeros((inputs.sentences.num_words, len(self.task.labels)), dtype=np.float32)
        for words, values in zip(inputs.words, outputs, strict=True):
            logits[words] = values
        tagged = tagging.decode_tags(self.task, logits, inputs.sentences)
        rows = zip(inputs.texts, inputs.spans, tagged.tags, tagged.by_sentence, strict=True)
        return [_entities(text_answer(self.task, *row)) for row in rows]


@dataclass(frozen=True)
class EncodedQuestions(EncodedInputs):
    """Rows of questions, each with a window of its passage."""

    questions: Questions
    windows: Windows

    def input_of(self, row: int) -> int:
        """Return the number of the question that a row is a window of."""
        return int(self.windows.question[row])


class QuestionPipeline(FinetunedPipeline[tuple[str, str], EncodedQuestions]):
    """The part of a passage that answers a question."""

    kind, form = "questions", "a tuple of a question and a passage, or a dict with 'question' and 'context'"
    columns = ("question", "context")
    example = ("Who built the old mill?", TextPipeline.example)

    def __init__(self, saved: SavedModel, tokenizer: BaseTokenizer) -> None:
        self.model, self.task, self.max_length, self.threshold = open_span_model(saved)
        self.tokenizer = tokenizer

    def parse(self, value: Any) -> tuple[str, str] | None:
        """Return (question, passage), also from {"question", "context"}. Raises InputError where one is empty."""
        if isinstance(value, Mapping):
            value = (value.get("question"), value.get("context"))
        pair = parse_pair(value)
        for name, text in zip(("question", "passage"), pair or (), strict=False):
            if is_blank(text):
                raise InputError(f"the {name} is empty: it has no visible character")
        return pair

    @property
    def limit(self) -> str:
        """Limit on the length of a question; a passage is read as a whole."""
        return f"the {longest_question(self.task, self.max_length)} pieces of a question"

    def encode(self, items: Sequence[tuple[str, str]]) -> EncodedQuestions:
        """Return the windows of all questions; a passage of several questions is tokenised once."""
        items_with_ids = tuple(Question(str(index), *item) for index, item in enumerate(items))
        questions = Questions(items_with_ids, self.task.version, "questions")
        windows = encode_windows(self.tokenizer, questions, self.task, max_length=self.max_length)
        rows = []
        for index, (first, size) in enumerate(zip(windows.first_piece.tolist(), windows.sizes.tolist(), strict=True)):
            rows.append(ModelRow(windows.row(index), first, np.arange(first, first + size)))
        return EncodedQuestions(rows, questions, windows)

    def logits(self, rows: Sequence[ModelRow]) -> list[Tensor]:
        """Return the logits [2, 1 + Q] of the first and last position: at [CLS], then at the pieces of the passage."""
        batch = padded_batch(rows, pad_id=self.model.encoder.config.pad_id)
        no_targets = torch.zeros((len(rows), 2), dtype=torch.int64)
        logits = torch.stack(self.model(SpanRows(batch.ids, batch.segments, batch.mask, no_targets)), dim=1)
        return [values[:, [0, *row.at]] for values, row in zip(logits, rows, strict=True)]

    def decode(self, inputs: EncodedQuestions, outputs: Sequence[NDArray[np.float32]]) -> list[ExtractedAnswer]:
        """Return the best span over all windows of a passage, however long it is."""
        start, end = np.concatenate([values[:, 1:] for values in outputs], axis=1)
        null = np.stack([values[:, 0] for values in outputs]).sum(axis=1)
        logits = SpanLogits(start, end, null)
        answers = decode_spans(inputs.windows, logits, inputs.questions, self.task, threshold=self.threshold)
        return [self._result(answer, cut) for answer, cut in zip(answers, inputs.windows.cut.tolist(), strict=True)]

    def _result(self, answer: Answer, cut: bool) -> ExtractedAnswer:
        no_answer = None if answer.null_odds is None else logistic_of(answer.null_odds - self.threshold)
        span = answer.chosen
        probability = answer.probability if span.text or no_answer is None else no_answer
        return ExtractedAnswer(span.text, span.first, span.last, probability, no_answer, cut)


@dataclass(frozen=True)
class EncodedChoices(EncodedInputs):
    """Rows of contexts, each with one of its choices."""

    choices: Choices
    encoded: Encoded

    def input_of(self, row: int) -> int:
        """Return the number of the context that a row's choice belongs to."""
        return int(np.searchsorted(self.choices.first, row, side="right")) - 1


class ChoicePipeline(FinetunedPipeline[tuple[str, tuple[str, ...]], EncodedChoices]):
    """The likeliest of several continuations."""

    kind, form = "choice", "a tuple of a context and its choices, or a dict with 'context' and 'choices'"
    columns = ("context", "choices")
    example = (TextPipeline.example, ("It turns.", "It sings."))

    def __init__(self, saved: SavedModel, tokenizer: BaseTokenizer) -> None:
        self.model, self.max_length = open_chooser(saved)
        self.tokenizer = tokenizer

    def parse(self, value: Any) -> tuple[str, tuple[str, ...]] | None:
        """Return (context, choices), also from {"context", "choices"}. Raises InputError for empty ones."""
        if isinstance(value, Mapping):
            value = (value.get("context"), value.get("choices"))
        if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], list | tuple | np.ndarray)):
            return None
        context, choices = value[0], tuple(value[1])
        if not are_texts((context, *choices)):
            return None
        if len(choices) < 2:
            raise InputError(f"expected at least two choices, got {len(choices)}")
        if any(map(is_blank, choices)):
            raise InputError("a choice is empty: it has no visible character; each must be a text")
        return context, choices

    def texts(self, item: tuple[str, tuple[str, ...]]) -> tuple[str, ...]:
        """Return the context and all choices."""
        return (item[0], *item[1])

    def encode(self, items: Sequence[tuple[str, tuple[str, ...]]]) -> EncodedChoices:
        """Return one row for each choice."""
        contexts, choices = zip(*items, strict=True)
        examples = Choices(contexts, choices, None, "choices", tuple(range(1, len(items) + 1)))
        encoded = encode_choices(self.tokenizer, examples, max_length=self.max_length)
        return EncodedChoices(rows_of_encoded(encoded), examples, encoded)

    def logits(self, rows: Sequence[ModelRow]) -> list[Tensor]:
        """Return the score [1] of each row."""
        return list(self.model(padded_batch(rows, pad_id=self.model.encoder.config.pad_id)))

    def decode(self, inputs: EncodedChoices, outputs: Sequence[NDArray[np.float32]]) -> list[Choice]:
        """Return the best choice of each input; probabilities are a softmax over its choices."""
        first = inputs.choices.first
        best, probabilities = decode_choices(np.concatenate(outputs), first)
        truncated = np.logical_or.reduceat(inputs.encoded.cut, first[:-1])
        rows = zip(best.tolist(), inputs.choices.choices, probabilities, truncated.tolist(), strict=True)
        return [
            Choice(index, choices[index], float(values[index]), tuple(values.tolist()), cut)
            for index, choices, values, cut in rows
        ]


def _entities(answer: Mapping[str, Any]) -> Entities:
    rows, name = (answer["entities"], "type") if "entities" in answer else (answer["words"], "tag")
    return Entities(
        tuple(TextEntity(row[name], row["text"], row["start"], row["end"], row["probability"]) for row in rows)
    )
