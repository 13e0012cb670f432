"""text → token ids: GPT-1's byte-pair encoding, loaded from published files or learned (GPT paper §4.1).

Text is cleaned, lower-cased and split as an uncased BERT's is; every word is then its letters, the last one marked with
"</w>", and the pair of neighbours that stands first in the list of merges is joined until no pair of the list is left.

OpenAI repaired the text with ftfy and split it with spaCy before. Without these two packages transformers splits as
BERT does, and its published tokenizer.json says so too: that is the form read and written here. Ids differ from
OpenAI's where spaCy splits otherwise ("don't" is "do n't" there) and at line ends, which had a piece of their own.

Learning gives the same bytes with any number of threads: words are counted, and the trainer of `tokenizers` is fed, as
for WordPiece (see tokenizer.py).
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
from bertwright.files import atomic_file, atomic_folder, read_object, write_json
from bertwright.text.vocabulary import Rules, pieces_by_id
from bertwright.text.wordpiece import alphabet_of, as_text, count_words, places_of_words, refuse_too_many

# text → token ids: what a byte-pair tokenizer's files hold, read and checked (GPT paper §4.1).
#
# A folder holds tokenizer.json, vocab.json and merges.txt as `BPETokenizer.save` writes them. A published GPT-1 may
# hold tokenizer.json alone, as transformers writes it today, or the two lists alone, as it did before.

UNK = "<unk>"
END = "</w>"
"""What marks a piece that ends a word."""
START, DELIMITER, CLASSIFY = SPECIAL = ("_start_", "_delimiter_", "_classify_")
"""The tokens that a fine-tuned GPT-1 has beside its vocabulary. No word of a text is one: they begin with a mark."""
HEADER = "#version:"

Merge = tuple[str, str]


def read_merges(path: Path) -> list[Merge]:
    """Read two pieces from each line after the first; only line feeds part lines."""
    try:
        first, *lines = path.read_bytes().decode().removesuffix("\n").split("\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        at = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"{path}:{at}: not UTF-8 text (byte {error.start})") from None
    if not first.startswith(HEADER):  # readers of this format skip the line unseen, and would lose a merge here
        raise InputError(f"{path}:1: begins with {first[:40]!r}; a list of merges begins with '{HEADER} 0.2'")
    merges = []
    for number, line in enumerate(lines, start=2):
        left, gap, right = line.removesuffix("\r").partition(" ")
        if not (left and gap and right) or " " in right:
            raise InputError(f"{path}:{number}: {line[:80]!r} is no merge: two pieces with a space between them")
        merges.append((left, right))
    return merges


def read_described(path: Path) -> tuple[list[str], list[Merge]]:
    """Take pieces and merges from a tokenizer.json, whose rules must be GPT-1's."""
    described = read_object(path)
    try:
        normalizer, model = described["normalizer"], described["model"]
        found = {
            "normalizer": (normalizer["type"], "BertNormalizer"),
            "normalizer.clean_text": (normalizer["clean_text"], True),
            "normalizer.handle_chinese_chars": (normalizer["handle_chinese_chars"], True),
            "normalizer.lowercase": (normalizer["lowercase"], True),
            "normalizer.strip_accents": (normalizer["strip_accents"] in (None, True), True),
            "pre_tokenizer": (described["pre_tokenizer"]["type"], "BertPreTokenizer"),
            "model": (model.get("type", "BPE"), "BPE"),
            "model.unk_token": (model["unk_token"], UNK),
            "model.end_of_word_suffix": (model["end_of_word_suffix"], END),
            "model.continuing_subword_prefix": (model.get("continuing_subword_prefix") or "", ""),
            "model.dropout": (model.get("dropout") or 0, 0),
            **{
                f"model.{name}": (model.get(name, False), False)
                for name in ("fuse_unk", "byte_fallback", "ignore_merges")
            },
        }
        for name, (value, wanted) in found.items():
            if value != wanted:
                raise InputError(f"{path}: {name} is {value!r}; the tokenizer of a GPT-1 has {wanted!r}")
        vocabulary = dict(model["vocab"])
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        merges = [(str(left), str(right)) for left, right in pairs]
        added = {token["content"]: token["id"] for token in described.get("added_tokens") or ()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not the description of a GPT-1 tokenizer ({error!r})") from None
    for token, id in added.items():
        if vocabulary.get(token) != id:
            raise InputError(f"{path}: the added token {token!r} is not in its vocabulary")
    return pieces_by_id(vocabulary, path), merges


def numbered(pieces: Sequence[str], place: str) -> dict[str, int]:
    """Give piece → id; InputError for duplicates and where <unk> is missing."""
    ids: dict[str, int] = {}
    for id, piece in enumerate(pieces):
        if ids.setdefault(piece, id) != id:
            raise InputError(f"{place}: the piece {piece!r} has the ids {ids[piece]} and {id}")
    if UNK not in ids:
        raise InputError(f"{place}: the piece {UNK} is missing, which stands for what no other piece does")
    return ids


def check_merges(merges: Sequence[Merge], ids: Mapping[str, int], place: str) -> None:
    """Refuse merges of pieces, or into pieces, that are not there, and a pair that stands twice."""
    seen: dict[Merge, int] = {}
    for number, (left, right) in enumerate(merges, start=1):
        for piece in (left, right, left + right):
            if piece not in ids:
                raise InputError(
                    f"{place}: merge {number} joins {left!r} and {right!r}, but {piece!r} is not in the vocabulary"
                )
        if seen.setdefault((left, right), number) != number:
            raise InputError(f"{place}: {left!r} and {right!r} are joined by merges {seen[left, right]} and {number}")


MERGES = 40_000
"""As many as GPT-1 has."""
_RULES = Rules(cased=False, strip_accents=True)
_MAX_LENGTH = 512  # GPT-1's positions


class BPETokenizer:
    """Pieces and merges. Cheap to pickle, so it may be sent to worker processes.

    `pieces[id]` is the text of an id; a piece that ends a word ends with "</w>". `merges` are the pairs that are
    joined, the first to be joined first. What no piece stands for is `unk_id`. A row of a task is `begin_id`, a text,
    then `between_id` and a second text, if there is one, and `end_id`: _start_, _delimiter_, _classify_.
    """

    cased = False

    def __init__(self, pieces: Sequence[str], merges: Sequence[Merge], *, place: str = "vocabulary") -> None:
        """`place` names the vocabulary in errors. InputError for duplicates, no <unk> and merges of unknown pieces."""
        self.pieces = list(pieces)
        self.merges = [(left, right) for left, right in merges]
        self._ids = numbered(self.pieces, place)
        self.unk_id = self._ids[UNK]
        self._special = SPECIAL if all(token in self._ids for token in SPECIAL) else ()
        self.special_ids = tuple(self._ids[token] for token in (UNK, *self._special))
        check_merges(self.merges, self._ids, place)
        self._rust = self._build()

    def __reduce__(self) -> tuple[Any, ...]:
        return BPETokenizer, (self.pieces, self.merges)

    @property
    def vocab_size(self) -> int:
        """Number of pieces, <unk> included."""
        return len(self.pieces)

    @cached_property
    def hash(self) -> str:
        """The sha256 of all that decides ids: equal hashes give equal ids for every text."""
        decides = json.dumps([self.pieces, self.merges], ensure_ascii=False)
        return hashlib.sha256(decides.encode()).hexdigest()

    @property
    def pad_id(self) -> int:
        """What fills rows up: the id of <unk>, since GPT-1 has no token for it.

        It changes nothing: padding stands behind the text, where no token before it looks; the mask keeps everything
        else from it; and no loss is taken there.
        """
        return self.unk_id

    @property
    def begin_id(self) -> int:
        """The id of _start_; InputError, as for the two others, for a vocabulary without them."""
        return self._framing()[0]

    @property
    def between_id(self) -> int:
        """The id of _delimiter_."""
        return self._framing()[1]

    @property
    def end_id(self) -> int:
        """The id of _classify_."""
        return self._framing()[2]

    @property
    def has_special(self) -> bool:
        """Whether it has the three tokens of fine-tuning."""
        return bool(self._special)

    def with_special(self) -> "BPETokenizer":
        """The vocabulary with the three tokens of fine-tuning, at its end where it lacks them; all other ids stay."""
        missing = [token for token in SPECIAL if token not in self._ids]
        return BPETokenizer([*self.pieces, *missing], self.merges) if missing else self

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Give the ids of each text: nothing is added or truncated, and "<unk>" in a text is ordinary text."""
        return [encoding.ids for encoding in self._rust.encode_batch_fast(list(texts), add_special_tokens=False)]

    def offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Give for each text its ids, as `ids` does, and where each piece lies: (first, one past last) character."""
        encodings = self._rust.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def words(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Give for each text where its words lie, parted as an uncased BERT's: (first, one past)."""
        return places_of_words(self._rust, texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Join pieces into text, with a space after each word and each of the three tokens."""
        pieces = [self.pieces[id] for id in ids]
        return "".join(f"{piece} " if piece in SPECIAL else piece.replace(END, " ") for piece in pieces).rstrip()

    def id_of(self, piece: str) -> int | None:
        """Give the id of a piece, or None where the vocabulary does not hold it."""
        return self._ids.get(piece)

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, vocab.json, merges.txt and tokenizer_config.json, as `transformers` reads GPT-1's."""
        if not folder.exists():
            with atomic_folder(folder) as temporary:
                self._write(temporary)
            return
        self._write(folder)

    def _write(self, folder: Path) -> None:
        with atomic_file(folder / "vocab.json") as stream:
            stream.write(json.dumps(self._ids, ensure_ascii=False).encode() + b"\n")
        with atomic_file(folder / "merges.txt") as stream:
            stream.write("".join([f"{HEADER} 0.2\n", *(f"{a} {b}\n" for a, b in self.merges)]).encode())
        with atomic_file(folder / "tokenizer.json") as stream:
            stream.write(self._rust.to_str(pretty=True).encode() + b"\n")
        config = {"tokenizer_class": "OpenAIGPTTokenizer", "unk_token": UNK, "model_max_length": _MAX_LENGTH}
        names = dict(zip(("bos_token", "sep_token", "cls_token"), self._special, strict=False))
        write_json(folder / "tokenizer_config.json", {**config, **names})

    @classmethod
    def load(cls, folder: Path) -> "BPETokenizer":
        """Read what `save` wrote, or a published GPT-1's: tokenizer.json, or vocab.json and merges.txt.

        InputError where a file is missing or broken, holds other rules than GPT-1's, or contradicts another.
        """
        described, vocabulary = folder / "tokenizer.json", folder / "vocab.json"
        found = []
        if described.is_file():
            found.append(cls(*read_described(described), place=str(described)))
        if vocabulary.is_file():
            found.append(read_bpe(vocabulary, folder / "merges.txt"))
        if not found:
            raise InputError(f"{folder}: holds no tokenizer of a GPT-1: tokenizer.json, or vocab.json and merges.txt")
        if found[0].hash != found[-1].hash:
            raise InputError(f"{described}: holds other pieces or merges than vocab.json and merges.txt beside it")
        return found[0]

    def _framing(self) -> tuple[int, ...]:
        if not self._special:
            raise InputError(
                f"a vocabulary of {self.vocab_size:,} pieces without {', '.join(SPECIAL)}, of which the rows of tasks "
                "are made; with_special() gives one with them"
            )
        return self.special_ids[1:]

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
    """Take a JSON file of ids by piece and a list of merges, as OpenAI and transformers write them.

    InputError, with lines or pieces, for files that are broken or do not fit each other.
    """
    ids = read_object(vocabulary)
    return BPETokenizer(pieces_by_id(ids, vocabulary), read_merges(merges), place=f"{vocabulary} and {merges.name}")


def train_bpe(
    texts: Iterable[str], *, merges: int = MERGES, min_count: int = 2, coverage: float = 0.9999
) -> BPETokenizer:
    """Learn a vocabulary of `merges` joined pieces; the same texts give the same bytes with any number of threads.

    The texts are read once and only word counts are held. The alphabet is the most frequent characters that together
    make up the share `coverage` of all; others become <unk>. A pair must occur `min_count` times to be joined.
    The order is <unk>, the sorted alphabet, the same with "</w>", pieces as learned, and the tokens of fine-tuning.
    InputError for texts without a word and for less than one merge.
    """
    if merges < 1:
        raise InputError(f"{merges} merges: at least 1 is needed")
    refuse_too_many(merges, "merges")
    words = count_words(texts, _RULES)
    if not words:
        raise InputError("the text holds no word, so no vocabulary can be learned from it")
    letters = alphabet_of(words, coverage)
    known = {word: count for word, count in words.items() if letters.issuperset(word)}
    # Each letter in both forms, so that a word of another text is made of pieces wherever its letters stand.
    given = [UNK, *sorted(letters), *(letter + END for letter in sorted(letters))]
    pieces, pairs = _learn(known, given, merges=merges, min_count=min_count)
    if len(pieces) < len(given) + merges:
        say(f"the text gives {len(pieces) - len(given):,} merges, fewer than the {merges:,} asked for: it is too short")
    return BPETokenizer([*pieces, *SPECIAL], pairs)


def _learn(words: Mapping[str, int], given: list[str], *, merges: int, min_count: int) -> tuple[list[str], list[Merge]]:
    """The pieces `given` and those that the trainer makes of them, and the pair that makes each of those."""
    trainer = trainers.BpeTrainer(
        vocab_size=len(given) + merges,
        min_frequency=min_count,
        special_tokens=given,
        show_progress=False,
        end_of_word_suffix=END,
    )
    rust = tokenizers.Tokenizer(models.BPE(unk_token=UNK, end_of_word_suffix=END))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rust.train_from_iterator(as_text(words), trainer)
    learned = json.loads(rust.to_str())["model"]
    ids: dict[str, int] = learned["vocab"]
    return sorted(ids, key=ids.__getitem__), [(left, right) for left, right in learned["merges"]]
