"""questions with passages → metrics of simple answers without an encoder, which an encoder should exceed (paper §4.2).

The paper of SQuAD compares with a sliding window: the part of the passage that shares most words with the question.
Here that part is a sentence.
"""

from functools import cache

from bertwright.finetuning.baselines import Baselines
from bertwright.tasks.question_answering.data import Questions
from bertwright.tasks.question_answering.score import flat_metrics, normalised, score_answers
from bertwright.text.document import Document, TextSettings, paragraphs_of
from bertwright.text.sentences import split_sentences


def question_baselines(validation: Questions) -> Baselines:
    """Return the metrics, in percent, of the sentence with most words of the question as the answer.

    SQuAD 2.0 has a second baseline: "no answer" to every question. Neither learns anything.
    """
    answers = {"sentence with most words of the question": nearest_sentences(validation)}
    null = validation.version == "2.0"
    if null:
        answers["no answer"] = [""] * len(validation)
    return Baselines(
        {name: flat_metrics(score_answers(validation, texts), null=null) for name, texts in answers.items()}
    )


def nearest_sentences(questions: Questions) -> list[str]:
    """Return for each question the sentence of its passage with most of its words; on ties the first one.

    Words are compared without case, punctuation and articles, as answers are.
    """
    sentences = cache(_sentences)
    texts = []
    for question in questions.items:
        words = set(normalised(question.text).split())
        text, _ = max(sentences(question.context), key=lambda sentence: len(words & sentence[1]))
        texts.append(text)
    return texts


def _sentences(passage: str) -> list[tuple[str, frozenset[str]]]:
    """Return the sentences of a passage with their words."""
    settings = TextSettings()
    document = Document(paragraphs_of(passage.split("\n"), settings), "")
    return [(text, frozenset(normalised(text).split())) for text in split_sentences(document, settings)]
