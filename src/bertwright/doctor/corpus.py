"""corpus → findings: does it belong to the model, and will its text teach (paper §3.1)?

What `corpus inspect` measures is measured and judged there; `quick` looks at the first tokens alone.
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
"""Tokens from the beginning that tell about case, and with `quick` about everything."""
_LETTERED: Final = 0.2
"""Share of pieces with letters that have capitals, from which on the script is one with capitals."""
_FEWEST_CAPITALS: Final = 0.001
_MANY_DUPLICATES: Final = 0.05
_ROWS, _SHORTEST, _LONGEST = 24, 8, 40
"""Sentences that masked LM is measured on, and their pieces."""
_finding = partial(Finding, "corpus")


@dataclass(frozen=True)
class Capitals:
    """Of N pieces: how many have a letter that could be a capital, and how many have a capital."""

    lettered: float
    capital: float


def look_at_corpus(
    folder: Path, *, model: BaseTokenizer | None, quick: bool
) -> tuple[Corpus | None, bool, list[Finding]]:
    """Open a corpus and check it: the corpus, whether its pieces are those of the `model`, and the findings."""
    try:
        corpus = Corpus.open(folder)
        tokenizer = corpus.tokenizer
    except (InputError, OSError) as error:
        many = isinstance(error, OSError) and error.errno == errno.EMFILE
        advice = "raise the limit of open files: ulimit -n" if many else "put the file back, or build the corpus again"
        return None, False, [refused("corpus", "opens", error=error, advice=advice)]
    counts = f"{corpus.num_documents:,} documents, {corpus.num_tokens:,} tokens"
    found = [_finding("opens", "ok", corpus.num_tokens, f"{folder}: {counts}; sizes are those of the manifest")]
    matches = model is None or model.hash == tokenizer.hash
    try:
        if model is not None:
            found.append(same_tokenizer(model, tokenizer))
        used = _sample(corpus)
        found += duplicates(corpus)
        found.append(corpus_case(capitals_of(tokenizer, used), cased=tokenizer.cased))
        pieces = casing(tokenizer, not tokenizer.cased, part="corpus")
        if pieces.level != "ok":
            found.append(pieces)
        if quick:
            found.append(_unknown_in_sample(used, tokenizer))
        else:
            found += report_findings(inspect_corpus(folder))
    except InputError as error:
        found.append(refused("corpus", "reads", error=error, advice="put the file back, or build the corpus again"))
    return corpus, matches, found


def same_tokenizer(model: BaseTokenizer, corpus: BaseTokenizer) -> Finding:
    """The ids of the corpus mean the pieces of the model, or every one of them means another."""
    value = {"model": model.hash, "corpus": corpus.hash}
    if model.hash == corpus.hash:
        return _finding("tokenizer", "ok", value, f"the model's ({model.hash[:12]}…)")
    if isinstance(corpus, Tokenizer) and new_pieces(corpus, base_hash=model.hash) is not None:
        text = f"the model's, with {corpus.vocab_size - model.vocab_size:,} pieces more"
        return _finding("tokenizer", "note", value, text, "bertwright pretrain --init-from gives them their rows")
    return _finding(
        "tokenizer",
        "error",
        value,
        f"{corpus.hash[:12]}…, and the model's is {model.hash[:12]}…: every id would mean another piece",
        "build the corpus with the model's own tokenizer (bertwright corpus build --tokenizer MODEL), or put it back "
        "where it was lost from the model's folder",
    )


def duplicates(corpus: Corpus) -> Iterator[Finding]:
    """Documents that equal an earlier one."""
    if corpus.manifest.duplicates is None:
        advice = "build again without --keep-duplicates, unless repetition is wanted"
        yield _finding("duplicates", "note", None, "kept on request: nobody counted them", advice)
        return
    count = len(corpus.duplicates)
    share = count / corpus.num_documents
    text = f"{count:,} documents ({share:.1%}) equal an earlier one and are not used"
    if share <= _MANY_DUPLICATES:
        yield _finding("duplicates", "ok", share, text)
    else:
        advice = "nothing for them; look for near copies of the same source, which only 'repeated' below would show"
        yield _finding("duplicates", "note", share, text, advice)


def corpus_case(found: Capitals, *, cased: bool) -> Finding:
    """Text without a capital wastes a cased vocabulary."""
    return case_finding("corpus", found, cased=cased, what="of its pieces")


def case_finding(part: str, found: Capitals, *, cased: bool, what: str) -> Finding:
    """The same judgement for a corpus and a table."""
    value = {"cased": cased, "lettered": found.lettered, "capital": found.capital}
    if not cased:
        return Finding(part, "case", "ok", value, "the vocabulary is uncased: capitals are folded")
    if found.lettered < _LETTERED:
        return Finding(part, "case", "ok", value, "a script without capitals")
    text = f"{found.capital:.2%} {what} have a capital, and the vocabulary is cased"
    if found.capital >= _FEWEST_CAPITALS:
        return Finding(part, "case", "ok", value, text)
    advice = "the text was lower-cased: take the text as it was written, or an uncased model and vocabulary"
    return Finding(part, "case", "warning", value, text, advice)


def capitals_of(tokenizer: BaseTokenizer, used: NDArray[np.int64]) -> Capitals:
    """Capitals among pieces that were counted, `used` [V]."""
    special = set(tokenizer.special_ids)
    ordinary = np.array([id not in special for id in range(len(used))])
    lettered = np.array([piece.lower() != piece.upper() for piece in tokenizer.pieces]) & ordinary
    capital = np.array([piece != piece.lower() for piece in tokenizer.pieces]) & ordinary
    total = max(1, int(used[ordinary].sum()))
    return Capitals(int(used[lettered].sum()) / total, int(used[capital].sum()) / total)


def report_findings(report: CorpusReport) -> Iterator[Finding]:
    """The figures of `corpus inspect`, with its warnings."""
    troubles = {trouble.name: trouble for trouble in find_troubles(report)}
    per_piece = report.tokens / report.vocab_size
    figures: dict[str, tuple[float, str]] = {
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
    for name, (value, text) in figures.items():
        trouble = troubles.pop(name, None)
        if trouble:
            yield _finding(name, "warning", value, trouble.text, trouble.advice)
        else:
            yield _finding(name, "ok", value, text)
    for trouble in troubles.values():  # one that a later version of the report looks for
        yield _finding(trouble.name, "warning", None, trouble.text, trouble.advice)


def sentences_of(corpus: Corpus) -> list[list[int]]:
    """The first sentence that is not too short of documents at even distances, and of it the first pieces."""
    lengths, first = corpus.sentence_lengths(), corpus.document_first()
    documents = np.unique(np.linspace(0, corpus.num_documents, 4 * _ROWS, endpoint=False).astype(np.int64))
    chosen: list[int] = []
    for document in documents:
        inside = np.arange(first[document], first[document + 1])
        chosen += inside[lengths[inside] >= _SHORTEST][:1].tolist()
    some = np.array(chosen[:: max(1, len(chosen) // _ROWS)][:_ROWS], np.int64)
    places = zip(*corpus.locate(some, np.ones(len(some), np.int32)), strict=True)
    return [corpus.views[shard][start : start + min(length, _LONGEST)].tolist() for shard, start, length in places]


def _sample(corpus: Corpus) -> NDArray[np.int64]:
    """How often each piece stands in the first tokens: int64 [V]."""
    used = np.zeros(corpus.manifest.vocab_size, np.int64)
    for _, tokens in corpus.blocks():
        used += np.bincount(tokens[:_SAMPLE], minlength=len(used))
        if used.sum() >= _SAMPLE:
            break
    return used


def _unknown_in_sample(used: NDArray[np.int64], tokenizer: BaseTokenizer) -> Finding:
    share = int(used[tokenizer.unk_id]) / max(1, int(used.sum()))
    unknown = tokenizer.pieces[tokenizer.unk_id]
    text = f"{share:.3%} of the first {int(used.sum()):,} tokens is {unknown} (up to {UNKNOWN_LIMIT:.0%})"
    if share <= UNKNOWN_LIMIT:
        return _finding("unknown", "ok", share, text)
    advice = "the tokenizer does not fit this text (another language or script): train one on this text"
    return _finding("unknown", "warning", share, text, advice)
