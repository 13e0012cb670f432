"""question and passage → token ids: [CLS] question [SEP] passage [SEP], long passages in overlapping windows (§4.2).

A passage that is too long for a row is divided into overlapping windows, one row for each. No part of it is left out.
A question that is too long is cut. A piece in an overlap has more context in one window than in the others. An answer
may begin at the piece only in that window.

Encoded windows are cached in the user's cache folder, because several runs and evaluations read the same files. The
cache may be deleted at any time. A file's name is a hash of the questions, the settings, the tokenizer and this module.

Shapes: Q questions, N windows, P pieces of all passages, each passage counted once.
"""

import dataclasses
import hashlib
import json
import unicodedata
import zipfile
from collections.abc import Iterator
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
BLOCK: Final = 1024  # number of texts that are tokenised at a time, which limits the memory
MARKS: Final = frozenset({"Mn", "Mc", "Me", "Cf"})
"""Unicode categories of characters that a tokenizer may drop after a letter: accents, variation selectors, joiners."""


@dataclass(frozen=True)
class Windows:
    """The windows of Q questions, in order. The pieces of all passages are numbered from 0 to P - 1.

    pieces         [P] ids
    offsets        [P, 2] (first, one past last) character of each piece in its passage
    question_ids   ids of all questions; question q has those from question_at[q] to question_at[q + 1] - 1
    question_at    [Q + 1]
    question       [N] number of the window's question
    span           [N, 2] (first, one past last) piece of the passage in the window
    core           [N, 2] part of the span in which an answer may begin; the cores of a question do not overlap
    target         [N, 2] first and last position of the answer in the row; (0, 0), which is [CLS], where it is not
    cut            [Q] True where the question was too long
    """

    pieces: Ints
    offsets: Ints
    question_ids: Ints
    question_at: Ints
    question: Ints
    span: Ints
    core: Ints
    target: Ints
    begin_id: int
    between_ids: tuple[int, ...]
    end_id: int
    cut: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.question)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Return the number of pieces of the passage in each row [N]."""
        sizes: NDArray[np.int64] = self.span[:, 1].astype(np.int64) - self.span[:, 0]
        return sizes

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of each row [N]."""
        lengths: NDArray[np.int64] = self.first_piece + self.sizes + 1
        return lengths

    @cached_property
    def first_piece(self) -> Ints:
        """Return the position of the passage's first piece in each row [N]."""
        first: Ints = np.diff(self.question_at)[self.question] + 1 + len(self.between_ids)
        return first

    def row(self, window: int) -> Ints:
        """Return a window's ids: [CLS] question [SEP] part of the passage [SEP]."""
        question = self.question[window]
        question_ids = self.question_ids[self.question_at[question] : self.question_at[question + 1]]
        passage = self.pieces[slice(*self.span[window])]
        parts = ([self.begin_id], question_ids, self.between_ids, passage, [self.end_id])
        return np.concatenate(parts, dtype=np.int32)


def encode_windows(
    tokenizer: PlacedPieces, questions: Questions, task: SpanTask, *, max_length: int, targets: bool = False
) -> Windows:
    """Return windows of at most `max_length` tokens; with `targets` also the position of each question's first answer.

    A question that is too long keeps its first pieces. Raises InputError for a `max_length` without room for question
    and passage, and where the tokenizer drops all characters of an answer.
    """
    between = tokenizer.between_ids
    num_special = 2 + len(between)
    longest = longest_question(task, max_length, num_special)
    if longest < 1:
        raise InputError(f"--max-length {max_length}: expected at least 5, to have room for question and passage")
    contexts = {context: index for index, context in enumerate(dict.fromkeys(q.context for q in questions.items))}
    pieces, offsets, begins = _passages(tokenizer, list(contexts))
    ids_of_questions = [
        ids for block in _blocks([question.text for question in questions.items]) for ids in tokenizer.ids(block)
    ]
    question_at = np.cumsum([0, *(min(len(ids), longest) for ids in ids_of_questions)], dtype=np.int32)
    of_context = np.array([contexts[question.context] for question in questions.items])
    first, last = begins[of_context], begins[of_context + 1]  # [Q] pieces of each question's passage
    room = max_length - num_special - np.diff(question_at)  # [Q] for pieces of the passage
    question, span, core = _cut(first, last, room, np.minimum(room, task.stride))
    target = np.zeros_like(span)
    if targets:
        answers = _answer_positions(questions, offsets, first, last)[question]  # [N, 2]
        inside = (answers[:, 0] >= span[:, 0]) & (answers[:, 1] <= span[:, 1]) & (answers[:, 1] > answers[:, 0])
        positions = answers - span[:, :1] + (np.diff(question_at)[question] + num_special - 1)[:, None] - [0, 1]
        target[inside] = positions[inside]
    return Windows(
        pieces=pieces,
        offsets=offsets,
        question_ids=np.array([id for ids in ids_of_questions for id in ids[:longest]], dtype=np.int32),
        question_at=question_at,
        question=question,
        span=span,
        core=core,
        target=target,
        begin_id=tokenizer.begin_id,
        between_ids=between,
        end_id=tokenizer.end_id,
        cut=np.array([len(ids) > longest for ids in ids_of_questions], dtype=np.bool_),
    )


def longest_question(task: SpanTask, max_length: int, num_special: int = NUM_SPECIAL) -> int:
    """Return the largest number of pieces of a question: the task's, at most half of a row."""
    return min(task.question, (max_length - num_special) // 2)


def _passages(tokenizer: PlacedPieces, contexts: list[str]) -> tuple[Ints, Ints, Ints]:
    """Return ids [P] and offsets [P, 2] of all passages, and the number of each one's first piece [contexts + 1]."""
    ids: list[Ints] = []
    offsets: list[Ints] = []
    for block in _blocks(contexts):
        for context, (pieces, spans) in zip(block, tokenizer.offsets(block), strict=True):
            ids.append(np.array(pieces, dtype=np.int32))
            offsets.append(_with_marks(context, np.array(spans, dtype=np.int32).reshape(-1, 2)))
    begins = np.cumsum([0, *map(len, ids)], dtype=np.int32)
    return np.concatenate(ids), np.concatenate(offsets), begins


def _with_marks(context: str, offsets: Ints) -> Ints:
    """Return the offsets, extended by marks that the tokenizer dropped after a piece, such as the accent of "é"."""
    if context.isascii() or not len(offsets):
        return offsets
    extended = offsets.copy()
    limits = [*offsets[1:, 0].tolist(), len(context)]
    for index, (end, limit) in enumerate(zip(offsets[:, 1].tolist(), limits, strict=True)):
        while end < limit and unicodedata.category(context[end]) in MARKS:
            end += 1
        extended[index, 1] = end
    return extended


def _cut(first: Ints, last: Ints, room: Ints, step: Ints) -> tuple[Ints, Ints, Ints]:
    """Return `question`, `span` and `core` of Windows; all arguments are [Q]."""
    more = np.maximum(0, -((room - (last - first)) // step))  # number of windows after the first, rounded up
    question = np.repeat(np.arange(len(first), dtype=np.int32), more + 1)
    begins = np.cumsum(more + 1) - (more + 1)
    index = np.arange(len(question)) - begins[question]
    start = first[question] + index * step[question]
    span = np.stack([start, np.minimum(start + room[question], last[question])], axis=1).astype(np.int32)
    core = span.copy()
    for number in np.flatnonzero(more):
        windows = slice(begins[number], begins[number] + more[number] + 1)
        core[windows] = _core_parts(span[windows])
    return question, span, core


def _core_parts(spans: Ints) -> Ints:
    """Return the core of each window of one passage [W, 2]: the pieces that have most context in this window.

    Context is the smaller number of pieces before or after the piece in the window, plus a hundredth of the window's
    length (the original's rule). On ties the earlier window has the piece. Each core is one range, because a later
    window offers more context the later the piece is.
    """
    base = int(spans[0, 0])
    most_context = np.full(spans[-1, 1] - base, -1.0)
    window_of_piece = np.zeros(len(most_context), dtype=np.int32)
    for window, (begin, end) in enumerate(spans.tolist()):
        position = np.arange(end - begin)
        context = np.minimum(position, end - begin - 1 - position) + 0.01 * (end - begin)
        part = slice(begin - base, end - base)
        better = context > most_context[part]
        most_context[part][better] = context[better]
        window_of_piece[part][better] = window
    bounds = np.searchsorted(window_of_piece, np.arange(len(spans) + 1))
    return (np.stack([bounds[:-1], bounds[1:]], axis=1) + base).astype(np.int32)


def _answer_positions(questions: Questions, offsets: Ints, first: Ints, last: Ints) -> Ints:
    """Return the pieces of each question's first answer [Q, 2], (first, one past last); (0, 0) without an answer."""
    positions = np.zeros((len(questions), 2), dtype=np.int32)
    for row, question in enumerate(questions.items):
        if question.answers:
            passage = offsets[first[row] : last[row]]
            positions[row] = _pieces_of_answer(question, passage, questions.source) + first[row]
    return positions


def _pieces_of_answer(question: Question, offsets: Ints, source: str) -> Ints:
    """Return (first, one past last) piece of a passage with a character of the first answer."""
    text, begin = question.answers[0]
    first = int(np.searchsorted(offsets[:, 1], begin, side="right"))
    last = int(np.searchsorted(offsets[:, 0], begin + len(text), side="left"))
    if first >= last:
        raise InputError(f"{source}: question {question.id}: the tokenizer drops the whole answer '{shown(text)}'")
    return np.array([first, last], dtype=np.int32)


def _blocks(texts: list[str]) -> Iterator[list[str]]:
    bounds = [*range(0, len(texts), BLOCK), len(texts)]
    return (texts[begin:end] for begin, end in pairwise(bounds))


class HashedPieces(PlacedPieces, Protocol):
    """The tokenizer's interface that `cached_windows` uses."""

    @property
    def hash(self) -> str:
        """Return a hash; equal hashes give equal ids for every text."""
        ...


def windows_cache_folder() -> Path:
    """Return the folder of cached windows, in BERTWRIGHT_CACHE, XDG_CACHE_HOME or ~/.cache."""
    return files.named_cache("squad")


def cached_windows(
    tokenizer: HashedPieces, questions: Questions, task: SpanTask, *, max_length: int, targets: bool = False
) -> Windows:
    """Return the result of `encode_windows`, from the cache where it is there.

    Where the cache cannot be written, a message says so, and the windows are computed each time.
    """
    compute = partial(encode_windows, tokenizer, questions, task, max_length=max_length, targets=targets)
    try:
        path = windows_cache_folder() / f"{_key(tokenizer, questions, task, max_length, targets)}.npz"
    except OSError as error:
        say(f"cannot cache the windows of questions: {error}")
        return compute()
    if path.exists():
        try:
            return _load(path)
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            say(f"{path}: broken cache file, computed again: {error}")
    windows = compute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as stream:
            np.savez(stream, **{field.name: getattr(windows, field.name) for field in dataclasses.fields(windows)})
    except OSError as error:
        say(f"{path}: cannot cache the windows of questions: {error}")
    return windows


def _load(path: Path) -> Windows:
    with path.open("rb") as stream, np.load(stream) as stored:  # numpy refuses pickles by default
        arrays = {field.name: stored[field.name] for field in dataclasses.fields(Windows)}
    values: dict[str, Any] = {name: array if array.ndim else int(array) for name, array in arrays.items()}
    return Windows(**values)


def _key(tokenizer: HashedPieces, questions: Questions, task: SpanTask, max_length: int, targets: bool) -> str:
    settings = [tokenizer.hash, max_length, task.stride, task.question, targets]
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update(json.dumps(settings).encode())
    for question in questions.items:
        digest.update(json.dumps([question.text, question.context, question.answers[:1] if targets else []]).encode())
    return digest.hexdigest()
