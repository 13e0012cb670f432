"""lines of a text → True where they look like the wrapped lines of paragraphs."""

import re
from collections.abc import Iterable
from itertools import islice
from typing import Final

SAMPLE_LINES: Final = 1000
_FEWEST_LINES: Final = 50
_LONGEST: Final = 120
"""Number of characters above which a line is a paragraph of its own."""
_FULL: Final = 0.75
"""Part of the longest line that a full line has at least."""
_ENDS_A_SENTENCE: Final = re.compile(r"[.!?…:;。！？][\"'”’»)\]]*$")


def looks_wrapped(lines: Iterable[str]) -> bool:
    """Return whether most of the first lines are about as long as the longest, and end within a sentence."""
    sample = [line.strip() for line in islice(lines, SAMPLE_LINES)]
    longest = max(map(len, sample), default=0)
    if len(sample) < _FEWEST_LINES or longest > _LONGEST:
        return False
    num_full = sum(len(line) >= _FULL * longest for line in sample)
    num_open = sum(not _ENDS_A_SENTENCE.search(line) for line in sample)
    return min(num_full, num_open) > len(sample) / 2
