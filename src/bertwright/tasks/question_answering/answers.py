"""logits → answers: the best spans of each passage, or none (paper §4.2: S·Tᵢ + E·Tⱼ with j ≥ i; §4.3: against [CLS]).

A span begins at a piece in the window where that piece has most context, and ends in the same window. Its text is cut
from the passage by characters.

Shapes: Q questions, N windows, L their pieces of passages together, n places, D lengths.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import RunFailed
from bertwright.tasks.question_answering.data import Questions
from bertwright.tasks.question_answering.score import Scores, best_threshold, score_answers, with_threshold
from bertwright.tasks.question_answering.spec import SpanTask
from bertwright.tasks.question_answering.windows import Windows

CHUNK: Final = 100_000  # places whose spans are compared at a time, which bounds the memory


@dataclass(frozen=True)
class SpanLogits:
    """`start` and `end` [L] of the windows' pieces of passages, one window after another; `null` [N]: both of [CLS]."""

    start: NDArray[np.float32]
    end: NDArray[np.float32]
    null: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a passage: (first, one past last) character, and its score; without characters it is no answer."""

    text: str
    score: float
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True)
class Answer:
    """What is answered: the likeliest spans with the shares of a softmax over them, "no answer" among them in 2.0.

    null_odds   how much "no answer" scores above the best span; None in 1.1
    """

    id: str
    chosen: Span
    probability: float
    candidates: tuple[tuple[Span, float], ...]
    null_odds: float | None


def best_spans(
    windows: Windows, logits: SpanLogits, questions: Questions, *, longest: int, count: int
) -> list[tuple[Span, ...]]:
    """The `count` best spans of at most `longest` pieces of each question, distinct in their text, the best first.

    Of equals, the earlier, then the shorter. None for a passage of which the tokenizer leaves nothing. RunFailed where
    the logits are not finite.
    """
    for name, values in (("start", logits.start), ("end", logits.end), ("null", logits.null)):
        if not np.all(np.isfinite(values)):
            raise RunFailed(f"the model's {name} scores hold numbers that are not finite")
    found: list[tuple[Span, ...]] = []
    for chunk in _chunks(windows, len(questions)):
        places, sums, bounds = _sums(windows, logits, chunk, longest)
        for index in range(len(bounds) - 1):
            part = slice(bounds[index], bounds[index + 1])
            context = questions.items[len(found)].context
            found.append(_distinct(sums[part], windows.offsets, places[part], context, count))
    return found


def null_scores(windows: Windows, logits: SpanLogits, num_questions: int) -> NDArray[np.float64]:
    """[Q] what "no answer" scores: the least of S·C + E·C over a question's windows."""
    scores = np.full(num_questions, np.inf)
    np.minimum.at(scores, windows.question, logits.null.astype(np.float64))
    return scores


def null_odds(spans: Sequence[tuple[Span, ...]], nulls: NDArray[np.float64]) -> NDArray[np.float64]:
    """[Q] how much "no answer" scores above the best span; the largest number where there is no span."""
    best = np.array([found[0].score if found else -np.inf for found in spans])
    odds: NDArray[np.float64] = np.minimum(nulls - best, np.finfo(np.float64).max)
    return odds


def decode_spans(
    windows: Windows, logits: SpanLogits, questions: Questions, task: SpanTask, *, threshold: float = 0.0
) -> list[Answer]:
    """The answers to all questions; where the task knows "no answer", that for null odds above the threshold."""
    spans = best_spans(windows, logits, questions, longest=task.longest_answer, count=task.n_best)
    nulls = null_scores(windows, logits, len(questions))
    odds = null_odds(spans, nulls)
    answers = []
    for row, (question, found) in enumerate(zip(questions.items, spans, strict=True)):
        nothing = Span("", float(nulls[row]))
        is_null = not found or (task.null and odds[row] > threshold)
        listed = sorted([*found, nothing], key=lambda span: -span.score) if task.null or not found else list(found)
        chosen = nothing if is_null else found[0]
        shares = _softmax([span.score for span in listed])
        answers.append(
            Answer(
                id=question.id,
                chosen=chosen,
                probability=shares[listed.index(chosen)],
                candidates=tuple(zip(listed, shares, strict=True)),
                null_odds=float(odds[row]) if task.null else None,
            )
        )
    return answers


def score_spans(
    windows: Windows, logits: SpanLogits, questions: Questions, task: SpanTask, *, threshold: float | None = None
) -> tuple[Scores, float, bool]:
    """How right the answers are, the threshold of the null odds, and whether all questions were answered the same.

    Without a threshold the one is chosen, where the task knows "no answer", that gives the best F1 (paper §4.3).
    """
    spans = best_spans(windows, logits, questions, longest=task.longest_answer, count=1)
    texts = [found[0].text if found else "" for found in spans]
    scores = score_answers(questions, texts)
    if not task.null:
        return scores, 0.0, len(set(texts)) == 1
    odds = null_odds(spans, null_scores(windows, logits, len(questions)))
    if threshold is None:
        threshold = best_threshold(scores.f1, scores.null, odds).middle
    given = {"" if null else text for text, null in zip(texts, odds > threshold, strict=True)}
    return with_threshold(scores, odds, threshold), threshold, len(given) == 1


def _chunks(windows: Windows, num_questions: int) -> Iterator[tuple[int, int]]:
    """(first, one past last) question, so many that their passages have CHUNK places together, one at least."""
    places = np.zeros(num_questions, dtype=np.int64)
    np.add.at(places, windows.question, windows.own[:, 1] - windows.own[:, 0])
    before = np.concatenate(([0], np.cumsum(places)))
    begin = 0
    while begin < num_questions:
        end = max(begin + 1, int(np.searchsorted(before, before[begin] + CHUNK, side="right")) - 1)
        yield begin, end
        begin = end


def _sums(
    windows: Windows, logits: SpanLogits, chunk: tuple[int, int], longest: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """The chunk's places [n] in the order of the questions, all spans from each [n, D], each question's bounds.

    The span of d + 1 pieces stands in column d; what reaches beyond the window is -inf.
    """
    first, last = (int(row) for row in np.searchsorted(windows.question, chunk))
    own, span = windows.own[first:last].astype(np.int64), windows.span[first:last].astype(np.int64)
    sizes = windows.span[:, 1].astype(np.int64) - windows.span[:, 0]
    begins = (np.cumsum(sizes) - sizes)[first:last]  # where each window's logits begin
    counts = own[:, 1] - own[:, 0]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.repeat(own[:, 0], counts) + within
    at = np.repeat(begins + own[:, 0] - span[:, 0], counts) + within
    left = np.repeat(span[:, 1], counts) - places  # pieces from here to the window's end
    sums = np.full((len(places), longest), -np.inf, dtype=np.float32)
    for more in range(longest):
        fits = np.flatnonzero(left > more)
        sums[fits, more] = logits.start[at[fits]] + logits.end[at[fits] + more]
    of_question = np.repeat(windows.question[first:last], counts)
    bounds: NDArray[np.int64] = np.searchsorted(of_question, np.arange(chunk[0], chunk[1] + 1))
    return places, sums, bounds


def _distinct(
    sums: NDArray[np.float32], offsets: NDArray[np.int32], places: NDArray[np.int64], context: str, count: int
) -> tuple[Span, ...]:
    """The best spans of one question [n, D] with different texts; more are looked at until there are enough."""
    flat = sums.ravel()
    num_valid = int(np.count_nonzero(flat > -np.inf))
    looked_at = count
    while True:
        found: dict[str, Span] = {}
        for index in _best(flat, min(looked_at, num_valid)):
            place, more = divmod(int(index), sums.shape[1])
            first, last = int(offsets[places[place], 0]), int(offsets[places[place] + more, 1])
            text = context[first:last]
            if text not in found:
                found[text] = Span(text, float(flat[index]), first, last)
        if len(found) >= count or looked_at >= num_valid:
            return tuple(found.values())[:count]
        looked_at *= 2


def _best(values: NDArray[np.float32], count: int) -> NDArray[Any]:
    """The indices of the `count` largest values, the largest first, of equals the first."""
    if count == 1:
        return np.array([values.argmax()])
    if count == 0:
        return np.array([], dtype=np.int64)
    least = np.partition(values, len(values) - count)[len(values) - count]
    chosen = np.flatnonzero(values >= least)
    return chosen[np.argsort(-values[chosen], kind="stable")][:count]


def _softmax(scores: Sequence[float]) -> list[float]:
    powers = np.exp(np.array(scores) - max(scores))
    return [float(share) for share in powers / powers.sum()]
