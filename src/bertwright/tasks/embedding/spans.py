"""a corpus without labels → pairs: excerpts of a passage, spans that follow each other, or spans that match themselves.

A passage is two spans of sentence order in pre-training (`objectives.sentence_pairs`), in the order of the text.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bertwright.console import say
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.objectives.dataset import used_documents
from bertwright.tables.bad_rows import is_blank
from bertwright.tasks.binding import LabelledData
from bertwright.tasks.embedding.pairs import PairOfTable, TextPairs, counted, equal_key, pairs_of
from bertwright.tasks.embedding.spec import CorpusPairs, VectorTask

SPAN_TOKENS: Final = 64
"""Number of tokens of two spans together, special tokens included; a sentence that is longer stays whole."""
_VALIDATION: Final = 0.1
"""Fraction of the documents that are kept for validation."""
_VALIDATION_PAIRS: Final = 1000
_SEED: Final = 0x5EA
_SHORTEST, _LONGEST = 0.2, 0.8
"""Fractions of a passage's words between which the length of an excerpt is drawn."""
_OVERLAP_TEMPERATURE: Final = 0.03
"""Temperature of excerpts of one passage, which are easily told from others."""
_LEAST_WORDS: Final = 3
"""Number of words of an excerpt, at least."""
_NAMES: Final[Mapping[CorpusPairs, str]] = {
    "overlap": "two excerpts of one passage",
    "next": "spans that follow each other",
    "twins": "texts, each matched with itself under other dropout",
}


def read_spans(task: VectorTask, folder: Path) -> LabelledData:
    """Return `task.pairs` pairs of a corpus for training, as `task.spans` says, and a thousand for validation.

    Those for validation are spans of other documents that follow each other, since two excerpts of a passage share
    words.
    Raises InputError for a corpus of fewer than two documents with two sentences.
    """
    corpus, documents, kept = _divided(folder)
    kind = task.spans or "overlap"
    pairs = _pairs(corpus, documents, task.pairs, kind)
    say(f"{folder}: {_NAMES[kind]}, for training: {counted(pairs)}")
    if kind == "overlap" and task.temperature is None:
        task = task.model_copy(update={"temperature": _OVERLAP_TEMPERATURE})
    validation = _validation_pairs(corpus, kept)
    return LabelledData(task, pairs, {"dev": validation}, {"train": corpus.fingerprint, "dev": {}})


def read_validation_spans(folder: Path) -> TextPairs:
    """Return the pairs of a corpus that `read_spans` keeps for validation."""
    corpus, _, kept = _divided(folder)
    return _validation_pairs(corpus, kept)


def _divided(folder: Path) -> tuple[Corpus, NDArray[np.int64], NDArray[np.int64]]:
    """Return the corpus, and the documents with two sentences for training and for validation."""
    corpus = Corpus.open(folder)
    first = corpus.document_first()
    documents = used_documents(corpus, part="all", held_out_share=0.0)
    documents = documents[np.diff(first)[documents] >= 2]
    if len(documents) < 2:
        raise InputError(f"{folder}: expected two documents with two sentences each, found {len(documents)}")
    order = np.random.default_rng(_SEED).permutation(documents)
    kept = max(1, int(_VALIDATION * len(order)))
    return corpus, order[kept:], order[:kept]


def _validation_pairs(corpus: Corpus, documents: NDArray[np.int64]) -> TextPairs:
    pairs = _pairs(corpus, documents, _VALIDATION_PAIRS, "next")
    say(f"{corpus.folder}: {_NAMES['next']}, for validation: {counted(pairs)}")
    return pairs


def _pairs(corpus: Corpus, documents: NDArray[np.int64], most: int, kind: CorpusPairs) -> TextPairs:
    """Return `most` pairs of the documents at most; pairs of equal or empty texts are not taken."""
    # Imported here, because numba compiles it and the specifications of tasks are listed without that.
    from bertwright.objectives.sentence_pairs import plan_rows

    plan = plan_rows(
        corpus.sentence_lengths(),
        corpus.document_first(),
        length=SPAN_TOKENS,
        seed=_SEED,
        epoch=0,
        second_sentence="order",
        documents=np.sort(documents),
    )
    chosen = np.sort(np.random.default_rng(_SEED).permutation(len(plan))[:most])
    plan = plan[chosen]
    is_swapped = plan["random"].astype(np.bool_)
    sides = []
    for side, other in (("a", "b"), ("b", "a")):
        begin = np.where(is_swapped, plan[other], plan[side])
        count = np.where(is_swapped, plan[f"{other}_count"], plan[f"{side}_count"]).astype(np.int32)
        sides.append(_texts(corpus, begin, count))
    rows = []
    random = np.random.default_rng(_SEED)
    for number, (text, following) in enumerate(zip(*sides, strict=True)):
        first, second = text, following
        if kind == "overlap":
            passage = f"{text} {following}"
            first, second = _excerpt(passage, random), _excerpt(passage, random)
        if not is_blank(first) and not is_blank(second) and equal_key(first) != equal_key(second):
            rows.append(PairOfTable(first, first if kind == "twins" else second, line=number))
    if not rows:
        raise InputError(f"{corpus.folder}: expected spans of text that differ, found none")
    return pairs_of(rows, str(corpus.folder), between=": pair ", twins=kind == "twins", alike=True)


def _excerpt(passage: str, random: np.random.Generator) -> str:
    """Return consecutive words of a passage, drawn with their number; characters of a script without blanks."""
    words, between = passage.split(), " "
    if len(words) < 2 * _LEAST_WORDS:
        words, between = list(passage), ""
    drawn = round(len(words) * random.uniform(_SHORTEST, _LONGEST))
    count = min(max(_LEAST_WORDS, drawn), len(words))
    begin = int(random.integers(len(words) - count + 1))
    return between.join(words[begin : begin + count])


def _texts(corpus: Corpus, begin: NDArray[np.int64], count: NDArray[np.int32]) -> Sequence[str]:
    """Return the text of `count` sentences from sentence `begin` on, without special and unknown tokens."""
    tokenizer = corpus.tokenizer
    left_out = np.array([*tokenizer.special_ids, tokenizer.unk_id])
    texts = []
    for shard, start, length in zip(*corpus.locate(begin, count), strict=True):
        ids = corpus.views[shard][start : start + length]
        texts.append(tokenizer.decode(ids[~np.isin(ids, left_out)].tolist()))
    return texts
