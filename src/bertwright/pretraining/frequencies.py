"""Training rows → frequencies of the pieces → the validation loss that a model without any context has (paper §3.1)."""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from bertwright.objectives.system_model import SystemModel
from bertwright.pretraining.setup import Pretraining

_MOST_LABELS, _MOST_STEPS = 1_000_000, 500
"""Number of predicted pieces from which frequencies are counted, and of steps whose rows are read for them."""
_EQUAL: Final = 0.01
"""Fraction of the loss of the frequencies by which a model must be below it to count as better."""


def frequency_loss(pretraining: Pretraining) -> float:
    """Return the validation loss, in nats, of a model that predicts every piece with its frequency in training.

    The frequencies are those of the pieces that the first training steps predict, plus one for each piece.
    """
    assert pretraining.validation
    model, pieces = pretraining.model, pretraining.corpus.tokenizer.vocab_size
    counts = np.ones(pieces)
    for step in range(_MOST_STEPS):
        batch = pretraining.phase_rows[-1].step_batch(step, pretraining.settings.batch_size)
        counts += _label_counts(model, [batch], pieces)
        if counts.sum() > _MOST_LABELS + pieces:
            break
    targets = _label_counts(model, pretraining.validation, pieces)
    return float(-(targets * np.log(counts / counts.sum())).sum() / targets.sum())


def no_better_than_frequencies(pretraining: Pretraining, metrics: Mapping[str, float]) -> str:
    """Return a warning where the validation loss in `metrics` is no better than `frequency_loss`, or else ''."""
    name = next((name for name in ("mlm_loss", "lm_loss") if name in metrics), None)
    if name is None or pretraining.validation is None:
        return ""
    frequencies = frequency_loss(pretraining)
    if metrics[name] < (1 - _EQUAL) * frequencies:
        return ""
    return (
        f"{name} {metrics[name]:.2f} is no better than {frequencies:.2f}, the loss of the frequencies of the pieces "
        "alone: this model does not use the context; train longer, and change what the warnings before step 0 name"
    )


def _label_counts(model: SystemModel, batches: Iterable[object], pieces: int) -> np.ndarray:
    """Return the number of times that the rows of batches predict each piece, float64 [V]."""
    counts = np.zeros(pieces)
    for batch in batches:
        counts += np.bincount(model.inputs(batch).labels.numpy(), minlength=pieces)
    return counts
