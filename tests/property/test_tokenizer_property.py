"""The Rust tokenizer and trainer against short Python ones, written from the paper's description alone."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertwright.text.document import TextSettings
from bertwright.text.documents import read_documents
from bertwright.text.vocabulary import SPECIAL, Rules
from bertwright.text.wordpiece import Tokenizer, import_vocabulary, train_wordpiece
from tests.support.texts import OWN_TEXT

IDEOGRAPHS = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0xF900, 0xFAFF)]
# Blocks whose characters have had their categories for long: the Rust side follows an older Unicode than Python.
BLOCKS = [
    *[(0x00, 0x2FF), (0x300, 0x36F), (0x370, 0x52F), (0x5D0, 0x5EA), (0x905, 0x94D), (0xE01, 0xE3A)],
    *[(0x1E00, 0x1EFF), (0x2000, 0x206F), (0x20A0, 0x20AC), (0x2190, 0x21FF), (0x3000, 0x30FF), (0x4E00, 0x4E40)],
    *[(0xAC00, 0xAC80), (0xD780, 0xD7A3), (0xFEFF, 0xFEFF), (0xFF01, 0xFF5E), (0xFFFD, 0xFFFD), (0x1F600, 0x1F640)],
]
LETTERS = [
    chr(code) for first, last in BLOCKS for code in range(first, last + 1) if unicodedata.category(chr(code)) != "Cn"
]
TEXTS = st.text(st.one_of(st.sampled_from("abcdeABCDE ,.'#[]"), st.sampled_from(LETTERS)), max_size=60)


def basic_words(text: str, rules: Rules) -> list[str]:
    """Clean, set ideographs apart, split at white space, fold, split at punctuation (one character at a time)."""
    cleaned = ""
    for char in text:
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            cleaned += " "
        elif char in "\0\ufffd" or category in ("Cc", "Cf"):
            continue
        elif any(first <= ord(char) <= last for first, last in IDEOGRAPHS):
            cleaned += f" {char} "
        else:
            cleaned += char
    words: list[str] = []
    for token in cleaned.split():
        if not rules.cased:
            token = "".join(char.lower() for char in token)  # by characters: no final sigma at the end of a word
        if rules.strip_accents:
            token = "".join(c for c in unicodedata.normalize("NFD", token) if unicodedata.category(c) != "Mn")
        word = ""
        for char in token:
            if unicodedata.category(char).startswith("P") or (char.isascii() and not char.isalnum()):
                words += [word, char]
                word = ""
            else:
                word += char
        words.append(word)
    return [word for word in words if word]


def word_pieces(word: str, vocabulary: dict[str, int], longest: int) -> list[int]:
    """Cut off the longest known beginning until nothing is left."""
    ids: list[int] = []
    begin = 0
    while begin < len(word) <= longest:
        prefix = "##" if begin else ""
        ends = [end for end in range(begin + 1, len(word) + 1) if prefix + word[begin:end] in vocabulary]
        if not ends:
            return [vocabulary["[UNK]"]]
        ids.append(vocabulary[prefix + word[begin : ends[-1]]])
        begin = ends[-1]
    return ids or [vocabulary["[UNK]"]]


def expected_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    vocabulary = {piece: id for id, piece in enumerate(tokenizer.pieces)}
    words = basic_words(text, tokenizer.rules)
    return [id for word in words for id in word_pieces(word, vocabulary, tokenizer.rules.longest_word)]


def lines_of(path: Path, count: int) -> list[str]:
    documents = read_documents(path, TextSettings())
    return [paragraph for document in islice(documents, count) for paragraph in document.paragraphs]


@cache
def learned_tokenizer(cased: bool, strip_accents: bool) -> Tokenizer:
    return train_wordpiece(lines_of(OWN_TEXT, 100), vocab_size=800, cased=cased, strip_accents=strip_accents)


RULES = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize(("cased", "strip_accents"), RULES)
@settings(max_examples=100, deadline=None)
@example(text="İSTANBUL ΑΣ ǅ ẞ")
@example(text="한국 한 が か\u3099 é e\u0301 ﬁ")
@example(text="a\fb\x1cc\u2028d\u200be\u00ad\u3000f")
@given(text=TEXTS)
def test_ids_are_those_of_the_description(cased: bool, strip_accents: bool, text: str) -> None:
    tokenizer = learned_tokenizer(cased, strip_accents)
    assert tokenizer.ids([text]) == [expected_ids(text, tokenizer)]


@pytest.mark.parametrize(("cased", "strip_accents"), RULES)
def test_fixture_text(cased: bool, strip_accents: bool) -> None:
    tokenizer = learned_tokenizer(cased, strip_accents)
    lines = lines_of(OWN_TEXT, 100)
    assert tokenizer.ids(lines) == [expected_ids(line, tokenizer) for line in lines]


@settings(max_examples=100, deadline=None)
@given(
    pieces=st.sets(st.from_regex(r"(##)?[abA]{1,4}", fullmatch=True), max_size=12),
    words=st.lists(st.from_regex(r"[abA]{1,12}", fullmatch=True), max_size=6),
    cased=st.booleans(),
    longest=st.integers(1, 12),
)
def test_any_vocabulary(pieces: set[str], words: list[str], cased: bool, longest: int) -> None:
    rules = Rules(cased=cased, strip_accents=False, longest_word=longest)
    tokenizer = Tokenizer([*sorted(pieces), *SPECIAL], rules)
    assert tokenizer.ids([" ".join(words)]) == [expected_ids(" ".join(words), tokenizer)]


@pytest.mark.parametrize(
    ("name", "cased", "text"),
    [
        ("bert-base-uncased-vocab.txt", False, "enwiki/heldout.xz"),
        ("bert-base-cased-vocab.txt", True, "enwiki/heldout.xz"),
        ("bert-base-multilingual-cased-vocab.txt", True, "ko/kowiki.xz"),
    ],
)
def test_released_vocabularies(name: str, cased: bool, text: str, shared_data: Path) -> None:
    tokenizer = import_vocabulary(shared_data / "vocab" / name, cased=cased)
    lines = [*lines_of(shared_data / text, 5), *lines_of(OWN_TEXT, 100), "x" * 200, "x" * 201]
    vocabulary = {piece: id for id, piece in enumerate(tokenizer.pieces)}
    for line, ids in zip(lines, tokenizer.ids(lines), strict=True):
        words = basic_words(line, tokenizer.rules)
        assert ids == [id for word in words for id in word_pieces(word, vocabulary, 200)], line


def learned_pieces(words: dict[str, int], vocab_size: int, min_count: int) -> list[str]:
    """Join the most frequent neighbours again and again; ties go to the pair whose pieces came first."""
    letters = {letter for word in words for letter in word}
    inner = {letter for word in words if len(word) > 1 for letter in word}
    pieces = [*SPECIAL, *sorted(letters), *(f"##{letter}" for letter in sorted(inner))]
    ids = {piece: id for id, piece in enumerate(pieces)}
    cut = {word: [word[0], *(f"##{letter}" for letter in word[1:])] for word in words}
    while len(ids) < vocab_size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in cut.items():
            for left, right in pairwise(parts):
                pairs[left, right] += words[word]
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], -ids[pair[0]], -ids[pair[1]]))
        if pairs[best] < min_count:
            break
        joined = best[0] + best[1].removeprefix("##")
        ids.setdefault(joined, len(ids))
        cut = {word: joined_parts(parts, best, joined) for word, parts in cut.items()}
    return list(ids)


def joined_parts(parts: list[str], pair: tuple[str, str], joined: str) -> list[str]:
    result: list[str] = []
    index = 0
    while index < len(parts):
        if tuple(parts[index : index + 2]) == pair:
            result.append(joined)
            index += 2
        else:
            result.append(parts[index])
            index += 1
    return result


def count_words(texts: Iterable[str], rules: Rules) -> dict[str, int]:
    return Counter(word for text in texts for word in basic_words(text, rules))


@pytest.mark.parametrize(("cased", "strip_accents"), [(False, False), (True, True)])
def test_the_vocabulary_of_the_fixture_is_that_of_plain_pair_joining(cased: bool, strip_accents: bool) -> None:
    lines = lines_of(OWN_TEXT, 100)
    tokenizer = train_wordpiece(lines, vocab_size=700, cased=cased, strip_accents=strip_accents, coverage=1.0)
    expected = learned_pieces(count_words(lines, tokenizer.rules), 700, 2)
    assert len(expected) == 700
    assert tokenizer.pieces == expected


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text("abAB ,", max_size=30), max_size=6), size=st.integers(20, 30), least=st.integers(1, 3))
def test_the_vocabulary_of_any_text(texts: list[str], size: int, least: int) -> None:
    texts = [*texts, "a"]
    tokenizer = train_wordpiece(texts, vocab_size=size, min_count=least, coverage=1.0)
    assert tokenizer.pieces == learned_pieces(count_words(texts, tokenizer.rules), size, least)
