"""documents as sets of shingles → near-duplicates: MinHash proposes pairs, and the shingles of these are compared.

A shingle is a run of consecutive words or tokens, here as a hash of 64 bits. The similarity of two documents is the
Jaccard index of their sets, the shared shingles divided by all of both (Broder 1997). The signature of a document is
cut into bands. A pair is proposed where a band of both is equal. Its shingles are read where so many values of the
two signatures are equal that the pair may have the required similarity. A pair of exactly that similarity is missed by
both steps together with a probability of at most 1 %; more similar pairs are missed less often.

Documents are read twice, as a stream. Signatures, bands, and the shingles of documents that share a band are in
temporary files. Memory holds the bands that documents share.
"""

import hashlib
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from bertwright.console import PATIENCE, Status
from bertwright.errors import InputError, MissingExtra
from bertwright.text.words import text_words

Shingles = NDArray[np.uint64]
"""Hashes of the distinct shingles of a document, ascending; at least one."""
DIGEST_BYTES: Final = 16
"""Bytes of the digest of a document."""
PERMUTATIONS: Final = 128
"""Number of hash values in a signature."""
MISSED: Final = 0.01
"""Largest probability with which a pair of the required similarity is not found."""
_OUT_OF_REACH: Final = 0.0001
"""Part of MISSED: largest probability with which too few values of two signatures are equal."""
_LEAST: Final = 0.1
_AT_ONCE: Final = 8192  # shingles of a document that are hashed, or signatures that are compared, at a time


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A document that is like an earlier one: the numbers of both, from 0, and their similarity."""

    document: int
    like: int
    similarity: float


class Documents(Protocol):
    """Documents in a fixed order, which can be read several times. They are counted from 0."""

    def __len__(self) -> int:
        """Return the number of documents, after they were read once."""
        ...

    def number(self, document: int) -> int:
        """Return the number by which a person finds the document in its file."""
        ...

    def digests(self) -> Iterator[bytes]:
        """Yield a hash of DIGEST_BYTES bytes of each document; equal documents have equal hashes."""
        ...

    def shingles(self, size: int) -> Iterator[Shingles]:
        """Yield the shingles of each document, of `size` words or tokens."""
        ...

    def texts(self, documents: Iterable[int]) -> dict[int, str]:
        """Return the beginning of each of these documents."""
        ...


def listed(documents: Documents, duplicates: Sequence[Duplicate]) -> list[tuple[int, int, float, str, str]]:
    """Return a row for each duplicate: the numbers of both documents, their similarity, the beginnings of both."""
    texts = documents.texts(sorted({number for each in duplicates for number in (each.document, each.like)}))
    texts = {number: " ".join(text.split()) for number, text in texts.items()}
    return [
        (
            documents.number(each.document),
            documents.number(each.like),
            each.similarity,
            texts[each.document],
            texts[each.like],
        )
        for each in duplicates
    ]


def text_shingles(text: str, size: int) -> Shingles:
    """Return the shingles of `size` words of a text; a shorter text is one shingle.

    The words are those of `text_words`, so case, punctuation and white space do not count. In a text without words
    they do: it is one shingle as it is.
    """
    words = text_words(text) or [f"\0{text}"]  # no word has \0, so no text with words has this shingle
    runs = {"\0".join(words[begin : begin + size]) for begin in range(max(1, len(words) - size + 1))}
    digests = b"".join(hashlib.blake2b(run.encode(), digest_size=8).digest() for run in runs)
    return np.sort(np.frombuffer(digests, dtype="<u8").astype(np.uint64))


def find_equal(digests: Iterable[bytes]) -> list[Duplicate]:
    """Return the documents whose digest equals an earlier one, with the first of its equals, in their order."""
    values = np.fromiter(digests, dtype=f"S{DIGEST_BYTES}")
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    likes = first[inverse]
    return [Duplicate(int(row), int(likes[row]), 1.0) for row in np.flatnonzero(likes != np.arange(len(values)))]


def find_near(read: Callable[[], Iterator[Shingles]], *, threshold: float) -> list[Duplicate]:
    """Return the documents that are near-duplicates of an earlier one that is none, in their order.

    Documents are taken in order. One whose similarity to an earlier one that stays is `threshold` or more is listed
    with the most similar of these (of several, the first). Every other document stays, so no two that stay are known to
    be so similar. `read` is called twice and must yield the same documents. Equal input gives equal results.

    Raises InputError for a threshold below 0.1 or above 1, and MissingExtra without datasketch.
    """
    if not _LEAST <= threshold <= 1:
        raise InputError(f"--threshold {threshold}: expected a similarity from {_LEAST} to 1")
    bands, rows = band_shape(threshold)
    with (
        tempfile.TemporaryFile() as band_file,
        tempfile.TemporaryFile() as value_file,
        tempfile.TemporaryFile() as spool,
    ):
        count = 0
        for signature in _signatures(_with_progress(read(), "read")):
            band_file.write(_band_hashes(signature, bands, rows).tobytes())
            value_file.write(signature.astype(np.uint32).tobytes())
            count += 1
        if not count:
            return []
        band_file.flush()
        value_file.flush()
        shared = np.memmap(band_file, dtype=np.uint32, mode="r+", shape=(count, bands))
        for band in range(bands):
            _, inverse, times = np.unique(shared[:, band], return_inverse=True, return_counts=True)
            shared[times[inverse] == 1, band] = 0
        values = np.asarray(np.memmap(value_file, dtype=np.uint32, mode="r", shape=(count, PERMUTATIONS)))
        return list(_compared(_with_progress(read(), "compared"), shared, values, _Spool(spool), threshold))


def band_shape(threshold: float) -> tuple[int, int]:
    """Return the number of bands of a signature, and the number of rows of a band."""
    shapes = [(PERMUTATIONS // rows, rows) for rows in range(1, PERMUTATIONS + 1)]
    allowed = MISSED - _OUT_OF_REACH
    return max((shape for shape in shapes if missed_at(threshold, shape) <= allowed), key=lambda shape: shape[1])


def missed_at(similarity: float, shape: tuple[int, int]) -> float:
    """Return the probability that no band of two documents of this similarity is equal."""
    bands, rows = shape
    return float((1 - similarity**rows) ** bands)


def least_equal(similarity: float) -> int:
    """Return the number of equal values below which two signatures are out of reach of this similarity.

    Each value of two documents is equal with the probability of their similarity. Of PERMUTATIONS values, fewer are
    equal with a probability of at most 0.01 %.
    """
    fewer = 0.0
    for equal in range(PERMUTATIONS):
        ways = math.comb(PERMUTATIONS, equal)
        fewer += ways * similarity**equal * (1 - similarity) ** (PERMUTATIONS - equal)
        if fewer > _OUT_OF_REACH:
            return equal
    return PERMUTATIONS


class _Spool:
    """Sets of shingles in a file, each at the position that `add` returns."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def add(self, shingles: Shingles) -> int:
        begin = self._stream.seek(0, 2)
        self._stream.write(shingles.tobytes())
        return begin

    def read(self, begin: int, count: int) -> Shingles:
        self._stream.seek(begin)
        return np.frombuffer(self._stream.read(8 * count), dtype=np.uint64)


def _with_progress(documents: Iterator[Shingles], done: str) -> Iterator[Shingles]:
    """Yield the documents, and show their number after two seconds."""
    with Status(ends=False, patience=PATIENCE) as status:
        for number, shingles in enumerate(documents, start=1):
            yield shingles
            status.update(f"{number:,} documents {done}")


def _signatures(documents: Iterator[Shingles]) -> Iterator[NDArray[np.uint64]]:
    """Yield the signature [PERMUTATIONS] of each document."""
    try:
        from datasketch import MinHash
    except ImportError:
        raise MissingExtra("duplicates", "corpus duplicates --near") from None
    sketch = MinHash(num_perm=PERMUTATIONS, seed=1, scheme="affine64", hashfunc=int)
    for shingles in documents:
        sketch.clear()
        for begin in range(0, len(shingles), _AT_ONCE):
            sketch.update_batch(shingles[begin : begin + _AT_ONCE].tolist())
        yield sketch.hashvalues.astype(np.uint64)


def _band_hashes(signature: NDArray[np.uint64], bands: int, rows: int) -> NDArray[np.uint32]:
    """Return a hash [bands] of each band of `rows` values, never 0."""
    parts = signature[: bands * rows].reshape(bands, rows)
    hashes = [int.from_bytes(hashlib.blake2b(part.tobytes(), digest_size=4).digest(), "little") for part in parts]
    return np.maximum(np.array(hashes, dtype=np.uint32), 1)


def _compared(
    documents: Iterator[Shingles],
    shared: NDArray[np.uint32],
    values: NDArray[np.uint32],
    spool: _Spool,
    threshold: float,
) -> Iterator[Duplicate]:
    """Yield the near-duplicates.

    shared  [N, bands] the hash of each band, 0 where no other document has it
    values  [N, PERMUTATIONS] the last bits of the signatures
    """
    buckets: dict[int, list[int]] = defaultdict(list)  # number of a band and its hash → documents
    kept: dict[int, tuple[int, int]] = {}  # document → position and number of its shingles
    least = least_equal(threshold)
    for document, (shingles, row) in enumerate(zip(documents, shared, strict=True)):
        keys = [band << 32 | hashed for band, hashed in enumerate(row.tolist()) if hashed]
        proposed = sorted({like for key in keys for like in buckets.get(key, ())})
        best = (0.0, 0)
        for like in _within_reach(values, document, proposed, least):
            begin, count = kept[like]
            if min(count, len(shingles)) >= threshold * max(count, len(shingles)):
                similarity = jaccard(shingles, spool.read(begin, count))
                best = max(best, (similarity, -like))
        if best[0] >= threshold:
            yield Duplicate(document, -best[1], best[0])
        elif keys:
            kept[document] = spool.add(shingles), len(shingles)
            for key in keys:
                buckets[key].append(document)


def _within_reach(values: NDArray[np.uint32], document: int, likes: Sequence[int], least: int) -> Iterator[int]:
    """Yield the documents whose signatures have at least `least` values of that of `document`."""
    for begin in range(0, len(likes), _AT_ONCE):
        part = np.array(likes[begin : begin + _AT_ONCE])
        yield from part[np.count_nonzero(values[part] == values[document], axis=1) >= least].tolist()


def jaccard(first: Shingles, second: Shingles) -> float:
    """Return the number of shared shingles divided by the number of all shingles of both."""
    both = len(np.intersect1d(first, second, assume_unique=True))
    return both / (len(first) + len(second) - both)
