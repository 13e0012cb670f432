"""answer of a model → its score as a function of the logits, which an explanation attributes to the words.

Labels, tags and choices have log-odds, log(p / (1 - p)): unlike log p they do not saturate where the model is sure, and
they compare the answer with all others. A number is its own score. A span has the sum of its two logits (paper §4.2).

Shapes: L labels, Q words or pieces that a row answers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertwright.errors import InputError
from bertwright.serving.pipeline import EncodedInputs, Pipeline
from bertwright.serving.results import ExtractedAnswer, Label, Labels
from bertwright.serving.task_pipelines import (
    ChoicePipeline,
    ClassificationPipeline,
    EncodedQuestions,
    EncodedSentences,
    QuestionPipeline,
    TaggingPipeline,
)
from bertwright.tasks.question_answering.windows import Windows
from bertwright.tasks.tagging.entities import OUTSIDE

Measure = Literal["log-odds", "number", "logits"]
ScoreFunction = Callable[[Sequence[Tensor]], Tensor]


@dataclass(frozen=True)
class AnswerScore:
    """The score of an answer.

    answer, start, end, measure  as in `Explanation`
    rows                         numbers of the rows that the score depends on
    score                        function from the logits of these rows to the score []
    scale                        unit of the score: the spread of the targets for a number, else 1
    """

    answer: str
    measure: Measure
    rows: Sequence[int]
    score: ScoreFunction
    start: int | None = None
    end: int | None = None
    scale: float = 1.0


def answer_score(
    pipeline: Pipeline[Any, Any], inputs: EncodedInputs, outputs: Sequence[Any], *, word: int | None
) -> AnswerScore | None:
    """Return the score of the answer to one input; None for a text without words, whose tags are explained.

    outputs: the model's output for each row of the input. word: the number of the word whose tag is explained; None is
    the first word with another tag than O, and the first word where all have it. Raises InputError for a word that the
    text does not have, and for a word where the model gives no tags.
    """
    if isinstance(pipeline, TaggingPipeline):
        assert isinstance(inputs, EncodedSentences)
        return _of_tag(pipeline, inputs, outputs, word)
    if word is not None:
        raise InputError(f"word {word}: expected a model of tags, got one for {pipeline.kind}; leave the word out")
    (result,) = pipeline.results(inputs, outputs)
    if isinstance(pipeline, QuestionPipeline):
        assert isinstance(inputs, EncodedQuestions)
        return _of_span(result, inputs.windows, outputs)
    rows = range(len(outputs))
    if isinstance(pipeline, ChoicePipeline):
        index = result.index
        return AnswerScore(result.text, "log-odds", rows, lambda logits: log_odds(torch.cat(list(logits)), index))
    assert isinstance(pipeline, ClassificationPipeline)
    return _of_label(pipeline, result, rows)


def log_odds(logits: Tensor, label: int) -> Tensor:
    """Return log(p / (1 - p)) [] of a label, where p is its softmax over logits [L]."""
    others = torch.cat((logits[:label], logits[label + 1 :]))
    return logits[label] - torch.logsumexp(others, 0)


def _of_label(pipeline: ClassificationPipeline, result: Any, rows: range) -> AnswerScore:
    """Return the score of the label, of the most probable of several labels, or of the number; windows are averaged."""
    task = pipeline.task
    if isinstance(result, Label):
        label = task.labels.index(result.label)
        return AnswerScore(
            result.label, "log-odds", rows, lambda logits: log_odds(_mean(logits) / task.temperature, label)
        )
    if isinstance(result, Labels):
        name = max(result.probabilities, key=lambda name: result.probabilities[name])
        label = task.labels.index(name)
        return AnswerScore(name, "log-odds", rows, lambda logits: _mean(logits)[label] / task.temperature)
    return AnswerScore(
        "", "number", rows, lambda logits: _mean(logits)[0] * task.spread + task.centre, scale=task.spread
    )


def _mean(logits: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(logits)).mean(0)


def _of_tag(
    pipeline: TaggingPipeline, inputs: EncodedSentences, outputs: Sequence[NDArray[np.float32]], word: int | None
) -> AnswerScore | None:
    """Return the score of a word's tag, in the window where the model answers the word."""
    spans = inputs.spans[0]
    if word is not None and word >= len(spans):
        raise InputError(f"word {word}: expected a number below {len(spans)}, the number of words of the text")
    if not spans:
        return None
    pipeline.results(inputs, outputs)  # raises where an output is not finite
    places = {
        int(number): (row, index) for row, of_row in enumerate(inputs.words) for index, number in enumerate(of_row)
    }
    labels = [int(outputs[row][index].argmax()) for _, (row, index) in sorted(places.items())]
    if word is None:
        word = next((number for number, label in enumerate(labels) if pipeline.labels[label] != OUTSIDE), 0)
    (row, index), label = places[word], labels[word]
    start, end = spans[word]
    name = pipeline.labels[label]
    return AnswerScore(name, "log-odds", [row], lambda logits: log_odds(logits[0][index], label), start, end)


def _of_span(result: ExtractedAnswer, windows: Windows, outputs: Sequence[NDArray[np.float32]]) -> AnswerScore:
    """Return the score of the answer in its window; of "no answer" in the window where its score is smallest."""
    if result.start is None or result.end is None:
        row = int(np.argmin([values[:, 0].sum() for values in outputs]))
        return AnswerScore("", "logits", [row], lambda logits: logits[0][:, 0].sum())
    row, first, last = _place_of_span(result.start, result.end, windows, outputs)
    return AnswerScore(
        result.text, "logits", [row], lambda logits: logits[0][0, first] + logits[0][1, last], result.start, result.end
    )


def _place_of_span(
    start: int, end: int, windows: Windows, outputs: Sequence[NDArray[np.float32]]
) -> tuple[int, int, int]:
    """Return the window, and the positions in its output, of the best span with these characters."""
    best, position = -np.inf, (0, 1, 1)
    for row, ((begin, stop), (core, core_end)) in enumerate(zip(windows.span, windows.core, strict=True)):
        firsts = core + np.flatnonzero(windows.offsets[core:core_end, 0] == start)
        lasts = begin + np.flatnonzero(windows.offsets[begin:stop, 1] == end)
        for first in firsts - begin + 1:
            for last in lasts - begin + 1:
                score = outputs[row][0, first] + outputs[row][1, last]
                if last >= first and score > best:
                    best, position = score, (row, int(first), int(last))
    return position
