"""text → words without case, accents in one spelling: what near-duplicates and the baseline of vectors compare."""

import re
import sys
import unicodedata
from functools import cache
from typing import Final

_IDEOGRAPHS: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"


def text_words(text: str) -> list[str]:
    """Return the words of a text in their order, in lower case and in Unicode's form NFKC.

    A word is a run of letters, digits and underscores with their marks (the vowel signs of Hindi are marks). A Chinese
    or Japanese character is a word. Punctuation, white space and symbols are left out.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return _word_pattern().findall(unicodedata.normalize("NFKC", folded))  # lower case may take a letter apart


@cache
def _word_pattern() -> re.Pattern[str]:
    """Return the pattern of a word; it is made at first use, since re has no class of marks."""
    marks = "".join(char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(char)[0] == "M")
    letters = f"[^\\W{_IDEOGRAPHS}]"
    return re.compile(f"[{_IDEOGRAPHS}][{marks}]*|{letters}+(?:[{marks}]+{letters}*)*")
