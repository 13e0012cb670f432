"""text → token ids: GPT-1's byte-pair encoding, loaded from published files (GPT paper §4.1).

Text is cleaned, lower-cased and split as an uncased BERT's is; every word is then its letters, the last one marked with
"</w>", and the pair of neighbours that stands first in the list of merges is joined until no pair of the list is left.

OpenAI repaired the text with ftfy and split it with spaCy before. Without these two packages transformers splits as
BERT does, and its published tokenizer.json says so too: that is the form read and written here. Ids differ from
OpenAI's where spaCy splits otherwise ("don't" is "do n't" there) and at line ends, which had a piece of their own.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bertwright.errors import InputError
from bertwright.files import atomic_file, atomic_folder, read_object, write_json
from bertwright.text.vocabulary import pieces_by_id

UNK = "<unk>"
END = "</w>"
_HEADER = "#version:"
_MAX_LENGTH = 512  # GPT-1's positions

Merge = tuple[str, str]


class BPETokenizer:
    """Pieces and merges. Cheap to pickle, so it may be sent to worker processes.

    `pieces[id]` is the text of an id; a piece that ends a word ends with "</w>". `merges` are the pairs that are
    joined, the first to be joined first. What no piece stands for is `unk_id`.
    """

    def __init__(self, pieces: Sequence[str], merges: Sequence[Merge], *, place: str = "vocabulary") -> None:
        """`place` names the vocabulary in errors. InputError for duplicates, no <unk> and merges of unknown pieces."""
        self.pieces = list(pieces)
        self.merges = [(left, right) for left, right in merges]
        self._ids = _numbered(self.pieces, place)
        self.unk_id = self._ids[UNK]
        _check_merges(self.merges, self._ids, place)
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

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Give the ids of each text: nothing is added or truncated, and "<unk>" in a text is ordinary text."""
        return [encoding.ids for encoding in self._rust.encode_batch_fast(list(texts), add_special_tokens=False)]

    def offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Give for each text its ids, as `ids` does, and where each piece lies: (first, one past last) character."""
        encodings = self._rust.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Join pieces into text, with a space after each word."""
        return str(self._rust.decode([int(id) for id in ids], skip_special_tokens=False))

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
            stream.write("".join([f"{_HEADER} 0.2\n", *(f"{a} {b}\n" for a, b in self.merges)]).encode())
        with atomic_file(folder / "tokenizer.json") as stream:
            stream.write(self._rust.to_str(pretty=True).encode() + b"\n")
        config = {"tokenizer_class": "OpenAIGPTTokenizer", "unk_token": UNK, "model_max_length": _MAX_LENGTH}
        write_json(folder / "tokenizer_config.json", config)

    @classmethod
    def load(cls, folder: Path) -> "BPETokenizer":
        """Read what `save` wrote, or a published GPT-1's: tokenizer.json, or vocab.json and merges.txt.

        InputError where a file is missing or broken, holds other rules than GPT-1's, or contradicts another.
        """
        described, vocabulary = folder / "tokenizer.json", folder / "vocab.json"
        found = []
        if described.is_file():
            found.append(_read_described(described))
        if vocabulary.is_file():
            found.append(read_bpe(vocabulary, folder / "merges.txt"))
        if not found:
            raise InputError(f"{folder}: holds no tokenizer of a GPT-1: tokenizer.json, or vocab.json and merges.txt")
        if found[0].hash != found[-1].hash:
            raise InputError(f"{described}: holds other pieces or merges than vocab.json and merges.txt beside it")
        return found[0]

    def _build(self) -> tokenizers.Tokenizer:
        model = models.BPE(self._ids, self.merges, unk_token=UNK, end_of_word_suffix=END, fuse_unk=False)
        rust = tokenizers.Tokenizer(model)
        rust.normalizer = normalizers.BertNormalizer(lowercase=True)
        rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        rust.decoder = decoders.BPEDecoder(suffix=END)
        rust.add_special_tokens([UNK])
        rust.encode_special_tokens = True  # the package's name for reading "<unk>" as ordinary text
        return rust


def read_bpe(vocabulary: Path, merges: Path) -> BPETokenizer:
    """Take a JSON file of ids by piece and a list of merges, as OpenAI and transformers write them.

    InputError, with lines or pieces, for files that are broken or do not fit each other.
    """
    ids = read_object(vocabulary)
    return BPETokenizer(pieces_by_id(ids, vocabulary), _read_merges(merges), place=f"{vocabulary} and {merges.name}")


def _read_merges(path: Path) -> list[Merge]:
    """Read two pieces from each line after the first; only line feeds part lines."""
    try:
        first, *lines = path.read_bytes().decode().removesuffix("\n").split("\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        at = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"{path}:{at}: not UTF-8 text (byte {error.start})") from None
    if not first.startswith(_HEADER):  # readers of this format skip the line unseen, and would lose a merge here
        raise InputError(f"{path}:1: begins with {first[:40]!r}; a list of merges begins with '{_HEADER} 0.2'")
    merges = []
    for number, line in enumerate(lines, start=2):
        left, gap, right = line.removesuffix("\r").partition(" ")
        if not (left and gap and right) or " " in right:
            raise InputError(f"{path}:{number}: {line[:80]!r} is no merge: two pieces with a space between them")
        merges.append((left, right))
    return merges


def _read_described(path: Path) -> BPETokenizer:
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
    return BPETokenizer(pieces_by_id(vocabulary, path), merges, place=str(path))


def _numbered(pieces: Sequence[str], place: str) -> dict[str, int]:
    """Give piece → id; InputError for duplicates and where <unk> is missing."""
    ids: dict[str, int] = {}
    for id, piece in enumerate(pieces):
        if ids.setdefault(piece, id) != id:
            raise InputError(f"{place}: the piece {piece!r} has the ids {ids[piece]} and {id}")
    if UNK not in ids:
        raise InputError(f"{place}: the piece {UNK} is missing, which stands for what no other piece does")
    return ids


def _check_merges(merges: Sequence[Merge], ids: Mapping[str, int], place: str) -> None:
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
