"""Length of the passages of a search: how often the answers of SQuAD's questions are in the nearest passages.

    python -m benchmarks.studies.passages --model MODEL --data dev-v1.1.json [--questions 1500]

The paragraphs of an article are joined to a document, and all documents are cut into passages. A passage has the answer
of a question if it is of its article and contains one of its answers. A row for each length, in tokens:

    article     share of questions whose nearest passage is of their article
    first, five share of questions with the answer in the nearest passage, and in the five nearest ones
    equal       the same for as many passages as have 1,024 tokens together
"""

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from bertwright.search.passages import PassageCutter
from bertwright.search.run import open_encoder
from bertwright.tasks.embedding.metrics import unit

LENGTHS: Final = (64, 128, 192, 256)
TOKENS: Final = 1024

Question = tuple[int, str, frozenset[str]]
"""Number of the article, question, answers."""


def read_articles(path: Path, count: int) -> tuple[list[str], list[Question]]:
    """Return the articles of a file of SQuAD, and `count` of their questions, drawn at random."""
    articles = json.loads(path.read_text("utf-8"))["data"]
    texts = ["\n\n".join(paragraph["context"] for paragraph in article["paragraphs"]) for article in articles]
    questions = [
        (number, question["question"], frozenset(answer["text"] for answer in question["answers"]))
        for number, article in enumerate(articles)
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    return texts, random.Random(0).sample(questions, min(count, len(questions)))


def share_with_answer(
    passages: Sequence[tuple[int, str]], questions: Sequence[Question], order: Sequence[Sequence[int]], most: int
) -> float:
    """Return the share of questions with an answer in one of the first `most` passages of their order."""

    def is_answered(question: Question, nearest: Sequence[int]) -> bool:
        number, _, answers = question
        texts = [passages[row][1] for row in nearest[:most] if passages[row][0] == number]
        return any(answer in text for text in texts for answer in answers)

    return float(np.mean([is_answered(*pair) for pair in zip(questions, order, strict=True)]))


def main() -> None:
    """Print a row for each length."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", required=True, help="model folder that computes the vectors")
    options.add_argument("--data", type=Path, required=True, help="file of SQuAD")
    options.add_argument("--questions", type=int, default=1500)
    arguments = options.parse_args()
    articles, questions = read_articles(arguments.data, arguments.questions)
    encoder = open_encoder(arguments.model, "auto", "cpu")
    queries = unit(encoder.vectors([question for _, question, _ in questions], "query"))
    print(f"{'tokens':>6} {'passages':>8} {'article':>8} {'first':>8} {'five':>8} {'equal':>8}")
    for length in LENGTHS:
        cutter = PassageCutter(encoder, length)
        passages = [(number, text) for number, article in enumerate(articles) for text in cutter.passages(article)]
        vectors = unit(encoder.vectors([text for _, text in passages], "document"))
        order = np.argsort(-(queries @ vectors.T), axis=1)[:, : TOKENS // LENGTHS[0]].tolist()
        same = [passages[rows[0]][0] == question[0] for question, rows in zip(questions, order, strict=True)]
        shares = [share_with_answer(passages, questions, order, most) for most in (1, 5, TOKENS // length)]
        print(f"{length:6} {len(passages):8,} {np.mean(same):8.3f}", *(f"{share:8.3f}" for share in shares), flush=True)


if __name__ == "__main__":
    main()
