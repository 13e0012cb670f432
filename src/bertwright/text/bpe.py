"""text → token ids: GPT-1's byte-pair encoding, loaded from published files or learned (GPT paper §4.1).

Text is cleaned, lower-cased and split as for an uncased BERT. Each word becomes its letters, the last one marked with
"</w>". The pair of neighbours that comes first in the list of merges is joined, until no pair of the list is left.

OpenAI first repaired the text with ftfy and split it with spaCy. Without these two packages transformers splits text as
BERT does, and the published tokenizer.json describes the same rules. This module reads and writes that form. Its ids
differ from OpenAI's where spaCy splits in another way ("don't" is "do n't" there) and at line ends, which had a piece.

Learning gives the same bytes with any number of threads: words are counted and fed to the trainer of `tokenizers` as
for WordPiece (see wordpiece.py).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import read_object
from bertwright.text.base_tokenizer import BaseTokenizer, Frame, number_pieces
from bertwright.text.vocabulary import Rules, check_rules, pieces_by_id, read_piece_lines, read_pieces
from bertwright.text.wordpiece import count_words, refuse_too_many, split_alphabet, train_on

UNK = "<unk>"
END = "</w>"
"""Suffix of a piece that ends a word."""
START, DELIMITER, CLASSIFY = TASK_TOKENS = ("_start_", "_delimiter_", "_classify_")
"""Special tokens of a fine-tuned GPT-1. They equal no word of a text, because a text's words are split at "_"."""
HEADER = "#version:"
MERGES = 40_000
"""Number of merges of GPT-1."""

_RULES = Rules(cased=False, strip_accents=True)
_MAX_POSITIONS = 512

Merge = tuple[str, str]


def read_merges(path: Path) -> list[Merge]:
    """Return the two pieces of each line after the first."""
    first, *lines = read_piece_lines(path)
    if not first.startswith(HEADER):  # other readers skip the first line unseen, and would lose a merge here
        raise InputError(f"{path}:1: expected a first line '{HEADER} 0.2', got {first[:40]!r}")
    merges = []
    for number, line in enumerate(lines, start=2):
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise InputError(f"{path}:{number}: expected two pieces with a space between them, got {line[:80]!r}")
        merges.append((left, right))
    return merges


def read_described(path: Path) -> tuple[list[str], list[Merge]]:
    """Return pieces and merges of a tokenizer.json. Raises InputError where its rules are not GPT-1's."""
    described = read_object(path)
    try:
        normalizer, model = described["normalizer"], described["model"]
        expected = {
            "normalizer.lowercase": (normalizer["lowercase"], True),
            "normalizer.strip_accents": (normalizer["strip_accents"] in (None, True), True),
            "model": (model.get("type", "BPE"), "BPE"),
            "model.unk_token": (model["unk_token"], UNK),
            "model.end_of_word_suffix": (model["end_of_word_suffix"], END),
            "model.continuing_subword_prefix": (model.get("continuing_subword_prefix") or "", ""),
            "model.dropout": (model.get("dropout") or 0, 0),
        }
        for name in ("fuse_unk", "byte_fallback", "ignore_merges"):
            expected[f"model.{name}"] = (model.get(name, False), False)
        check_rules(described, expected, path, kind="GPT-1")
        pieces = read_pieces(described, path)
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        merges = [(str(left), str(right)) for left, right in pairs]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not the description of a GPT-1 tokenizer ({error!r})") from None
    return pieces, merges


def check_merges(merges: Sequence[Merge], ids: Mapping[str, int], source: str) -> None:
    """Raise InputError for merges whose pieces or result have no id, and for a pair that is listed twice."""
    seen: dict[Merge, int] = {}
    for number, (left, right) in enumerate(merges, start=1):
        for piece in (left, right, left + right):
            if piece not in ids:
                raise InputError(
                    f"{source}: merge {number} joins {left!r} and {right!r}, but {piece!r} is not in the vocabulary"
                )
        if seen.setdefault((left, right), number) != number:
            raise InputError(f"{source}: {left!r} and {right!r} are joined by merges {seen[left, right]} and {number}")


class BPETokenizer(BaseTokenizer):
    """A byte-pair tokenizer as GPT-1's.

    In `pieces`, a piece that ends a word ends with "</w>". `merges` are the pairs to join, in this order.
    GPT-1 has no padding token: `pad_id` is the id of <unk>. No result depends on it, because padding follows the
    text, the mask hides it, and it adds nothing to the loss.
    """

    cased = False

    def __init__(self, pieces: Sequence[str], merges: Sequence[Merge], *, place: str = "vocabulary") -> None:
        """Check pieces and merges; `place` names the vocabulary in errors.

        Raises InputError for duplicates, a missing <unk> and merges of unknown pieces.
        """
        self.pieces = list(pieces)
        self.merges = [(left, right) for left, right in merges]
        self._ids = number_pieces(self.pieces, required=[UNK], source=place)
        self.unk_id = self.pad_id = self._ids[UNK]
        self._special = TASK_TOKENS if all(token in self._ids for token in TASK_TOKENS) else ()
        self.special_ids = tuple(self._ids[token] for token in (UNK, *self._special))
        check_merges(self.merges, self._ids, place)
        self._rust = self._build()

    def __reduce__(self) -> tuple[Any, ...]:
        return BPETokenizer, (self.pieces, self.merges)

    @cached_property
    def hash(self) -> str:
        """The sha256 of pieces and merges: equal hashes give equal ids for every text."""
        return hashlib.sha256(json.dumps([self.pieces, self.merges], ensure_ascii=False).encode()).hexdigest()

    @property
    def has_special(self) -> bool:
        """Return whether the vocabulary has the three tokens of fine-tuning."""
        return bool(self._special)

    def with_special(self) -> "BPETokenizer":
        """Return the tokenizer with the tokens of fine-tuning; missing ones are appended, and no other id changes."""
        missing = [token for token in TASK_TOKENS if token not in self._ids]
        return BPETokenizer([*self.pieces, *missing], self.merges) if missing else self

    def decode(self, ids: Sequence[int]) -> str:
        """Join pieces into text, with a space after each word and each of the three task tokens."""
        pieces = [self.pieces[id] for id in ids]
        return "".join(f"{piece} " if piece in TASK_TOKENS else piece.replace(END, " ") for piece in pieces).rstrip()

    def _vocabulary_files(self) -> dict[str, str]:
        for left, right in self.merges:
            if any(letter in left + right for letter in " \n") or right.endswith("\r"):
                raise InputError(
                    f"the merges: expected pieces that a line of merges.txt can hold, got {left!r} and {right!r}; "
                    "remove this merge from tokenizer.json: no text is split into such pieces"
                )
        return {
            "vocab.json": json.dumps(self._ids, ensure_ascii=False) + "\n",
            "merges.txt": "".join([f"{HEADER} 0.2\n", *(f"{left} {right}\n" for left, right in self.merges)]),
        }

    def _config(self) -> dict[str, Any]:
        config = {"tokenizer_class": "OpenAIGPTTokenizer", "unk_token": UNK, "model_max_length": _MAX_POSITIONS}
        return config | dict(zip(("bos_token", "sep_token", "cls_token"), self._special, strict=False))

    @classmethod
    def load(cls, folder: Path) -> "BPETokenizer":
        """Read a folder written by `save`, or a published GPT-1's.

        A published folder may hold tokenizer.json alone, as transformers writes it today, or vocab.json and merges.txt
        alone, as it did before. Raises InputError where a file is missing or broken, holds other rules than GPT-1's, or
        contradicts another file.
        """
        described, vocabulary = folder / "tokenizer.json", folder / "vocab.json"
        loaded = []
        if described.is_file():
            loaded.append(cls(*read_described(described), place=str(described)))
        if vocabulary.is_file():
            loaded.append(read_bpe(vocabulary, folder / "merges.txt"))
        if not loaded:
            raise InputError(f"{folder}: no GPT-1 tokenizer; expected tokenizer.json, or vocab.json and merges.txt")
        if loaded[0].hash != loaded[-1].hash:
            raise InputError(f"{described}: holds other pieces or merges than vocab.json and merges.txt beside it")
        return loaded[0]

    @property
    def _frame(self) -> Frame:
        if not self._special:
            raise InputError(
                f"the vocabulary of {self.vocab_size:,} pieces has no {', '.join(TASK_TOKENS)}, which frame the rows "
                "of a task; with_special() adds them"
            )
        _, begin, between, end = self.special_ids
        return begin, (between,), end

    def _build(self) -> tokenizers.Tokenizer:
        model = models.BPE(self._ids, self.merges, unk_token=UNK, end_of_word_suffix=END, fuse_unk=False)
        rust = tokenizers.Tokenizer(model)
        rust.normalizer = normalizers.BertNormalizer(lowercase=True)
        rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        rust.decoder = decoders.BPEDecoder(suffix=END)
        rust.add_special_tokens([UNK, *self._special])
        rust.encode_special_tokens = True  # the package's name for reading "<unk>" as ordinary text
        return rust


def read_bpe(vocabulary: Path, merges: Path) -> BPETokenizer:
    """Read a JSON file of ids by piece and a list of merges, as OpenAI and transformers write them.

    Raises InputError, with the line or piece, for files that are broken or contradict each other.
    """
    ids = read_object(vocabulary)
    return BPETokenizer(pieces_by_id(ids, vocabulary), read_merges(merges), place=f"{vocabulary} and {merges.name}")


def train_bpe(
    texts: Iterable[str], *, merges: int = MERGES, min_count: int = 2, coverage: float = 0.9999
) -> BPETokenizer:
    """Learn a vocabulary of `merges` joined pieces; the same texts give the same bytes with any number of threads.

    The texts are read once and only word counts are kept. The alphabet holds the most frequent characters, until they
    make up the fraction `coverage` of the text; other characters become <unk>. A pair is joined if it occurs
    `min_count` times. The pieces are, in this order: <unk>, the sorted alphabet, the same with "</w>", the learned
    pieces, the tokens of fine-tuning. Raises InputError for texts without a word and for fewer than one merge.
    """
    if merges < 1:
        raise InputError(f"{merges} merges: expected 1 or more")
    refuse_too_many(merges, "merges")
    words, letters = split_alphabet(count_words(texts, _RULES), coverage)
    # Each letter in both forms, so that every word of these letters can be split into pieces.
    first = [UNK, *sorted(letters), *(letter + END for letter in sorted(letters))]
    pieces, pairs = _learn(words, first, merges=merges, min_count=min_count)
    learned = len(pieces) - len(first)
    if learned < merges:
        say(f"the text is too short: it gives {learned:,} merges, fewer than the {merges:,} requested")
    return BPETokenizer([*pieces, *TASK_TOKENS], pairs)


def _learn(words: Mapping[str, int], first: list[str], *, merges: int, min_count: int) -> tuple[list[str], list[Merge]]:
    """Return the pieces `first` followed by the pieces that the trainer makes of them, and the pair behind each."""
    trainer = trainers.BpeTrainer(
        vocab_size=len(first) + merges,
        min_frequency=min_count,
        special_tokens=first,
        show_progress=False,
        end_of_word_suffix=END,
    )
    rust = train_on(words, models.BPE(unk_token=UNK, end_of_word_suffix=END), trainer)
    learned = json.loads(rust.to_str())["model"]
    ids: dict[str, int] = learned["vocab"]
    return sorted(ids, key=ids.__getitem__), [(left, right) for left, right in learned["merges"]]
