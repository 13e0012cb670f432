"""logits → answers: the best spans of each passage, or none (paper §4.2: S·Tᵢ + E·Tⱼ with j ≥ i; §4.3: against [CLS]).

A span begins at a piece in the window where that piece has the most context, and ends in the same window. Its text is
the characters of the passage from its first to its last piece.

Shapes: Q questions, N windows, L passage pieces of all windows, n start positions, D span lengths.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.tasks.finite import check_finite, softmax
from bertwright.tasks.question_answering.data import Questions
from bertwright.tasks.question_answering.score import Scores, best_threshold, score_answers, with_threshold
from bertwright.tasks.question_answering.spec import SpanTask
from bertwright.tasks.question_answering.windows import Windows

CHUNK: Final = 100_000  # start positions that are computed at a time, which limits the memory


@dataclass(frozen=True)
class SpanLogits:
    """`start` and `end` [L] of the windows' passage pieces, window after window; `null` [N]: sum of both at [CLS]."""

    start: NDArray[np.float32]
    end: NDArray[np.float32]
    null: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Span:
    """A span of a passage, from character `first` to before `last`, and its score; both are None for "no answer"."""

    text: str
    score: float
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True)
class Answer:
    """The chosen span and the candidates with their softmax probabilities; in SQuAD 2.0 "no answer" is a candidate.

    null_odds   score of "no answer" minus the score of the best span; None in SQuAD 1.1
    """

    id: str
    chosen: Span
    probability: float
    candidates: tuple[tuple[Span, float], ...]
    null_odds: float | None


def best_spans(
    windows: Windows, logits: SpanLogits, questions: Questions, *, longest: int, count: int
) -> list[tuple[Span, ...]]:
    """Return the `count` best spans of each question, at most `longest` pieces long, with distinct texts.

    The best span comes first; on ties the earlier one, then the shorter. A passage without pieces has no spans. Raises
    RunFailed unless all logits are finite.
    """
    ends = np.cumsum(windows.sizes)[:-1]
    for values in (np.split(logits.start, ends), np.split(logits.end, ends), logits.null):
        check_finite(values, lambda window: f"question {questions.items[windows.question[window]].id}")
    spans: list[tuple[Span, ...]] = []
    for chunk in _chunks(windows, len(questions)):
        positions, sums, bounds = _sums(windows, logits, chunk, longest)
        for index in range(len(bounds) - 1):
            part = slice(bounds[index], bounds[index + 1])
            context = questions.items[len(spans)].context
            spans.append(_distinct(sums[part], windows.offsets, positions[part], context, count))
    return spans


def null_scores(windows: Windows, logits: SpanLogits, num_questions: int) -> NDArray[np.float64]:
    """Return the score of "no answer" [Q]: the minimum of S·C + E·C over a question's windows."""
    scores = np.full(num_questions, np.inf)
    np.minimum.at(scores, windows.question, logits.null.astype(np.float64))
    return scores


def null_odds(spans: Sequence[tuple[Span, ...]], nulls: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the score of "no answer" minus the best span's score [Q]; the largest number where there is no span."""
    best = np.array([candidates[0].score if candidates else -np.inf for candidates in spans])
    odds: NDArray[np.float64] = np.minimum(nulls - best, np.finfo(np.float64).max)
    return odds


def decode_spans(
    windows: Windows, logits: SpanLogits, questions: Questions, task: SpanTask, *, threshold: float = 0.0
) -> list[Answer]:
    """Return the answer to each question; in 2.0 it is "no answer" for null odds above the threshold."""
    spans = best_spans(windows, logits, questions, longest=task.longest_answer, count=task.n_best)
    nulls = null_scores(windows, logits, len(questions))
    odds = null_odds(spans, nulls)
    answers = []
    for row, (question, candidates) in enumerate(zip(questions.items, spans, strict=True)):
        no_answer = Span("", float(nulls[row]))
        is_null = not candidates or (task.null and odds[row] > threshold)
        listed = list(candidates)
        if task.null or not candidates:
            listed = sorted([*candidates, no_answer], key=lambda span: -span.score)
        chosen = no_answer if is_null else candidates[0]
        probabilities = softmax(np.array([span.score for span in listed])).tolist()
        answers.append(
            Answer(
                id=question.id,
                chosen=chosen,
                probability=probabilities[listed.index(chosen)],
                candidates=tuple(zip(listed, probabilities, strict=True)),
                null_odds=float(odds[row]) if task.null else None,
            )
        )
    return answers


def score_spans(
    windows: Windows, logits: SpanLogits, questions: Questions, task: SpanTask, *, threshold: float | None = None
) -> tuple[Scores, float, bool]:
    """Return the scores, the threshold of the null odds, and True where all questions got the same answer.

    Where no threshold is passed and the task has "no answer", the threshold with the best F1 is chosen (paper §4.3).
    """
    spans = best_spans(windows, logits, questions, longest=task.longest_answer, count=1)
    texts = [candidates[0].text if candidates else "" for candidates in spans]
    scores = score_answers(questions, texts)
    if not task.null:
        return scores, 0.0, len(set(texts)) == 1
    odds = null_odds(spans, null_scores(windows, logits, len(questions)))
    if threshold is None:
        threshold = best_threshold(scores.f1, scores.null, odds).middle
    answered = {"" if null else text for text, null in zip(texts, odds > threshold, strict=True)}
    return with_threshold(scores, odds, threshold), threshold, len(answered) == 1


def _chunks(windows: Windows, num_questions: int) -> Iterator[tuple[int, int]]:
    """Yield (first, one past last) question of each chunk of about CHUNK passage pieces, at least one question."""
    sizes = np.zeros(num_questions, dtype=np.int64)
    np.add.at(sizes, windows.question, windows.core[:, 1] - windows.core[:, 0])
    before = np.concatenate(([0], np.cumsum(sizes)))
    begin = 0
    while begin < num_questions:
        end = max(begin + 1, int(np.searchsorted(before, before[begin] + CHUNK, side="right")) - 1)
        yield begin, end
        begin = end


def _sums(
    windows: Windows, logits: SpanLogits, chunk: tuple[int, int], longest: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Return a chunk's start positions [n], the scores of all spans from each [n, D], and each question's bounds.

    Column d has the span of d + 1 pieces; spans that end outside the window are -inf.
    """
    first, last = (int(row) for row in np.searchsorted(windows.question, chunk))
    core, span = windows.core[first:last].astype(np.int64), windows.span[first:last].astype(np.int64)
    begins = (np.cumsum(windows.sizes) - windows.sizes)[first:last]  # start of each window's logits
    counts = core[:, 1] - core[:, 0]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    positions = np.repeat(core[:, 0], counts) + within
    at = np.repeat(begins + core[:, 0] - span[:, 0], counts) + within
    left = np.repeat(span[:, 1], counts) - positions  # pieces up to the window's end
    sums = np.full((len(positions), longest), -np.inf, dtype=np.float32)
    for more in range(longest):
        fits = np.flatnonzero(left > more)
        sums[fits, more] = logits.start[at[fits]] + logits.end[at[fits] + more]
    of_question = np.repeat(windows.question[first:last], counts)
    bounds: NDArray[np.int64] = np.searchsorted(of_question, np.arange(chunk[0], chunk[1] + 1))
    return positions, sums, bounds


def _distinct(
    sums: NDArray[np.float32], offsets: NDArray[np.int32], positions: NDArray[np.int64], context: str, count: int
) -> tuple[Span, ...]:
    """Return the `count` best spans of one question with different texts; `sums` [n, D] are the scores of all spans."""
    flat = sums.ravel()
    num_valid = int(np.count_nonzero(flat > -np.inf))
    num_best = count  # doubled until these spans have enough different texts
    while True:
        by_text: dict[str, Span] = {}
        for index in _best(flat, min(num_best, num_valid)):
            row, more = divmod(int(index), sums.shape[1])
            first, last = int(offsets[positions[row], 0]), int(offsets[positions[row] + more, 1])
            text = context[first:last]
            if text not in by_text:
                by_text[text] = Span(text, float(flat[index]), first, last)
        if len(by_text) >= count or num_best >= num_valid:
            return tuple(by_text.values())[:count]
        num_best *= 2


def _best(values: NDArray[np.float32], count: int) -> NDArray[Any]:
    """Return the indices of the `count` largest values, largest first; the first one on ties."""
    if count == 1:
        return np.array([values.argmax()])
    if count == 0:
        return np.array([], dtype=np.int64)
    least = np.partition(values, len(values) - count)[len(values) - count]
    chosen = np.flatnonzero(values >= least)
    return chosen[np.argsort(-values[chosen], kind="stable")][:count]
