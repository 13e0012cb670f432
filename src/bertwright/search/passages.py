"""rows with long texts → rows with passages of them that a model reads whole."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bertwright.errors import InputError
from bertwright.search.index import IndexedText
from bertwright.tasks.static_vectors import StaticVectors, TextVectors
from bertwright.text.document import Document, TextSettings, tidy
from bertwright.text.sentences import split_sentences

PASSAGE_TOKENS: Final = 128
"""Largest number of tokens of a passage, where the command does not say another one."""
_LEAST: Final = 16
"""Smallest number of tokens of a passage."""
_LEAST_ROOM: Final = 8
"""Smallest number of tokens of its text."""
_BLOCK: Final = 4096
"""Largest number of passages in a block."""


@dataclass(frozen=True)
class _Part:
    """Part of a text, with the blank before it, and the number of its tokens."""

    text: str
    tokens: int


class PassageCutter:
    """Cutter of texts into passages of whole sentences.

    most: largest number of tokens of a passage, special tokens and the prompt for documents included; None:
    `PASSAGE_TOKENS`, or what the model reads where that is less. Raises InputError where `most` is more than the model
    reads, or too small for the prompt.
    """

    def __init__(self, encoder: TextVectors, most: int | None = None) -> None:
        self._encoder = encoder
        limit = None if isinstance(encoder, StaticVectors) else encoder.limit("document")
        if most is not None and most < _LEAST:
            raise InputError(f"--passages {most}: expected at least {_LEAST} tokens")
        if most is not None and limit is not None and most > limit:
            raise InputError(f"--passages {most}: expected at most {limit}, the tokens that this model reads")
        self._most = most or min(PASSAGE_TOKENS, limit or PASSAGE_TOKENS)
        [empty], _ = encoder.rows([""], "document", max_length=self._most)
        self._num_others = len(empty)
        if self._most - len(empty) < _LEAST_ROOM:
            raise InputError(
                f"passages of {self._most} tokens: expected {_LEAST_ROOM} or more for their text, but the prompt and "
                f"the special tokens are {len(empty)}; give a larger --passages"
            )

    def passages(self, text: str) -> list[str]:
        """Return the passages of a text in order, with single spaces and an end of line after each paragraph.

        All are about equally long. A sentence that no passage has room for is cut between words.
        """
        sentences = self._with_room(_sentences(_paragraphs(text)), self._num_tokens)
        passages = ["".join(part.text for part in parts) for parts in _packed(sentences, self._room)]
        # The tokens of a passage may be more than those of its parts: a first word without a blank may have more.
        return [part.text.strip() for part in self._with_room(passages, self._num_row_tokens)]

    @property
    def _room(self) -> int:
        """Number of tokens that the text of a passage may have."""
        return self._most - self._num_others

    def _num_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the numbers of tokens of parts of a passage."""
        return [len(ids) for ids in self._encoder.tokenizer.ids(texts)]

    def _num_row_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the numbers of tokens as the model reads these texts, at most one more than there is room for."""
        rows, cut = self._encoder.rows([text.strip() for text in texts], "document", max_length=self._most)
        return [len(row) - self._num_others + is_cut for row, is_cut in zip(rows, cut, strict=True)]

    def _with_room(self, texts: Sequence[str], count: Callable[[Sequence[str]], list[int]]) -> list[_Part]:
        """Return the texts; one with more tokens than a passage has room for is cut between words."""
        parts: list[_Part] = []
        for text, tokens in zip(texts, count(texts), strict=True):
            if tokens <= self._room or len(text) < 2:
                parts.append(_Part(text, tokens))
            else:
                parts += self._with_room(_halves(text), count)
        return parts


def _paragraphs(text: str) -> tuple[str, ...]:
    """Return the lines of a text as its paragraphs; one that begins with a small letter continues that before it."""
    paragraphs: list[list[str]] = []
    is_open = False
    for line in map(tidy, text.splitlines()):
        if is_open and line[:1].islower():
            paragraphs[-1].append(line)
        elif line:
            paragraphs.append([line])
        is_open = bool(line)
    return tuple(map(" ".join, paragraphs))


def _sentences(paragraphs: tuple[str, ...]) -> list[str]:
    """Return the sentences of paragraphs, each with the blank or the end of line before it."""
    text = "\n".join(paragraphs)
    sentences: list[str] = []
    begin = 0
    for sentence in split_sentences(Document(paragraphs, location=""), TextSettings()):
        end = text.index(sentence, begin) + len(sentence)
        sentences.append(text[begin:end])
        begin = end
    return sentences


def _halves(text: str) -> tuple[str, str]:
    """Return a text of two letters or more in two parts, cut at a blank near its middle where there is one."""
    quarter = len(text) // 4
    blank = text.rfind(" ", quarter, 3 * quarter)
    cut = blank if blank > 0 else max(2 * quarter, 1)
    return text[:cut], text[cut:]


def _packed(parts: Sequence[_Part], room: int) -> list[list[_Part]]:
    """Return passages of consecutive parts, of at most `room` tokens and about equally many."""
    fewest = max(1, -(-sum(part.tokens for part in parts) // room))
    passages = _packed_evenly(parts, room, fewest)
    # Whole sentences may need more passages than their tokens do; without a second turn the last one would be short.
    return passages if len(passages) <= fewest else _packed_evenly(parts, room, len(passages))


def _packed_evenly(parts: Sequence[_Part], room: int, count: int) -> list[list[_Part]]:
    """Return passages of consecutive parts, `count` of them wherever `room` is enough for that."""
    even = sum(part.tokens for part in parts) / count
    passages: list[list[_Part]] = [[]]
    tokens = all_tokens = 0  # of this passage, and of all so far
    for part in parts:
        is_full = tokens + part.tokens > room or all_tokens + part.tokens / 2 > len(passages) * even
        if tokens and is_full:
            passages.append([])
            tokens = 0
        passages[-1].append(part)
        tokens, all_tokens = tokens + part.tokens, all_tokens + part.tokens
    return [passage for passage in passages if passage]


def in_passages(blocks: Iterable[Sequence[IndexedText]], cutter: PassageCutter) -> Iterator[list[IndexedText]]:
    """Yield blocks in which the texts that are numbered as a passage are cut: a row for each of their passages."""
    block: list[IndexedText] = []
    for texts in blocks:
        for text in texts:
            parts = cutter.passages(text.row.text) if text.passage else [text.row.text]
            for number, part in enumerate(parts, 1):
                row = replace(text.row, text=part)
                block.append(replace(text, row=row, passage=number if text.passage else 0))
                if len(block) == _BLOCK:
                    yield block
                    block = []
    if block:
        yield block
