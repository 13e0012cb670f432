"""text → token ids: extend a vocabulary with pieces of another domain's text (beside paper §3).

The new pieces are those that shorten the text most. First, words are written in old pieces, and neighbours are joined,
the most frequent pair first, as a vocabulary is learned from letters. These joins are the candidates. Then the
candidate that shortens the text most, given those already chosen, is chosen, again and again. Therefore the
intermediate steps to a long piece use up no id. Old pieces keep their ids.

The extended vocabulary notes its base, so that a model of the base can be continued: the embedding of a new piece
starts as the mean of the embeddings of the old pieces that it is split into.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bertwright.errors import InputError
from bertwright.text.vocabulary import CONTINUATION, SPECIAL, Base, vocabulary_hash
from bertwright.text.wordpiece import Tokenizer, count_words, learn_pieces, refuse_too_many

_CANDIDATES_PER_PIECE = 4  # candidates per requested piece in the first round
_SYMBOLS = 0xF0000  # first character of Unicode's private planes; while pairs are joined, each stands for an old piece
_MOST_SYMBOLS = 0x110000 - _SYMBOLS  # number of these characters


@dataclass(frozen=True)
class Extension:
    """Extended tokenizer, and pieces per word of its text before and after; [UNK] counts as one piece."""

    tokenizer: Tokenizer
    pieces_before: float
    pieces_after: float


def extend_tokenizer(old: Tokenizer, texts: Iterable[str], *, add: int) -> Extension:
    """Add the `add` pieces that shorten the texts most; the same texts give the same bytes.

    Raises InputError where the texts give fewer pieces than `add`, and for a vocabulary that lacks letters of its own
    pieces: a longer piece could leave the rest of a word without a match, and make the word [UNK].
    """
    if add < 1:
        raise InputError(f"{add} pieces to add: expected 1 or more")
    refuse_too_many(add, "pieces to add")
    _refuse_missing_letters(old)
    words = dict(sorted(count_words(texts, old.rules).items()))
    if not words:
        raise InputError("the text holds no word, so no piece can be learned from it")
    before = dict(zip(words, old.ids(list(words)), strict=True))
    split = {word: before[word] for word in words if len(before[word]) > 1}
    num_candidates = _CANDIDATES_PER_PIECE * add
    while True:
        candidates = _candidates(old, split, words, num_candidates)
        chosen = _choose(old, candidates, split, words, add)
        if len(chosen) >= add or len(candidates) < num_candidates:
            break
        num_candidates *= 2
    if len(chosen) < add:
        raise InputError(f"{add:,} pieces to add: only {len(chosen):,} pieces of the text would shorten it")
    extended = Tokenizer([*old.pieces, *chosen], old.rules, base=Base(hash=old.hash, size=old.vocab_size))
    total = sum(words.values())
    after = zip(words, extended.ids(list(words)), strict=True)
    return Extension(
        tokenizer=extended,
        pieces_before=sum(count * len(before[word]) for word, count in words.items()) / total,
        pieces_after=sum(words[word] * len(ids) for word, ids in after) / total,
    )


def split_piece(ids: Mapping[str, int], piece: str) -> list[int]:
    """Return the ids into which the vocabulary `ids` splits a piece or word; empty where it cannot.

    From left to right the longest part is taken. A piece that continues a word is split into such pieces.
    """
    continues = piece.startswith(CONTINUATION) and piece != CONTINUATION
    letters = piece.removeprefix(CONTINUATION) if continues else piece
    parts: list[int] = []
    begin = 0
    while begin < len(letters):
        prefix = CONTINUATION if begin or continues else ""
        for end in range(len(letters), begin, -1):
            id = ids.get(prefix + letters[begin:end])
            if id is not None:
                break
        else:
            return []
        parts.append(id)
        begin = end
    return parts


def new_pieces(extended: Tokenizer, *, base_hash: str) -> list[list[int]] | None:
    """Return the ids of old pieces that each new piece is split into, in order.

    Returns None where `extended` does not extend the tokenizer with the hash `base_hash`. Raises InputError where it
    claims to, but its first pieces or its rules are others.
    """
    base = extended.base
    if base is None or base.hash != base_hash:
        return None
    pieces = extended.pieces[: base.size]
    if base.size >= extended.vocab_size or vocabulary_hash(pieces, extended.rules) != base_hash:
        raise InputError(
            f"the tokenizer notes that it extends one of {base.size:,} pieces ({base_hash[:12]}…), but its first "
            "pieces or its rules differ from that one's; was it edited?"
        )
    ids = {piece: id for id, piece in enumerate(pieces)}
    return [split_piece(ids, piece) for piece in extended.pieces[base.size :]]


def _refuse_missing_letters(old: Tokenizer) -> None:
    """Raise InputError where a letter of a piece has no piece of its own that continues a word."""
    for piece in old.pieces:
        if piece in SPECIAL or (piece.startswith("[unused") and piece.endswith("]")):
            continue
        for letter in piece.removeprefix(CONTINUATION) if piece.startswith(CONTINUATION) else piece[1:]:
            if old.id_of(CONTINUATION + letter) is None:
                raise InputError(
                    f"the piece {piece!r} holds {letter!r}, but the vocabulary has no {CONTINUATION + letter!r}; "
                    "it cannot be extended, because longer pieces could make words with this letter [UNK]"
                )


def _candidates(old: Tokenizer, split: Mapping[str, list[int]], words: Mapping[str, int], num: int) -> list[str]:
    """Return the first `num` joins of neighbouring old pieces, the most frequent pair first."""
    if not split:
        return []
    used = sorted({id for ids in split.values() for id in ids})
    if len(used) > _MOST_SYMBOLS:
        raise InputError(
            f"the words of the text are split into {len(used):,} different pieces of the vocabulary; expected at most "
            f"{_MOST_SYMBOLS:,}; use less text"
        )
    symbols = {id: chr(_SYMBOLS + index) for index, id in enumerate(used)}
    spelled = {"".join(symbols[id] for id in ids): words[word] for word, ids in split.items()}
    joined = []
    for symbol in learn_pieces(spelled, num):
        first, *rest = (old.pieces[used[ord(letter) - _SYMBOLS]] for letter in symbol.removeprefix(CONTINUATION))
        joined.append(first + "".join(piece.removeprefix(CONTINUATION) for piece in rest))
    return joined


def _choose(
    old: Tokenizer, candidates: list[str], split: Mapping[str, list[int]], words: Mapping[str, int], add: int
) -> list[str]:
    """Return up to `add` of the candidates, each the one that shortens the text most, given those before it.

    A candidate seldom saves more than when it was last measured, so few are measured again at each choice.
    """
    ids = {piece: id for id, piece in enumerate(old.pieces)}
    lengths = {word: len(before) for word, before in split.items()}
    words_of = _words_of(candidates, split)

    def saved(piece: str) -> int:
        ids[piece] = -1
        shorter = sum(words[word] * (lengths[word] - len(split_piece(ids, word))) for word in words_of[piece])
        del ids[piece]
        return shorter

    heap = [(-saved(piece), piece) for piece in words_of]
    heapq.heapify(heap)
    chosen: list[str] = []
    while heap and len(chosen) < add:
        piece = heapq.heappop(heap)[1]
        cost = -saved(piece)
        if cost < 0 and heap and (cost, piece) > heap[0]:
            heapq.heappush(heap, (cost, piece))
        elif cost < 0:
            chosen.append(piece)
            ids[piece] = -1
            lengths |= {word: len(split_piece(ids, word)) for word in words_of[piece]}
    return chosen


def _words_of(candidates: list[str], words: Iterable[str]) -> dict[str, list[str]]:
    """Return for each candidate the words that contain it."""
    words_of: dict[str, list[str]] = {piece: [] for piece in sorted(candidates)}
    longest = max(map(len, candidates), default=0)
    for word in words:
        for begin in range(len(word)):
            prefix = CONTINUATION if begin else ""
            for end in range(begin + 1, min(len(word), begin + longest) + 1):
                if (containing := words_of.get(prefix + word[begin:end])) is not None:
                    containing.append(word)
    return {piece: sorted(set(containing)) for piece, containing in words_of.items()}
