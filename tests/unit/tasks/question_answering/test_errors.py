"""Errors of questions: the lowest F1 first, then by probability."""

import numpy as np
import pytest

from bertwright.tasks.question_answering.answers import Answer, Span
from bertwright.tasks.question_answering.data import Question, Questions
from bertwright.tasks.question_answering.errors import question_errors
from bertwright.tasks.question_answering.score import score_answers

PASSAGE = "Ada sells the old bread in Ulm."
GOLDS = (("Ada", "Ada", "Ada sells"), ("the old bread",), (), ("Ulm",), ("in Ulm",))
PREDICTED = (("Ulm", 0.9), ("bread", 0.8), ("", 0.7), ("", 0.95), ("in Ulm", 0.6))


def test_the_lowest_f1_comes_first_and_right_answers_by_their_doubt() -> None:
    questions = Questions(
        tuple(
            Question(f"q{row}", f"Question {row}?", PASSAGE, tuple((text, PASSAGE.index(text)) for text in golds))
            for row, golds in enumerate(GOLDS)
        ),
        "2.0",
        "dev.json",
    )
    answers = [Answer(f"q{row}", Span(text, 1.0), chance, (), 0.0) for row, (text, chance) in enumerate(PREDICTED)]
    errors = question_errors(questions, answers, score_answers(questions, [text for text, _ in PREDICTED]))
    assert list(errors.columns) == ["id", "question", "gold", "predicted", "f1", "probability", "passage"]
    rows = errors.rows()
    # F1 of "bread" against "old bread", without the article: precision 1, recall 1/2.
    assert [row[0] for row in rows] == ["q3", "q0", "q1", "q4", "q2"]
    assert [row[4] for row in rows] == [0.0, 0.0, pytest.approx(2 / 3, abs=1e-5), 1.0, 1.0]
    assert rows[1] == ("q0", "Question 0?", ["Ada", "Ada sells"], "Ulm", 0.0, 0.9, PASSAGE)
    assert rows[4][2:4] == ([], "")
    assert np.array_equal(errors.confidence, [chance for _, chance in PREDICTED])
