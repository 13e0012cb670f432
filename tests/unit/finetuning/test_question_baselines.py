"""Baselines of questions: the sentence nearest to the question, and no answer."""

import pytest

from bertwright.finetuning.question_baselines import nearest_sentences, question_baselines
from bertwright.tasks.question_answering.data import Question, Questions

PASSAGE = "The mill is old. Marta sells bread, in the town!\nSeven boats lay in the harbour. Marta sings."


def questions(*pairs: tuple[str, tuple[str, ...]], version: str = "1.1") -> Questions:
    items = (
        Question(f"q{row}", text, PASSAGE, tuple((gold, PASSAGE.index(gold)) for gold in golds))
        for row, (text, golds) in enumerate(pairs)
    )
    return Questions(tuple(items), "2.0" if version == "2.0" else "1.1", "made up")


def test_the_sentence_with_most_words_of_the_question_is_the_answer() -> None:
    nearest = nearest_sentences(
        questions(
            ("How many BOATS are in a harbour?", ()),
            ("What does marta sell in town?", ()),
            ("Marta?", ()),  # in two sentences: the first one
            ("Warum?", ()),  # in none: the first sentence
        )
    )
    assert nearest == [
        "Seven boats lay in the harbour.",
        "Marta sells bread, in the town!",
        "Marta sells bread, in the town!",
        "The mill is old.",
    ]


def test_f1_and_exact_match_are_those_of_the_sentence() -> None:
    rows = questions(("How many boats lay in the harbour?", ("Seven",)), ("Is the mill old?", ("The mill is old.",)))
    # One of the five words without the article: precision 1/5, recall 1, F1 1/3; the second answer is exact.
    assert question_baselines(rows).metrics == {
        "sentence with most words of the question": {"f1": pytest.approx(100 * (1 / 3 + 1) / 2), "em": 50.0}
    }


def test_version_two_has_no_answer_as_a_baseline() -> None:
    rows = questions(("Who?", ()), ("Where?", ()), ("When?", ()), ("Mill?", ("old",)), version="2.0")
    metrics = question_baselines(rows).metrics["no answer"]
    assert (metrics["f1"], metrics["em"]) == (75.0, 75.0)
    assert (metrics["has_answer.f1"], metrics["no_answer.em"]) == (0.0, 100.0)  # --best takes these names too
