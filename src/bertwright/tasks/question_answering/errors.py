"""answers to questions beside the right ones → the table of errors: the lowest F1 first."""

from collections.abc import Sequence

import numpy as np

from bertwright.tasks.errors import Errors, rounded
from bertwright.tasks.question_answering.answers import Answer
from bertwright.tasks.question_answering.data import Questions
from bertwright.tasks.question_answering.score import Scores


def question_errors(questions: Questions, answers: Sequence[Answer], scores: Scores) -> Errors:
    """Return every question with its right answers, the predicted one, F1 (0 to 1), probability and passage.

    A question without an answer has no right answers; the predicted text is empty for "no answer".
    """
    confidence = np.array([answer.probability for answer in answers], dtype=np.float64)
    columns: dict[str, Sequence[object]] = {
        "id": [question.id for question in questions.items],
        "question": [question.text for question in questions.items],
        "gold": [list(dict.fromkeys(text for text, _ in question.answers)) for question in questions.items],
        "predicted": [answer.chosen.text for answer in answers],
        "f1": rounded(scores.f1),
        "probability": rounded(confidence),
        "passage": [question.context for question in questions.items],
    }
    return Errors(columns, scores.f1, confidence, are_texts=True)
