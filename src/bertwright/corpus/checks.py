"""shards → report and checks: statistics of a corpus, warnings before pre-training, `verify` (paper §3.1, §A.2).

Tokens are read once, a record batch at a time. Memory holds a few bytes per sentence, whatever the size of the text.
`verify` compares every byte of a corpus with its manifest.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertwright.config import Settings
from bertwright.corpus.duplicates import document_hashes, find_duplicates
from bertwright.corpus.manifest import (
    MANIFEST,
    TOKENIZER,
    Manifest,
    ShardEntry,
    Skipped,
    check_sizes,
    manifest_digest,
    read_manifest,
)
from bertwright.corpus.sample import scrambled
from bertwright.corpus.shards import Corpus, Tokens, record_batches
from bertwright.errors import InputError, shown
from bertwright.files import file_digest
from bertwright.text.document import TEXT_RULES

SINGLE_SENTENCE_LIMIT = 0.5
"""Fraction of documents with one sentence above which a report warns."""

UNKNOWN_LIMIT = 0.01
"""Fraction of unknown tokens above which a report warns."""

REPEATED_LIMIT = 0.1
"""Fraction of repeated sentences above which a report warns."""

TOKENS_PER_PIECE = 100
"""Tokens per piece of the vocabulary below which a report warns."""

REPEAT_LENGTH = 5
"""Smallest number of tokens of a sentence that counts as repeated. Shorter ones, as headings, recur in every text."""

MAX_HASHES = 1 << 22
"""Largest number of hashes of sentences in memory. Beyond it, half of the hash values are left out, with all their
sentences."""

_SAMPLES, _SAMPLE_LENGTH, _TOP_REPEATS = 4, 2, 3
_SLICE = 1 << 20  # sentences or documents per call of numpy.histogram


class Histogram(Settings):
    """Distribution of a length: `counts[i]` items have a length from `2**i` to `2**(i+1) - 1`."""

    counts: tuple[int, ...]
    mean: float
    median: int
    largest: int


class Repeated(Settings):
    """Sentence that occurs `times` times."""

    times: int
    text: str


class CorpusReport(Settings):
    """Report of `inspect_corpus`. Shares are fractions of 1; lengths are in tokens, without [CLS] and [SEP].

    text_rules      version of the rules by which documents and sentences were made
    unknown         the unknown token, to which `unknown_share` refers
    words           number of words of the text; None for a corpus that was built before words were counted
    repeated_share  fraction of sentences of REPEAT_LENGTH tokens or more that equal an earlier one
    """

    folder: str
    fingerprint: str
    vocab_size: int
    documents: int
    dropped_documents: int
    duplicates: int
    skipped: Skipped
    sentences: int
    text_rules: int
    tokens: int
    words: int | None
    sentence_tokens: Histogram
    document_sentences: Histogram
    document_tokens: Histogram
    single_sentence_share: float
    unknown_share: float
    unknown: str = "[UNK]"
    pieces_used: int
    repeated_share: float
    repeated: tuple[Repeated, ...]
    sample: tuple[tuple[str, ...], ...]
    warnings: tuple[str, ...]

    def render(self) -> str:
        """Return the report as plain text for a terminal."""
        lines = [
            f"{self.folder}",
            f"  documents   {self.documents:>15,}   ({self.dropped_documents:,} without text were left out)",
            f"  duplicates  {self.duplicates:>15,}   documents that equal an earlier one and are not used",
            f"  skipped     {self.skipped.records:>15,}   records, and the rest of {self.skipped.files:,} files",
            f"  sentences   {self.sentences:>15,}   (rules of version {self.text_rules}; now {TEXT_RULES})",
            f"  words       {_words_cell(self.words, self.tokens)}",
            f"  tokens      {self.tokens:>15,}   ({self.pieces_used:,} of {self.vocab_size:,} pieces occur)",
            f"  {self.unknown:<11} {self.unknown_share:>15.3%}   of the tokens",
            f"  repeated    {self.repeated_share:>15.2%}   of the sentences of {REPEAT_LENGTH} tokens or more",
            "",
            *_render_histogram("tokens in a sentence", self.sentence_tokens),
            *_render_histogram("sentences in a document", self.document_sentences),
            *_render_histogram("tokens in a document", self.document_tokens),
            "  sample",
        ]
        for sentences in self.sample:
            lines += [f"    {'·' if rank == 0 else ' '} {sentence}" for rank, sentence in enumerate(sentences)]
        if self.repeated:
            lines += ["", "  repeated most"]
            lines += [f"    {entry.times:,} times: {entry.text}" for entry in self.repeated]
        lines += ["", *(f"  warning: {warning}" for warning in self.warnings)]
        return "\n".join(lines).rstrip()


def _words_cell(words: int | None, tokens: int) -> str:
    """Return the number of words and the tokens of a word, as text for a terminal."""
    if words is None:
        return f"{'unknown':>15}   (not counted: an earlier version built the corpus, or its sentences were shuffled)"
    return f"{words:>15,}   ({tokens / max(1, words):.2f} tokens a word)"


@dataclass(frozen=True)
class Trouble:
    """Problem of a corpus for pre-training, with advice; `name` is the statistic that shows it."""

    name: str
    text: str
    advice: str


ONE_DOCUMENT: Final = Trouble(
    "documents",
    "expected at least two documents, because the random second sentence of next-sentence prediction comes from "
    "another document; found one",
    "put blank lines between documents, use one file for each, or train with --second-sentence none",
)
"""Problem of a corpus with one document besides duplicates, which `pretrain` refuses for next-sentence prediction."""


def inspect_corpus(folder: str | Path) -> CorpusReport:
    """Read a corpus once and return a report. Raises InputError where it cannot be opened."""
    corpus = Corpus.open(folder)
    lengths, document_first = corpus.sentence_lengths(), corpus.document_first()
    per_document = np.diff(document_first)
    used, (repeated_share, most_repeated) = _read_tokens(corpus, lengths)
    report = CorpusReport(
        folder=str(folder),
        fingerprint=corpus.fingerprint,
        vocab_size=corpus.manifest.vocab_size,
        documents=corpus.num_documents,
        dropped_documents=corpus.manifest.dropped_documents,
        duplicates=len(corpus.duplicates),
        skipped=corpus.manifest.skipped,
        sentences=corpus.num_sentences,
        text_rules=corpus.manifest.text_rules,
        tokens=corpus.num_tokens,
        words=corpus.manifest.words,
        sentence_tokens=_histogram(lengths),
        document_sentences=_histogram(per_document),
        document_tokens=_histogram(np.add.reduceat(lengths, document_first[:-1], dtype=np.int64)),
        single_sentence_share=float(np.mean(per_document == 1)),
        unknown_share=float(used[corpus.tokenizer.unk_id] / corpus.num_tokens),
        unknown=corpus.tokenizer.pieces[corpus.tokenizer.unk_id],
        pieces_used=int(np.count_nonzero(used)),
        repeated_share=repeated_share,
        repeated=tuple(Repeated(times=times, text=_sentence(corpus, number)) for times, number in most_repeated),
        sample=_sample(corpus, document_first),
        warnings=(),
    )
    warnings = tuple(f"{trouble.text}; {trouble.advice}" for trouble in find_troubles(report))
    return report.model_copy(update={"warnings": warnings})


def find_troubles(report: CorpusReport) -> Iterator[Trouble]:
    """Yield the problems for pre-training that the statistics of a report show."""
    if report.documents - report.duplicates == 1:
        yield ONE_DOCUMENT
    if report.single_sentence_share > SINGLE_SENTENCE_LIMIT:
        yield Trouble(
            "single sentences",
            f"{report.single_sentence_share:.0%} of the documents are one sentence, from which next-sentence "
            "prediction learns nothing: is the text shuffled, or split into sentences?",
            "build from complete documents or switch next-sentence prediction off",
        )
    if report.unknown_share > UNKNOWN_LIMIT:
        yield Trouble(
            "unknown",
            f"{report.unknown_share:.1%} of the tokens are {report.unknown}: the tokenizer does not fit this text "
            "(another language or script, or words over its limit)",
            "train one on this text",
        )
    if report.repeated_share > REPEATED_LIMIT:
        yield Trouble(
            "repeated",
            f"{report.repeated_share:.0%} of the sentences are copies of earlier ones: a model can memorise their "
            "masked pieces",
            "remove boilerplate and duplicate documents",
        )
    if report.tokens < TOKENS_PER_PIECE * report.vocab_size:
        yield Trouble(
            "size",
            f"{report.tokens / report.vocab_size:.1f} tokens for each of the {report.vocab_size:,} pieces of the "
            f"vocabulary: too little text (aim at {TOKENS_PER_PIECE} or more)",
            "add text or use a smaller vocabulary",
        )


_Repeats = tuple[float, list[tuple[int, int]]]
"""Fraction of repeated sentences, and (count, number of the first copy) of the most repeated ones."""


def _read_tokens(corpus: Corpus, lengths: NDArray[np.int32]) -> tuple[NDArray[np.int64], _Repeats]:
    """Return the count of every piece (int64 [V]) and the repeated sentences, in one pass over the tokens."""
    used = np.zeros(corpus.manifest.vocab_size, np.int64)
    hashes, numbers = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    bits = kept = 0
    for sentences, tokens in corpus.blocks():
        used += np.bincount(tokens, minlength=len(used))
        batch_hashes = sentence_hashes(tokens, lengths[sentences])
        keep = (lengths[sentences] >= REPEAT_LENGTH) & _selected(batch_hashes, bits)
        hashes.append(batch_hashes[keep])
        numbers.append(sentences.start + np.flatnonzero(keep))
        kept += len(hashes[-1])
        while kept > MAX_HASHES:
            bits += 1
            all_hashes, all_numbers = np.concatenate(hashes), np.concatenate(numbers)
            keep = _selected(all_hashes, bits)
            hashes, numbers = [all_hashes[keep]], [all_numbers[keep]]
            kept = len(hashes[0])
    return used, _count_repeats(np.concatenate(hashes), np.concatenate(numbers))


def _selected(hashes: NDArray[np.uint64], bits: int) -> NDArray[np.bool_]:
    """Return True for hashes whose lowest `bits` bits are zero."""
    selected: NDArray[np.bool_] = (hashes & np.uint64((1 << bits) - 1)) == np.uint64(0)
    return selected


def _count_repeats(hashes: NDArray[np.uint64], numbers: NDArray[np.int64]) -> _Repeats:
    """Return the repeated sentences, from the hash and the number of each."""
    if not len(hashes):
        return 0.0, []
    _, first, times = np.unique(hashes, return_index=True, return_counts=True)
    order = np.lexsort((numbers[first], -times))[:_TOP_REPEATS]
    order = order[times[order] > 1]
    most_repeated = zip(times[order].tolist(), numbers[first][order].tolist(), strict=True)
    return 1 - len(first) / len(hashes), list(most_repeated)


def sentence_hashes(tokens: Tokens, lengths: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each of S consecutive sentences: uint64 [S].

    The hash is a sum over pairs of token and position, mixed as in splitmix64, so equal sentences have equal hashes.

    lengths   int32 [S], all positive, with the sum len(tokens)
    """
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    position = np.arange(len(tokens), dtype=np.int64) - np.repeat(starts, lengths)
    mixed = (tokens.astype(np.uint64) << np.uint64(32)) + position.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    return np.add.reduceat(scrambled(mixed), starts, dtype=np.uint64)


def _histogram(lengths: NDArray[np.int32] | NDArray[np.int64]) -> Histogram:
    largest, total = int(lengths.max()), int(lengths.sum(dtype=np.int64))
    edges = 1 << np.arange(largest.bit_length() + 1, dtype=np.int64)
    counts = np.zeros(len(edges) - 1, np.int64)
    for begin in range(0, len(lengths), _SLICE):
        counts += np.histogram(lengths[begin : begin + _SLICE], edges)[0]
    middle = (len(lengths) - 1) // 2
    return Histogram(
        counts=tuple(counts.tolist()),
        mean=total / len(lengths),
        median=int(np.partition(lengths, middle)[middle]),
        largest=largest,
    )


def _sentence(corpus: Corpus, number: int) -> str:
    shard, start, length = corpus.locate(np.array([number]), np.array([1], np.int32))
    return corpus.tokenizer.decode(corpus.views[shard[0]][start[0] : start[0] + length[0]].tolist())


def _sample(corpus: Corpus, document_first: NDArray[np.int64]) -> tuple[tuple[str, ...], ...]:
    """Return the first sentences of a few documents at even distances."""
    documents = np.unique(np.linspace(0, corpus.num_documents, _SAMPLES, endpoint=False).astype(np.int64))
    return tuple(
        tuple(
            _sentence(corpus, number)
            for number in range(
                document_first[document],
                min(document_first[document] + _SAMPLE_LENGTH, document_first[document + 1]),
            )
        )
        for document in documents
    )


def _render_histogram(name: str, histogram: Histogram) -> list[str]:
    lines = [f"  {name}: mean {histogram.mean:.1f}, median {histogram.median:,}, largest {histogram.largest:,}"]
    tallest = max(histogram.counts)
    for power, count in enumerate(histogram.counts):
        low, high = 1 << power, (1 << (power + 1)) - 1
        span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        lines.append(f"    {span:>22} {count:>14,}  {'█' * round(30 * count / tallest)}".rstrip())
    return [*lines, ""]


def verify(folder: str | Path) -> Corpus:
    """Check every byte of a corpus and return the open corpus. Raises InputError with the file that is wrong."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    if (digest := manifest_digest(folder, manifest.digest)) != manifest.digest:
        raise InputError(
            f"{folder / MANIFEST}: expected the sha256 {shown(manifest.digest)}, got {digest}: the file was changed; "
            "put it back or build the corpus again"
        )
    check_sizes(folder, manifest)
    refuse_changed(folder, manifest)
    for entry in manifest.shards:
        _check_digest(folder / entry.hashes, entry.hashes_sha256)
    corpus = Corpus(folder, manifest)
    for entry in manifest.shards:
        _check_shard(folder, entry, manifest.vocab_size)
    if corpus.tokenizer.vocab_size != manifest.vocab_size:
        raise InputError(
            f"{folder / TOKENIZER}: {corpus.tokenizer.vocab_size} pieces, but {manifest.vocab_size} in the manifest"
        )
    _check_tokenizer(folder, manifest)  # after the ids: for another tokenizer their message is clearer
    if manifest.duplicates and not np.array_equal(corpus.duplicates, find_duplicates(folder, manifest.shards)):
        raise InputError(
            f"{folder / manifest.duplicates.name}: expected the duplicates of the corpus, got other documents"
        )
    return corpus


def refuse_changed(folder: Path, manifest: Manifest) -> None:
    """Raise InputError where a byte of a shard was changed. Training calls this before runs that may last for weeks."""
    for entry in manifest.shards:
        _check_digest(folder / entry.name, entry.sha256)


def _check_tokenizer(folder: Path, manifest: Manifest) -> None:
    """Raise InputError where a byte of a file of the tokenizer was changed."""
    for name, noted in manifest.tokenizer_files.items():
        if Path(name).name != name:
            raise InputError(f"{folder / MANIFEST}: expected the name of a file in {TOKENIZER}/, got {shown(name)}")
        _check_digest(folder / TOKENIZER / name, noted)


def _check_digest(path: Path, noted: str) -> None:
    if not path.is_file():
        raise InputError(f"{path}: this file of the corpus is missing")
    digest = file_digest(path)
    if digest != noted:
        raise InputError(f"{path}: expected the sha256 {noted} of the manifest, got {digest}: the file was changed")


def _check_shard(folder: Path, entry: ShardEntry, vocab_size: int) -> None:
    """Raise InputError where a record batch is invalid, an id is not in the vocabulary, or the sidecar does not fit."""
    path = folder / entry.name
    hashes = []
    for batch in record_batches(path):
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InputError(f"{path}: a record batch is invalid: {error}") from None
        sentences = batch.column(0).flatten()
        ids = sentences.flatten().to_numpy()
        largest = int(np.max(ids, initial=0))
        if largest >= vocab_size:
            raise InputError(f"{path}: token id {largest}, but the vocabulary has {vocab_size} pieces")
        first = sentences.offsets.to_numpy()[batch.column(0).offsets.to_numpy()]
        hashes.append(document_hashes(ids, first))
    if b"".join(hashes) != (folder / entry.hashes).read_bytes():
        raise InputError(f"{folder / entry.hashes}: expected the hashes of the documents in {path.name}, got others")
