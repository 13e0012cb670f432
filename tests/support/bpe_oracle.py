"""Byte-pair encoding as a plain loop: learning from counted words, and cutting a word. Slow and easy to check."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

Pair = tuple[str, str]


def learn(words: Iterable[str], num_merges: int) -> tuple[list[str], list[Pair]]:
    """Pieces and merges of words, in the order of OpenAI's file: <unk>, letters, letters that end a word, the rest."""
    counts = Counter(words)
    cut = {word: letters(word) for word in counts}
    alphabet = sorted({letter for word in counts for letter in word})
    pieces = ["<unk>", *alphabet, *(f"{letter}</w>" for letter in alphabet)]
    merges: list[Pair] = []
    while len(merges) < num_merges:
        pairs: Counter[Pair] = Counter()
        for word, parts in cut.items():
            for pair in pairwise(parts):
                pairs[pair] += counts[word]
        for pair in merges:  # a pair may come up again once another merge has made one of its parts
            del pairs[pair]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        if "".join(best) not in pieces:
            pieces.append("".join(best))
        cut = {word: join(parts, best) for word, parts in cut.items()}
    return pieces, merges


def cut(word: str, merges: Sequence[Pair]) -> list[str]:
    """The pieces of a word: again and again the pair that stands first in `merges` is joined."""
    parts = letters(word)
    rank = {pair: index for index, pair in enumerate(merges)}
    while joinable := [pair for pair in pairwise(parts) if pair in rank]:
        parts = join(parts, min(joinable, key=rank.__getitem__))
    return parts


def letters(word: str) -> list[str]:
    return [*word[:-1], f"{word[-1]}</w>"]


def join(parts: Sequence[str], pair: Pair) -> list[str]:
    joined: list[str] = []
    for part in parts:
        if joined and not joined[-1].endswith("\0") and (joined[-1], part) == pair:
            joined[-1] += f"{part}\0"  # so marked, it is not joined twice in one pass
        else:
            joined.append(part)
    return [part.removesuffix("\0") for part in joined]
