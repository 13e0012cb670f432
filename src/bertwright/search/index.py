"""rows with texts → index folder, to which rows are added and from which they are removed; its files: `index_files`.

An open index is what its folder was when it was opened. Adding and removing write a new manifest, and give a new index.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from bertwright.console import Status
from bertwright.errors import Damaged, InputError, shown
from bertwright.files import new_folder
from bertwright.locks import locked_file
from bertwright.search.approximate import LEAST_ROWS, check_faiss
from bertwright.search.exact import as_compared, check_similarity
from bertwright.search.index_files import (
    PASSAGE,
    IndexManifest,
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
from bertwright.search.nearest import VectorIndex
from bertwright.search.new_rows import IndexedText, TakenIds, checked_rows
from bertwright.shipped import shipped
from bertwright.tasks.finite import check_finite
from bertwright.tasks.static_vectors import TextVectors
from bertwright.tasks.unknown_pieces import UnknownPieces

_LOCK: Final = "lock"
"""File that the process holds locked which changes the index."""


@dataclass(frozen=True)
class Added:
    """Number of rows that were added, of those whose text is longer than the model reads, and the unknown pieces."""

    rows: int
    cut: int
    unknown: UnknownPieces


class SearchIndex(VectorIndex):
    """An open index folder, which may be changed meanwhile."""

    def __init__(self, folder: Path, manifest: IndexManifest, *, verify: bool = False) -> None:
        """Map the files of an index; `verify`: as in `open`."""
        segments = [Segment(folder, entry, manifest.width, verify=verify) for entry in manifest.segments]
        super().__init__(folder, manifest, segments)

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = False) -> "SearchIndex":
        """Open an index folder. Raises InputError, with the file, for a missing, cut or damaged index.

        verify: True compares the digests of all files; False those of files up to `HASHED` bytes, and all sizes.
        """
        folder = Path(folder)
        manifest = read_index_manifest(folder)
        try:
            return cls(folder, manifest, verify=verify)
        except (Damaged, FileNotFoundError):
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
            manifest, added = _with_segment(unfinished, manifest, encoder, texts, TakenIds())
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
            taken = TakenIds.of_index(current.segments)
            manifest, added = _with_segment(self.folder, current.manifest, encoder, texts, taken)
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

        With the id of a document its passages are removed. An id that is not there is looked for without the blanks at
        its ends. Raises InputError for one that is not there either, or that is there twice; the index is then as
        before.
        """
        with self._changing() as current:
            removed: list[set[int]] = [set(segment.entry.removed) for segment in current.segments]
            places = current._places
            seen: dict[str, str] = {}
            for id, location in ids:
                id = id if id in places else id.strip()
                if id in seen:
                    raise InputError(f"{location}: the id '{shown(id)}' is there twice (first: {seen[id]})")
                seen[id] = location
                rows = places.get(id, [])
                if not rows:
                    raise InputError(f"{location}: there is no id '{shown(id)}' in {self.folder}; nothing was removed")
                for number, row in rows:
                    removed[number].add(row)
            entries = [
                entry.model_copy(update={"removed": tuple(sorted(numbers))})
                for entry, numbers in zip(current.manifest.segments, removed, strict=True)
            ]
            write_index_manifest(self.folder, current.manifest.model_copy(update={"segments": tuple(entries)}))
        return SearchIndex.open(self.folder)

    def passages_of(self, document: str) -> list[str]:
        """Return the texts of the passages of a document in order; none where the index has no such document."""
        rows = (self.segments[number].row(row) for number, row in self._places.get(document, []))
        return [row.text for row in rows if row.passage and row.id != document]

    @cached_property
    def _places(self) -> dict[str, list[tuple[int, int]]]:
        """Return pairs of (number of the segment, row) for the id of each row, and for that of each document."""
        places: dict[str, list[tuple[int, int]]] = {}
        for number, segment in enumerate(self.segments):
            for id, row in segment.ids.items():
                places.setdefault(id, []).append((number, row))
                if passage := int(segment.passages[row]):
                    places.setdefault(id.removesuffix(f"{PASSAGE}{passage}"), []).append((number, row))
        return places

    @contextmanager
    def _changing(self, *, verify: bool = False) -> Iterator["SearchIndex"]:
        """Yield the index as it is now, while no other process may change it; `verify`: with all digests checked."""
        fault = f"{self.folder}: another process is changing this index"
        with locked_file(self.folder / _LOCK, fault) as is_locked:
            if not is_locked:
                raise InputError(f"{self.folder}: this file system has no locks, which a change needs; move it")
            manifest = read_index_manifest(self.folder)
            is_current = manifest == self.manifest and not verify
            yield self if is_current else SearchIndex(self.folder, manifest, verify=True)


def _with_segment(
    folder: Path,
    manifest: IndexManifest,
    encoder: TextVectors,
    texts: Iterable[Sequence[IndexedText]],
    taken: TakenIds,
) -> tuple[IndexManifest, Added]:
    """Write a segment of these texts; return the manifest with it. `taken` are the ids of the index.

    A segment that a killed process wrote has no entry in the manifest, and its files are replaced here.
    """
    number, num_cut, last = next_number(manifest), 0, manifest.numbered
    unknown = UnknownPieces(encoder.tokenizer)
    with new_segment(folder, number, manifest.width) as segment, Status(ends=False) as status:
        for index_rows, locations, numbered in checked_rows(texts, taken, manifest.numbered):
            last = numbered
            rows, cut = encoder.rows([row.text for row in index_rows], "document")
            vectors = encoder.of_rows(rows, "document", width=manifest.width, progress="vectors computed")
            check_finite(vectors, locations.__getitem__)
            segment.write(as_compared(vectors, manifest.similarity), index_rows)
            num_cut += sum(cut)
            unknown.add(rows)
            status.update(f"{segment.num_rows:,} texts are in the index")
    entry: SegmentEntry = segment_entry(folder, number, segment.num_rows)
    if manifest.approximate and segment.num_rows >= LEAST_ROWS:
        entry = with_lists(folder, number, entry)
    changes = {"segments": (*manifest.segments, entry), "numbered": last}
    return manifest.model_copy(update=changes), Added(segment.num_rows, num_cut, unknown)


def check_indexable(texts: Iterable[Sequence[IndexedText]], index: SearchIndex | None = None) -> None:
    """Raise InputError for the first of these texts that cannot be added to an index; None: a new one."""
    taken = TakenIds.of_index(index.segments if index else ())
    for _ in checked_rows(texts, taken, index.manifest.numbered if index else 0):
        pass
