"""Answers from logits: against a plain search through every span, probabilities, and the threshold of "no answer"."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.errors import RunFailed
from bertwright.tasks.question_answering import answers as squad_answers
from bertwright.tasks.question_answering.answers import Answer, SpanLogits, best_spans, decode_spans, score_spans
from bertwright.tasks.question_answering.data import Question, Questions
from bertwright.tasks.question_answering.score import score_answers
from bertwright.tasks.question_answering.spec import SQUAD1, SQUAD2
from bertwright.tasks.question_answering.windows import Windows, encode_windows
from tests.support.letters import LettersWithOffsets


def questions_on(contexts: list[str], golds: list[tuple[str, ...]] | None = None, version: Any = "1.1") -> Questions:
    gold_answers = golds or [()] * len(contexts)
    items = (
        Question(f"q{row}", "Who?", context, tuple((gold, -1) for gold in texts))
        for row, (context, texts) in enumerate(zip(contexts, gold_answers, strict=True))
    )
    return Questions(tuple(items), version, "made up")


def random_logits(windows: Windows, seed: int, *, coarse: bool = False) -> SpanLogits:
    """Numbers at random; coarse ones have many ties and are exact in float32."""
    random = np.random.default_rng(seed)
    count = int((windows.span[:, 1] - windows.span[:, 0]).sum())

    def values(size: int) -> Any:
        return (random.integers(-8, 8, size) / 4 if coarse else random.normal(size=size)).astype(np.float32)

    return SpanLogits(values(count), values(count), values(len(windows)))


def plain_search(windows: Windows, logits: SpanLogits, question: int, context: str, longest: int) -> list[Any]:
    """(score, first, last, text) of all spans of a question, the best first, one for each text."""
    every = []
    begin = 0
    for window in range(len(windows)):
        first, last = (int(piece) for piece in windows.span[window])
        if windows.question[window] == question:
            for piece in range(*windows.core[window]):
                for end in range(piece, min(last, piece + longest)):
                    score = logits.start[begin + piece - first] + logits.end[begin + end - first]
                    cut = int(windows.offsets[piece, 0]), int(windows.offsets[end, 1])
                    every.append((float(score), *cut, context[slice(*cut)]))
        begin += last - first
    every.sort(key=lambda span: (-span[0], span[1], span[2]))
    distinct: dict[str, Any] = {}
    for span in every:
        distinct.setdefault(span[3], span)
    return list(distinct.values())


@settings(max_examples=120, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    length=st.integers(10, 40),
    stride=st.integers(1, 20),
    longest=st.integers(1, 12),
    count=st.integers(1, 25),
    letters=st.integers(1, 4),
    coarse=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_the_best_spans_are_those_of_a_search_through_all(
    sizes: list[int], length: int, stride: int, longest: int, count: int, letters: int, coarse: bool, seed: int
) -> None:
    """Also with few letters, where most spans have the same text as a better one, and with scores that are equal."""
    random = np.random.default_rng(seed)
    contexts = ["".join("abcd "[n] for n in random.integers(0, letters, size)) for size in sizes]
    questions = questions_on(contexts)
    task = SQUAD1.model_copy(update={"stride": stride})
    windows = encode_windows(LettersWithOffsets(), questions, task, max_length=length)
    logits = random_logits(windows, seed, coarse=coarse)
    best = best_spans(windows, logits, questions, longest=longest, count=count)
    for row, context in enumerate(contexts):
        expected = plain_search(windows, logits, row, context, longest)[:count]
        spans = [(span.score, span.first, span.last, span.text) for span in best[row]]
        assert spans == expected


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = questions_on(["abc " * size for size in (1, 30, 4, 9, 2, 60)])
    windows = encode_windows(LettersWithOffsets(), questions, SQUAD1.model_copy(update={"stride": 8}), max_length=32)
    logits = random_logits(windows, 5)
    whole = best_spans(windows, logits, questions, longest=30, count=20)
    for size in (1, 7, 50):
        monkeypatch.setattr(squad_answers, "CHUNK", size)
        assert best_spans(windows, logits, questions, longest=30, count=20) == whole


def decoded(task: Any, threshold: float = 0.0) -> tuple[Questions, Windows, SpanLogits, list[Answer]]:
    questions = questions_on(["a bc def", "ghi j"])
    windows = encode_windows(LettersWithOffsets(), questions, task, max_length=20)
    logits = random_logits(windows, 3)
    return questions, windows, logits, decode_spans(windows, logits, questions, task, threshold=threshold)


def test_probabilities_are_a_softmax_over_what_is_listed() -> None:
    questions, windows, logits, answers = decoded(SQUAD1.model_copy(update={"n_best": 4}))
    for row, answer in enumerate(answers):
        expected = plain_search(windows, logits, row, questions.items[row].context, 30)[:4]
        assert [span.text for span, _ in answer.candidates] == [text for *_, text in expected]
        powers = [math.exp(score) for score, *_ in expected]
        assert [share for _, share in answer.candidates] == pytest.approx([power / sum(powers) for power in powers])
        assert (answer.chosen, answer.probability) == answer.candidates[0]
        assert answer.null_odds is None


def test_no_answer_stands_among_the_spans_of_2_0() -> None:
    _, _, logits, answers = decoded(SQUAD2.model_copy(update={"n_best": 4}))
    for row, answer in enumerate(answers):
        best = next(span for span, _ in answer.candidates if span.first is not None)
        (nothing,) = [span for span, _ in answer.candidates if span.first is None]
        assert (nothing.text, nothing.last, nothing.score) == ("", None, logits.null[row])
        assert len(answer.candidates) == 5
        scores = [span.score for span, _ in answer.candidates]
        assert scores == sorted(scores, reverse=True)
        assert sum(share for _, share in answer.candidates) == pytest.approx(1)
        assert answer.null_odds == pytest.approx(nothing.score - best.score)


def test_the_threshold_decides_between_the_best_span_and_none() -> None:
    odds = [answer.null_odds for answer in decoded(SQUAD2)[3]]
    for threshold in [*odds, min(odds) - 1, max(odds) + 1]:  # type: ignore[type-var]
        for answer, odd in zip(decoded(SQUAD2, threshold)[3], odds, strict=True):
            assert (answer.chosen.text == "") == (odd > threshold)
            assert answer.probability == dict(answer.candidates)[answer.chosen]


def test_the_null_score_is_the_least_of_the_windows() -> None:
    questions = questions_on(["abcdefgh" * 4])
    windows = encode_windows(LettersWithOffsets(), questions, SQUAD2.model_copy(update={"stride": 4}), max_length=20)
    assert len(windows) > 3
    logits = random_logits(windows, 1)
    (answer,) = decode_spans(windows, logits, questions, SQUAD2)
    best = best_spans(windows, logits, questions, longest=30, count=1)[0][0]
    assert answer.null_odds == pytest.approx(float(logits.null.min()) - best.score)


def test_the_threshold_is_the_best_for_f1_of_all_there_are() -> None:
    """Against every cut, each scored from the texts that it leaves."""
    random = np.random.default_rng(11)
    for seed in range(20):
        contexts = ["".join("abc "[n] for n in random.integers(0, 4, 12)) + "d" for _ in range(8)]
        golds = [() if random.random() < 0.4 else (context[2:7].strip() or "d",) for context in contexts]
        questions = questions_on(contexts, golds, "2.0")
        windows = encode_windows(LettersWithOffsets(), questions, SQUAD2, max_length=30)
        logits = random_logits(windows, seed)
        scores, threshold, _ = score_spans(windows, logits, questions, SQUAD2)
        answers = decode_spans(windows, logits, questions, SQUAD2, threshold=threshold)
        by_text = score_answers(questions, [answer.chosen.text for answer in answers])
        assert by_text.f1.tolist() == scores.f1.tolist()
        assert by_text.em.tolist() == scores.em.tolist()
        odds = [float(answer.null_odds or 0) for answer in answers]
        for cut in [min(odds) - 1, *odds]:
            other, kept, _ = score_spans(windows, logits, questions, SQUAD2, threshold=cut)
            assert kept == cut
            assert other.f1.sum() <= scores.f1.sum() + 1e-9


@pytest.mark.parametrize("task", [SQUAD1, SQUAD2])
def test_a_passage_without_a_piece_is_answered_with_nothing(task: Any) -> None:
    questions = questions_on([" ", "x y"], [(), ("y",)], "2.0")
    windows = encode_windows(LettersWithOffsets(), questions, task, max_length=20)
    logits = SpanLogits(*(np.array(values, dtype=np.float32) for values in ([0, 1], [0, 1], [-9, -9])))
    first, second = decode_spans(windows, logits, questions, task, threshold=0.0)
    assert (first.chosen.text, first.chosen.first, first.probability) == ("", None, 1.0)
    assert second.chosen.text == "y"
    assert first.null_odds is None or math.isfinite(first.null_odds)
    scores, threshold, _ = score_spans(windows, logits, questions, task)
    assert math.isfinite(threshold)
    assert scores.em.tolist() == [1.0, 1.0]


def test_the_same_answer_to_everything_is_reported() -> None:
    questions = questions_on(["ab", "ab", "cd"], [("ab",), (), ("cd",)], "2.0")
    windows = encode_windows(LettersWithOffsets(), questions, SQUAD2, max_length=20)
    best_first = np.array([1, 0] * 3, dtype=np.float32)
    best_last = np.array([0, 1] * 3, dtype=np.float32)
    for nulls, threshold in itertools.product(([0, 0, 0], [5, 5, 0], [9, 9, 9]), (10.0, 5.0, 0.0, -10.0)):
        logits = SpanLogits(best_first, best_last, np.array(nulls, dtype=np.float32))
        texts = ["" if null - 2 > threshold else text for null, text in zip(nulls, ["ab", "ab", "cd"], strict=True)]
        assert score_spans(windows, logits, questions, SQUAD2, threshold=threshold)[2] is (len(set(texts)) == 1)
    logits = SpanLogits(best_first, best_last, np.zeros(3, dtype=np.float32))
    assert score_spans(windows, logits, questions, SQUAD1)[2] is False


@pytest.mark.parametrize("broken", ["start", "end", "null"])
def test_numbers_that_are_not_finite_are_no_answer(broken: str) -> None:
    questions = questions_on(["ab"])
    windows = encode_windows(LettersWithOffsets(), questions, SQUAD1, max_length=20)
    values = {name: np.zeros(size, dtype=np.float32) for name, size in (("start", 2), ("end", 2), ("null", 1))}
    values[broken][0] = np.nan
    with pytest.raises(RunFailed, match=f"question {questions.items[0].id}: expected finite numbers"):
        best_spans(windows, SpanLogits(**values), questions, longest=30, count=1)
