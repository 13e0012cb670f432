"""words → token ids: windows in which every word is asked for once, where most stands around it (paper §5.3).

The first piece of a word answers for it. A sentence that fits is filled up with its document's neighbouring sentences,
as much on either side as there is room for, and its own words are asked for; a longer one is covered by windows
that overlap by half. Nothing is cut: what is left out of one window stands in another.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError
from bertwright.tasks.conll import Sentences
from bertwright.tasks.tagging import Context
from bertwright.text.pieces import Pieces


class TaggerPieces(Pieces, Protocol):
    """What `windows_of` asks of a tokenizer."""

    @property
    def unk_id(self) -> int:
        """The id of what no piece stands for."""
        ...


@dataclass(frozen=True)
class Windows:
    """N rows [CLS] … [SEP] that ask for W words, each once.

    at, words    where the pieces stand in a row that answer, and for which words, numbered over all sentences
    vanished     words of which nothing is left (control characters, say); [UNK] stands for them
    """

    ids: tuple[NDArray[np.int32], ...]
    at: tuple[NDArray[np.int64], ...]
    words: tuple[NDArray[np.int64], ...]
    vanished: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)


def windows_of(tokenizer: TaggerPieces, sentences: Sentences, *, context: Context, max_length: int) -> Windows:
    """Rows of at most `max_length` tokens.

    context: "documents", or "auto": what the file marks as one; "file": all of a file that marks none; "off": the
    sentence alone.
    """
    room = max_length - 2
    if room < 1:
        raise InputError(f"a maximal length of {max_length} leaves no room for words; at least 3")
    pieces, first, vanished = _pieces(tokenizer, sentences)
    ends = np.cumsum([0, *(len(words) for words in sentences.words)])  # [N + 1] words before each sentence
    rows: dict[tuple[int, int], list[NDArray[np.int64]]] = {}  # (begin, end) in pieces → words
    for group in _groups(sentences, context):
        low, high = int(first[ends[group.start]]), int(first[ends[group.stop]])
        for row in group:
            words = np.arange(ends[row], ends[row + 1])
            span = int(first[ends[row]]), int(first[ends[row + 1]])
            for begin, asked in _cover(span, first[words], (low, high), room):
                rows.setdefault((begin, min(begin + room, high)), []).append(words[asked])
    head, tail = [tokenizer.begin_id], [tokenizer.end_id]
    asked_of = [np.concatenate(words) for words in rows.values()]
    return Windows(
        ids=tuple(np.concatenate([head, pieces[begin:end], tail]).astype(np.int32) for begin, end in rows),
        at=tuple(first[words] - begin + 1 for (begin, _), words in zip(rows, asked_of, strict=True)),
        words=tuple(asked_of),
        vanished=vanished,
    )


def _pieces(
    tokenizer: TaggerPieces, sentences: Sentences
) -> tuple[NDArray[np.int32], NDArray[np.int64], tuple[int, ...]]:
    """All pieces in a row, the place of each word's first one [W + 1], and the words that gave none."""
    words = [word for sentence in sentences.words for word in sentence]
    kinds = list(dict.fromkeys(words))
    known = dict(zip(kinds, tokenizer.ids(kinds), strict=True))
    vanished = tuple(place for place, word in enumerate(words) if not known[word])
    by_word = [known[word] or [tokenizer.unk_id] for word in words]
    first = np.cumsum([0, *map(len, by_word)])
    return np.array([id for ids in by_word for id in ids], dtype=np.int32), first, vanished


def _groups(sentences: Sentences, context: Context) -> list[range]:
    """The sentences that stand around one another."""
    count = len(sentences)
    if context == "off" or (context != "file" and sentences.documents is None):
        return [range(row, row + 1) for row in range(count)]
    marks = sentences.documents or (0,) * count
    cuts = [0, *(row for row in range(1, count) if marks[row] != marks[row - 1]), count]
    return [range(begin, end) for begin, end in pairwise(cuts)]


def _cover(
    span: tuple[int, int], first: NDArray[np.int64], bounds: tuple[int, int], room: int
) -> list[tuple[int, NDArray[np.int64]]]:
    """Windows of `room` pieces within `bounds` for a sentence's words: (begin, which of its words) of each.

    span     the sentence's pieces
    first    [W] each word's first piece
    """
    (begin, end), (low, high) = span, bounds
    if not len(first):
        return []
    if end - begin <= room:
        centred = begin - (room - (end - begin)) // 2
        return [(max(low, min(centred, high - room)), np.arange(len(first)))]
    low, high = max(low, begin - room // 2), min(high, end + room // 2)
    starts = np.array([*range(low, high - room, max(1, room // 2)), high - room])
    # The side with less around a piece has most in the window whose middle is nearest to it; the first one on ties.
    best = np.searchsorted((starts[1:] + starts[:-1]) / 2, first - (room - 1) / 2, side="left")
    return [(int(starts[window]), np.flatnonzero(best == window)) for window in np.unique(best)]
