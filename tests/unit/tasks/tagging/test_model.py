"""Windows of words: whole documents around sentences, long sentences covered, every word tagged once."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.errors import InputError
from bertwright.tasks.tagging.model import windows_of
from bertwright.tasks.tagging.spec import NER
from bertwright.tasks.tagging.task import TAGGING
from bertwright.text.wordpiece import import_vocabulary
from tests.support.eight_sentences import CLS, SEP, UNK, AlphabetLetters, made_of


def asked_of(windows) -> dict[int, tuple[list[int], int]]:
    """Return the row and the position that tag each word; a word that is tagged twice fails."""
    predictions_of: dict[int, tuple[list[int], int]] = {}
    for ids, at, words in zip(windows.ids, windows.at, windows.words, strict=True):
        for piece, word in zip(at, words, strict=True):
            assert word not in predictions_of
            predictions_of[int(word)] = (ids.tolist(), int(piece))
    return predictions_of


def by_hand(documents: list[list[list[str]]], room: int) -> list[tuple[list[int], int]]:
    """The same for sentences in documents, piece by piece and without any arithmetic on centres."""
    windows_by_hand = []
    for document in documents:
        pieces = [[[ord(letter) for letter in word] for word in words] for words in document]
        flat = [id for words in pieces for word in words for id in word]
        begin = 0
        for words in pieces:
            length = sum(map(len, words))
            low, high = begin, begin + length
            if length <= room:  # grow to both sides in turn, the right one first
                side = 0
                while high - low < room and (low > 0 or high < len(flat)):
                    if (side % 2 == 0 or low == 0) and high < len(flat):
                        high += 1
                    elif low > 0:
                        low -= 1
                    side += 1
                starts = [low]
            else:
                low, high = max(0, low - room // 2), min(len(flat), high + room // 2)
                starts = [start for start in range(low, high - room) if (start - low) % (room // 2) == 0] + [
                    high - room
                ]
            at = begin
            for word in words:
                inside = [start for start in starts if start <= at < start + room]
                best = max(inside, key=lambda start: (min(at - start, start + room - 1 - at), -start))
                windows_by_hand.append(([CLS, *flat[best : best + min(room, high - low)], SEP], at - best + 1))
                at += len(word)
            begin += length
    return windows_by_hand


words_of_letters = st.lists(
    st.lists(st.lists(st.text("abcdefg", min_size=1, max_size=9), min_size=1, max_size=9), min_size=1, max_size=5),
    min_size=1,
    max_size=4,
)


@settings(deadline=None)
@given(words_of_letters, st.integers(4, 40))
def test_windows_are_those_found_by_hand(documents, max_length):
    """With context in documents, in a whole file, and alone: ids, position and one row for every word."""
    rows = [words for document in documents for words in document]
    marks = [number for number, document in enumerate(documents) for _ in document]
    cases = {
        "documents": (made_of(rows, marks), documents),
        "file": (made_of(rows), [rows]),
        "off": (made_of(rows, marks), [[words] for words in rows]),
    }
    for context, (sentences, groups) in cases.items():
        windows = windows_of(AlphabetLetters(), sentences, context=context, max_length=max_length)
        predicted_words = asked_of(windows)
        assert [predicted_words[word] for word in range(sentences.num_words)] == by_hand(groups, max_length - 2)
        assert max(map(len, windows.ids)) <= max_length


def test_neighbours_fill_the_window_and_only_the_middle_is_asked_for():
    sentences = made_of([["aaaa"], ["bb", "b"], ["cccc"], ["dd"]], [0, 0, 0, 1])
    windows = windows_of(AlphabetLetters(), sentences, context="documents", max_length=9)
    zipped = zip(windows.ids, windows.at, windows.words, strict=True)
    rows = {"".join(map(chr, ids[1:-1])): (at.tolist(), words.tolist()) for ids, at, words in zipped}
    assert rows == {
        "aaaabbb": ([1], [0]),
        "aabbbcc": ([3, 5], [1, 2]),
        "bbbcccc": ([4], [3]),
        "dd": ([1], [4]),
    }


def test_a_short_document_is_one_row_for_all_its_sentences():
    windows = windows_of(AlphabetLetters(), made_of([["ab"], ["c"]], [0, 0]), context="documents", max_length=16)
    assert len(windows) == 1
    assert (windows.at[0].tolist(), windows.words[0].tolist()) == ([1, 3], [0, 1])


def test_without_marks_sentences_stand_alone_unless_the_file_is_one_document():
    sentences = made_of([["ab"], ["c"]])
    assert len(windows_of(AlphabetLetters(), sentences, context="documents", max_length=16)) == 2
    assert len(windows_of(AlphabetLetters(), sentences, context="auto", max_length=16)) == 2
    assert len(windows_of(AlphabetLetters(), sentences, context="file", max_length=16)) == 1


def test_words_that_become_nothing_keep_an_answer():
    windows = windows_of(AlphabetLetters(), made_of([["a", "\u0301", "b"], ["\u200d"]]), context="off", max_length=16)
    assert [ids.tolist() for ids in windows.ids] == [[CLS, ord("a"), UNK, ord("b"), SEP], [CLS, UNK, SEP]]
    assert windows.vanished == (1, 3)
    assert sorted(asked_of(windows)) == [0, 1, 2, 3]


def test_a_very_long_sentence_is_covered_in_reasonable_time():
    sentences = made_of([["word"] * 100_000])
    windows = windows_of(AlphabetLetters(), sentences, context="off", max_length=128)
    assert sorted(np.concatenate(windows.words)) == list(range(100_000))


def test_too_little_room_is_an_error():
    with pytest.raises(InputError, match="maximal length 2: expected at least 3, to have room for words"):
        windows_of(AlphabetLetters(), made_of([["a"]]), context="off", max_length=2)


def test_real_files_with_context_and_without(shared_data: Path) -> None:
    """WikiGold's documents around its sentences: every word is tagged once, and rows are fuller than alone."""
    vocabulary = shared_data / "vocab" / "bert-base-cased-vocab.txt"
    words = import_vocabulary(vocabulary, cased=True)
    read = TAGGING.read(NER, shared_data / "ner" / "wikigold")
    task, train, dev = read.task, read.train, read.validation["dev"]
    assert (task.context, len(task.labels)) == ("documents", 9)
    assert len(train) + len(dev) == 1696
    lengths = {}
    for context in ("documents", "off"):
        windows = windows_of(words, train, context=context, max_length=128)
        assert sorted(np.concatenate(windows.words)) == list(range(train.num_words))
        assert max(map(len, windows.ids)) <= 128
        lengths[context] = np.mean([len(ids) for ids in windows.ids])
    assert lengths["documents"] > 110 > 60 > lengths["off"]
