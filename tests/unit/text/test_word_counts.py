"""Words of a text against `wc -w`, and numbers of words as they are typed."""

import subprocess
from pathlib import Path

import pytest

from bertwright.errors import InputError
from bertwright.text.word_counts import parse_words, words_of_text, words_text


def test_the_words_of_a_text_are_those_of_wc(own_text: Path) -> None:
    counted = subprocess.run(["wc", "-w", own_text], capture_output=True, text=True, check=True)
    assert words_of_text(own_text.read_text("utf-8").splitlines()) == int(counted.stdout.split()[0]) > 1000


def test_a_text_is_divided_at_unicode_white_space() -> None:
    assert words_of_text(["one\x1ctwo\u00a0three\u3000four", "\u200b", " \t "]) == 5
    assert "Unicode white space" in str(words_of_text.__doc__)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("10M", 10_000_000),
        ("1.5M", 1_500_000),
        ("100k", 100_000),
        ("0.25m", 250_000),
        ("1B", 10**9),
        ("12345", 12_345),
        ("1,500k", 1_500_000),
    ],
)
def test_numbers_of_words(typed: str, words: int) -> None:
    assert parse_words(typed) == words
    assert parse_words(words_text(words)) == words


@pytest.mark.parametrize(
    "typed", ["0", "0M", "-5", "10X", "", "M", "1.5", "1e6", "ten", "10 000", "1,5M", "12,34", "9999999B", "٣M"]
)
def test_what_is_no_number_of_words_is_refused(typed: str) -> None:
    with pytest.raises(InputError, match=r"expected a number of words above 0, such as 10M, 1.5M"):
        parse_words(typed)


def test_numbers_of_words_are_read_as_they_are_typed() -> None:
    assert [words_text(words) for words in (1, 999, 1000, 123_456, 1_500_000, 10**7, 10**9)] == [
        "1",
        "999",
        "1k",
        "123,456",
        "1.5M",
        "10M",
        "1,000M",
    ]
