"""model + minimal pairs → accuracies: the command `evaluate blimp`."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.console import Status, say
from bertwright.model.folder import SavedModel, weights_digest
from bertwright.scoring.accuracy import MinimalPairMetrics, accuracy_of, metrics_text, minimal_pair_metrics
from bertwright.scoring.kept_scores import KeptScores
from bertwright.scoring.pairs import Paradigm, read_paradigms
from bertwright.scoring.scorer import SentenceScorer, scorer_of
from bertwright.scoring.sentences import likelihoods_of
from bertwright.scoring.settings import ScoreSettings
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.inference import Answerable, open_answering
from bertwright.training.hardware import prepare_processor
from bertwright.training.settings import Device
from bertwright.training.trial import CPU_ADVICE, advise_on_full_gpu

_DEFAULTS: Final = ScoreSettings()


def evaluate_blimp(model: str, data: Path, **options: Any) -> dict[str, Any]:
    """Return the metrics of `measure_minimal_pairs`, with its options, as JSON values, and as tables in `text`."""
    metrics = measure_minimal_pairs(model, data, **options)
    return {**metrics.as_json(), "text": metrics_text(metrics)}


def measure_minimal_pairs(
    model: str,
    data: Path | str,
    *,
    pair_ids: Path | None = None,
    settings: ScoreSettings = _DEFAULTS,
    out: Path | None = None,
    precision: str | None = None,
    device: Device = "cpu",
) -> MinimalPairMetrics:
    """Return the accuracies of a model on BLiMP, or on other minimal pairs in its layout.

    model: a model folder or run with the head of masked LM, or a language model. data, pair_ids: as in
    `read_paradigms`. settings: None in a field is the default of the model. out: folder that keeps the scores of each
    paradigm; the same call continues where it was stopped. precision: one of PRECISIONS; None computes as in training.
    Raises InputError for other data, for a sentence that the model cannot read, and for a folder `out` of another
    model; RunFailed for a score that is not finite.
    """
    prepare_processor()
    paradigms = read_paradigms(Path(data), pair_ids=pair_ids)
    saved = open_answering(model, precision, device)
    scorer = scorer_of(saved, open_tokenizer(saved), settings.direction)
    resolved = scorer.resolve(settings)
    computed = saved.computed if isinstance(saved, Answerable) and saved.computed != "plain" else "fp32"
    kept = None if out is None else KeptScores(out, _identity(saved, scorer, resolved, computed))
    if kept:
        kept.refuse_fewer(paradigms)
    with kept.locked() if kept else nullcontext():
        accuracies = advise_on_full_gpu(
            lambda: [
                accuracy_of(paradigm, scores)
                for paradigm, scores in zip(paradigms, _scores(scorer, paradigms, resolved, kept), strict=True)
            ],
            lambda: CPU_ADVICE,
        )
        metrics = minimal_pair_metrics(model, paradigms, accuracies, resolved, computed)
        if kept:
            kept.write_metrics(metrics.as_json())
    return metrics


def _identity(saved: SavedModel, scorer: SentenceScorer, settings: ScoreSettings, computed: str) -> dict[str, Any]:
    """Return what decides the scores of sentences."""
    return {
        "weights": weights_digest(saved),
        "config": saved.config.model_dump(mode="json"),
        "tokenizer": scorer.tokenizer.hash,
        **vars(settings),
        "precision": computed,
    }


def _scores(
    scorer: SentenceScorer, paradigms: Sequence[Paradigm], settings: ScoreSettings, kept: KeptScores | None
) -> list[NDArray[np.float64]]:
    """Return the scores [N, 2] of the pairs of each paradigm. All sentences are checked before the first is scored."""
    known = [kept.read(paradigm) if kept else None for paradigm in paradigms]
    waiting = {
        index: _encode(scorer, paradigm, settings) for index, paradigm in enumerate(paradigms) if known[index] is None
    }
    if kept and len(waiting) < len(paradigms):
        say(f"{len(paradigms) - len(waiting)} of {len(paradigms)} paradigms are scored already")
    results = [np.zeros((0, 2))] * len(paradigms)
    with Status(ends=False) as status:
        for done, (index, ids) in enumerate(waiting.items()):
            paradigm = paradigms[index]
            left = status.remaining(done / len(waiting))
            status.update(f"{done} of {len(waiting)} paradigms scored · {left} left")
            scores = likelihoods_of(scorer, ids, settings, location=partial(_location, paradigm))
            results[index] = scores.reshape(2, -1).T
            if kept:
                kept.write(paradigm, results[index])
    return [results[index] if scores is None else scores for index, scores in enumerate(known)]


def _encode(scorer: SentenceScorer, paradigm: Paradigm, settings: ScoreSettings) -> list[list[int]]:
    """Return the ids of all grammatical sentences, then those of all others."""
    texts = [*(pair.good for pair in paradigm.pairs), *(pair.bad for pair in paradigm.pairs)]
    return scorer.encode(texts, settings, partial(_location, paradigm))


def _location(paradigm: Paradigm, number: int) -> str:
    """Return the location of a sentence in the order of `_encode`."""
    is_bad, index = divmod(number, len(paradigm.pairs))
    return f"{paradigm.pairs[index].location}: {'sentence_bad' if is_bad else 'sentence_good'}"
