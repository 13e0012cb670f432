"""contexts with endings → metrics of simple models without an encoder, which an encoder should exceed (paper §4.4)."""

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import MissingExtra
from bertwright.finetuning.baselines import (
    SAMPLE_ROWS,
    SAMPLE_TEXTS,
    WORD,
    Baselines,
    quick_scores,
    sample_rows,
    vectorised,
)
from bertwright.tasks.classification.examples import TextExamples
from bertwright.tasks.multiple_choice.spec import Choices, decode_choices


def choice_baselines(train: Choices, validation: Choices) -> Baselines:
    """Return the accuracy of the commonest label and of a bag of words on validation rows; both learn from train.

    The bag of words is a logistic regression that scores each ending with its context, by the words of both and by the
    words that they share; the ending with the highest score is the answer. Without scikit-learn there is a note.
    """
    assert train.targets is not None
    measured, measured_note = _sample(validation, SAMPLE_ROWS, "measured on")
    most = SAMPLE_TEXTS * len(train) // int(train.first[-1])  # rows with so many endings
    fitted, fitted_note = _sample(train, most, "the bag of words learned from")
    commonest = np.full(len(measured), np.bincount(train.targets).argmax())
    metrics = {"commonest answer": _metrics(commonest, measured)}
    try:
        metrics["bag of words"] = _metrics(_bag_of_words(fitted, measured), measured)
    except MissingExtra as error:
        return Baselines(metrics, (*measured_note, str(error)))
    return Baselines(metrics, (*measured_note, *fitted_note))


def _metrics(answers: NDArray[np.int64], rows: Choices) -> dict[str, float]:
    return {"accuracy": float(np.mean(answers == rows.targets))}


def _bag_of_words(train: Choices, test: Choices) -> NDArray[np.int64]:
    """Return the number of the ending with the highest score for each test row."""
    if not any(WORD.search(text) for text in chain(train.contexts, *train.choices)):
        return np.zeros(len(test), dtype=np.int64)
    assert train.targets is not None
    is_right = np.zeros(int(train.first[-1]), dtype=np.bool_)
    is_right[train.first[:-1] + train.targets] = True
    features, test_features = vectorised(_pairs(train), _pairs(test))
    answers, _ = decode_choices(quick_scores(features, is_right, test_features), test.first)
    return answers


def _pairs(rows: Choices) -> TextExamples:
    """Return each ending with its context as a pair of texts, row after row."""
    numbers = [row for row, endings in enumerate(rows.choices) for _ in endings]
    return TextExamples(
        texts_a=tuple(rows.contexts[row] for row in numbers),
        texts_b=tuple(chain.from_iterable(rows.choices)),
        targets=None,
        source=rows.source,
        lines=tuple(rows.lines[row] for row in numbers),
    )


def _sample(rows: Choices, most: int, what: str) -> tuple[Choices, list[str]]:
    """Return at most so many rows, and a note where these are a sample."""
    characters = sum(map(len, chain.from_iterable(rows.choices)))
    characters += sum(len(context) * len(endings) for context, endings in zip(rows.contexts, rows.choices, strict=True))
    chosen, notes = sample_rows(len(rows), characters, max(1, most), what)
    return rows if chosen is None else rows.select(chosen), notes
