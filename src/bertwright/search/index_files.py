"""files of an index ↔ memory: the manifest, the vectors and the rows of each segment.

    manifest.json         model, width, similarity, segments with sizes and digests; written last
    vectors-00000.npy     the vectors [N, W] of a segment, float32
    rows-00000.arrow      its ids, texts, fields (of a row one JSON object) and numbers of passages
    lists-00000.faiss     lists of near vectors, where the index is approximate and the segment is large

A segment is written once and never changed. The numbers of its removed rows are in the manifest, so that every change
of an index is one file that takes its name in one step.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import ValidationError

from bertwright.config import Count, Positive, Settings
from bertwright.errors import Damaged, InputError, shown
from bertwright.files import atomic_file, file_digest, json_bytes, read_object, write_json
from bertwright.model.vector_settings import Similarity
from bertwright.search.approximate import Lists, make_lists
from bertwright.tables.json_values import json_text
from bertwright.version import __version__

INDEX_MANIFEST: Final = "manifest.json"
SEGMENT_FILE: Final = re.compile(r"vectors-\d{5,}\.npy|rows-\d{5,}\.arrow|lists-\d{5,}\.faiss")
"""Names of the files of segments."""
HASHED: Final = 1 << 28
"""Largest size in bytes of a file whose digest is compared at each opening, which takes about 0.15 s."""
_AGAIN: Final = "put the index back from a copy, or build it again with 'bertwright index'"
PASSAGE: Final = "#"
"""Sign between the id of a document and the number of a passage."""
_WITHOUT_PASSAGES: Final = pa.schema([("id", pa.string()), ("text", pa.string()), ("fields", pa.string())])
"""Columns of the rows that version 1.0.0 wrote."""
_SCHEMA: Final = _WITHOUT_PASSAGES.append(pa.field("passage", pa.int32()))


class FileEntry(Settings):
    """Name, size in bytes and sha256 of a file."""

    name: str
    bytes: Positive
    sha256: str


class ListsEntry(Settings):
    """File with the lists of a segment, number of lists that a query reads, and the recall that was measured."""

    file: FileEntry
    probes: Positive
    recall: float


class SegmentEntry(Settings):
    """Files of a segment, its number of rows, and the numbers of those that were removed, ascending."""

    rows: Positive
    vectors: FileEntry
    texts: FileEntry
    lists: ListsEntry | None = None
    removed: tuple[Count, ...] = ()

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Return the entries of all files."""
        return (self.vectors, self.texts, *([self.lists.file] if self.lists else []))


class IndexManifest(Settings):
    """Content of manifest.json of an index."""

    format: Literal[1] = 1
    made_by: str = f"bertwright {__version__}"
    model: str
    """Path of the model that made the vectors, or the name of one that comes with the program."""
    fingerprint: str
    """Fingerprint of that model; see `SentenceEncoder.fingerprint`."""
    width: Positive
    similarity: Similarity
    approximate: bool = False
    """True where large segments have lists."""
    numbered: Count = 0
    """Number from which the ids of rows without one go on: that of the rows that were added so far, the removed ones
    included, and of the numbers that were skipped because they were ids already."""
    segments: tuple[SegmentEntry, ...] = ()

    @property
    def rows(self) -> int:
        """Return the number of rows that are not removed."""
        return sum(entry.rows - len(entry.removed) for entry in self.segments)


@dataclass(frozen=True)
class IndexRow:
    """A row of an index: its id, its text, and the other fields of its table.

    passage: number of the text among the passages of its document, from 1 on, which ends its id, as in report#3; 0
    where the text is no passage.
    """

    id: str
    text: str
    fields: dict[str, Any]
    passage: int = 0


def next_number(manifest: IndexManifest) -> int:
    """Return the number of the next segment, which is larger than those of all segments."""
    numbers = (int(re.sub(r"\D", "", entry.vectors.name)) for entry in manifest.segments)
    return 1 + max(numbers, default=-1)


def read_index_manifest(folder: Path) -> IndexManifest:
    """Read and check manifest.json. Raises InputError where it is missing, damaged or of another version."""
    path = folder / INDEX_MANIFEST
    if not path.is_file():
        raise InputError(f"{folder}: not an index (it has no {INDEX_MANIFEST}); make one with 'bertwright index'")
    content = read_object(path)
    noted = content.pop("digest", None)
    if content.get("format") != 1:
        raise InputError(
            f"{path}: expected an index of format 1, got {shown(content.get('format'))}; build it again with "
            "'bertwright index'"
        )
    if noted != _digest(content):
        raise Damaged(f"{path}: its digest is not that of its content: it was changed or damaged; {_AGAIN}")
    try:
        return IndexManifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; {_AGAIN}") from None


def write_index_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Write manifest.json, with the digest of its content, atomically."""
    content = manifest.model_dump(mode="json")
    write_json(folder / INDEX_MANIFEST, {**content, "digest": _digest(content)})


class Segment:
    """Rows of an index and their vectors, memory-mapped.

    vectors: float32 [N, W]. kept: bool [N], False for a removed row; None where none is removed. num_kept: number of
    rows that are not removed.
    """

    def __init__(self, folder: Path, entry: SegmentEntry, width: int, *, verify: bool = False) -> None:
        """Map the files of a segment, which may be deleted then. Digests of files above `HASHED` need `verify`.

        Raises InputError for a file that is missing, cut or damaged, and for numbers of removed rows that are none.
        """
        numbers = entry.removed
        if numbers != tuple(sorted(set(numbers))) or (numbers and numbers[-1] >= entry.rows):
            raise Damaged(
                f"{folder / INDEX_MANIFEST}: expected numbers of removed rows below {entry.rows}, ascending, got "
                f"{shown(str(numbers))}; {_AGAIN}"
            )
        for file in entry.files:
            _check_file(folder, file, verify=verify)
        self.entry, texts = entry, folder / entry.texts.name
        try:
            vectors = np.load(folder / entry.vectors.name, mmap_mode="r", allow_pickle=False)
            table = pa.ipc.open_file(pa.memory_map(str(texts))).read_all()
            self._lists_file = np.memmap(folder / entry.lists.file.name, np.uint8, "r") if entry.lists else None
        except (ValueError, pa.ArrowException) as error:
            raise InputError(f"{folder}: the files of a segment cannot be read ({error}); {_AGAIN}") from None
        shape = (entry.rows, width)
        is_known = table.schema in (_SCHEMA, _WITHOUT_PASSAGES) and len(table) == entry.rows
        if not is_known or (vectors.shape, vectors.dtype) != (shape, np.float32):
            raise InputError(
                f"{folder / entry.vectors.name}: expected float32 vectors of shape {shape} and {entry.rows} rows in "
                f"{entry.texts.name}, got {vectors.dtype} of shape {vectors.shape} and {len(table)} rows; {_AGAIN}"
            )
        self.vectors: NDArray[np.float32] = vectors
        self._table = table
        self.removed = np.array(entry.removed, dtype=np.int64)
        self.num_kept = entry.rows - len(self.removed)
        self.kept: NDArray[np.bool_] | None = None
        if len(self.removed):
            self.kept = np.ones(entry.rows, dtype=np.bool_)
            self.kept[self.removed] = False

    def __len__(self) -> int:
        return self.entry.rows

    @property
    def has_lists(self) -> bool:
        """True where the segment has lists of near vectors."""
        return self.entry.lists is not None

    def row(self, number: int) -> IndexRow:
        """Return a row by its number in the segment."""
        id, text, fields = (self._table.column(name)[number].as_py() for name in _WITHOUT_PASSAGES.names)
        return IndexRow(id, text, json.loads(fields), int(self.passages[number]))

    def open_lists(self) -> Lists | None:
        """Return the lists of near vectors, which are read once; None for a segment without. MissingExtra: no faiss."""
        return self._lists if self.entry.lists else None

    def candidates(self, queries: NDArray[np.float32], top_k: int) -> list[NDArray[np.int64]]:
        """Return for each query vector the rows that may be its `top_k` nearest, in a segment with lists.

        There may be fewer, as in `Lists.candidates`. Raises MissingExtra without faiss.
        """
        return self._lists.candidates(queries, top_k, self.removed)

    @cached_property
    def _lists(self) -> Lists:
        assert self.entry.lists is not None
        return Lists.of_bytes(self._lists_file, self.entry.lists.probes, location=self.entry.lists.file.name)

    @cached_property
    def passages(self) -> NDArray[np.int32]:
        """Return the number of each row among the passages of its document [N], 0 for a row that is no passage."""
        if "passage" not in self._table.column_names:
            return np.zeros(len(self), dtype=np.int32)
        numbers: NDArray[np.int32] = self._table.column("passage").to_numpy()
        return numbers

    @cached_property
    def ids(self) -> dict[str, int]:
        """Return the id of each row that is not removed, with the number of the row."""
        ids = self._table.column("id").to_pylist()
        numbers = range(len(ids)) if self.kept is None else np.flatnonzero(self.kept).tolist()
        return {ids[number]: number for number in numbers}


class SegmentWriter:
    """Writer of a segment, block by block, in memory that does not grow with it."""

    def __init__(self, vectors: IO[bytes], texts: IO[bytes], width: int) -> None:
        self._vectors, self._width, self.num_rows = vectors, width, 0
        self._texts = pa.ipc.new_file(texts, _SCHEMA)
        self._write_header()

    def write(self, vectors: NDArray[np.float32], rows: Sequence[IndexRow]) -> None:
        """Append rows with their vectors [N, W]."""
        cells = zip(*((row.id, row.text, json_text(row.fields), row.passage) for row in rows), strict=True)
        columns = [pa.array(column, kind) for column, kind in zip(cells, _SCHEMA.types, strict=True)]
        self._texts.write_batch(pa.record_batch(columns, schema=_SCHEMA))
        self._vectors.write(np.ascontiguousarray(vectors, dtype=np.float32).tobytes())
        self.num_rows += len(rows)

    def close(self) -> None:
        """Write the end of the rows, and the number of vectors into the header of their file."""
        self._texts.close()
        self._vectors.seek(0)
        self._write_header()

    def _write_header(self) -> None:
        """Write the header of a .npy file; numpy leaves room in it for any number of rows."""
        header = {"descr": "<f4", "fortran_order": False, "shape": (self.num_rows, self._width)}
        np.lib.format.write_array_header_1_0(self._vectors, header)


@contextmanager
def new_segment(folder: Path, number: int, width: int) -> Iterator[SegmentWriter]:
    """Yield the writer of segment `number`; its files take their names when the block ends without an error."""
    vectors, texts = _paths(folder, number)
    with atomic_file(vectors) as vector_stream, atomic_file(texts) as text_stream:
        writer = SegmentWriter(vector_stream, text_stream, width)
        yield writer
        writer.close()


def segment_entry(folder: Path, number: int, num_rows: int) -> SegmentEntry:
    """Return the entry of a written segment for the manifest."""
    entries = [_file_entry(path) for path in _paths(folder, number)]
    return SegmentEntry(rows=num_rows, vectors=entries[0], texts=entries[1])


def with_lists(folder: Path, number: int, entry: SegmentEntry) -> SegmentEntry:
    """Write the lists of a written segment, and return its entry with them. Raises MissingExtra without faiss."""
    vectors = np.load(folder / entry.vectors.name, mmap_mode="r", allow_pickle=False)
    content, probes, recall = make_lists(vectors)
    path = folder / f"lists-{number:05d}.faiss"
    with atomic_file(path) as stream:
        stream.write(content)
    lists = ListsEntry(file=_file_entry(path), probes=probes, recall=recall)
    return entry.model_copy(update={"lists": lists})


def _file_entry(path: Path) -> FileEntry:
    return FileEntry(name=path.name, bytes=path.stat().st_size, sha256=file_digest(path))


def _paths(folder: Path, number: int) -> tuple[Path, Path]:
    return folder / f"vectors-{number:05d}.npy", folder / f"rows-{number:05d}.arrow"


def _check_file(folder: Path, entry: FileEntry, *, verify: bool) -> None:
    path = folder / entry.name
    if not path.is_file():
        raise Damaged(f"{path}: this file of the index is missing; {_AGAIN}")
    if (size := path.stat().st_size) != entry.bytes:
        problem = "cut" if size < entry.bytes else "too long"
        raise Damaged(f"{path}: is {problem}: {size:,} bytes, but {entry.bytes:,} in {INDEX_MANIFEST}; {_AGAIN}")
    if (verify or entry.bytes <= HASHED) and file_digest(path) != entry.sha256:
        raise Damaged(f"{path}: its digest is not that in {INDEX_MANIFEST}: it was changed or damaged; {_AGAIN}")


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json_bytes(content)).hexdigest()
