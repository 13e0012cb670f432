"""documents as sets of shingles → near-duplicates: MinHash proposes pairs, and each is compared exactly.

A shingle is a run of consecutive words or tokens, here as a hash of 64 bits. The similarity of two documents is the
Jaccard index of their sets, the shared shingles divided by all of both (Broder 1997). The signature of a document is
cut into bands. Two documents are compared where a band of both is equal. A band has as many rows as leave a pair of the
required similarity unfound with a probability of at most 1 %; more similar pairs are missed less often.

Documents are read twice, as a stream. Memory holds some 30 bytes for each document. The bands, and the sets of
documents that share one, are in temporary files.
"""

import hashlib
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from bertwright.console import Status
from bertwright.errors import InputError, MissingExtra

Shingles = NDArray[np.uint64]
"""Hashes of the distinct shingles of a document, ascending; none for a document without a word."""
DIGEST_BYTES: Final = 16
"""Bytes of the digest of a document."""
PERMUTATIONS: Final = 128
"""Number of hash values in a signature."""
MISSED: Final = 0.01
"""Largest probability with which a pair of the required similarity is not found."""
_LEAST: Final = 0.1
_PATIENCE: Final = 2.0  # seconds after which progress is shown
_AT_ONCE: Final = 8192  # shingles of a document that are hashed at a time
_IDEOGRAPHS: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORDS: Final = re.compile(f"[{_IDEOGRAPHS}]|[^\\W{_IDEOGRAPHS}]+")


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

    Case, punctuation and white space do not count. Each ideograph is a word.
    """
    words = _WORDS.findall(text.casefold())
    runs = {"\0".join(words[begin : begin + size]) for begin in range(max(1, len(words) - size + 1))} if words else ()
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
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as spool:
        count = 0
        for signature in _signatures(_with_progress(read(), "read")):
            file.write(_band_hashes(signature, bands, rows).tobytes())
            count += 1
        if not count:
            return []
        file.flush()
        shared = np.memmap(file, dtype=np.uint32, mode="r+", shape=(count, bands))
        for band in range(bands):
            _, inverse, times = np.unique(shared[:, band], return_inverse=True, return_counts=True)
            shared[times[inverse] == 1, band] = 0
        return list(_compared(_with_progress(read(), "compared"), shared, _Spool(spool), threshold))


def band_shape(threshold: float) -> tuple[int, int]:
    """Return the number of bands of a signature, and the number of rows of a band."""
    shapes = [(PERMUTATIONS // rows, rows) for rows in range(1, PERMUTATIONS + 1)]
    return max((shape for shape in shapes if missed_at(threshold, shape) <= MISSED), key=lambda shape: shape[1])


def missed_at(similarity: float, shape: tuple[int, int]) -> float:
    """Return the probability that no band of two documents of this similarity is equal."""
    bands, rows = shape
    return float((1 - similarity**rows) ** bands)


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
    started = time.monotonic()
    with Status(ends=False) as status:
        for number, shingles in enumerate(documents, start=1):
            yield shingles
            if time.monotonic() - started > _PATIENCE:
                status.update(f"{number:,} documents {done}")


def _signatures(documents: Iterator[Shingles]) -> Iterator[NDArray[np.uint64] | None]:
    """Yield the signature [PERMUTATIONS] of each document; None for one without shingles."""
    try:
        from datasketch import MinHash
    except ImportError:
        raise MissingExtra("duplicates", "corpus duplicates --near") from None
    sketch = MinHash(num_perm=PERMUTATIONS, seed=1, scheme="affine64", hashfunc=int)
    for shingles in documents:
        sketch.clear()
        for begin in range(0, len(shingles), _AT_ONCE):
            sketch.update_batch(shingles[begin : begin + _AT_ONCE].tolist())
        yield sketch.hashvalues.astype(np.uint64) if len(shingles) else None


def _band_hashes(signature: NDArray[np.uint64] | None, bands: int, rows: int) -> NDArray[np.uint32]:
    """Return a hash [bands] of each band of `rows` values, never 0; zeros where there is no signature."""
    if signature is None:
        return np.zeros(bands, dtype=np.uint32)
    parts = signature[: bands * rows].reshape(bands, rows)
    hashes = [int.from_bytes(hashlib.blake2b(part.tobytes(), digest_size=4).digest(), "little") for part in parts]
    return np.maximum(np.array(hashes, dtype=np.uint32), 1)


def _compared(
    documents: Iterator[Shingles], shared: NDArray[np.uint32], spool: _Spool, threshold: float
) -> Iterator[Duplicate]:
    """Yield the near-duplicates. shared [N, bands]: the hash of each band, 0 where no other document has it."""
    buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
    kept: dict[int, tuple[int, int]] = {}  # document → position and number of its shingles
    for document, (shingles, row) in enumerate(zip(documents, shared, strict=True)):
        keys = [(int(band), int(row[band])) for band in np.flatnonzero(row)]
        best = (0.0, 0)
        for like in sorted({like for key in keys for like in buckets[key]}):
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


def jaccard(first: Shingles, second: Shingles) -> float:
    """Return the number of shared shingles divided by the number of all shingles of both."""
    both = len(np.intersect1d(first, second, assume_unique=True))
    return both / (len(first) + len(second) - both)
