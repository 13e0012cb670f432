"""rows with texts → index folder, to which rows are added and from which they are removed; its files: `index_files`.

An open index is what its folder was when it was opened. Adding and removing write a new manifest, and give a new index.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bertwright.console import Status
from bertwright.errors import Damaged, InputError, shown
from bertwright.files import new_folder
from bertwright.locks import locked_file
from bertwright.search.approximate import LEAST_ROWS, check_faiss
from bertwright.search.exact import as_compared, check_similarity
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
from bertwright.search.nearest import VectorIndex
from bertwright.shipped import shipped
from bertwright.tables.json_values import json_text
from bertwright.tables.reader import refuse_halves
from bertwright.tasks.finite import check_finite
from bertwright.tasks.static_vectors import TextVectors
from bertwright.tasks.unknown_pieces import UnknownPieces

PASSAGE: Final = "#"
"""Sign between the id of a document and the number of a passage."""
_NUMBERED_PASSAGE: Final = re.compile(f"(.*){PASSAGE}[0-9]+", re.DOTALL)
_LOCK: Final = "lock"
"""File that the process holds locked which changes the index."""


@dataclass(frozen=True)
class IndexedText:
    """A row to index, and its location for messages, as "file:line".

    number: number of the row in its tables, from 1 on; rows that are left out count. is_numbered: True where the id is
    only this number; the index then gives the row the next free number. passage: number of the text among the passages
    of its document, from 1 on, which ends its id, as in report#3; 0 where the text is no passage.
    """

    row: IndexRow
    location: str
    number: int = 0
    is_numbered: bool = False
    passage: int = 0


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

        An id that no row has is that of a document, whose passages are removed. Raises InputError for an id that is not
        there, or that is there twice; the index is then as before.
        """
        with self._changing() as current:
            removed: list[set[int]] = [set(segment.entry.removed) for segment in current.segments]
            rows_of_passages = _rows_of_passages(current.segments)
            seen: dict[str, str] = {}
            for id, location in ids:
                if id in seen:
                    raise InputError(f"{location}: the id '{shown(id)}' is there twice (first: {seen[id]})")
                seen[id] = location
                rows = [
                    (number, segment.ids[id]) for number, segment in enumerate(current.segments) if id in segment.ids
                ]
                rows = rows or rows_of_passages.get(id, [])
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


def _document_of(id: str) -> str | None:
    """Return the id of the document of a passage; None for an id that is not that of a passage."""
    match = _NUMBERED_PASSAGE.fullmatch(id)
    return match[1] if match else None


def _rows_of_passages(segments: Sequence[Segment]) -> dict[str, list[tuple[int, int]]]:
    """Return pairs of (number of the segment, row) of the passages of each document."""
    rows: dict[str, list[tuple[int, int]]] = {}
    for number, segment in enumerate(segments):
        for id, row in segment.ids.items():
            if (document := _document_of(id)) is not None:
                rows.setdefault(document, []).append((number, row))
    return rows


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
    number, num_cut, last = next_number(manifest), 0, manifest.numbered
    unknown = UnknownPieces(encoder.tokenizer)
    with new_segment(folder, number, manifest.width) as segment, Status(ends=False) as status:
        for index_rows, locations, numbered in _checked_rows(texts, taken, manifest.numbered):
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
    taken = {id for segment in index.segments for id in segment.ids} if index else set[str]()
    for _ in _checked_rows(texts, taken, index.manifest.numbered if index else 0):
        pass


def _checked_rows(
    texts: Iterable[Sequence[IndexedText]], taken: set[str], numbered: int
) -> Iterator[tuple[list[IndexRow], list[str], int]]:
    """Yield the rows of each block, their locations, and the last number that is an id so far.

    taken: ids of the index; numbered: last number that is an id in it. Raises InputError for a row that cannot be
    indexed, and where there is none.
    """
    ids, offset = set[str](), numbered
    taken_documents = taken | {document for id in taken if (document := _document_of(id)) is not None}
    for block in filter(None, texts):
        rows = []
        for text in block:
            of_index = taken_documents if text.passage else taken
            if text.is_numbered and text.passage < 2:  # all passages of a text have one number
                while any(id in others for id in _ids_of(text, offset) for others in (of_index, ids)):
                    offset += 1
            numbered = offset + text.number
            all_ids = _ids_of(text, offset)
            row = replace(text.row, id=all_ids[-1])
            _check_row(row, text.location)
            for id in all_ids:
                _refuse_taken(id, text.location, of_index, ids)
            ids.add(row.id)
            rows.append(row)
        yield rows, [text.location for text in block], numbered
    if not ids:
        raise InputError("expected at least one text, got none")


def _ids_of(text: IndexedText, offset: int) -> list[str]:
    """Return the ids that a text takes, its own one last: the first passage takes that of its document too.

    offset: is added to a number that is an id.
    """
    id = str(offset + text.number) if text.is_numbered else text.row.id
    if not text.passage:
        return [id]
    passage = f"{id}{PASSAGE}{text.passage}"
    return [id, passage] if text.passage == 1 else [passage]


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
