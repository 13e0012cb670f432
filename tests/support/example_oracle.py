"""Pre-training rows made slowly, with plain numbers and lists, as the paper's walk reads; a corpus to make them of.

It draws the same counter-based random numbers as the compiled code, from a generator of its own. The purposes in the
keys of the streams are written out: whoever changes them changes the rows of every run.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np

FULL = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
TARGET, CHUNK = 0x7A46, 0xC404
TRUNCATION, CHOICE, REPLACEMENT = 0x7C17, 0xC401, 0x4E91

Sentence = list[int]
Document = list[Sentence]

# ---------------------------------------------------------------- random numbers


def mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & FULL
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & FULL
    return value ^ (value >> 31)


def child(key: int, item: int) -> int:
    return mix(((key ^ (item & FULL)) + GOLDEN) & FULL)


def stream(*words: int) -> int:
    key = 0
    for word in words:
        key = child(key, word)
    return key


def draw(key: int, counter: int) -> int:
    return mix((key + (counter + 1) * GOLDEN) & FULL)


def below(bits: int, limit: int) -> int:
    return ((bits >> 32) * limit) >> 32


def happens(bits: int, share: float) -> bool:
    return (bits >> 32) < round(share * 2**32)


# ---------------------------------------------------------------- the walk


@dataclass
class Row:
    a: Document
    b: Document
    a_first: int  # number of A's first sentence in the corpus
    b_first: int
    is_random: bool


def target_tokens(document: int, most: int, seed: int, epoch: int, short_share: float) -> int:
    key = child(stream(seed, epoch, TARGET), document)
    if happens(draw(key, 0), short_share):
        return 2 + below(draw(key, 1), most - 1)
    return most


def num_tokens(sentences: Document) -> int:
    return sum(len(sentence) for sentence in sentences)


def pair_rows(documents: list[Document], length: int, seed: int, epoch: int, short_share: float) -> list[Row]:
    rows = []
    first = np.cumsum([0, *map(len, documents)])
    for number, document in enumerate(documents):
        target = target_tokens(number, length - 3, seed, epoch, short_share)
        key = child(stream(seed, epoch, CHUNK), number)
        chunk: list[int] = []  # sentences of this document
        chunks = 0
        i = 0
        while i < len(document):
            chunk.append(i)
            if i == len(document) - 1 or num_tokens([document[s] for s in chunk]) >= target:
                numbers = [draw(key, 16 * chunks + position) for position in range(16)]
                a_end = 1 if len(chunk) == 1 else 1 + below(numbers[0], len(chunk) - 1)
                a = [document[s] for s in chunk[:a_end]]
                a_first = int(first[number]) + chunk[0]
                if len(chunk) == 1 or happens(numbers[1], 0.5):
                    for attempt in range(10):
                        other = below(numbers[2 + attempt], len(documents))
                        if other != number:
                            break
                    start = below(numbers[12], len(documents[other]))
                    b: Document = []
                    for sentence in documents[other][start:]:
                        b.append(sentence)
                        if num_tokens(b) >= target - num_tokens(a):
                            break
                    rows.append(Row(a, b, a_first, int(first[other]) + start, True))
                    i -= len(chunk) - a_end
                else:
                    rows.append(Row(a, [document[s] for s in chunk[a_end:]], a_first, a_first + a_end, False))
                chunk = []
                chunks += 1
            i += 1
    return rows


def segment_rows(documents: list[Document], length: int, seed: int, epoch: int, short_share: float) -> list[Row]:
    rows = []
    number = 0
    for position, document in enumerate(documents):
        target = target_tokens(position, length - 2, seed, epoch, short_share)
        chunk: Document = []
        for i, sentence in enumerate(document):
            chunk.append(sentence)
            number += 1
            if i == len(document) - 1 or num_tokens(chunk) >= target:
                rows.append(Row(chunk, [], number - len(chunk), 0, False))
                chunk = []
    return rows


def order_rows(documents: list[Document], length: int, seed: int, epoch: int, short_share: float) -> list[Row]:
    """Sentence order: A and the B that follows it, or the two swapped; at least two sentences, of one document."""
    rows = []
    first = np.cumsum([0, *map(len, documents)])
    for number, document in enumerate(documents):
        if len(document) < 2:
            continue
        target = target_tokens(number, length - 3, seed, epoch, short_share)
        key = child(stream(seed, epoch, CHUNK), number)
        done = chunks = 0  # sentences, rows
        while done < len(document):
            chunk = [done]
            while num_tokens([document[s] for s in chunk]) < target and chunk[-1] + 1 < len(document):
                chunk.append(chunk[-1] + 1)
            if chunk == [len(document) - 1]:
                chunk = [len(document) - 2, len(document) - 1]
            elif len(chunk) == 1:
                chunk = [done, done + 1]
            a_end = 1 + below(draw(key, 16 * chunks), len(chunk) - 1)
            a, b = [document[s] for s in chunk[:a_end]], [document[s] for s in chunk[a_end:]]
            a_first, b_first = int(first[number]) + chunk[0], int(first[number]) + chunk[a_end]
            if happens(draw(key, 16 * chunks + 1), 0.5):
                rows.append(Row(b, a, b_first, a_first, True))
            else:
                rows.append(Row(a, b, a_first, b_first, False))
            done = chunk[-1] + 1
            chunks += 1
    return rows


# ---------------------------------------------------------------- from a pair to a row


def truncated(row: Row, number: int, most: int, seed: int, epoch: int) -> tuple[Sentence, Sentence]:
    key = child(stream(seed, epoch, TRUNCATION), number)
    a = [piece for sentence in row.a for piece in sentence]
    b = [piece for sentence in row.b for piece in sentence]
    cut = 0
    while len(a) + len(b) > most:
        longer = a if len(a) > len(b) else b
        if draw(key, cut // 64) >> (cut % 64) & 1:
            del longer[0]
        else:
            longer.pop()
        cut += 1
    return a, b


@dataclass
class Masked:
    ids: Sentence
    positions: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)


def span_words(bits: int, units: str) -> int:
    """The first number of words whose cumulative chance exceeds the draw.

    Spans: geometric, p = 0.2, of those up to 10. N-grams: 1, 2 or 3 with chances like 1, 1/2 and 1/3.
    """
    chances = [Fraction(4, 5) ** (n - 1) if units == "span" else Fraction(1, n) for n in range(1, 11)]
    chances = chances if units == "span" else chances[:3]
    for words in range(1, len(chances)):
        if bits >> 32 < int(sum(chances[:words]) / sum(chances) * 2**32):
            return words
    return len(chances)


def chosen_spans(ids: Sentence, order: int, tokenizer, wanted: int, units: str) -> list[list[int]]:
    """Spans of positions that are masked together."""
    special = (tokenizer.cls_id, tokenizer.sep_id)
    words: list[list[int]] = []
    for position, token in enumerate(ids):
        if token in special:
            continue
        if tokenizer.continuation[token] and ids[position - 1] not in special:
            words[-1].append(position)
        else:
            words.append([position])
    beginning = {word[0]: word for word in words}
    spans: list[list[int]] = []
    for i in range(len(words)):
        j = i + below(draw(order, 2 * i), len(words) - i)
        words[i], words[j] = words[j], words[i]
        span: list[int] = []
        word = words[i]
        for _ in range(span_words(draw(order, 2 * i + 1), units)):
            masked_already = [position for other in spans for position in other]
            if word is None or word[0] in masked_already or len(masked_already) + len(span) + len(word) > wanted:
                break
            span += word
            word = beginning.get(word[-1] + 1)
        if span:
            spans.append(span)
    return spans


def masked(ids: Sentence, number: int, settings, tokenizer, length: int, seed: int, epoch: int) -> Masked:
    order = child(stream(seed, epoch, CHOICE), number)
    piece = child(stream(seed, epoch, REPLACEMENT), number)
    groups: list[list[int]] = []
    for position, token in enumerate(ids):
        if token in (tokenizer.cls_id, tokenizer.sep_id):
            continue
        if settings.units == "word" and groups and tokenizer.continuation[token]:
            groups[-1].append(position)
        else:
            groups.append([position])
    most = settings.max_predictions or max(1, round(settings.share * length))
    wanted = min(most, max(1, round(settings.share * len(ids))))
    for i in range(len(groups)):
        j = i + below(draw(order, i), len(groups) - i)
        groups[i], groups[j] = groups[j], groups[i]
    chosen: list[int] = []
    for group in groups:
        if len(chosen) + len(group) <= wanted:
            chosen += group
    decides = {position: position for position in chosen}
    if settings.units in ("span", "ngram"):
        spans = chosen_spans(ids, order, tokenizer, wanted, settings.units)
        one_by_one = settings.units == "ngram"
        decides = {position: position if one_by_one else span[0] for span in spans for position in span}
    result = Masked(list(ids))
    for position in sorted(decides):
        result.positions.append(position)
        result.labels.append(ids[position])
        kind = draw(piece, 2 * decides[position])
        if happens(kind, settings.mask):
            result.ids[position] = tokenizer.mask_id
        elif not happens(kind, settings.mask + settings.same):
            result.ids[position] = below(draw(piece, 2 * position + 1), tokenizer.vocab_size)
    return result


# ---------------------------------------------------------------- a corpus in memory

CLS, SEP, MASK, PAD = 2, 3, 4, 0


class FakeCorpus:
    """Documents in memory behind the attributes of a corpus on disk; the tokens lie in `num_shards` arrays."""

    def __init__(self, documents: list[Document], *, folder: Path, vocab_size: int = 500, num_shards: int = 3) -> None:
        self.documents = documents
        self.folder = folder
        self.fingerprint = "a corpus in memory"
        self.tokenizer = SimpleNamespace(
            cls_id=CLS,
            sep_id=SEP,
            mask_id=MASK,
            pad_id=PAD,
            vocab_size=vocab_size,
            end_of_text_id=None,
            continuation=np.arange(vocab_size) % 3 == 0,
        )
        self.num_documents = len(documents)
        self.duplicates = np.zeros(0, np.int64)
        self._first = np.cumsum([0, *map(len, documents)]).astype(np.int64)
        self._lengths = np.array([len(s) for d in documents for s in d], np.int32)
        self._shard_of, self._start_of, views = [], [], []
        for shard, some in enumerate(np.array_split(np.arange(len(documents)), num_shards)):
            tokens = [1] * (5 + shard)  # what lies before the first token must not matter
            for sentence in (s for d in some for s in documents[d]):
                self._shard_of.append(shard)
                self._start_of.append(len(tokens))
                tokens += sentence
            view = np.array(tokens, np.uint16)
            view.flags.writeable = False
            views.append(view)
        self.views = tuple(views)

    def document_first(self) -> np.ndarray:
        return self._first

    def sentence_lengths(self) -> np.ndarray:
        return self._lengths

    def locate(self, first: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        shards = np.array([self._shard_of[s] for s in first], np.int32)
        starts = np.array([self._start_of[s] for s in first], np.int64)
        sizes = [self._lengths[s : s + n].sum() for s, n in zip(first, count, strict=True)]
        return shards, starts, np.array(sizes, np.int32)


def random_documents(seed: int, *, num_documents: int, vocab_size: int = 500, longest: int = 40) -> list[Document]:
    """Documents of 1 to 30 sentences of 1 to `longest` pieces, none of them a special one."""
    generator = np.random.default_rng(seed)
    return [
        [generator.integers(5, vocab_size, generator.integers(1, longest + 1)).tolist() for _ in range(size)]
        for size in generator.integers(1, 31, num_documents)
    ]


def even_corpus(num_documents: int, num_sentences: int, tokens: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of sentences of so many tokens each, and the first sentence of each document."""
    first = np.arange(num_documents + 1, dtype=np.int64) * num_sentences
    return np.full(first[-1], tokens, np.int32), first
