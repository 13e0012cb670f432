"""question and passage → token ids: [CLS] question [SEP] piece of the passage [SEP], long passages in windows (§4.2).

Nothing is cut: a passage that does not fit is read in windows that overlap, and a piece of it is taken for an answer's
beginning only in the window in which it has most context around it.

Shapes: Q questions, N windows, P pieces of all passages, each passage once however many questions it has.
"""

import dataclasses
import hashlib
import json
import os
import unicodedata
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from bertwright import files
from bertwright.console import say
from bertwright.errors import InputError, shown
from bertwright.files import atomic_file
from bertwright.tasks.question_answering.data import Question, Questions
from bertwright.tasks.question_answering.spec import SpanTask
from bertwright.text.base_tokenizer import PlacedPieces

Ints = NDArray[np.int32]
NUM_SPECIAL: Final = 3  # [CLS] question [SEP] passage [SEP]
BLOCK: Final = 1024  # texts tokenised at a time, which bounds the memory
# What a tokenizer may drop behind a letter that it belongs to: accents, variation selectors, joiners.
MARKS: Final = frozenset({"Mn", "Mc", "Me", "Cf"})


@dataclass(frozen=True)
class Windows:
    """The windows of Q questions, in their order; places in the passages are counted over all of them, 0 to P.

    pieces      [P] ids, and `offsets` [P, 2]: (first, one past last) character of each in its passage
    asked       ids of all questions, those of question q between asked_at[q] and asked_at[q + 1]
    question    [N] whose window it is
    span        [N, 2] its piece of the passage: (first, one past last) place
    own         [N, 2] the part of it that has most context in this window; over a question's windows, every place once
    target      [N, 2] first and last position of the answer in the row, (0, 0), which is [CLS], in a window without it
    cut         [Q] which questions were too long
    """

    pieces: Ints
    offsets: Ints
    asked: Ints
    asked_at: Ints
    question: Ints
    span: Ints
    own: Ints
    target: Ints
    begin_id: int
    between_id: int
    end_id: int
    cut: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.question)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[N] tokens of each row."""
        lengths: NDArray[np.int64] = self.first_piece.astype(np.int64) + self.span[:, 1] - self.span[:, 0] + 1
        return lengths

    @cached_property
    def first_piece(self) -> Ints:
        """[N] the position in its row at which a window's piece of the passage begins."""
        first: Ints = np.diff(self.asked_at)[self.question] + 2
        return first

    def row(self, window: int) -> Ints:
        """A window's ids: [CLS] question [SEP] piece of the passage [SEP]."""
        question = self.question[window]
        asked = self.asked[self.asked_at[question] : self.asked_at[question + 1]]
        passage = self.pieces[slice(*self.span[window])]
        parts = ([self.begin_id], asked, [self.between_id], passage, [self.end_id])
        return np.concatenate(parts, dtype=np.int32)


def encode_windows(
    words: PlacedPieces, questions: Questions, task: SpanTask, *, max_length: int, targets: bool = False
) -> Windows:
    """Windows of at most `max_length` tokens; with `targets` the first answer of each question is what is learned.

    A question keeps its first pieces, at most half of the room. InputError for a length without room, and for an
    answer, to be learned, of which no piece is left.
    """
    longest = longest_question(task, max_length)
    if longest < 1:
        raise InputError(f"a maximal length of {max_length} leaves no room for question and passage; at least 5")
    contexts = {context: place for place, context in enumerate(dict.fromkeys(q.context for q in questions.items))}
    pieces, offsets, begins = _passages(words, list(contexts))
    asked = [ids for block in _blocks([question.text for question in questions.items]) for ids in words.ids(block)]
    asked_at = np.cumsum([0, *(min(len(ids), longest) for ids in asked)], dtype=np.int32)
    of_context = np.array([contexts[question.context] for question in questions.items])
    first, last = begins[of_context], begins[of_context + 1]  # [Q] places of each question's passage
    room = max_length - NUM_SPECIAL - np.diff(asked_at)
    question, span, own = _cut(first, last, room, np.minimum(room, task.stride))
    target = np.zeros_like(span)
    if targets:
        answers = _answer_places(questions, offsets, first, last)[question]  # [N, 2]
        inside = (answers[:, 0] >= span[:, 0]) & (answers[:, 1] <= span[:, 1]) & (answers[:, 1] > answers[:, 0])
        positions = answers - span[:, :1] + (np.diff(asked_at)[question] + 2)[:, None] - [0, 1]
        target[inside] = positions[inside]
    return Windows(
        pieces=pieces,
        offsets=offsets,
        asked=np.array([id for ids in asked for id in ids[:longest]], dtype=np.int32),
        asked_at=asked_at,
        question=question,
        span=span,
        own=own,
        target=target,
        begin_id=words.begin_id,
        between_id=words.between_id,
        end_id=words.end_id,
        cut=np.array([len(ids) > longest for ids in asked], dtype=np.bool_),
    )


def longest_question(task: SpanTask, max_length: int) -> int:
    """Pieces of a question that are read."""
    return min(task.question, (max_length - NUM_SPECIAL) // 2)


def window_tokens(question: int, passage: int, task: SpanTask, *, max_length: int) -> int:
    """About how many tokens the windows have together that `encode_windows` makes of so many pieces."""
    asked = min(question, longest_question(task, max_length))
    room = max_length - NUM_SPECIAL - asked
    more = int(_more(passage, room, min(room, task.stride)))
    return (more + 1) * max_length if more else asked + NUM_SPECIAL + passage


def padded_rows(
    windows: Windows, chosen: Sequence[int] | NDArray[np.int64], *, pad_id: int
) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Ids, segments and mask [B, T] of the chosen windows, padded to the longest of them."""
    lengths = windows.lengths[np.asarray(chosen)]
    columns = np.arange(lengths.max())
    ids = np.full((len(lengths), len(columns)), pad_id, dtype=np.int32)
    for place, window in enumerate(chosen):
        ids[place, : lengths[place]] = windows.row(int(window))
    mask = columns < lengths[:, None]
    segments = ((columns >= windows.first_piece[np.asarray(chosen)][:, None]) & mask).astype(np.int32)
    return ids, segments, mask


def _passages(words: PlacedPieces, contexts: list[str]) -> tuple[Ints, Ints, Ints]:
    """Ids [P] and offsets [P, 2] of all passages, and where each begins [contexts + 1]."""
    ids: list[Ints] = []
    offsets: list[Ints] = []
    for block in _blocks(contexts):
        for context, (found, places) in zip(block, words.offsets(block), strict=True):
            ids.append(np.array(found, dtype=np.int32))
            offsets.append(_with_marks(context, np.array(places, dtype=np.int32).reshape(-1, 2)))
    begins = np.cumsum([0, *map(len, ids)], dtype=np.int32)
    return np.concatenate(ids), np.concatenate(offsets), begins


def _with_marks(context: str, offsets: Ints) -> Ints:
    """The offsets, each piece reaching over the marks behind it that the tokenizer dropped: the accent of "é", say."""
    if context.isascii() or not len(offsets):
        return offsets
    extended = offsets.copy()
    limits = [*offsets[1:, 0].tolist(), len(context)]
    for place, (end, limit) in enumerate(zip(offsets[:, 1].tolist(), limits, strict=True)):
        while end < limit and unicodedata.category(context[end]) in MARKS:
            end += 1
        extended[place, 1] = end
    return extended


def _cut(first: Ints, last: Ints, room: Ints, step: Ints) -> tuple[Ints, Ints, Ints]:
    """Whose window it is [N], its span [N, 2] and its own part [N, 2], from passages, rooms and strides [Q]."""
    more = _more(last - first, room, step)
    question = np.repeat(np.arange(len(first), dtype=np.int32), more + 1)
    begins = np.cumsum(more + 1) - (more + 1)
    index = np.arange(len(question)) - begins[question]
    start = first[question] + index * step[question]
    span = np.stack([start, np.minimum(start + room[question], last[question])], axis=1).astype(np.int32)
    own = span.copy()
    for several in np.flatnonzero(more):
        mine = slice(begins[several], begins[several] + more[several] + 1)
        own[mine] = _own_parts(span[mine])
    return question, span, own


def _more(pieces: Any, room: Any, step: Any) -> Any:
    """Windows after the first, rounded up, for passages of so many pieces."""
    return np.maximum(0, -((room - pieces) // step))


def _own_parts(spans: Ints) -> Ints:
    """Of the windows of one passage [W, 2], the part of each in which a place has most context; the first of equals.

    Context is what lies on the shorter side, and a hundredth of the window's length (the original's rule). A later
    window's advantage grows with the place, so that the parts are stretches, one after another.
    """
    base = int(spans[0, 0])
    best = np.full(spans[-1, 1] - base, -1.0)
    owner = np.zeros(len(best), dtype=np.int32)
    for window, (begin, end) in enumerate(spans.tolist()):
        place = np.arange(end - begin)
        context = np.minimum(place, end - begin - 1 - place) + 0.01 * (end - begin)
        part = slice(begin - base, end - base)
        better = context > best[part]
        best[part][better] = context[better]
        owner[part][better] = window
    windows = np.arange(len(spans))
    parts = np.stack([np.searchsorted(owner, windows), np.searchsorted(owner, windows, side="right")], axis=1)
    return (parts + base).astype(np.int32)


def _answer_places(questions: Questions, offsets: Ints, first: Ints, last: Ints) -> Ints:
    """[Q, 2] places of each question's first answer, (first, one past last); both 0 where there is none."""
    found = np.zeros((len(questions), 2), dtype=np.int32)
    for row, question in enumerate(questions.items):
        if question.answers:
            passage = offsets[first[row] : last[row]]
            found[row] = _places(question, passage, questions.source) + first[row]
    return found


def _places(question: Question, offsets: Ints, source: str) -> Ints:
    """The pieces of a passage that share a character with the answer."""
    text, begin = question.answers[0]
    first = int(np.searchsorted(offsets[:, 1], begin, side="right"))
    last = int(np.searchsorted(offsets[:, 0], begin + len(text), side="left"))
    if first >= last:
        raise InputError(
            f"{source}: question {question.id}: the tokenizer leaves nothing of the answer '{shown(text)}'"
        )
    return np.array([first, last], dtype=np.int32)


def _blocks(texts: list[str]) -> Iterator[list[str]]:
    bounds = [*range(0, len(texts), BLOCK), len(texts)]
    return (texts[begin:end] for begin, end in pairwise(bounds))


# question and passage → token ids, once: windows kept by content in the user's cache.
#
# There and not in the run folder, because several runs, seeds and evaluations read the same files; everything in it
# may be removed at any time. The name is a hash of all that decides the windows, the code that makes them included.


class HashedPieces(PlacedPieces, Protocol):
    """What `cached_windows` asks of a tokenizer."""

    @property
    def hash(self) -> str:
        """Equal hashes give equal ids for every text."""
        ...


def cache_folder() -> Path:
    """Where windows are kept: BERTWRIGHT_CACHE, or bertwright in XDG_CACHE_HOME or ~/.cache."""
    named = os.environ.get("BERTWRIGHT_CACHE")
    if named:
        return Path(named) / "squad"
    return files.cache_folder() / "squad"


def cached_windows(
    words: HashedPieces, questions: Questions, task: SpanTask, *, max_length: int, targets: bool = False
) -> Windows:
    """As `encode_windows`; read from the cache where the same was asked for before.

    A folder that cannot be written costs only the time, and that is said.
    """
    make = partial(encode_windows, words, questions, task, max_length=max_length, targets=targets)
    try:
        path = cache_folder() / f"{_key(words, questions, task, max_length, targets)}.npz"
    except OSError as error:
        say(f"the windows of questions are made again next time: {error}")
        return make()
    if path.exists():
        try:
            return _load(path)
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            say(f"{path}: is broken and made anew: {error}")
    windows = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as stream:
            np.savez(stream, **{field.name: getattr(windows, field.name) for field in dataclasses.fields(windows)})
    except OSError as error:
        say(f"{path}: cannot be written, so the windows are made again next time: {error}")
    return windows


def _load(path: Path) -> Windows:
    with path.open("rb") as stream, np.load(stream) as stored:  # numpy refuses pickles unless told otherwise
        arrays = {field.name: stored[field.name] for field in dataclasses.fields(Windows)}
    values: dict[str, Any] = {name: array if array.ndim else int(array) for name, array in arrays.items()}
    return Windows(**values)


def _key(words: HashedPieces, questions: Questions, task: SpanTask, max_length: int, targets: bool) -> str:
    settings = [words.hash, max_length, task.stride, task.question, targets]
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update(json.dumps(settings).encode())
    for question in questions.items:
        digest.update(json.dumps([question.text, question.context, question.answers[:1] if targets else []]).encode())
    return digest.hexdigest()
