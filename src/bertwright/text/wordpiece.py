"""text → token ids: BERT's WordPiece tokenizer, loaded, imported or learned (paper §3, "WordPiece embeddings").

The steps: clean the text, set ideographs apart, fold upper case unless the vocabulary is cased, strip accents where the
rules say so, split words at white space and punctuation. Then each word is cut from left to right into the longest
pieces that the vocabulary holds. A piece that continues a word begins with "##".

The `tokenizers` package, which only the tokenizers of this folder import, does the work in Rust on all threads.

Learning a vocabulary gives the same bytes with any number of threads. The trainer of `tokenizers` numbers the letters
in the order of a hash table and breaks ties by those numbers. Therefore it receives the sorted letters as if they were
special tokens. Words are counted, and rare letters dropped, before the trainer sees them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.text.base_tokenizer import Frame, MaskTokenizer, number_pieces
from bertwright.text.other_tokenizers import other_convention, refuse_other_rules, refuse_other_vocabulary
from bertwright.text.vocabulary import (
    AS_WORDPIECE,
    CLS,
    CONTINUATION,
    LONGEST_WORD_GOOGLE,
    OWN_KEY,
    SEP,
    SPECIAL,
    SPECIAL_BY_KEY,
    UNK,
    Base,
    Rules,
    read_folder,
    read_vocabulary,
    refuse_unwritable_pieces,
    vocabulary_hash,
)

VOCABULARY = 8000
"""Default number of pieces. With more, a small model spends most of its parameters and time on rare pieces."""
_BLOCK_CHARACTERS = 32_000_000  # characters whose words are counted, split at white space alone, before normalising
_MOST_PIECES = 10_000_000  # the largest published vocabularies have a million
_MOST_WORDS = 2_000_000  # distinct words kept while counting; bounds the memory
_FEED_CHARACTERS = 10_000  # characters of a block of text for the trainer; larger blocks are slower on a busy machine


class Tokenizer(MaskTokenizer):
    """BERT's WordPiece tokenizer.

    rules   the rules that split text into words
    base    the vocabulary that this one extends, or None; no id depends on it
    """

    def __init__(
        self, pieces: Sequence[str], rules: Rules, *, base: Base | None = None, place: str = "vocabulary"
    ) -> None:
        """Check the pieces; `place` names the vocabulary in errors.

        Raises InputError for duplicates and missing special tokens.
        """
        self.pieces = list(pieces)
        self.rules = rules
        self.base = base
        self.cased = rules.cased
        self._ids = number_pieces(self.pieces, required=SPECIAL, source=place)
        self.special_ids = tuple(self._ids[token] for token in SPECIAL)
        self.pad_id, self.unk_id, self._cls, self._sep, self._mask = self.special_ids
        self._rust = self._build(special=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Tokenizer, base=self.base), (self.pieces, self.rules)

    @cached_property
    def hash(self) -> str:
        """The sha256 of pieces and rules: equal hashes give equal ids for every text."""
        return vocabulary_hash(self.pieces, self.rules)

    @cached_property
    def continuation(self) -> npt.NDArray[np.bool_]:
        """True for pieces that begin with "##" [V]."""
        return np.array([piece.startswith(CONTINUATION) for piece in self.pieces], dtype=np.bool_)

    @property
    def _frame(self) -> Frame:
        return self.cls_id, (self.sep_id,), self.sep_id

    def _vocabulary_files(self) -> dict[str, str]:
        refuse_unwritable_pieces(self.pieces, "the vocabulary")
        return {"vocab.txt": "".join(f"{piece}\n" for piece in self.pieces)}

    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": not self.rules.cased,
            "strip_accents": self.rules.strip_accents,
            "tokenize_chinese_chars": True,
            "model_max_length": 512,
        }
        entries: dict[str, Any] = {"extended_from": self.base.model_dump()} if self.base else {}
        entries |= {AS_WORDPIECE: True} if other_convention(self.pieces) else {}
        return config | SPECIAL_BY_KEY | ({OWN_KEY: entries} if entries else {})

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read a folder written by `save`, or the BERT tokenizer of a published model.

        Raises InputError where a file is missing or broken, holds other rules than BERT's or pieces of another
        convention, or contradicts another file.
        """
        pieces, rules, base = read_folder(folder)
        return cls(pieces, rules, base=base, place=f"the vocabulary of {folder}")

    @cached_property
    def _rust_special(self) -> tokenizers.Tokenizer:
        return self._build(special=True)

    def _build(self, *, special: bool) -> tokenizers.Tokenizer:
        model = models.WordPiece(
            self._ids,
            unk_token=UNK,
            max_input_chars_per_word=self.rules.longest_word,
            continuing_subword_prefix=CONTINUATION,
        )
        rust = tokenizers.Tokenizer(model)
        rust.normalizer = _normalizer(self.rules)
        rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        rust.decoder = decoders.WordPiece(prefix=CONTINUATION)
        rust.add_special_tokens(list(SPECIAL))
        rust.post_processor = processors.TemplateProcessing(
            single=f"{CLS}:0 $A:0 {SEP}:0",
            pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
            special_tokens=[(CLS, self.cls_id), (SEP, self.sep_id)],
        )
        rust.encode_special_tokens = not special  # the package's name for reading "[MASK]" as ordinary text
        return rust


def import_vocabulary(vocab_txt: Path, *, cased: bool, as_wordpiece: bool = False) -> Tokenizer:
    """Read a vocabulary released by Google, with its rules: words of up to 200 characters, no accents unless cased.

    as_wordpiece   True to read a vocabulary of another convention, or of another tokenizer, as WordPiece

    Raises InputError, with the line, for text that is not UTF-8, empty lines, duplicates and missing special tokens;
    unless `as_wordpiece`, also for pieces of another convention and for settings beside the file that name another
    tokenizer.
    """
    pieces = read_vocabulary(vocab_txt)
    if not as_wordpiece:
        refuse_other_rules(vocab_txt.parent)
        refuse_other_vocabulary(pieces, str(vocab_txt))
    rules = Rules(cased=cased, strip_accents=not cased, longest_word=LONGEST_WORD_GOOGLE)
    return Tokenizer(pieces, rules, place=str(vocab_txt))


def train_wordpiece(
    texts: Iterable[str],
    *,
    vocab_size: int,
    cased: bool = False,
    strip_accents: bool = False,
    min_count: int = 2,
    coverage: float = 0.9999,
) -> Tokenizer:
    """Learn a vocabulary of `vocab_size` pieces; the same texts give the same bytes with any number of threads.

    The texts are read once and only word counts are kept. The alphabet holds the most frequent characters, until they
    make up the fraction `coverage` of the text; words with other characters become [UNK]. A piece is learned if it
    occurs `min_count` times. The pieces are, in this order: [PAD] [UNK] [CLS] [SEP] [MASK], the sorted alphabet, the
    same with "##", the learned pieces.
    Raises InputError for texts without a word and for a `vocab_size` that cannot hold the alphabet.
    """
    refuse_too_many(vocab_size, "pieces")
    rules = Rules(cased=cased, strip_accents=strip_accents)
    counted = count_words(texts, rules)
    words, letters = split_alphabet(counted, coverage)
    inner = letters.intersection(letter for word in counted if len(word) > 1 for letter in word)
    first = [*SPECIAL, *sorted(letters), *(CONTINUATION + letter for letter in sorted(inner))]
    if vocab_size < len(first):
        raise InputError(
            f"a vocabulary of {vocab_size} pieces is too small for this text: its {len(letters)} characters, "
            f"{len(inner)} of them also inside words, and the {len(SPECIAL)} special tokens need at least {len(first)}"
        )
    pieces = _learn(words, first, vocab_size=vocab_size, min_count=min_count)
    if len(pieces) < vocab_size:
        say(f"the text is too short: it gives {len(pieces):,} pieces, fewer than the {vocab_size:,} requested")
    return Tokenizer(pieces, rules)


def refuse_too_many(number: int, what: str) -> None:
    """Raise InputError for more pieces than the limit; the trainer allocates memory for all of them beforehand."""
    if number > _MOST_PIECES:
        raise InputError(f"{number:,} {what}: expected at most {_MOST_PIECES:,}")


def learn_pieces(words: Mapping[str, int], num_pieces: int) -> list[str]:
    """Learn up to `num_pieces` pieces of several letters from counted words; the most frequent pair is joined first."""
    letters = sorted({letter for word in words for letter in word})
    first = [*SPECIAL, *letters, *(CONTINUATION + letter for letter in letters)]
    return _learn(words, first, vocab_size=len(first) + num_pieces, min_count=2)[len(first) :]


def _learn(words: Mapping[str, int], first: list[str], *, vocab_size: int, min_count: int) -> list[str]:
    """Return the pieces `first` followed by the pieces that the trainer makes of them."""
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_count,
        special_tokens=first,
        show_progress=False,
        continuing_subword_prefix=CONTINUATION,
    )
    learned: dict[str, int] = train_on(words, models.WordPiece(unk_token=UNK), trainer).get_vocab()
    return sorted(learned, key=learned.__getitem__)


def train_on(words: Mapping[str, int], model: models.Model, trainer: trainers.Trainer) -> tokenizers.Tokenizer:
    """Return a Rust tokenizer whose `model` was trained on counted words."""
    rust = tokenizers.Tokenizer(model)
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rust.train_from_iterator(_as_text(words), trainer)
    return rust


def _normalizer(rules: Rules) -> normalizers.BertNormalizer:
    """Return the step that cleans text by these rules."""
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=rules.strip_accents,
        lowercase=not rules.cased,
    )


def count_words(texts: Iterable[str], rules: Rules) -> dict[str, int]:
    """Return how often each word of the texts occurs, split as the tokenizer splits them.

    Beyond 2,000,000 distinct words rare ones are dropped, by lossy counting (Manku and Motwani 2002). A message gives
    the limit: every word that occurs more often is counted.
    """
    words: dict[str, int] = {}
    missed: dict[str, int] = {}  # how often a word may have occurred before it was counted
    unsplit: Counter[str] = Counter()  # counts of the parts between white space
    size = rare = 0
    for text in texts:
        unsplit.update(text.split())
        size += len(text)
        if size >= _BLOCK_CHARACTERS:
            words, missed, rare = _without_rarest(_added(words, unsplit, rules), missed, rare)
            unsplit, size = Counter(), 0
    words, _, rare = _without_rarest(_added(words, unsplit, rules), missed, rare)
    if rare:
        say(f"more than {_MOST_WORDS:,} distinct words: some that occur {rare} times or less were left out")
    return words


def _added(words: dict[str, int], unsplit: Counter[str], rules: Rules) -> dict[str, int]:
    """Return `words` with the words in `unsplit` counted too, which are normalised and split first."""
    total = Counter(words)
    normalizer = _normalizer(rules)
    splitter = pre_tokenizers.BertPreTokenizer()
    for word, count in unsplit.items():
        if word.isascii() and word.isalnum():  # nothing to split, as for most words
            total[word if rules.cased else word.lower()] += count
            continue
        for part, _ in splitter.pre_tokenize_str(normalizer.normalize_str(word)):
            total[part] += count
    return {word: count for word, count in total.items() if len(word) <= rules.longest_word}


def _without_rarest(
    words: dict[str, int], missed: dict[str, int], rare: int
) -> tuple[dict[str, int], dict[str, int], int]:
    """Drop the rarest words until at most _MOST_WORDS are left; return the words, `missed` and the new limit.

    rare    limit of the earlier calls: a new word may have occurred, and been dropped, so many times
    missed  the same number for each word that an earlier call kept
    """
    before = rare
    while len(words) > _MOST_WORDS:
        rare += 1
        words = {word: count for word, count in words.items() if count + missed.get(word, before) > rare}
    return words, {word: missed.get(word, before) for word in words} if rare else {}, rare


def split_alphabet(words: Mapping[str, int], coverage: float) -> tuple[dict[str, int], set[str]]:
    """Return the counted words that the alphabet can write, and the alphabet.

    The alphabet holds the most frequent characters, until they make up the fraction `coverage` of the text. Ties go by
    code point. Raises InputError where there is no word.
    """
    if not words:
        raise InputError("the text holds no word, so no vocabulary can be learned from it")
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for letter in word:
            counts[letter] += count
    total = sum(counts.values())
    letters: set[str] = set()
    covered = 0
    for letter, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= coverage * total:
            break
        letters.add(letter)
        covered += count
    if len(letters) < len(counts):
        percent = 100 * (total - covered) / total
        say(
            f"{len(counts) - len(letters):,} rare characters ({percent:.3f} % of the text) are left out of the alphabet"
        )
    return {word: count for word, count in words.items() if letters.issuperset(word)}, letters


def _as_text(words: Mapping[str, int]) -> Iterator[str]:
    """Yield text that holds each word as often as it was counted, in sorted order: the trainer takes no counts."""
    block: list[str] = []
    size = 0
    for word in sorted(words):
        remaining = words[word]
        most = max(1, _FEED_CHARACTERS // (len(word) + 1))
        while remaining:
            times = min(remaining, most)
            block.append(f"{word} " * times)
            size += times * (len(word) + 1)
            remaining -= times
            if size >= _FEED_CHARACTERS:
                yield "".join(block)
                block, size = [], 0
    if block:
        yield "".join(block)
