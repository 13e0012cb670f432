"""sentences → scores: log-likelihood, and bits per character and word, of each sentence and of all together."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertwright.console import PATIENCE, Status
from bertwright.scoring.scorer import SentenceScorer
from bertwright.scoring.settings import ScoreSettings
from bertwright.tasks.finite import check_finite


@dataclass(frozen=True, slots=True)
class SentenceScore:
    """Score of a sentence, or of several together.

    score               natural logarithm of the likelihood, for masked LM of the pseudo-likelihood
    pieces              number of pieces that are scored
    unknown             number of unknown pieces among them
    characters, words   numbers of characters and of words (divided at white space) of the text that is scored
    bits_per_character  -score in bits by the number of characters; bits_per_word by that of words
    """

    score: float
    pieces: int
    unknown: int
    characters: int
    words: int
    bits_per_character: float
    bits_per_word: float


def sentence_scores(
    scorer: SentenceScorer,
    texts: Sequence[str],
    settings: ScoreSettings,
    *,
    location: Callable[[int], str] = "sentence {}".format,
    progress: str = "",
) -> list[SentenceScore]:
    """Return the score of each sentence, with its numbers of pieces, characters and words.

    settings: resolved ones. location: description of a sentence by its number, for messages. progress: end of the
    progress line; "" shows none. Raises InputError as `SentenceScorer.encode`, and NotFinite for NaN and infinity.
    """
    ids = scorer.encode(texts, settings, location)
    scores = likelihoods_of(scorer, ids, settings, location=location, progress=progress)
    return [
        score_of(scorer, text, pieces, float(score), settings)
        for text, pieces, score in zip(texts, ids, scores, strict=True)
    ]


def score_of(
    scorer: SentenceScorer, text: str, ids: Sequence[int], score: float, settings: ScoreSettings
) -> SentenceScore:
    """Return the score of a text with pieces `ids` as a whole object."""
    scored = scorer.scored_pieces(len(ids), settings)
    rest = _scored_text(scorer, text, scored, len(ids))
    unknown = sum(id == scorer.tokenizer.unk_id for id in ids[scored])
    return _with_bits(score, len(ids[scored]), unknown, len(rest.strip()), len(rest.split()))


def total_score(scores: Iterable[SentenceScore]) -> SentenceScore:
    """Return the sums over sentences, and their bits per character and word."""
    parts = [(each.score, each.pieces, each.unknown, each.characters, each.words) for each in scores]
    score, *counts = (sum(column) for column in zip(*parts, strict=True)) if parts else (0.0, 0, 0, 0, 0)
    return _with_bits(float(score), *map(int, counts))


def _with_bits(score: float, pieces: int, unknown: int, characters: int, words: int) -> SentenceScore:
    bits = -score / math.log(2)
    return SentenceScore(score, pieces, unknown, characters, words, bits / max(1, characters), bits / max(1, words))


def _scored_text(scorer: SentenceScorer, text: str, scored: slice, num_pieces: int) -> str:
    """Return the part of a text whose pieces are scored."""
    if (scored.start, scored.stop) == (0, num_pieces):
        return text
    ((_, offsets),) = scorer.tokenizer.offsets([text])
    return text[: offsets[-2][1]] if scored.start == 0 else text[offsets[0][1] :]


def likelihoods_of(
    scorer: SentenceScorer,
    all_ids: Sequence[Sequence[int]],
    settings: ScoreSettings,
    *,
    location: Callable[[int], str] = "sentence {}".format,
    progress: str = "",
) -> NDArray[np.float64]:
    """Return the scores [N] of sentences by their pieces, each computed once; the rest is as in `sentence_scores`."""
    different = list(dict.fromkeys(map(tuple, all_ids)))
    logarithms = _computed(scorer, different, settings, progress)
    sums = {ids: float(part.sum(dtype=np.float64)) for ids, part in zip(different, logarithms, strict=True)}
    scores = np.array([sums[tuple(ids)] for ids in all_ids], dtype=np.float64)
    check_finite(scores, location)
    return scores


def _computed(
    scorer: SentenceScorer, ids: Sequence[Sequence[int]], settings: ScoreSettings, name: str
) -> list[NDArray[np.float32]]:
    """Return the log-probabilities of all sentences; with a name, progress is shown after two seconds."""
    if not name:
        return scorer.log_probabilities(ids, settings)
    total, done = sum(len(pieces) * scorer.num_rows(len(pieces)) for pieces in ids), 0
    with Status(ends=False, patience=PATIENCE) as status:

        def show(tokens: int) -> None:
            nonlocal done
            done += tokens
            status.update(f"{done / total:.0%} of {len(ids):,} {name} · {status.remaining(done / total)} left")

        return scorer.log_probabilities(ids, settings, show)
