"""vectors + training texts → a weight for each piece in the mean, where the validation is better with it.

The weight of a piece is a / (a + p), with its frequency p in the training texts (SIF, Arora et al. 2017). Special
tokens count as the commonest piece. The weights are those of the finished vectors: training computes without them.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.console import say
from bertwright.finetuning.prepare import Prepared
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.setup import initial_model
from bertwright.tasks.embedding.model import EncodedSide
from bertwright.tasks.embedding.read import folder_layout
from bertwright.tasks.embedding.spec import VectorTask
from bertwright.training.distributed import Ranks
from bertwright.training.hardware import resolve_device
from bertwright.training.run_folder import RunFolder

USUAL: Final = 0.001
"""The number a of the weights where none is set."""
_DIGITS: Final = 6
"""Number of significant digits of a weight."""


def with_piece_weights(
    run: RunFolder, settings: FinetuneSettings, prepared: Prepared, data: Path, ranks: Ranks
) -> Prepared:
    """Return the prepared task with weights of pieces, or unchanged.

    For a corpus the model with which the first seed starts is measured on the validation pairs with and without the
    weights, once; the run notes the choice. A model that has weights keeps them. `piece_weights` of the task decides
    instead.
    """
    task = prepared.bound.task
    if not isinstance(task, VectorTask) or task.piece_weights == 0:
        return prepared
    if task.piece_weights is not None:
        return _with_weights(prepared, _weights(prepared, task.piece_weights))
    if not task.vectors.is_plain_mean or task.vectors.piece_weights or folder_layout(task, data) != "corpus":
        return prepared
    weighted = _with_weights(prepared, _weights(prepared, USUAL))
    if "piece_weights" not in run.record:
        compared = _measured(settings, prepared, weighted) if ranks.is_main else None
        ranks.wait_for_main()
        run.note(piece_weights=ranks.broadcast(compared))
    measured: Mapping[str, Any] = run.record["piece_weights"]
    is_better = measured["with"] > measured["without"]
    say(
        f"weights of pieces by their frequency: {'kept' if is_better else 'left out'}; validation {measured['metric']} "
        f"before training {measured['with']:.4f} with them, {measured['without']:.4f} without"
    )
    return weighted if is_better else prepared


def piece_weights(frequencies: NDArray[np.float64], special: tuple[int, ...], a: float) -> tuple[float, ...]:
    """Return the weight of each piece [V] for its number of occurrences [V]; `special`: ids of the special tokens."""
    counts = frequencies.copy()
    counts[list(special)] = 0.0
    share = counts / max(1.0, counts.sum())
    share[list(special)] = share.max()
    return tuple(float(f"{weight:.{_DIGITS}g}") for weight in a / (a + share))


def _weights(prepared: Prepared, a: float) -> tuple[float, ...]:
    """Return the weights by the frequencies of pieces in the training texts."""
    counts = np.zeros(prepared.saved.config.vocab_size)
    sides: tuple[EncodedSide, ...] = prepared.bound.train[1]
    for side in sides:
        if side.ids:
            counts += np.bincount(np.concatenate(side.ids), minlength=len(counts))
    return piece_weights(counts, tuple(prepared.tokenizer.special_ids), a)


def _with_weights(prepared: Prepared, weights: tuple[float, ...]) -> Prepared:
    task = prepared.bound.task
    vectors = task.vectors.model_copy(update={"piece_weights": weights})
    return replace(prepared, bound=replace(prepared.bound, task=task.model_copy(update={"vectors": vectors})))


def _measured(settings: FinetuneSettings, prepared: Prepared, weighted: Prepared) -> dict[str, Any]:
    """Return name and values of the first validation metric of the untrained model with the weights and without."""
    values = []
    for each in (weighted, prepared):
        model = initial_model(settings, each.bound, each.saved, settings.first_seed)
        metrics = each.bound.evaluate(model.to(resolve_device(settings.device)))
        values.append(next(iter(metrics.items())))
    (name, with_weights), (_, without) = values
    return {"a": USUAL, "metric": name, "with": with_weights, "without": without}
