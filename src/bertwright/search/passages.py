"""rows with long texts → rows with passages of them that a model reads whole."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bertwright.errors import InputError
from bertwright.search.new_rows import IndexedText
from bertwright.tasks.static_vectors import StaticVectors, TextVectors
from bertwright.text.document import Document, TextSettings, tidy
from bertwright.text.sentences import split_sentences

PASSAGE_TOKENS: Final = 128
"""Largest number of tokens of a passage, where the command does not say another one."""
_LEAST: Final = 16
"""Smallest number of tokens of a passage."""
_LEAST_ROOM: Final = 8
"""Smallest number of tokens of its text."""
_MOST_LETTERS: Final = 16
"""Largest number of characters of a passage for each of its tokens: a long word may be a single unknown piece."""
_WORD: Final = re.compile(r"\s*\S+")
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
        parts = self._parts(_sentences(_paragraphs(text)))
        return self._whole(_packed(parts, self._room))

    @property
    def _room(self) -> int:
        """Number of tokens that the text of a passage may have."""
        return self._most - self._num_others

    def _parts(self, texts: Sequence[str]) -> list[_Part]:
        """Return texts with their numbers of tokens; one that no passage has room for is cut into words or halves."""
        parts: list[_Part] = []
        for text, tokens in zip(texts, self._num_tokens(texts), strict=True):
            if tokens <= self._room or len(text) < 2:
                parts.append(_Part(text, tokens))
            else:
                parts += self._parts(_pieces(text))
        return parts

    def _num_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the numbers of tokens of texts, the larger ones with and without the blank before them."""
        counts = [len(ids) for ids in self._encoder.tokenizer.ids([*texts, *map(str.strip, texts)])]
        lengths = [-(-len(text) // _MOST_LETTERS) for text in texts]
        return list(map(max, counts[: len(texts)], counts[len(texts) :], lengths))

    def _whole(self, passages: Sequence[Sequence[_Part]]) -> list[str]:
        """Return the texts of passages; one that the model would cut is divided between two of its parts.

        With some tokenizers a passage has more tokens than its parts.
        """
        texts = ["".join(part.text for part in parts).strip() for parts in passages]
        _, cut = self._encoder.rows(texts, "document", max_length=self._most)
        whole: list[str] = []
        for parts, text, is_cut in zip(passages, texts, cut, strict=True):
            if not is_cut or len(text) < 2:
                whole.append(text)
                continue
            smaller = parts if len(parts) > 1 else [_Part(piece, 0) for piece in _pieces(text)]
            middle = len(smaller) // 2
            whole += self._whole([smaller[:middle], smaller[middle:]])
        return whole


def _pieces(text: str) -> list[str]:
    """Return the words of a text, each with the blank before it; of a single word its halves."""
    words = _WORD.findall(text)
    middle = len(text) // 2
    return words if len(words) > 1 else [text[:middle], text[middle:]]


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
            parts = cutter.passages(text.row.text) if text.row.passage else [text.row.text]
            for number, part in enumerate(parts, 1):
                row = replace(text.row, text=part, passage=number if text.row.passage else 0)
                block.append(replace(text, row=row))
                if len(block) == _BLOCK:
                    yield block
                    block = []
    if block:
        yield block
