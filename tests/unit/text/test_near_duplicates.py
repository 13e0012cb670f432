"""Near-duplicates: planted ones against a plain comparison of all pairs, in sets of tuples of words."""

import re
import sys
import unicodedata
from collections.abc import Sequence

import numpy as np
import pytest

from bertwright.errors import InputError, MissingExtra
from bertwright.text import near_duplicates
from bertwright.text.near_duplicates import (
    Duplicate,
    band_shape,
    find_equal,
    find_near,
    jaccard,
    least_equal,
    missed_at,
    text_shingles,
)

WORDS = [f"{first}{second}" for first in "bcdfghklmn" for second in ("a", "ent", "ol", "ur", "ist")]


def planted(seed: int, count: int = 60) -> list[str]:
    """Random texts; of every third there are changed copies: some words replaced, or a part left out."""
    random = np.random.default_rng(seed)
    texts: list[str] = []
    for number in range(count):
        words = [*random.choice(WORDS, random.integers(8, 80))]
        texts.append(" ".join(words))
        for _ in range(random.integers(1, 4) if number % 3 == 0 else 0):
            copy = list(words)
            for _ in range(random.integers(0, 6)):
                copy[random.integers(len(copy))] = "other"
            texts.append(" ".join(copy[: len(copy) - int(random.integers(0, 4))]))
    return [texts[index] for index in random.permutation(len(texts))]


def plain_shingles(text: str, size: int) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower()) or [f"without words: {text}"]
    return {tuple(words[begin : begin + size]) for begin in range(max(1, len(words) - size + 1))}


def all_pairs(texts: Sequence[str], size: int, threshold: float) -> list[Duplicate]:
    """Every document beside the most similar earlier one that stays, by comparing it with all of them."""
    sets, stays, duplicates = [plain_shingles(text, size) for text in texts], [], []
    for document, shingles in enumerate(sets):
        similar = [(len(shingles & sets[like]) / len(shingles | sets[like]), -like) for like in stays]
        similarity, like = max(similar, default=(0.0, 0))
        if similarity >= threshold:
            duplicates.append(Duplicate(document, -like, similarity))
        else:
            stays.append(document)
    return duplicates


@pytest.mark.parametrize(("size", "threshold"), [(5, 0.8), (3, 0.5), (1, 0.9), (2, 1.0)])
def test_planted_duplicates_are_those_of_all_pairs(size: int, threshold: float) -> None:
    texts = [*planted(1), "", "one", "One!", "...", "!!!", "", "☃", "..."]
    expected = all_pairs(texts, size, threshold)
    assert len(expected) >= 3
    for _ in range(2):
        assert find_near(lambda: (text_shingles(text, size) for text in texts), threshold=threshold) == expected


def test_what_is_held_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = planted(2, 20)
    whole = find_near(lambda: (text_shingles(text, 3) for text in texts), threshold=0.5)
    monkeypatch.setattr(near_duplicates, "_AT_ONCE", 7)
    assert find_near(lambda: (text_shingles(text, 3) for text in texts), threshold=0.5) == whole


def test_of_three_the_middle_one_does_not_join_the_others() -> None:
    """The second is like the first, the third like the second alone: the second is listed, the third stays."""
    sets = [np.arange(begin, begin + 10, dtype=np.uint64) for begin in (0, 3, 6)]
    assert [jaccard(sets[0], other) for other in sets] == [1.0, 7 / 13, 4 / 16]
    assert find_near(lambda: iter(sets), threshold=0.5) == [Duplicate(1, 0, 7 / 13)]


def test_case_punctuation_and_ideographs() -> None:
    assert text_shingles("The Cat, sat!", 2).tolist() == text_shingles("the cat sat", 2).tolist()
    assert len(text_shingles("the cat sat", 2)) == 2
    assert text_shingles("한국어 문장", 1).tolist() == text_shingles("문장 한국어.", 1).tolist()
    assert len(text_shingles("猫が好きです", 2)) == 5  # each is a word
    assert len(text_shingles("well", 5)) == 1
    assert len(text_shingles(" … ", 5)) == 1
    assert (np.diff(text_shingles(" ".join(WORDS), 2).astype(object)) > 0).all()


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.5, 0.8, 0.95, 1.0])
def test_a_pair_at_the_threshold_is_missed_in_one_of_a_hundred_at_most(threshold: float) -> None:
    bands, rows = band_shape(threshold)
    assert bands * rows <= 128
    assert missed_at(threshold, (bands, rows)) <= 0.01
    random = np.random.default_rng(0)
    trials = random.random((4000, bands, rows)) < threshold  # a row is equal with this probability
    assert 1 - trials.all(axis=2).any(axis=1).mean() <= 0.016


def test_equal_documents_are_listed_with_the_first() -> None:
    digests = [bytes([value]) * 15 + b"\0" for value in (3, 1, 3, 2, 1, 3)]
    assert find_equal(digests) == [Duplicate(2, 0, 1.0), Duplicate(4, 1, 1.0), Duplicate(5, 0, 1.0)]
    assert find_equal([]) == []


def test_nothing_to_compare() -> None:
    assert find_near(lambda: iter(()), threshold=0.8) == []
    assert find_near(lambda: iter([text_shingles("", 5)]), threshold=0.8) == []


def near_of(texts: Sequence[str]) -> list[Duplicate]:
    return find_near(lambda: (text_shingles(text, 5) for text in texts), threshold=0.8)


def test_equal_documents_without_words_are_listed() -> None:
    assert near_of(["!!!", "", "☃ ☃", "!!!", "...", "", "☃ ☃"]) == [
        Duplicate(3, 0, 1.0),
        Duplicate(5, 1, 1.0),
        Duplicate(6, 2, 1.0),
    ]


def test_marks_and_normal_forms() -> None:
    assert near_of(["की कि कु के को", "का का का का का", "क क क क क"]) == []
    for text in ("오늘은 날씨가 아주 맑고 바람이 없다", "L'élève préféré a déjà mangé à la crêperie", "की कि कु के को के"):
        assert near_of([unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)]) == [
            Duplicate(1, 0, 1.0)
        ]


def test_shingles_are_read_only_where_the_signatures_are_within_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that share 60 of 85 words are often proposed at a threshold of 0.8, and never near-duplicates."""
    read: list[float] = []

    def noted(first: near_duplicates.Shingles, second: near_duplicates.Shingles) -> float:
        read.append(jaccard(first, second))
        return read[-1]

    monkeypatch.setattr(near_duplicates, "jaccard", noted)
    random = np.random.default_rng(3)
    common = " ".join(random.choice(WORDS, 60))
    assert near_of([f"{common} {' '.join(random.choice(WORDS, 25))}" for _ in range(60)]) == []
    assert len(read) < 60  # of 1,770 pairs, of which a third share a band


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.8, 0.95, 1.0])
def test_a_pair_at_the_threshold_is_within_reach_of_it(threshold: float) -> None:
    equal = np.random.default_rng(4).binomial(128, threshold, size=200_000)
    assert (equal < least_equal(threshold)).mean() <= 2e-4
    if threshold < 1:
        assert (equal < least_equal(threshold) + 2).mean() > 1e-4


def test_a_wrong_threshold_and_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for threshold in (0.0, 0.05, 1.1, float("nan")):
        with pytest.raises(InputError, match=r"--threshold .*: expected a similarity from 0.1 to 1"):
            find_near(lambda: iter(()), threshold=threshold)
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with pytest.raises(MissingExtra, match=r"corpus duplicates --near needs the extra 'duplicates'"):
        find_near(lambda: iter(()), threshold=0.8)
