"""inputs → a sample by document: a number of words, on request with a fraction of each source.

The documents of a source have a random order, which depends on the seed and on the numbers of the documents alone. They
are drawn in that order until the next one would exceed the words of the source. So a sample has no more words than were
asked for, and less than one document fewer.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bertwright.console import Status
from bertwright.corpus.inputs import Reader, Stamp, refuse_missing
from bertwright.corpus.manifest import Drawn, Sample, SampleSettings, SampleSource
from bertwright.errors import InputError, RunFailed
from bertwright.text.document import Document, TextSettings
from bertwright.text.documents import Input, as_document, find_inputs
from bertwright.text.wikipedia import Page
from bertwright.text.word_counts import words_of_text, words_text

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_SUM_TOLERANCE: Final = Decimal("1e-6")


@dataclass(frozen=True)
class SampledInputs:
    """Inputs of a sample.

    chosen   for each input, one value for each of its documents: true where it is in the sample, bool [documents]
    stamps   stamp of each input, taken before its words were counted
    """

    sample: Sample
    inputs: list[Input]
    chosen: list[NDArray[np.bool_]]
    stamps: list[Stamp]

    @property
    def digest(self) -> str:
        """Return the sha256 of the numbers of the drawn documents and of the number of documents of each input."""
        digest = sha256()
        for of_input in self.chosen:
            digest.update(len(of_input).to_bytes(8, "little") + np.packbits(of_input).tobytes())
        return digest.hexdigest()

    def refuse_other_number(self, read: int) -> None:
        """Raise InputError where another number of documents was read than was drawn."""
        drawn = sum(int(of_input.sum()) for of_input in self.chosen)
        if read != drawn:
            raise InputError(
                f"{self.inputs[0]} and the other inputs: {drawn:,} documents were drawn, and {read:,} were read; the "
                "text was changed meanwhile: remove the output folder and give the same command again"
            )


def parse_mix(texts: Sequence[str]) -> tuple[SampleSource, ...]:
    """Return the sources of texts such as wiki=0.3 and novels=0.7.

    Raises InputError where a source or its fraction is missing, one is named twice, or the fractions do not sum to 1.
    """
    typed = f"--mix {' --mix '.join(texts)}"
    fractions: dict[str, Decimal] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            fraction = Decimal(number)
            is_fraction = 0 < fraction <= 1
        except InvalidOperation:
            is_fraction = False
        if not name or not is_fraction:
            raise InputError(
                f"--mix {text}: expected SOURCE=FRACTION with a fraction above 0 and at most 1, such as wiki=0.3"
            )
        if name in fractions:
            raise InputError(f"{typed}: {name} is named twice; name each source once")
        fractions[name] = fraction
    total = sum(fractions.values(), start=Decimal(0))
    if texts and abs(total - 1) > _SUM_TOLERANCE:
        raise InputError(f"{typed}: expected fractions that sum to 1, got {total}")
    return tuple(SampleSource(name=name, fraction=float(fraction)) for name, fraction in fractions.items())


def sample_inputs(
    inputs: Sequence[str | Path], request: SampleSettings, settings: TextSettings, *, skip: bool
) -> SampledInputs:
    """Read the inputs once, or the sources of the mix, and return the documents of a sample.

    Raises InputError where a source has fewer words than are asked for, where a file belongs to two sources, and for
    text that cannot be read, unless `skip` is true.
    """
    sources = request.mix or (SampleSource(name="", fraction=1.0),)
    files_of = _find_all(sources, [[source.name] for source in request.mix] or [inputs])
    if not skip:
        refuse_missing(list(chain.from_iterable(files_of)))
    chosen: list[NDArray[np.bool_]] = []
    stamps: list[Stamp] = []
    drawn: list[Drawn] = []
    for source, files in zip(sources, files_of, strict=True):
        counts, stamps_of_files = _count(files, settings, skip=skip)
        words = np.concatenate(counts)
        budget = int(request.words * Decimal(str(source.fraction)))
        is_drawn = draw_documents(words, budget, seed=request.seed)
        _refuse_too_few(source, words, budget, is_drawn)
        drawn.append(
            Drawn(
                name=source.name,
                words=int(words[is_drawn].sum()),
                documents=int(is_drawn.sum()),
                of_words=int(words.sum()),
                of_documents=len(words),
            )
        )
        stamps += stamps_of_files
        chosen += np.split(is_drawn, np.cumsum([len(each) for each in counts])[:-1])
    sample = Sample(settings=request, drawn=tuple(drawn))
    return SampledInputs(sample, list(chain.from_iterable(files_of)), chosen, stamps)


def draw_documents(words: NDArray[np.int64], budget: int, *, seed: int) -> NDArray[np.bool_]:
    """Return true for the documents that are drawn: bool [D].

    words   int64 [D], words of each document; a document without words is not drawn
    """
    filled = np.flatnonzero(words)
    keys = scrambled(np.full(1, seed & 0xFFFFFFFFFFFFFFFF, np.uint64) + _GOLDEN) + filled.astype(np.uint64) * _GOLDEN
    order = filled[np.argsort(scrambled(keys), kind="stable")]
    is_drawn = np.zeros(len(words), np.bool_)
    is_drawn[order[np.cumsum(words[order]) <= budget]] = True
    return is_drawn


def scrambled(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64 bits, one to one (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _find_all(sources: Sequence[SampleSource], inputs_of: Sequence[Sequence[str | Path]]) -> list[list[Input]]:
    """Return the files of each source. Raises InputError where a file belongs to two of them."""
    files_of: list[list[Input]] = []
    seen: set[str] = set()
    for source, inputs in zip(sources, inputs_of, strict=True):
        files = find_inputs(inputs)
        names = [os.path.realpath(file) if isinstance(file, Path) else str(file) for file in files]
        if twice := seen.intersection(names):
            raise InputError(f"--mix {source.name}={source.fraction:g}: {min(twice)} belongs to an earlier source too")
        seen.update(names)
        files_of.append(files)
    return files_of


def _count(
    files: Sequence[Input], settings: TextSettings, *, skip: bool
) -> tuple[list[NDArray[np.int64]], list[Stamp]]:
    """Return the words of each document of each file, int64 [documents], and the stamps of the files."""
    counts: list[list[int]] = [[] for _ in files]
    reader = Reader(files, settings, skip=skip)
    total = 0
    with Status() as status:
        for document in reader.documents():
            words = _words_of(document, skip=skip)
            counts[reader.number].append(words)
            total += words
            status.update(f"counts the words of the text: {total:,}")
    return [np.array(each, np.int64) for each in counts], reader.stamps


def _words_of(source: Document | Page, *, skip: bool) -> int:
    """Return the words of a document; 0 for one that cannot be read and is left out with `skip`."""
    try:
        return words_of_text(as_document(source).paragraphs)
    except Exception as error:  # a broken page raises errors of many classes; the build treats it in the same way
        if not skip:
            raise RunFailed(f"{source.location}: the text could not be read: {error!r}") from error
        return 0


def _refuse_too_few(source: SampleSource, words: NDArray[np.int64], budget: int, is_drawn: NDArray[np.bool_]) -> None:
    """Raise InputError where a source has fewer words than are asked for, or no document of so few words."""
    of_source = f"--mix {source.name}={source.fraction:g}: it has" if source.name else "the inputs have"
    total = int(words.sum())
    if total < budget:
        raise InputError(
            f"{of_source} {total:,} words in {len(words):,} documents, expected at least {words_text(budget)}; "
            "add text, or lower --words or the fraction"
        )
    if not budget:
        raise InputError(f"{of_source} a fraction of less than one word; raise it or --words, or leave the source out")
    if not is_drawn.any():
        raise InputError(
            f"{of_source} {len(words):,} documents of {total // len(words):,} words on average, and the first that was "
            f"drawn has more than {words_text(budget)} words, the number to draw; raise --words, or choose shorter "
            "documents with --documents"
        )
