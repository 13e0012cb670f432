"""Questions with gold answers in SQuAD's layout, for tests of scores."""

from typing import Any

MANY = "Ada swam across the wide lake at dawn, and nobody saw her."


def gold(*answers: list[str], version: str = "1.1") -> dict[str, Any]:
    """A file with a question for each list of answers, q0, q1, …"""
    qas = [
        {"id": f"q{row}", "question": "Who?", "answers": [{"text": text, "answer_start": 0} for text in gold_answers]}
        | ({"is_impossible": not gold_answers} if version == "2.0" else {})
        for row, gold_answers in enumerate(answers)
    ]
    return {"version": version, "data": [{"title": "t", "paragraphs": [{"context": MANY, "qas": qas}]}]}
