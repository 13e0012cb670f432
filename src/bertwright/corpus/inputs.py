"""inputs → chunks of documents, each with the position from which reading continues (paper §3.1)."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertwright.config import Settings
from bertwright.corpus.manifest import Skipped, Source
from bertwright.errors import InputError
from bertwright.files import file_digest
from bertwright.stores.remote import RemoteFile, current_file
from bertwright.text.document import Document, TextSettings, raise_error
from bertwright.text.documents import Input, read_sources
from bertwright.text.records import HubDataset
from bertwright.text.wikipedia import Page

CHUNK_CHARACTERS = 1_000_000
"""Characters at which a chunk ends, with the last document complete. A chunk becomes one record batch."""

# Characters per byte of a packed file, until the first file was read. Only the remaining time is estimated by it.
_EXPANSION = {".gz": 2.7, ".bz2": 3.7, ".xz": 3.7, ".zst": 3.2}

Stamp = tuple[int, int]
"""Size and time of change (ns) of a file, or size and a hash of the mark of a store's file.

A file with another stamp was changed.
"""


class Position(Settings):
    """Position up to which the inputs were read.

    input       number of the current input, from 0
    documents   number of its documents that were read
    sources     the inputs before it
    skipped     records and files left out of the inputs before it
    stamps      stamps of it and of the inputs before it, taken when they were opened
    """

    input: int = 0
    documents: int = 0
    sources: tuple[Source, ...] = ()
    skipped: Skipped = Skipped()
    stamps: tuple[Stamp, ...] = ()


@dataclass(frozen=True)
class Chunk:
    """Complete documents, and the position after them."""

    documents: list[Document | Page]
    position: Position


class Reader:
    """Reader of the inputs, once, from a position on; `number` is that of the current input.

    chosen: for each input, true for each of its documents that is used, bool [documents]; None: all are used.
    stamps: those of an earlier pass, one for each input; InputError where an input has another one now.
    With `skip`, a record that cannot be read, or the rest of a file, is left out and counted; otherwise InputError is
    raised. The caller adds the bytes of tokenized documents to `text_bytes`.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        settings: TextSettings,
        *,
        skip: bool = False,
        start: Position | None = None,
        chosen: Sequence[NDArray[np.bool_]] | None = None,
        stamps: Sequence[Stamp] | None = None,
    ) -> None:
        self._inputs = inputs
        self._settings = settings
        self._skip = skip
        self._chosen = chosen
        self._expected_stamps = stamps
        self._start = start or Position()
        self.sources = list(self._start.sources)
        self.stamps = list(self._start.stamps[: self._start.input])
        self.skipped = self._start.skipped
        self.number, self._count = self._start.input, 0
        self._before = len(self.sources), self.skipped  # before the current input
        self.text_bytes = 0
        self._progress = _Progress(inputs)

    def chunks(self) -> Iterator[Chunk]:
        """Yield groups of complete documents, cut by their size only, wherever reading began."""
        documents: list[Document | Page] = []
        characters = 0
        for document in self.documents():
            documents.append(document)
            characters += document.size
            if characters >= CHUNK_CHARACTERS:
                yield Chunk(documents, self._position())
                documents, characters = [], 0
        if documents:
            yield Chunk(documents, self._position())

    def progress(self) -> str:
        """Return the amount of tokenized text, its rate and the remaining time, as text."""
        return self._progress.line(self.text_bytes)

    def _position(self) -> Position:
        """Return the position after the last document, without validation: there may be a million inputs."""
        sources, skipped = self._before
        return Position.model_construct(
            input=self.number,
            documents=self._count,
            sources=tuple(self.sources[:sources]),
            skipped=skipped,
            stamps=tuple(self.stamps),
        )

    def documents(self) -> Iterator[Document | Page]:
        """Yield the documents that are used, in order."""
        on_error = self._on_record if self._skip else raise_error
        for number in range(self._start.input, len(self._inputs)):
            source = self._inputs[number]
            self.stamps.append(stamp_of(source))
            self._refuse_changed(number)
            num_read = self._start.documents if number == self._start.input else 0
            self.number, self._count = number, 0
            self._before = len(self.sources), self.skipped
            self._progress.begin(number)
            try:
                self.sources.append(_source(source))
                for document in read_sources(source, self._settings, on_error):
                    self._count += 1
                    self._progress.characters += document.size
                    if self._count > num_read and self._is_chosen():
                        yield document
            except InputError as error:
                if not self._skip:
                    raise
                self.skipped = self.skipped.with_message(str(error), files=1)
            self._refuse_changed(number)
            self._progress.end(number)

    def _is_chosen(self) -> bool:
        """Return whether the current document is used. Raises InputError where its input has more than before."""
        if self._chosen is None:
            return True
        chosen = self._chosen[self.number]
        if self._count > len(chosen):
            raise InputError(_changed(self._inputs[self.number]))
        return bool(chosen[self._count - 1])

    def _refuse_changed(self, number: int) -> None:
        """Raise InputError where an input is not the file that the earlier pass read."""
        source = self._inputs[number]
        if self._expected_stamps is not None and self._expected_stamps[number] != stamp_of(source):
            raise InputError(_changed(source))

    def _on_record(self, error: InputError) -> None:
        if not self._skip:
            raise error
        self.skipped = self.skipped.with_message(str(error), records=1)


class _Progress:
    """Estimate of the bytes that were read, from the characters of their text, and of the remaining time."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self._inputs = inputs
        self._sizes = [size_of(source) for source in inputs]
        self._begin = time.monotonic()
        self._first = 0  # bytes of the inputs that an earlier call read
        self._read = 0  # bytes of the inputs that were read to their end
        self._read_characters = 0  # characters of their text
        self._current: tuple[int, float] = (0, 1.0)  # bytes of the current input, characters expected per byte
        self.characters = 0  # characters of its text so far

    def begin(self, number: int) -> None:
        if not self._read:
            self._first = self._read = sum(self._sizes[:number])
        source = self._inputs[number]
        guess = 1.0 if isinstance(source, HubDataset) else _EXPANSION.get(source.suffix.lower(), 1.0)
        read = self._read - self._first
        self._current = (self._sizes[number], self._read_characters / read if read else guess)
        self.characters = 0

    def end(self, number: int) -> None:
        self._read += self._sizes[number]
        self._read_characters += self.characters
        self._current, self.characters = (0, 1.0), 0

    def line(self, text_bytes: int) -> str:
        seconds = time.monotonic() - self._begin
        size, expected = self._current
        done = self._read + min(size, self.characters / max(expected, 1e-9)) - self._first
        speed = f"{text_bytes / 1e6:,.0f} MB of text · {text_bytes / 1e6 / max(seconds, 1e-9):.1f} MB/s"
        if any(isinstance(source, HubDataset) for source in self._inputs):
            return speed  # the size of a dataset is unknown
        remaining = seconds * (sum(self._sizes) - self._first - done) / max(done, 1)
        return f"{speed} · about {remaining // 60:.0f} min {remaining % 60:.0f} s left"


def refuse_missing(sources: Sequence[Input]) -> None:
    """Raise InputError for a link that leads to no file."""
    for source in sources:
        if isinstance(source, Path) and not source.exists():
            raise InputError(f"{source}: the link leads to no file")


def _changed(source: Input) -> str:
    return f"{source}: was changed while it was read; give the same command again"


def stamp_of(source: Input) -> Stamp:
    """Return the stamp of a file as it is now; zeros for a dataset and for a file that is absent."""
    if isinstance(source, RemoteFile):
        file = current_file(source.url)
        return (file.size, int.from_bytes(sha256(file.mark.encode()).digest()[:7])) if file else (0, 0)
    try:
        stat = source.stat() if isinstance(source, Path) else None
    except OSError:
        stat = None
    return (stat.st_size, stat.st_mtime_ns) if stat else (0, 0)


def size_of(source: Input) -> int:
    """Return the bytes of a file; 0 for a dataset and for a file that is absent."""
    if isinstance(source, RemoteFile):
        return source.size
    return stamp_of(source)[0]


def _source(source: Input) -> Source:
    if isinstance(source, HubDataset):
        return Source(path=str(source), bytes=0, fingerprint=f"revision {source.revision}")
    if isinstance(source, RemoteFile):
        return Source(path=str(source), bytes=source.size, fingerprint=source.mark)
    try:
        return Source(path=str(source), bytes=source.stat().st_size, fingerprint=f"sha256 {file_digest(source)}")
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror}") from None


def part_of(sources: Sequence[Input], part: tuple[int, int] | None) -> list[Input]:
    """Return the inputs of part i of n, from 1: consecutive inputs, about as many bytes in each part, no part empty.

    `part` is (i, n); None returns all inputs. Raises InputError where there are fewer inputs than parts.
    """
    if part is None:
        return list(sources)
    i, n = part
    if not 1 <= i <= n:
        raise InputError(f"part {i}/{n}: expected i/n with i from 1 to n, such as 2/8")
    if len(sources) < n:
        raise InputError(f"part {i}/{n}: expected {n} input files or more, got {len(sources)}; files are not divided")
    bytes_of = [size_of(source) for source in sources]
    ends = list(accumulate(bytes_of))
    bounds = [0]
    for number in range(1, n):
        # The number of files whose middle lies before the bound: the bound moves to the nearest end of a file.
        nearest = sum((2 * end - size) * n <= 2 * ends[-1] * number for end, size in zip(ends, bytes_of, strict=True))
        bounds.append(min(max(nearest, bounds[-1] + 1), len(sources) - (n - number)))
    bounds.append(len(sources))
    return list(sources[bounds[i - 1] : bounds[i]])
