"""text → token ids: what a byte-pair tokenizer's files hold, read and checked (GPT paper §4.1).

A folder holds tokenizer.json, vocab.json and merges.txt as `BPETokenizer.save` writes them. A published GPT-1 may hold
tokenizer.json alone, as transformers writes it today, or the two lists alone, as it did before.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bertwright.errors import InputError
from bertwright.files import read_object
from bertwright.text.vocabulary import pieces_by_id

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
