"""text → token ids: BERT's WordPiece tokenizer, loaded, imported or learned (paper §3, "WordPiece embeddings").

Text is cleaned, ideographs are set apart, upper case is folded unless cased, accents are stripped where the rules say
so, words are split at white space and punctuation, and every word is cut into the longest pieces that the vocabulary
holds, from left to right; a piece that continues a word begins with "##".

This file and bpe.py alone touch the `tokenizers` package, which does the work in Rust on all threads.

Learning a vocabulary gives the same bytes with any number of threads. The trainer of `tokenizers` numbers the letters
in the order of a hash table and breaks ties by those numbers, so the sorted letters are handed to it as if they were
special tokens; words are counted and rare letters dropped here, before it sees them.
"""

import unicodedata
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
from bertwright.files import atomic_file, atomic_folder, write_json
from bertwright.text.vocabulary import (
    CLS,
    CONTINUATION,
    LONGEST_WORD_GOOGLE,
    OWN_KEY,
    SEP,
    SPECIAL,
    UNK,
    Base,
    Rules,
    numbered,
    read_folder,
    read_vocabulary,
    vocabulary_hash,
)

_FOLD_CHARACTERS = 32_000_000  # text counted by white space alone before its words are normalised
_MOST_PIECES = 10_000_000  # the largest published vocabularies have a million
_MOST_WORDS = 2_000_000  # distinct words kept while counting, which bounds the memory
_FEED_CHARACTERS = 10_000  # larger blocks were seen to be far slower on a busy machine


class Tokenizer:
    """A vocabulary with its rules. Cheap to pickle, so it may be sent to worker processes.

    `pieces[id]` is the text of an id; `continuation` [V] says which pieces begin with "##".
    `pad_id`, `unk_id`, `cls_id`, `sep_id`, `mask_id` and `special_ids` are the ids of the five special tokens. A row of
    a task is `begin_id`, a text, then `between_id` and a second text, if there is one, and `end_id`.
    `base` names the vocabulary that this one extends, if any; it decides no id.
    """

    def __init__(
        self, pieces: Sequence[str], rules: Rules, *, base: Base | None = None, place: str = "vocabulary"
    ) -> None:
        """`place` names the vocabulary in errors. Raises InputError for duplicates and missing special tokens."""
        self.pieces = list(pieces)
        self.rules = rules
        self.base = base
        self._ids = numbered(self.pieces, place)
        self.special_ids = tuple(self._ids[token] for token in SPECIAL)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids
        self.begin_id, self.between_id, self.end_id = self.cls_id, self.sep_id, self.sep_id
        self.continuation: npt.NDArray[np.bool_] = np.array(
            [piece.startswith(CONTINUATION) for piece in self.pieces], dtype=np.bool_
        )
        self._plain = self._build(special=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Tokenizer, base=self.base), (self.pieces, self.rules)

    @property
    def cased(self) -> bool:
        """Whether upper case is kept."""
        return self.rules.cased

    @property
    def vocab_size(self) -> int:
        """Number of pieces, special tokens included."""
        return len(self.pieces)

    @cached_property
    def hash(self) -> str:
        """The sha256 of all that decides ids: equal hashes give equal ids for every text."""
        return vocabulary_hash(self.pieces, self.rules)

    def ids(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """Give the ids of each text: no special tokens are added and nothing is truncated.

        The words "[MASK]", "[SEP]" … in a text are ordinary text unless `special` asks to read them as the tokens.
        """
        rust = self._marked if special else self._plain
        return [encoding.ids for encoding in rust.encode_batch_fast(list(texts), add_special_tokens=False)]

    def offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Give for each text its ids, as `ids` does, and where each piece lies: (first, one past last) character."""
        encodings = self._plain.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def words(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Give for each text where its words lie, as BERT parts them at white space and punctuation: (first, one past).

        A combining mark belongs to the letter before it, also where the rules drop it; what becomes nothing is no word.
        """
        return places_of_words(self._plain, texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Join pieces into readable text, special tokens included; spacing is that of English."""
        return str(self._plain.decode([int(id) for id in ids], skip_special_tokens=False))

    def id_of(self, piece: str) -> int | None:
        """Give the id of a piece, or None where the vocabulary does not hold it."""
        return self._ids.get(piece)

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, vocab.txt and tokenizer_config.json, which `transformers` reads as a BertTokenizer."""
        if not folder.exists():
            with atomic_folder(folder) as temporary:
                self._write(temporary)
            return
        self._write(folder)

    def _write(self, folder: Path) -> None:
        with atomic_file(folder / "vocab.txt") as stream:
            stream.write("".join(f"{piece}\n" for piece in self.pieces).encode())
        with atomic_file(folder / "tokenizer.json") as stream:
            stream.write(self._plain.to_str(pretty=True).encode() + b"\n")
        names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": not self.rules.cased,
            "strip_accents": self.rules.strip_accents,
            "tokenize_chinese_chars": True,
            "model_max_length": 512,
        }
        own = {OWN_KEY: {"extended_from": self.base.model_dump()}} if self.base else {}
        write_json(folder / "tokenizer_config.json", {**config, **names, **own})

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read what `save` wrote, or the BERT tokenizer of a published model.

        Raises InputError where a file is missing or broken, holds other rules than BERT's, or contradicts another.
        """
        pieces, rules, base = read_folder(folder)
        return cls(pieces, rules, base=base, place=f"the vocabulary of {folder}")

    @cached_property
    def _marked(self) -> tokenizers.Tokenizer:
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


def places_of_words(rust: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Where the words of each text lie, (first, one past) of each, marks behind a letter included.

    A mark may begin a word, or be one, to the rules, behind a symbol or an ideograph say; it belongs to the word before
    it all the same, and no place lies in two words.
    """
    found = []
    for text, encoding in zip(texts, rust.encode_batch(list(texts), add_special_tokens=False), strict=True):
        words: dict[int | None, tuple[int, int]] = {}
        for word, (first, last) in zip(encoding.word_ids, encoding.offsets, strict=True):
            words[word] = (words[word][0] if word in words else first, last)
        places: list[tuple[int, int]] = []
        for first, last in words.values():
            first = max(first, places[-1][1]) if places else first
            if first < last:
                places.append((first, _past_marks(text, last)))
        found.append(places)
    return found


def _past_marks(text: str, end: int) -> int:
    """The first place from `end` on that is no combining mark."""
    while end < len(text) and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return end


def import_vocabulary(vocab_txt: Path, *, cased: bool) -> Tokenizer:
    """Take a released vocabulary with its own rules: words to 200 characters; accents stripped unless cased.

    Raises InputError, with line numbers, for text that is not UTF-8, empty lines, duplicates and missing special
    tokens.
    """
    rules = Rules(cased=cased, strip_accents=not cased, longest_word=LONGEST_WORD_GOOGLE)
    return Tokenizer(read_vocabulary(vocab_txt), rules, place=str(vocab_txt))


def train_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int,
    cased: bool = False,
    strip_accents: bool = False,
    min_count: int = 2,
    coverage: float = 0.9999,
) -> Tokenizer:
    """Learn a vocabulary of `vocab_size` pieces; the same texts give the same bytes with any number of threads.

    The texts are read once and only word counts are held. The alphabet is the most frequent characters that together
    make up the share `coverage` of all; words with others become [UNK]. A piece must occur `min_count` times.
    The order is [PAD] [UNK] [CLS] [SEP] [MASK], the sorted alphabet, the same with "##", then pieces as learned.
    Raises InputError for texts without a word and for a `vocab_size` that cannot hold the alphabet.
    """
    refuse_too_many(vocab_size, "pieces")
    rules = Rules(cased=cased, strip_accents=strip_accents)
    words = count_words(texts, rules)
    if not words:
        raise InputError("the text holds no word, so no vocabulary can be learned from it")
    letters = alphabet_of(words, coverage)
    known = {word: count for word, count in words.items() if letters.issuperset(word)}
    inner = letters.intersection(letter for word in words if len(word) > 1 for letter in word)
    given = [*SPECIAL, *sorted(letters), *(CONTINUATION + letter for letter in sorted(inner))]
    if vocab_size < len(given):
        raise InputError(
            f"a vocabulary of {vocab_size} pieces is too small for this text: its {len(letters)} characters, "
            f"{len(inner)} of them also inside words, and the {len(SPECIAL)} special tokens need at least {len(given)}"
        )
    learned = _learn(known, given, vocab_size=vocab_size, min_count=min_count)
    if len(learned) < vocab_size:
        say(f"the text gives {len(learned):,} pieces, fewer than the {vocab_size:,} asked for: it is too short")
    return Tokenizer(learned, rules)


def refuse_too_many(number: int, what: str) -> None:
    """InputError beyond what the trainer, which makes room for all of them beforehand, is asked for."""
    if number > _MOST_PIECES:
        raise InputError(f"{number:,} {what}: at most {_MOST_PIECES:,} are learned")


def learn_pieces(words: Mapping[str, int], num_pieces: int, *, min_count: int = 2) -> list[str]:
    """Learn up to `num_pieces` pieces of several letters from counted words, most frequent merges first."""
    letters = sorted({letter for word in words for letter in word})
    given = [*SPECIAL, *letters, *(CONTINUATION + letter for letter in letters)]
    return _learn(words, given, vocab_size=len(given) + num_pieces, min_count=min_count)[len(given) :]


def _learn(words: Mapping[str, int], given: list[str], *, vocab_size: int, min_count: int) -> list[str]:
    """The pieces `given`, then those that the trainer makes of them."""
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_count,
        special_tokens=given,
        show_progress=False,
        continuing_subword_prefix=CONTINUATION,
    )
    rust = tokenizers.Tokenizer(models.WordPiece(unk_token=UNK))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rust.train_from_iterator(as_text(words), trainer)
    learned: dict[str, int] = rust.get_vocab(with_added_tokens=True)
    return sorted(learned, key=learned.__getitem__)


def _normalizer(rules: Rules) -> normalizers.BertNormalizer:
    """The cleaning step of these rules."""
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=rules.strip_accents,
        lowercase=not rules.cased,
    )


def count_words(texts: Iterable[str], rules: Rules) -> dict[str, int]:
    """Count the words of the texts as the tokenizer will see them; rare ones go where there are too many.

    By lossy counting (Manku and Motwani 2002): a word that was seen more often than is said then is among them,
    wherever in the text it stands.
    """
    words: dict[str, int] = {}
    missed: dict[str, int] = {}  # how often a word may have been seen before it was counted
    raw: Counter[str] = Counter()
    size = 0
    rare = 0
    for text in texts:
        raw.update(text.split())
        size += len(text)
        if size >= _FOLD_CHARACTERS:
            words, missed, rare = _without_rarest(_folded(words, raw, rules), missed, rare)
            raw, size = Counter(), 0
    words, _, rare = _without_rarest(_folded(words, raw, rules), missed, rare)
    if rare:
        say(f"more than {_MOST_WORDS:,} distinct words: some that were seen {rare} times or less were not learned from")
    return words


def _folded(words: dict[str, int], raw: Counter[str], rules: Rules) -> dict[str, int]:
    """Add the counts of white-space words, normalised and split at punctuation."""
    total = Counter(words)
    normalizer = _normalizer(rules)
    splitter = pre_tokenizers.BertPreTokenizer()
    for word, count in raw.items():
        if word.isascii() and word.isalnum():  # nothing to split: spares most calls
            total[word if rules.cased else word.lower()] += count
            continue
        for part, _ in splitter.pre_tokenize_str(normalizer.normalize_str(word)):
            total[part] += count
    return {word: count for word, count in total.items() if len(word) <= rules.longest_word}


def _without_rarest(
    words: dict[str, int], missed: dict[str, int], rare: int
) -> tuple[dict[str, int], dict[str, int], int]:
    """Drop the words that cannot have been seen more often than the smallest number that leaves few enough.

    missed: of words from earlier; a new one may have been seen, and dropped, `rare` times. That number never falls.
    """
    before = rare
    while len(words) > _MOST_WORDS:
        rare += 1
        words = {word: count for word, count in words.items() if count + missed.get(word, before) > rare}
    return words, {word: missed.get(word, before) for word in words} if rare else {}, rare


def alphabet_of(words: Mapping[str, int], coverage: float) -> set[str]:
    """Take the most frequent characters up to the share `coverage`; ties go by code point."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for letter in word:
            counts[letter] += count
    total = sum(counts.values())
    kept: set[str] = set()
    covered = 0
    for letter, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= coverage * total:
            break
        kept.add(letter)
        covered += count
    if len(kept) < len(counts):
        share = 100 * (total - covered) / total
        say(f"{len(counts) - len(kept):,} rare characters ({share:.3f} % of the text) are left out of the alphabet")
    return kept


def as_text(words: Mapping[str, int]) -> Iterator[str]:
    """Write each word as often as it was counted, in sorted order: the trainer takes text, not counts."""
    block: list[str] = []
    size = 0
    for word in sorted(words):
        left = words[word]
        most = max(1, _FEED_CHARACTERS // (len(word) + 1))
        while left:
            times = min(left, most)
            block.append(f"{word} " * times)
            size += times * (len(word) + 1)
            left -= times
            if size >= _FEED_CHARACTERS:
                yield "".join(block)
                block, size = [], 0
    if block:
        yield "".join(block)
