"""files of BLiMP → minimal pairs by paradigm: one JSON object a line, in a file for each paradigm or in one for all."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from bertwright.console import say
from bertwright.errors import InputError, shown
from bertwright.files import read_object
from bertwright.tables.bad_rows import is_blank
from bertwright.tables.files import table_ending, without_packing
from bertwright.tables.json_objects import json_object
from bertwright.text.decompress import decoded_lines, read_lines

_UID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,120}", re.ASCII)
"""Name of a paradigm, which is also a file name."""
TOKENS_PER_WORD: Final = 1.35
"""Number of tokens of a word where none is counted: English text with 8,000 pieces."""


@dataclass(frozen=True)
class MinimalPair:
    """A grammatical and an ungrammatical sentence; `id` is empty where the file has none."""

    id: str
    good: str
    bad: str
    location: str


@dataclass(frozen=True)
class Paradigm:
    """The pairs of a paradigm. term: its linguistics_term in the data; its UID where the data have none."""

    uid: str
    term: str
    pairs: tuple[MinimalPair, ...]


def read_paradigms(data: Path, *, pair_ids: Path | None = None) -> list[Paradigm]:
    """Return the paradigms of a file, or of all files .jsonl of a folder, packed or not, in the order of their UIDs.

    A line has sentence_good and sentence_bad, and as in BLiMP UID, linguistics_term and pairID. In a file without UID
    the name of the file is the UID. pair_ids: JSON file of UID → list of the pairIDs to keep; a paradigm that it does
    not name is left out. Raises InputError, with file and line, for other lines, and for a pair that is there twice.
    """
    pairs: dict[str, dict[str, MinimalPair]] = {}
    terms: dict[str, str] = {}
    for path in _files(data):
        for uid, term, pair in _pairs(path):
            of_paradigm = pairs.setdefault(uid, {})
            key = pair.id or pair.location
            if key in of_paradigm:
                raise InputError(
                    f"{pair.location}: expected each pairID of {uid} once, got '{shown(pair.id)}' again; it is at "
                    f"{of_paradigm[key].location} too"
                )
            of_paradigm[key] = pair
            terms.setdefault(uid, term)
    paradigms = [Paradigm(uid, terms[uid], tuple(pairs[uid].values())) for uid in sorted(pairs)]
    if not paradigms:
        raise InputError(f"--data {data}: holds no lines; expected minimal pairs, one JSON object a line")
    return paradigms if pair_ids is None else _with_pair_ids(paradigms, pair_ids)


def pairs_digest(paradigm: Paradigm) -> str:
    """Return the sha256 of the sentences and ids of a paradigm, in their order."""
    digest = hashlib.sha256(paradigm.uid.encode())
    for pair in paradigm.pairs:
        for text in (pair.id, pair.good, pair.bad):
            digest.update(b"\0" + text.encode())
    return digest.hexdigest()


def row_tokens(paradigms: Iterable[Paradigm], tokens_per_word: float) -> float:
    """Return the number of tokens of all rows: each token of a sentence is masked in a row of its own."""
    pairs = (pair for paradigm in paradigms for pair in paradigm.pairs)
    lengths = (tokens_per_word * len(text.split()) for pair in pairs for text in (pair.good, pair.bad))
    return sum(length * (length + 2) for length in lengths)


def _files(data: Path) -> list[Path]:
    if not data.exists():
        raise InputError(f"--data {data}: there is no such file or folder")
    if not data.is_dir():
        return [data]
    files = sorted(path for path in data.iterdir() if table_ending(path) == ".jsonl")
    if not files:
        raise InputError(f"--data {data}: expected files *.jsonl (or .jsonl.xz, .jsonl.gz …), one for each paradigm")
    for first, second in pairwise(files):
        if without_packing(first) == without_packing(second):
            raise InputError(f"--data {data}: {first.name} and {second.name} are one file, packed and not; remove one")
    return files


def _pairs(path: Path) -> Iterator[tuple[str, str, MinimalPair]]:
    """Yield UID, term and pair of each line. The first line decides whether lines have a UID."""
    has_uid: bool | None = None
    for number, line in decoded_lines(path, read_lines(path)):
        if not line.strip():
            continue
        location = f"{path}:{number}"
        fields = json_object(line, location)
        if has_uid is None:
            has_uid = "UID" in fields
        uid = _text(fields, "UID", location) if has_uid else without_packing(path).stem
        if not _UID.fullmatch(uid):
            raise InputError(f"{location}: expected a UID of letters, digits, '_', '-' and '.', got '{shown(uid)}'")
        term = _text(fields, "linguistics_term", location) if "linguistics_term" in fields else uid
        good, bad = (_text(fields, name, location) for name in ("sentence_good", "sentence_bad"))
        yield uid, term, MinimalPair(_id(fields, location), good, bad, location)


def _text(fields: Mapping[str, object], name: str, location: str) -> str:
    value = fields.get(name)
    if name not in fields:
        raise InputError(f"{location}: expected the field '{name}', got only {', '.join(map(shown, fields)) or 'none'}")
    if not isinstance(value, str) or is_blank(value):
        raise InputError(f"{location}: expected a text in '{name}', got {shown(repr(value))}")
    return value


def _id(fields: Mapping[str, object], location: str) -> str:
    value = fields.get("pairID", "")
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise InputError(f"{location}: expected a text or a whole number in 'pairID', got {shown(repr(value))}")


def _with_pair_ids(paradigms: Sequence[Paradigm], path: Path) -> list[Paradigm]:
    """Return the paradigms with the pairs whose ids a file lists. Raises InputError for ids that are not there."""
    lists = read_object(path)
    kept = []
    for paradigm in paradigms:
        ids = lists.get(paradigm.uid)
        if ids is None:
            continue
        if not isinstance(ids, list) or not all(type(id) in (int, str) for id in ids):
            raise InputError(f"--pairs {path}: expected a list of pairIDs for {paradigm.uid}, got {shown(repr(ids))}")
        chosen = {str(id) for id in ids}
        unknown = sorted(chosen - {pair.id for pair in paradigm.pairs})
        if unknown or not chosen:
            got = f"{', '.join(map(shown, unknown[:3]))}, which the data do not have" if unknown else "none"
            raise InputError(f"--pairs {path}: expected pairIDs of {paradigm.uid}, got {got}")
        kept.append(replace(paradigm, pairs=tuple(pair for pair in paradigm.pairs if pair.id in chosen)))
    unused = sorted(set(lists) - {paradigm.uid for paradigm in paradigms})
    if unused and kept:
        names = ", ".join(map(shown, unused[:3]))
        say(f"--pairs {path}: {len(unused)} of its paradigms are not in the data, such as {names}")
    if not kept:
        raise InputError(f"--pairs {path}: names none of the paradigms of the data, such as {paradigms[0].uid}")
    return kept
