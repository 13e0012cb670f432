"""rows with texts → index folder; queries → the nearest rows, exactly (see `index_files` for the files).

An open index is what its folder was when it was opened. Adding and removing write a new manifest, and give a new index.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.console import Status
from bertwright.errors import Damaged, InputError, shown
from bertwright.files import new_folder
from bertwright.locks import locked_file
from bertwright.model.vector_settings import Similarity
from bertwright.search.approximate import LEAST_ROWS, check_faiss
from bertwright.search.exact import DECIMALS, BestDocuments, as_compared, check_similarity
from bertwright.search.index_files import (
    IndexManifest,
    IndexRow,
    Segment,
    SegmentEntry,
    new_segment,
    next_number,
    read_index_manifest,
    segment_entry,
    with_lists,
    write_index_manifest,
)
from bertwright.search.join import delete_unused, joined
from bertwright.shipped import shipped
from bertwright.tables.bad_rows import is_blank
from bertwright.tables.json_values import json_text
from bertwright.tables.reader import refuse_halves
from bertwright.tasks.finite import check_finite
from bertwright.tasks.static_vectors import TextVectors

_LOCK: Final = "lock"
"""File that the process holds locked which changes the index."""
_SCORES: Final = 1 << 22
"""Number of scores in memory at a time."""
_BYTES: Final = 1 << 26
"""Number of bytes of the vectors that are compared at a time."""


@dataclass(frozen=True)
class IndexedText:
    """A row to index, and its location for messages, as "file:line".

    numbered: True where the id is only the number of the row in its tables; the index gives it the next free number.
    """

    row: IndexRow
    location: str
    numbered: bool = False


@dataclass(frozen=True)
class Hit:
    """A row that a query found. score: cosine or dot product, rounded to six decimals."""

    id: str
    score: float
    text: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class Added:
    """Number of rows that were added, and of those among them whose text is longer than the model reads."""

    rows: int
    cut: int


class SearchIndex:
    """An open index folder. Threads may search together; the folder may be changed meanwhile."""

    def __init__(self, folder: Path, manifest: IndexManifest, *, verify: bool = False) -> None:
        """Map the files of an index; `verify`: as in `open`."""
        self.folder, self.manifest = folder, manifest
        self.segments = [Segment(folder, entry, manifest.width, verify=verify) for entry in manifest.segments]
        self._begins = np.cumsum([0, *map(len, self.segments)])

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = False) -> "SearchIndex":
        """Open an index folder. Raises InputError, with the file, for a missing, cut or damaged index.

        verify: True compares the digests of all files; False those of files up to `HASHED` bytes, and all sizes.
        """
        folder = Path(folder)
        manifest = read_index_manifest(folder)
        try:
            return cls(folder, manifest, verify=verify)
        except Damaged:
            current = read_index_manifest(folder)
            if current == manifest:
                raise
            return cls(folder, current, verify=verify)  # another process has joined the segments meanwhile

    @classmethod
    def build(
        cls,
        folder: str | Path,
        encoder: TextVectors,
        texts: Iterable[Sequence[IndexedText]],
        *,
        model: str,
        width: int | None = None,
        approximate: bool = False,
    ) -> tuple["SearchIndex", Added]:
        """Write a new index of blocks of texts; the folder appears when it is complete.

        model: path of the model of `encoder`, noted in the index. width: number of first components of the vectors.
        approximate: True gives large segments lists of near vectors (`bertwright.search.approximate`).
        Raises InputError for a folder that is not empty, no text, and faults of the texts; RunFailed for a vector that
        is not finite.
        """
        encoder.check_width(width, "--width")
        check_similarity(encoder.similarity)
        manifest = IndexManifest(
            model=model if model in shipped() and not Path(model).exists() else str(Path(model).resolve()),
            fingerprint=encoder.fingerprint,
            width=width or encoder.size,
            similarity=encoder.similarity,
            approximate=approximate,
        )
        if approximate:
            check_faiss()
        with new_folder(Path(folder)) as unfinished:
            manifest, added = _with_segment(unfinished, manifest, encoder, texts, set())
            write_index_manifest(unfinished, manifest)
        return cls.open(folder), added

    def add(self, encoder: TextVectors, texts: Iterable[Sequence[IndexedText]]) -> tuple["SearchIndex", Added]:
        """Add blocks of texts as a new segment; return the index with them.

        Raises InputError for another model than that of the index, an id that is in it, and faults of the texts; the
        index is then as before.
        """
        with self._changing() as current:
            current.check_model(encoder)
            if current.manifest.approximate:
                check_faiss()
            ids = {id for segment in current.segments for id in segment.ids}
            manifest, added = _with_segment(self.folder, current.manifest, encoder, texts, ids)
            write_index_manifest(self.folder, manifest)
            delete_unused(self.folder, manifest)
        return SearchIndex.open(self.folder), added

    def join(self) -> "SearchIndex":
        """Write the rows of all segments as one, without those that were removed; return the index with it.

        A search has the same result. Raises InputError where all rows are removed; MissingExtra without faiss, for an
        approximate index.
        """
        with self._changing(verify=True) as current:  # the old files, with their digests, are removed
            if current.manifest.approximate:
                check_faiss()
            manifest = joined(self.folder, current.manifest, current.segments)
            write_index_manifest(self.folder, manifest)
            delete_unused(self.folder, manifest)
        return SearchIndex.open(self.folder)

    def remove(self, ids: Iterable[tuple[str, str]]) -> "SearchIndex":
        """Remove rows by pairs of (id, location for messages); return the index without them.

        Raises InputError for an id that is not there, or that is there twice; the index is then as before.
        """
        with self._changing() as current:
            removed: list[set[int]] = [set(segment.entry.removed) for segment in current.segments]
            seen: dict[str, str] = {}
            for id, location in ids:
                if id in seen:
                    raise InputError(f"{location}: the id '{shown(id)}' is there twice (first: {seen[id]})")
                seen[id] = location
                holder = next((number for number, segment in enumerate(current.segments) if id in segment.ids), None)
                if holder is None:
                    raise InputError(f"{location}: there is no id '{shown(id)}' in {self.folder}; nothing was removed")
                removed[holder].add(current.segments[holder].ids[id])
            entries = [
                entry.model_copy(update={"removed": tuple(sorted(numbers))})
                for entry, numbers in zip(current.manifest.segments, removed, strict=True)
            ]
            write_index_manifest(self.folder, current.manifest.model_copy(update={"segments": tuple(entries)}))
        return SearchIndex.open(self.folder)

    def check_model(self, encoder: TextVectors) -> None:
        """Raise InputError where the vectors of `encoder` are not those of the index."""
        if encoder.fingerprint != self.manifest.fingerprint:
            raise InputError(
                f"{self.folder}: expected the model that made this index ({self.manifest.model}, fingerprint "
                f"{self.manifest.fingerprint[:12]}), got one with the fingerprint {encoder.fingerprint[:12]}: its "
                "weights, tokenizer or settings of vectors differ; use that model, or build the index again"
            )

    def search(
        self, encoder: TextVectors, queries: Sequence[str], top_k: int = 10, *, exact: bool = False
    ) -> list[list[Hit]]:
        """Return the best rows of each query, the best first; of two with the same score, the one added first.

        exact: True compares all rows of an approximate index too.
        Raises InputError for another model, a query that is empty or no text, and a `top_k` below 1.
        """
        if top_k < 1:
            raise InputError(f"top_k {top_k}: expected at least 1")
        self.check_model(encoder)
        for number, query in enumerate(queries):
            refuse_halves([query], f"query {number} ")
            if is_blank(query):
                raise InputError(f"query {number}: expected a text, got an empty one")
        vectors = encoder.of_rows(encoder.rows(queries, "query")[0], "query", width=self.manifest.width)
        check_finite(vectors, "query {}".format)
        return self.hits(as_compared(vectors, self.manifest.similarity), top_k, exact=exact)

    def hits(self, queries: NDArray[np.float32], top_k: int, *, exact: bool = False) -> list[list[Hit]]:
        """Return the best rows for each query vector [Q, W], as `nearest`."""
        return [
            [self._hit(number, score) for number, score in zip(numbers.tolist(), scores.tolist(), strict=True)]
            for numbers, scores in self.nearest(queries, top_k, exact=exact)
        ]

    def nearest(
        self, queries: NDArray[np.float32], top_k: int, *, exact: bool = False
    ) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Return the numbers and scores of the best rows for each query vector [Q, W], the best first.

        Rows are numbered through all segments from 0 on. For cosine the query vectors have length 1. exact: as in
        `search`.
        """
        best = BestDocuments(len(queries), min(top_k, max(1, len(self))))
        for begin, segment in zip(self._begins.tolist(), self.segments, strict=False):
            scanned = np.arange(len(queries))
            # Where most rows are removed, few of those that a query reads are left.
            if segment.has_lists and not exact and 2 * segment.num_kept > len(segment):
                scanned = _add_candidates(best, queries, segment, begin)
            if len(scanned):
                best.merge(scanned, _scan(segment, queries[scanned], best.most, begin, self.manifest.similarity))
        return best.best()

    def __len__(self) -> int:
        return sum(segment.num_kept for segment in self.segments)

    def _hit(self, number: int, score: float) -> Hit:
        holder = int(np.searchsorted(self._begins, number, side="right")) - 1
        row = self.segments[holder].row(number - int(self._begins[holder]))
        return Hit(row.id, round(score, DECIMALS), row.text, row.fields)

    @contextmanager
    def _changing(self, *, verify: bool = False) -> Iterator["SearchIndex"]:
        """Yield the index as it is now, while no other process may change it; `verify`: with all digests checked."""
        with locked_file(self.folder / _LOCK, f"{self.folder}: another process is changing this index"):
            manifest = read_index_manifest(self.folder)
            is_current = manifest == self.manifest and not verify
            yield self if is_current else SearchIndex(self.folder, manifest, verify=True)


def _add_candidates(
    best: BestDocuments, queries: NDArray[np.float32], segment: Segment, begin: int
) -> NDArray[np.int64]:
    """Add the rows in the lists that each query reads; return the numbers of the queries that read too few of them."""
    nothing, too_few = np.full(1, -1, dtype=np.int64), []
    for query, numbers in enumerate(segment.candidates(queries, best.most)):
        if len(numbers) < min(best.most, segment.num_kept):
            too_few.append(query)
            continue
        scores = segment.vectors[numbers].astype(np.float64) @ queries[query].astype(np.float64)
        best.add(query, scores[None], begin + numbers, nothing)
    return np.array(too_few, dtype=np.int64)


def _scan(
    segment: Segment, queries: NDArray[np.float32], most: int, begin: int, similarity: Similarity
) -> BestDocuments:
    """Return the best rows of a segment for each query vector [Q, W], by comparing all; `begin` is its first number."""
    best, longest = BestDocuments(len(queries), most), 1.0 if similarity == "cosine" else None
    nothing = np.full(len(queries), -1, dtype=np.int64)
    block = max(1, min(_SCORES // max(1, len(queries)), _BYTES // segment.vectors[0].nbytes))
    for first in range(0, len(segment), block):
        rows = slice(first, min(len(segment), first + block))  # views: no vector is copied
        kept = None if segment.kept is None else segment.kept[rows]
        numbers = begin + np.arange(rows.start, rows.stop)
        best.add_vectors(queries, segment.vectors[rows], numbers, nothing, longest=longest, kept=kept)
    return best


def _with_segment(
    folder: Path,
    manifest: IndexManifest,
    encoder: TextVectors,
    texts: Iterable[Sequence[IndexedText]],
    taken: set[str],
) -> tuple[IndexManifest, Added]:
    """Write a segment of these texts; return the manifest with it. `taken` are the ids of the index.

    A segment that a killed process wrote has no entry in the manifest, and its files are replaced here.
    """
    number, num_cut, ids, numbered = next_number(manifest), 0, set[str](), manifest.numbered
    with new_segment(folder, number, manifest.width) as segment, Status(ends=False) as status:
        for block in filter(None, texts):
            index_rows = []
            for text in block:
                numbered += 1
                while text.numbered and (str(numbered) in taken or str(numbered) in ids):
                    numbered += 1
                row = replace(text.row, id=str(numbered)) if text.numbered else text.row
                _check_row(row, text.location)
                _refuse_taken(row.id, text.location, taken, ids)
                ids.add(row.id)
                index_rows.append(row)
            rows, cut = encoder.rows([row.text for row in index_rows], "document")
            vectors = encoder.of_rows(rows, "document", width=manifest.width, progress="vectors computed")
            locations = [text.location for text in block]
            check_finite(vectors, locations.__getitem__)
            segment.write(as_compared(vectors, manifest.similarity), index_rows)
            num_cut += sum(cut)
            status.update(f"{segment.num_rows:,} texts are in the index")
        if not segment.num_rows:
            raise InputError("expected at least one text, got none")
    entry: SegmentEntry = segment_entry(folder, number, segment.num_rows)
    if manifest.approximate and segment.num_rows >= LEAST_ROWS:
        entry = with_lists(folder, number, entry)
    changes = {"segments": (*manifest.segments, entry), "numbered": numbered}
    return manifest.model_copy(update=changes), Added(segment.num_rows, num_cut)


def _check_row(row: IndexRow, location: str) -> None:
    """Raise InputError where the id, the text or the fields of a row cannot be written."""
    refuse_halves([row.id], f"{location}: the id ")
    refuse_halves([row.text], f"{location}: the text ")
    try:
        json_text(row.fields).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"{location}: expected fields that JSON can hold, got {shown(row.fields)} ({shown(str(error))}); leave "
            "them out, or write them as texts"
        ) from None


def _refuse_taken(id: str, location: str, taken: set[str], ids: set[str]) -> None:
    """Raise InputError where an id is in the index (`taken`), or is that of an earlier text (`ids`)."""
    if id in taken:
        raise InputError(
            f"{location}: the id '{shown(id)}' is in the index already; expected a new one: remove it first with "
            "--remove, or give the text another id"
        )
    if id in ids:
        raise InputError(f"{location}: the id '{shown(id)}' is there twice; ids must differ")
