"""Words of scripts with marks, and of texts in either normal form."""

import unicodedata
from typing import Literal

import pytest

from bertwright.text.words import text_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The Cat, sat! 3 snake_case", ["the", "cat", "sat", "3", "snake_case"]),
        ("की कि कु के को", ["की", "कि", "कु", "के", "को"]),
        ("한국어 문장.", ["한국어", "문장"]),
        ("L'élève a déjà mangé", ["l", "élève", "a", "déjà", "mangé"]),
        ("猫がガ好き", ["猫", "が", "ガ", "好", "き"]),
        ("ＡＢＣ ﬁne", ["abc", "fine"]),
        ("❤️ !!! … 👍🏽", []),
        ("", []),
    ],
)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_words_of_many_scripts(text: str, words: list[str], form: Literal["NFC", "NFD"]) -> None:
    assert text_words(unicodedata.normalize(form, text)) == words
