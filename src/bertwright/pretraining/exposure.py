"""steps ↔ words: the words that a run has seen after a step, and the steps of a budget in words or epochs.

The words of a row are those of the sentences from which it was made, also of the part that was cut to fit the row. A
corpus counts the words of its text; the words of a part of it are in proportion to its tokens. So an epoch of rows
without a second sentence has each word of the training text once. With next-sentence prediction an epoch has more: its
random second sentences come on top. The first epoch stands for all.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import count, takewhile
from typing import Final

from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.systems import ExampleRows
from bertwright.text.word_counts import MILLION, words_text

SHORTFALL: Final = 0.01
"""Fraction of a budget, or of a mark, that may be missing at the end of the run: samples of a text are of whole
documents."""
_ROUNDING: Final = 1 + 1e-9
_MOST_STEPS: Final = 10**15

Bounds = Callable[[int], Sequence[tuple[int, int]]]
"""Function from the steps of a run to (first step, end) of each phase."""


class Exposure:
    """Words and epochs that a run sees, as functions of its steps.

    corpora: those of the run. phase_rows: rows of each phase. bounds: see `Bounds`. batch_sizes: rows of a step in each
    phase; they never fall.
    """

    def __init__(
        self,
        corpora: Sequence[Corpus],
        phase_rows: Sequence[ExampleRows],
        *,
        bounds: Bounds,
        batch_sizes: Sequence[int],
    ) -> None:
        self._corpora, self._phase_rows = tuple(corpora), tuple(phase_rows)
        self._bounds, self._batch_sizes = bounds, tuple(batch_sizes)

    @property
    def is_counted(self) -> bool:
        """Return whether the words of all corpora were counted."""
        return all(corpus.manifest.words is not None for corpus in self._corpora)

    def epochs(self, done: int, steps: int) -> list[float]:
        """Return the number of epochs of each corpus after `done` of `steps` steps."""
        passes = self._passes(done, steps)
        return [sum(of_phases) for of_phases in zip(*passes, strict=True)]

    def words(self, done: int, steps: int) -> int:
        """Return the number of words seen after `done` of `steps` steps. The words of the corpora were counted."""
        passes = self._passes(done, steps)
        return round(
            sum(
                times * words
                for phase, epochs in zip(passes, self._epoch_words, strict=True)
                for times, words in zip(phase, epochs, strict=True)
            )
        )

    def budget_steps(self, settings: PretrainSettings) -> int | None:
        """Return the number of steps by --steps, --words or --epochs; None with --minutes, which are measured.

        It is the largest number with which the run sees no more than that. Raises InputError where the words were not
        counted, where one step has more than the budget, and where --epochs ends the run long before --words.
        """
        words, epochs = settings.words, settings.epochs
        if words is None and epochs is None:
            return settings.steps
        by_epochs = (
            _MOST_STEPS if epochs is None else self._most_steps(self._most_epochs, epochs, f"--epochs {epochs:g}")
        )
        if words is None:
            return by_epochs
        refuse_uncounted(self._corpora, "--words")
        steps = self._most_steps(lambda steps: self.words(steps, steps), words, f"--words {words_text(words)}")
        if by_epochs < steps and (seen := self.words(by_epochs, by_epochs)) < (1 - SHORTFALL) * words:
            raise InputError(
                f"--words {words_text(words)} --epochs {epochs:g}: the training text read {epochs:g} times has "
                f"{seen:,} words; give at most so many --words, more --epochs, or more text"
            )
        return min(steps, by_epochs)

    def marks(self, steps: int) -> dict[int, int]:
        """Return the marks of --checkpoints-by-words, in words, with the step after which each model is kept.

        That step is the last after which no more words than the mark were seen. The last mark may lie behind the end of
        the run by less than a step or a hundredth. Raises InputError where the words were not counted, where the run
        ends before the first mark, and where a step has more words than are between two marks.
        """
        refuse_uncounted(self._corpora, "--checkpoints-by-words")
        seen = self.words(steps, steps)
        per_step = seen - self.words(steps - 1, steps)
        marks: dict[int, int] = {}
        for mark in marks_up_to(max(round(seen / (1 - SHORTFALL)), seen + per_step - 1)):
            step = steps if mark >= seen else _bisect(lambda done: self.words(done, steps), mark, steps)
            if not step or step in marks.values():
                raise InputError(
                    f"--checkpoints-by-words: a step of {self._batch_sizes[-1]} rows has {per_step:,} words, more than "
                    "are between two models; lower --batch-size"
                )
            marks[mark] = step
        if not marks:
            raise InputError(
                f"--checkpoints-by-words: the run sees {seen:,} words, and the first model is kept at "
                f"{words_text(MILLION)}; leave the option out, or train for longer"
            )
        return marks

    def text(self, done: int, steps: int) -> str:
        """Return the exposure after `done` of `steps` steps in words: "9,999,360 words of text, read 10 times"."""
        times = f"read {self._most_epochs_after(done, steps):.4g} times"
        return f"{self.words(done, steps):,} words of text, {times}" if self.is_counted else f"text {times}"

    def record(self, done: int, steps: int) -> dict[str, float]:
        """Return words, where they were counted, and epochs after `done` of `steps` steps, for run.json.

        Of several corpora, the epochs are those of the one that is read most often.
        """
        epochs = round(self._most_epochs_after(done, steps), 4)
        return {**({"words": self.words(done, steps)} if self.is_counted else {}), "epochs": epochs}

    @cached_property
    def _epoch_words(self) -> list[list[float]]:
        """Number of words of an epoch, for each phase and each corpus."""
        by_length: dict[int, list[float]] = {}
        for rows in self._phase_rows:
            if rows.length not in by_length:
                pairs = zip(self._corpora, rows.epoch_tokens(), strict=True)
                by_length[rows.length] = [
                    (corpus.manifest.words or 0) * tokens / corpus.num_tokens for corpus, tokens in pairs
                ]
        return [by_length[rows.length] for rows in self._phase_rows]

    def _passes(self, done: int, steps: int) -> list[list[float]]:
        """Return the number of epochs of each corpus in each phase."""
        return [
            rows.passes(max(0, min(end, done) - begin) * size)
            for rows, size, (begin, end) in zip(self._phase_rows, self._batch_sizes, self._bounds(steps), strict=True)
        ]

    def _most_epochs_after(self, done: int, steps: int) -> float:
        return max(self.epochs(done, steps))

    def _most_epochs(self, steps: int) -> float:
        return max(self.epochs(steps, steps))

    def _most_steps(self, seen: Callable[[int], float], budget: float, option: str) -> int:
        """Return the largest number of steps of a run that sees no more than the budget."""
        above = next(steps for steps in (1 << power for power in count()) if seen(steps) > budget * _ROUNDING)
        if above == 1:
            sizes = zip(self._batch_sizes, self._bounds(1), strict=True)
            rows = next(size for size, (begin, end) in sizes if begin < end)
            raise InputError(f"{option}: expected at least one step; {rows} rows have {seen(1):,.4g} of it")
        return _bisect(seen, budget * _ROUNDING, above)


def refuse_uncounted(corpora: Sequence[Corpus], option: str) -> None:
    """Raise InputError where the words of a corpus were not counted."""
    for corpus in corpora:
        if corpus.manifest.words is None:
            raise InputError(
                f"{corpus.folder}: {option} needs a corpus whose words were counted, and its manifest.json has no "
                "number of words: build the corpus again, or give --epochs or --steps in place of words"
            )


def marks_up_to(words: int) -> list[int]:
    """Return 1, 2, … 10, 20, … 100, 200, … million words, up to `words`."""
    marks = (digit * MILLION * 10**power for power in count() for digit in range(1, 10))
    return list(takewhile(lambda mark: mark <= words, marks))


def _bisect(seen: Callable[[int], float], budget: float, above: int) -> int:
    """Return the largest number of steps, from 0 to `above` - 1, after which no more than `budget` was seen."""
    low, high = 0, above
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if seen(middle) <= budget else (low, middle)
    return low
