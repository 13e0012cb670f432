"""text → token ids: a vocabulary with pieces of another domain's text added behind its own (beside paper §3).

The new pieces are those that shorten the text most. Words are written in old pieces, and neighbours are joined, the
most frequent pair first, as a vocabulary is learned from letters. Of these candidates the one that shortens the text
most beside those already chosen is taken, again and again: so the steps on the way to a long piece cost no place. Old
pieces keep their ids.

The extended vocabulary remembers its base, so that a model of the base can be taken over: the embedding of a new piece
begins as the mean of those of the pieces that the base splits it into.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bertwright.errors import InputError
from bertwright.text.vocabulary import CONTINUATION, SPECIAL, Base, vocabulary_hash
from bertwright.text.wordpiece import Tokenizer, count_words, learn_pieces, refuse_too_many

_SPARE = 4
"""Candidates per piece asked for, to begin with."""
_SYMBOLS = 0xF0000
"""The private planes of Unicode, whose characters stand for old pieces while pairs are joined."""
_MOST_USED = 0x110000 - _SYMBOLS
"""How many characters those are."""


@dataclass(frozen=True)
class Extension:
    """An extended tokenizer and how many pieces its text has per word, before and after; [UNK] counts as one."""

    tokenizer: Tokenizer
    pieces_before: float
    pieces_after: float


def extend_tokenizer(old: Tokenizer, texts: Iterable[str], *, add: int) -> Extension:
    """Add the `add` pieces that shorten the texts most; the same texts give the same bytes.

    InputError where the texts give no such piece, or fewer than were asked for, and for a vocabulary that lacks
    letters of its own pieces: a longer piece could leave the rest of a word without a match, and make it [UNK].
    """
    if add < 1:
        raise InputError(f"{add} pieces to add: at least 1 is needed")
    refuse_too_many(add, "pieces to add")
    _refuse_open(old)
    words = dict(sorted(count_words(texts, old.rules).items()))
    if not words:
        raise InputError("the text holds no word, so no piece can be learned from it")
    before = dict(zip(words, old.ids(list(words)), strict=True))
    split = {word: before[word] for word in words if len(before[word]) > 1}
    num = _SPARE * add
    learned = _joined(old, split, words, num)
    chosen = _choose(old, learned, split, words, add)
    while len(chosen) < add and len(learned) == num:
        num *= 2
        learned = _joined(old, split, words, num)
        chosen = _choose(old, learned, split, words, add)
    if len(chosen) < add:
        most = f"only {len(chosen):,} shorten it" if chosen else "it has none that would shorten it"
        raise InputError(f"{add:,} pieces to add: the text gives too few, {most}")
    found = Tokenizer([*old.pieces, *chosen], old.rules, base=Base(hash=old.hash, size=old.vocab_size))
    total = sum(words.values())
    after = zip(words, found.ids(list(words)), strict=True)
    return Extension(
        tokenizer=found,
        pieces_before=sum(count * len(before[word]) for word, count in words.items()) / total,
        pieces_after=sum(words[word] * len(ids) for word, ids in after) / total,
    )


def split_piece(ids: Mapping[str, int], piece: str) -> list[int]:
    """How the vocabulary `ids` splits a piece or word, the longest parts first; empty where it cannot.

    A piece that continues a word is split into pieces that continue one.
    """
    continues = piece.startswith(CONTINUATION) and piece != CONTINUATION
    letters = piece.removeprefix(CONTINUATION) if continues else piece
    found: list[int] = []
    begin = 0
    while begin < len(letters):
        prefix = CONTINUATION if begin or continues else ""
        for end in range(len(letters), begin, -1):
            id = ids.get(prefix + letters[begin:end])
            if id is not None:
                break
        else:
            return []
        found.append(id)
        begin = end
    return found


def new_pieces(extended: Tokenizer, *, base_hash: str) -> list[list[int]] | None:
    """The old pieces of each new one, in order; None where `extended` does not extend the tokenizer of `base_hash`."""
    base = extended.base
    if base is None or base.hash != base_hash:
        return None
    pieces = extended.pieces[: base.size]
    if base.size >= extended.vocab_size or vocabulary_hash(pieces, extended.rules) != base_hash:
        raise InputError(
            f"the tokenizer says that it extends one of {base.size:,} pieces ({base_hash[:12]}…), "
            "but its first pieces or its rules are not that one's; was it edited?"
        )
    ids = {piece: id for id, piece in enumerate(pieces)}
    return [split_piece(ids, piece) for piece in extended.pieces[base.size :]]


def _refuse_open(old: Tokenizer) -> None:
    for piece in old.pieces:
        if piece in SPECIAL or (piece.startswith("[unused") and piece.endswith("]")):
            continue
        for letter in piece.removeprefix(CONTINUATION) if piece.startswith(CONTINUATION) else piece[1:]:
            if old.id_of(CONTINUATION + letter) is None:
                raise InputError(
                    f"the piece {piece!r} holds {letter!r}, but the vocabulary has no {CONTINUATION + letter!r}: "
                    "it cannot be extended, since longer pieces could make words with that letter [UNK]"
                )


def _joined(old: Tokenizer, split: Mapping[str, list[int]], words: Mapping[str, int], num: int) -> list[str]:
    """The first `num` joins of neighbouring old pieces, the most frequent pair first."""
    if not split:
        return []
    used = sorted({id for ids in split.values() for id in ids})
    if len(used) > _MOST_USED:
        raise InputError(
            f"the words to learn from are split into {len(used):,} pieces of the vocabulary; at most {_MOST_USED:,} "
            "can be told apart: give less text"
        )
    symbols = {id: chr(_SYMBOLS + place) for place, id in enumerate(used)}
    spelled = {"".join(symbols[id] for id in ids): words[word] for word, ids in split.items()}
    joined = []
    for symbol in learn_pieces(spelled, num):
        first, *rest = (old.pieces[used[ord(letter) - _SYMBOLS]] for letter in symbol.removeprefix(CONTINUATION))
        joined.append(first + "".join(piece.removeprefix(CONTINUATION) for piece in rest))
    return joined


def _choose(
    old: Tokenizer, candidates: list[str], split: Mapping[str, list[int]], words: Mapping[str, int], add: int
) -> list[str]:
    """Up to `add` of the candidates, each the one that shortens the text most beside those before it.

    What a candidate saved when last asked is about the most that it can save, so few are asked anew at each choice.
    """
    ids = {piece: id for id, piece in enumerate(old.pieces)}
    lengths = {word: len(before) for word, before in split.items()}
    holders = _holders(candidates, split)

    def saved(piece: str) -> int:
        ids[piece] = -1
        shorter = sum(words[word] * (lengths[word] - len(split_piece(ids, word))) for word in holders[piece])
        del ids[piece]
        return shorter

    heap = [(-saved(piece), piece) for piece in holders]
    heapq.heapify(heap)
    chosen: list[str] = []
    while heap and len(chosen) < add:
        piece = heapq.heappop(heap)[1]
        now = -saved(piece)
        if now < 0 and heap and (now, piece) > heap[0]:
            heapq.heappush(heap, (now, piece))
        elif now < 0:
            chosen.append(piece)
            ids[piece] = -1
            lengths |= {word: len(split_piece(ids, word)) for word in holders[piece]}
    return chosen


def _holders(candidates: list[str], words: Iterable[str]) -> dict[str, list[str]]:
    """The words that each candidate may stand in."""
    holders: dict[str, list[str]] = {piece: [] for piece in sorted(candidates)}
    longest = max(map(len, candidates), default=0)
    for word in words:
        for begin in range(len(word)):
            prefix = CONTINUATION if begin else ""
            for end in range(begin + 1, min(len(word), begin + longest) + 1):
                found = holders.get(prefix + word[begin:end])
                if found is not None:
                    found.append(word)
    return {piece: sorted(set(found)) for piece, found in holders.items()}
