"""rows with long texts → rows with passages of them that a model reads whole."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from bertwright.errors import InputError
from bertwright.search.index import IndexedText
from bertwright.tasks.sentence_vectors import num_prompt_tokens, prompt_of
from bertwright.tasks.static_vectors import StaticVectors, TextVectors
from bertwright.text.document import Document, TextSettings, paragraphs_of
from bertwright.text.open_tokenizer import special_ids
from bertwright.text.sentences import split_sentences

PASSAGE_TOKENS: Final = 128
"""Largest number of tokens of a passage, where the command does not say another one."""
_LEAST: Final = 16
"""Smallest number of tokens of a passage."""
_BLOCK: Final = 4096
"""Largest number of passages in a block."""


@dataclass(frozen=True)
class _Span:
    """Part of a text from `begin` to before `end`, and the number of its tokens."""

    begin: int
    end: int
    tokens: int


class PassageCutter:
    """Cutter of texts into passages of whole sentences.

    most: largest number of tokens of a passage, special tokens and the prompt for documents included; None:
    `PASSAGE_TOKENS`, or what the model reads where that is less. Raises InputError where `most` is more than the model
    reads, or too small for the prompt. The attribute `most` is the number that is used.
    """

    def __init__(self, encoder: TextVectors, most: int | None = None) -> None:
        self._tokenizer = encoder.tokenizer
        self.most, num_others = most or PASSAGE_TOKENS, 0
        if not isinstance(encoder, StaticVectors):
            limit = encoder.limit("document")
            if most is not None and most > limit:
                raise InputError(f"--passages {most}: expected at most {limit}, the tokens that this model reads")
            self.most = min(self.most, limit)
            begin, end = special_ids(encoder.tokenizer)
            prompt = prompt_of(encoder.settings, "document")
            prompt_tokens = num_prompt_tokens(encoder.tokenizer, prompt, max_length=self.most)
            num_others = max(prompt_tokens, len(begin)) + len(end)
        if most is not None and most < _LEAST:
            raise InputError(f"--passages {most}: expected at least {_LEAST} tokens")
        self._room = self.most - num_others

    def passages(self, text: str) -> list[str]:
        """Return the passages of a text in order, with single spaces and an end of line after each paragraph.

        All are about equally long. A sentence that no passage has room for is cut between words.
        """
        paragraphs = paragraphs_of(text.splitlines(), TextSettings())
        text = "\n".join(paragraphs)
        sentences = split_sentences(Document(paragraphs, location=""), TextSettings())
        ends: list[int] = []
        end = 0
        for sentence in sentences:
            end = text.index(sentence, end) + len(sentence)
            ends.append(end)
        spans = [
            part
            for begin, end, tokens in zip([0, *ends], ends, self._counts(sentences), strict=False)
            for part in self._fitting(text, _Span(begin, end, tokens))
        ]
        return [text[begin:end].strip() for begin, end in _packed(spans, self._room)]

    def _counts(self, texts: Sequence[str]) -> list[int]:
        """Return the numbers of tokens; a blank stands before each text, as in the passage."""
        return [len(ids) for ids in self._tokenizer.ids([f" {text}" for text in texts])]

    def _fitting(self, text: str, span: _Span) -> Iterator[_Span]:
        """Yield a span, or parts of it that have room in a passage."""
        if span.tokens <= self._room or span.end - span.begin < 2:
            yield span
            return
        quarter = (span.end - span.begin) // 4
        middle = span.begin + 2 * quarter
        blank = text.rfind(" ", span.begin + quarter, middle + quarter)
        bounds = (span.begin, blank if blank > span.begin else max(middle, span.begin + 1), span.end)
        parts = list(pairwise(bounds))
        counts = self._counts([text[begin:end] for begin, end in parts])
        for (begin, end), tokens in zip(parts, counts, strict=True):
            yield from self._fitting(text, _Span(begin, end, tokens))


def _packed(spans: Sequence[_Span], room: int) -> list[tuple[int, int]]:
    """Return the begin and end of passages of consecutive spans, of at most `room` tokens and about equally many."""
    fewest = max(1, -(-sum(span.tokens for span in spans) // room))
    passages = _packed_evenly(spans, room, fewest)
    # Whole sentences may need more passages than their tokens do; without a second turn the last one would be short.
    return passages if len(passages) <= fewest else _packed_evenly(spans, room, len(passages))


def _packed_evenly(spans: Sequence[_Span], room: int, count: int) -> list[tuple[int, int]]:
    """Return the begin and end of passages, `count` of them wherever `room` is enough for that."""
    even = sum(span.tokens for span in spans) / count
    passages: list[tuple[int, int]] = []
    begin = end = 0
    tokens = all_tokens = 0  # of this passage, and of all so far
    for span in spans:
        is_full = tokens + span.tokens > room or all_tokens + span.tokens / 2 > (len(passages) + 1) * even
        if tokens and is_full:
            passages.append((begin, end))
            begin, tokens = end, 0
        end, tokens, all_tokens = span.end, tokens + span.tokens, all_tokens + span.tokens
    return [*passages, (begin, end)] if end > begin else passages


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
