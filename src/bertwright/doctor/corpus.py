"""corpus → findings: it must belong to the model, and its text must be fit for training (paper §3.1).

`bertwright.corpus.checks` measures and judges the text, as `corpus inspect` does. `quick` reads the first tokens only.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bertwright.corpus.checks import (
    REPEATED_LIMIT,
    SINGLE_SENTENCE_LIMIT,
    TOKENS_PER_PIECE,
    UNKNOWN_LIMIT,
    CorpusReport,
    find_troubles,
    inspect_corpus,
)
from bertwright.corpus.shards import Corpus
from bertwright.doctor.findings import Finding, refused
from bertwright.doctor.model import casing
from bertwright.errors import InputError
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.extend_vocabulary import new_pieces
from bertwright.text.wordpiece import Tokenizer

_SAMPLE: Final = 2_000_000
"""Number of first tokens in which case is measured, and with `quick` everything else."""
_LETTERED: Final = 0.2
"""Fraction of pieces with letters that have capitals, from which on the script is one with capitals."""
_FEWEST_CAPITALS: Final = 0.001
_MANY_DUPLICATES: Final = 0.05
_ROWS, _SHORTEST, _LONGEST = 24, 8, 40
"""Number of sentences on which masked LM is measured, and their least and largest number of pieces."""
_finding = partial(Finding, "corpus")


@dataclass(frozen=True)
class Capitals:
    """Fractions of the pieces of a text that have a letter of a script with capitals, and that have a capital."""

    lettered: float
    capital: float


def check_corpus(
    folder: Path, *, model: BaseTokenizer | None, quick: bool
) -> tuple[Corpus | None, bool, list[Finding]]:
    """Open and check a corpus; return the corpus, True where it has the model's tokenizer, and the findings."""
    try:
        corpus = Corpus.open(folder)
        tokenizer = corpus.tokenizer
    except (InputError, OSError) as error:
        many = isinstance(error, OSError) and error.errno == errno.EMFILE
        advice = "raise the limit of open files: ulimit -n" if many else "put the file back, or build the corpus again"
        return None, False, [refused("corpus", "opens", error=error, advice=advice)]
    counts = f"{corpus.num_documents:,} documents, {corpus.num_tokens:,} tokens"
    findings = [_finding("opens", "ok", corpus.num_tokens, f"{folder}: {counts}; file sizes match the manifest")]
    matches = model is None or model.hash == tokenizer.hash
    try:
        if model is not None:
            findings.append(same_tokenizer(model, tokenizer))
        counts_by_piece = _sample(corpus)
        findings += duplicates(corpus)
        capitals = capitals_of(tokenizer, counts_by_piece)
        findings.append(capitals_finding("corpus", capitals, cased=tokenizer.cased, noun="of its pieces"))
        pieces = casing(tokenizer, not tokenizer.cased, part="corpus")
        if pieces.level != "ok":
            findings.append(pieces)
        if quick:
            findings.append(_unknown_in_sample(counts_by_piece, tokenizer))
        else:
            findings += report_findings(inspect_corpus(folder))
    except InputError as error:
        findings.append(refused("corpus", "reads", error=error, advice="put the file back, or build the corpus again"))
    return corpus, matches, findings


def same_tokenizer(model: BaseTokenizer, corpus: BaseTokenizer) -> Finding:
    """Compare the tokenizer of the corpus with the model's: an id must stand for the same piece in both."""
    value = {"model": model.hash, "corpus": corpus.hash}
    if model.hash == corpus.hash:
        return _finding("tokenizer", "ok", value, f"the model's ({model.hash[:12]}…)")
    if isinstance(corpus, Tokenizer) and new_pieces(corpus, base_hash=model.hash) is not None:
        text = f"the model's, with {corpus.vocab_size - model.vocab_size:,} further pieces"
        return _finding("tokenizer", "note", value, text, "bertwright pretrain --init-from adds their embeddings")
    return _finding(
        "tokenizer",
        "error",
        value,
        f"{corpus.hash[:12]}…, and the model's is {model.hash[:12]}…: ids would stand for other pieces",
        "build the corpus with the model's own tokenizer (bertwright corpus build --tokenizer MODEL); if the model's "
        "folder lost it, put it back",
    )


def duplicates(corpus: Corpus) -> Iterator[Finding]:
    """Return the fraction of documents that equal an earlier one."""
    if corpus.manifest.duplicates is None:
        advice = "build again without --keep-duplicates, unless you want the repetition"
        yield _finding("duplicates", "note", None, "kept (--keep-duplicates), and not counted", advice)
        return
    count = len(corpus.duplicates)
    fraction = count / corpus.num_documents
    text = f"{count:,} documents ({fraction:.1%}) equal an earlier one and are not used"
    if fraction <= _MANY_DUPLICATES:
        yield _finding("duplicates", "ok", fraction, text)
    else:
        advice = "nothing for these; look for near copies of the same source, which only 'repeated' below can show"
        yield _finding("duplicates", "note", fraction, text, advice)


def capitals_finding(part: str, capitals: Capitals, *, cased: bool, noun: str) -> Finding:
    """Return a warning where a text without capitals meets a cased vocabulary; for a corpus and for a table."""
    value = {"cased": cased, "lettered": capitals.lettered, "capital": capitals.capital}
    if not cased:
        return Finding(part, "case", "ok", value, "the vocabulary is uncased: text is lower-cased")
    if capitals.lettered < _LETTERED:
        return Finding(part, "case", "ok", value, "a script without capitals")
    text = f"{capitals.capital:.2%} {noun} have a capital, and the vocabulary is cased"
    if capitals.capital >= _FEWEST_CAPITALS:
        return Finding(part, "case", "ok", value, text)
    advice = "the text was lower-cased: take the original text, or an uncased model and vocabulary"
    return Finding(part, "case", "warning", value, text, advice)


def capitals_of(tokenizer: BaseTokenizer, counts: NDArray[np.int64]) -> Capitals:
    """Return the fractions of capitals among the pieces of a text, special tokens left out; counts: [V]."""
    special = set(tokenizer.special_ids)
    ordinary = np.array([id not in special for id in range(len(counts))])
    lettered = np.array([piece.lower() != piece.upper() for piece in tokenizer.pieces]) & ordinary
    capital = np.array([piece != piece.lower() for piece in tokenizer.pieces]) & ordinary
    total = max(1, int(counts[ordinary].sum()))
    return Capitals(int(counts[lettered].sum()) / total, int(counts[capital].sum()) / total)


def report_findings(report: CorpusReport) -> Iterator[Finding]:
    """Yield the measurements of `corpus inspect`, with its warnings."""
    troubles = {trouble.name: trouble for trouble in find_troubles(report)}
    per_piece = report.tokens / report.vocab_size
    measurements: dict[str, tuple[float, str]] = {
        "documents": (report.documents, f"{report.documents - report.duplicates:,} different ones"),
        "single sentences": (
            report.single_sentence_share,
            f"{report.single_sentence_share:.1%} of the documents are one sentence (up to {SINGLE_SENTENCE_LIMIT:.0%})",
        ),
        "unknown": (
            report.unknown_share,
            f"{report.unknown_share:.3%} is {report.unknown} (up to {UNKNOWN_LIMIT:.0%})",
        ),
        "repeated": (
            report.repeated_share,
            f"{report.repeated_share:.1%} of the sentences are copies (up to {REPEATED_LIMIT:.0%})",
        ),
        "size": (per_piece, f"{per_piece:,.0f} tokens for each piece ({TOKENS_PER_PIECE} or more)"),
    }
    for name, (value, text) in measurements.items():
        trouble = troubles.pop(name, None)
        if trouble:
            yield _finding(name, "warning", value, trouble.text, trouble.advice)
        else:
            yield _finding(name, "ok", value, text)
    for trouble in troubles.values():  # warnings that have no measurement in the list above
        yield _finding(trouble.name, "warning", None, trouble.text, trouble.advice)


def sample_sentences(corpus: Corpus) -> list[list[int]]:
    """Return token ids of sentences for measuring masked LM, from documents at even distances.

    Of each document the first sentence of 8 pieces or more, cut to 40 pieces.
    """
    lengths, first = corpus.sentence_lengths(), corpus.document_first()
    documents = np.unique(np.linspace(0, corpus.num_documents, 4 * _ROWS, endpoint=False).astype(np.int64))
    chosen: list[int] = []
    for document in documents:
        inside = np.arange(first[document], first[document + 1])
        chosen += inside[lengths[inside] >= _SHORTEST][:1].tolist()
    some = np.array(chosen[:: max(1, len(chosen) // _ROWS)][:_ROWS], np.int64)
    located = zip(*corpus.locate(some, np.ones(len(some), np.int32)), strict=True)
    return [corpus.views[shard][start : start + min(length, _LONGEST)].tolist() for shard, start, length in located]


def _sample(corpus: Corpus) -> NDArray[np.int64]:
    """Return how often each piece occurs in the first tokens: int64 [V]."""
    counts = np.zeros(corpus.manifest.vocab_size, np.int64)
    for _, tokens in corpus.blocks():
        counts += np.bincount(tokens[:_SAMPLE], minlength=len(counts))
        if counts.sum() >= _SAMPLE:
            break
    return counts


def _unknown_in_sample(counts: NDArray[np.int64], tokenizer: BaseTokenizer) -> Finding:
    fraction = int(counts[tokenizer.unk_id]) / max(1, int(counts.sum()))
    unknown = tokenizer.pieces[tokenizer.unk_id]
    text = f"{fraction:.3%} of the first {int(counts.sum()):,} tokens is {unknown} (up to {UNKNOWN_LIMIT:.0%})"
    if fraction <= UNKNOWN_LIMIT:
        return _finding("unknown", "ok", fraction, text)
    advice = "the tokenizer does not fit this text (another language or script): train one on this text"
    return _finding("unknown", "warning", fraction, text, advice)
