"""corpus → findings: it must belong to the model, and its text must be fit for training (paper §3.1).

`bertwright.corpus.checks` measures and judges the text, as `corpus inspect` does. `quick` reads the first tokens only.
"""

import errno
from collections.abc import Iterator
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
"""Fraction of pieces with letters of a script with capitals, from which on the text counts as written in one."""
_FEWEST_CAPITALS: Final = 0.001
_MANY_DUPLICATES: Final = 0.05
_ROWS, _SHORTEST, _LONGEST = 24, 8, 40
"""Number of sentences on which masked LM is measured, and their least and largest number of pieces."""
_finding = partial(Finding, "corpus")


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
    text = f"{folder}: {corpus.num_documents:,} documents, {corpus.num_tokens:,} tokens; file sizes match the manifest"
    findings = [_finding("opens", "ok", corpus.num_tokens, text)]
    matches = model is None or model.hash == tokenizer.hash
    try:
        if model is not None:
            findings.append(same_tokenizer(model, tokenizer))
        counts = _sample(corpus)
        findings += duplicates(corpus)
        findings.append(capitals_finding("corpus", tokenizer, counts))
        pieces = casing(tokenizer, not tokenizer.cased, part="corpus")
        if pieces.level != "ok":
            findings.append(pieces)
        if quick:
            fraction = int(counts[tokenizer.unk_id]) / max(1, int(counts.sum()))
            findings.append(unknown_finding("corpus", tokenizer, fraction, tokens=f"the first {counts.sum():,} tokens"))
        else:
            findings += report_findings(inspect_corpus(folder))
    except (InputError, OSError) as error:
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
    text = f"{corpus.hash[:12]}…, and the model's is {model.hash[:12]}…: ids would stand for other pieces"
    advice = (
        "build the corpus with the model's own tokenizer (bertwright corpus build --tokenizer MODEL); if the model's "
        "folder lost it, put it back"
    )
    return _finding("tokenizer", "error", value, text, advice)


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


def capitals_finding(part: str, tokenizer: BaseTokenizer, counts: NDArray[np.int64]) -> Finding:
    """Return a warning where a text without capitals meets a cased vocabulary; for a corpus and for a table.

    counts: occurrences of each piece in the text [V]; special tokens are left out.
    """
    ordinary = np.ones(len(counts), np.bool_)
    ordinary[list(tokenizer.special_ids)] = False
    texts = [tokenizer.decode([id]) for id in range(tokenizer.vocab_size)]
    has_letter = np.array([text.lower() != text.upper() for text in texts]) & ordinary
    has_capital = np.array([text != text.lower() for text in texts]) & ordinary
    total = max(1, int(counts[ordinary].sum()))
    lettered, capital = int(counts[has_letter].sum()) / total, int(counts[has_capital].sum()) / total
    value = {"cased": tokenizer.cased, "lettered": lettered, "capital": capital}
    if not tokenizer.cased:
        return Finding(part, "case", "ok", value, "the vocabulary is uncased: text is lower-cased")
    if lettered < _LETTERED:
        return Finding(part, "case", "ok", value, "a script without capitals")
    text = f"{capital:.2%} of the pieces have a capital, and the vocabulary is cased"
    if capital >= _FEWEST_CAPITALS:
        return Finding(part, "case", "ok", value, text)
    advice = "the text was lower-cased: take the original text, or an uncased model and vocabulary"
    return Finding(part, "case", "warning", value, text, advice)


def unknown_finding(part: str, tokenizer: BaseTokenizer, fraction: float, *, tokens: str) -> Finding:
    """Return the fraction of the unknown token among `tokens` of a text; a warning above the limit of a corpus."""
    text = f"{fraction:.2%} of {tokens} is {tokenizer.pieces[tokenizer.unk_id]} (up to {UNKNOWN_LIMIT:.0%})"
    if fraction <= UNKNOWN_LIMIT:
        return Finding(part, "unknown", "ok", fraction, text)
    advice = (
        "the tokenizer does not fit this text (another language or script): train one on this text, or take a model of "
        "this language; `bertwright tokenizer extend` adds pieces"
    )
    return Finding(part, "unknown", "warning", fraction, text, advice)


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
    """Return token ids of sentences on which masked LM is measured.

    They are the first sentences of 8 pieces or more of documents at even distances, each cut to 40 pieces.
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
