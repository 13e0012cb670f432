"""pairs of texts → examples of vectors: anchors, positives, hard negatives, and which texts match each other.

Two texts count as equal where they differ only in case and blanks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bertwright.tables.bad_rows import BadRow
from bertwright.text.document import OnError

_BASE: Final = 1 << 31
"""Number above every key, so that two keys make one number."""


@dataclass(frozen=True)
class TextPairs:
    """N pairs of a first text (anchor) and a second one (positive), and hard negatives, as numbers of the texts.

    firsts      all first texts, each once
    seconds     all second texts and hard negatives, each once
    anchors     [N] number of each pair's first text
    positives   [N] number of its second text
    negatives   of each pair, numbers of the second texts that do not match its anchor
    scores      [N] float64; None where every pair matches
    lines       [N] line on which each pair begins
    twins       True where a positive is its anchor, computed with other dropout
    alike       True where first and second texts are of one kind, and have the same prompt
    """

    firsts: tuple[str, ...]
    seconds: tuple[str, ...]
    anchors: NDArray[np.int64]
    positives: NDArray[np.int64]
    negatives: tuple[tuple[int, ...], ...]
    scores: NDArray[np.float64] | None
    source: str
    lines: tuple[int, ...]
    between: str = ":"  # as in Table
    left_out: Mapping[str, int] = field(default_factory=dict)
    twins: bool = False
    alike: bool = False

    def __len__(self) -> int:
        return len(self.anchors)

    def location(self, row: int) -> str:
        """Return the position of a pair, as "file:line" or "file: row 3"."""
        return f"{self.source}{self.between}{self.lines[row]}"

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> "TextPairs":
        """Return these pairs, in their order, with their texts alone."""
        anchors, positives = (numbers[np.asarray(rows, dtype=np.int64)] for numbers in (self.anchors, self.positives))
        negatives = [self.negatives[row] for row in rows]
        firsts = np.unique(anchors)
        seconds = np.unique(np.concatenate([positives, *(np.array(row, dtype=np.int64) for row in negatives)]))
        return replace(
            self,
            firsts=tuple(self.firsts[number] for number in firsts),
            seconds=tuple(self.seconds[number] for number in seconds),
            anchors=np.searchsorted(firsts, anchors),
            positives=np.searchsorted(seconds, positives),
            negatives=tuple(tuple(np.searchsorted(seconds, row).tolist()) for row in negatives),
            scores=None if self.scores is None else self.scores[np.asarray(rows, dtype=np.int64)],
            lines=tuple(self.lines[row] for row in rows),
        )

    @cached_property
    def _keys(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return a number for each first and each second text; equal texts have equal numbers."""
        numbers: dict[str, int] = {}
        firsts, seconds = (
            np.array([numbers.setdefault(equal_key(text), len(numbers)) for text in texts], dtype=np.int64)
            for texts in (self.firsts, self.seconds)
        )
        return firsts, seconds

    @cached_property
    def _matching(self) -> NDArray[np.int64]:
        """Return the keys of an anchor and its positive, each pair as one number, ascending."""
        firsts, seconds = self._keys
        return np.unique(firsts[self.anchors] * _BASE + seconds[self.positives])

    def match(self, firsts: NDArray[np.int64], seconds: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return [A, P] for A first and P second texts: True where they are a pair of the data, or equal texts."""
        rows, columns = self._keys[0][firsts][:, None], self._keys[1][seconds][None, :]
        wanted = rows * _BASE + columns
        at = np.minimum(np.searchsorted(self._matching, wanted), len(self._matching) - 1)
        return np.asarray((self._matching[at] == wanted) | (rows == columns))


@dataclass(frozen=True)
class PairOfTable:
    """A pair as a file has it: its texts, its hard negatives, its score or its label of inference, and its line."""

    anchor: str
    positive: str
    negatives: tuple[str, ...] = ()
    score: float | None = None
    label: str | None = None
    line: int = 0


def equal_key(text: str) -> str:
    """Return the text in lower case with single blanks."""
    return " ".join(text.casefold().split())


def pairs_of(
    rows: Sequence[PairOfTable], source: str, *, between: str = ":", twins: bool = False, alike: bool = False
) -> TextPairs:
    """Return the pairs with numbers for their texts."""
    firsts, seconds = _Numbers(), _Numbers()
    return TextPairs(
        anchors=np.array([firsts.of(row.anchor) for row in rows], dtype=np.int64),
        positives=np.array([seconds.of(row.positive) for row in rows], dtype=np.int64),
        negatives=tuple(tuple(dict.fromkeys(map(seconds.of, row.negatives))) for row in rows),
        firsts=tuple(firsts.by_text),
        seconds=tuple(seconds.by_text),
        scores=None if not rows or rows[0].score is None else np.array([row.score for row in rows], dtype=np.float64),
        source=source,
        lines=tuple(row.line for row in rows),
        between=between,
        twins=twins,
        alike=alike,
    )


def with_negatives(pairs: TextPairs, negatives: Sequence[Sequence[str]]) -> TextPairs:
    """Return the pairs with more hard negatives, given as the texts of each pair."""
    seconds = _Numbers(pairs.seconds)
    added = [map(seconds.of, texts) for texts in negatives]
    both = tuple(tuple(dict.fromkeys((*old, *new))) for old, new in zip(pairs.negatives, added, strict=True))
    return replace(pairs, seconds=tuple(seconds.by_text), negatives=both)


class _Numbers:
    """Numbers of texts, counted up as new texts come; `texts` are different and have the first numbers."""

    def __init__(self, texts: Sequence[str] = ()) -> None:
        self.by_text = {text: number for number, text in enumerate(texts)}

    def of(self, text: str) -> int:
        return self.by_text.setdefault(text, len(self.by_text))


def without_conflicts(
    rows: Sequence[PairOfTable], location: Callable[[int], str], on_error: OnError
) -> list[PairOfTable]:
    """Return the pairs without those that have a positive of their anchor among their negatives.

    location   text for the line of a pair, for messages
    on_error   function that is called with the BadRow of each such pair; if it returns, the pair is left out
    """
    first: dict[tuple[str, str], int] = {}
    for row in rows:
        first.setdefault((equal_key(row.anchor), equal_key(row.positive)), row.line)
    kept = []
    for row in rows:
        lines = [first.get((equal_key(row.anchor), equal_key(text))) for text in row.negatives]
        positives = [line for line in lines if line is not None]
        if not positives:
            kept.append(row)
            continue
        on_error(contradiction(location(row.line), location(positives[0])))
    return kept


def contradiction(location: str, other: str) -> BadRow:
    """Return the error of a negative at `location` that is a positive of the same anchor at `other`."""
    same = "the same row" if location == other else other
    return BadRow(
        "with a negative that is a positive",
        f"{location}: expected a text that does not match the anchor, got a negative that is a positive of the same "
        f"anchor in {same}; correct one of them",
    )


def counted(pairs: TextPairs) -> str:
    """Return the numbers of pairs, first texts and hard negatives as text for a message."""
    negatives = sum(map(len, pairs.negatives))
    text = f"{len(pairs):,} with {len(pairs.firsts):,} different first texts"
    return f"{text} and {negatives:,} hard negatives" if negatives else text
