"""model + task + data → everything that the seeds of a fine-tuning share; it is read and computed once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.finetuning.schedule import ScheduledSettings, scheduled
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.setup import (
    add_auxiliary_loss,
    add_bilstm,
    check_settings,
    initial_weights,
    open_initial_model,
)
from bertwright.model.folder import SavedModel, weights_digest
from bertwright.tasks.binding import BoundTask
from bertwright.tasks.feature_based import feature_task, frozen_encoder
from bertwright.tasks.kinds import kind_of
from bertwright.tasks.metrics import without_collapsed
from bertwright.tasks.spec import TaskSpec
from bertwright.tasks.unknown_pieces import UnknownPieces
from bertwright.text.base_tokenizer import BaseTokenizer

STATES: Final = ".features"
"""Folder of a run with the states of a frozen encoder, which this machine needs alone."""


@dataclass(frozen=True)
class Prepared:
    """The bound task, the model to start from and its tokenizer, the same for every seed."""

    bound: BoundTask
    saved: SavedModel
    tokenizer: BaseTokenizer
    digests: Mapping[str, Any]


def prepare(
    settings: FinetuneSettings, task: TaskSpec, source: str, data: Path, folder: Path | None, *, cache: Path
) -> Prepared:
    """Open the model and read the data. `cache` is the folder for the states of a frozen encoder."""
    saved, tokenizer = open_initial_model(source, folder)
    check_settings(settings, saved.config, source)
    kind = kind_of(task)
    if settings.features:
        kind.check_features(task)
    saved = add_bilstm(settings, saved)
    task = kind.for_model(task, saved, settings.max_length)
    bound = kind.prepare(task, data, tokenizer, saved.config, settings.max_length)
    for name, noted in bound.digests.get("dev", {}).items():
        if noted == bound.digests["train"]:
            say(
                f"{data}: the validation file {name} is a copy of the training file, so its metrics say nothing about "
                "other rows; remove it, and a part of the training rows is kept for validation"
            )
    unknown = UnknownPieces(tokenizer)
    unknown.add(bound.kind.token_ids(bound.train[1]))
    unknown.say(f"{data}: the training texts", source)
    _say_untrained(bound, saved, data)
    digest = weights_digest(saved)
    digests = {**bound.digests, "weights": digest, "tokenizer": tokenizer.hash}
    if settings.features:
        cached: Any = {"cache": cache, "weights": digest or f"{saved.source} {saved.config.vocab_size}"}
        width, device = settings.lstm_width, settings.device
        bound = feature_task(bound, settings.features, width=width, saved=saved, device=device, **cached)
        encoder = {f"encoder.{name}": tensor for name, tensor in frozen_encoder(saved).state_dict().items()}
        return Prepared(bound, replace(saved, weights=encoder), tokenizer, digests)
    bound = add_auxiliary_loss(settings, bound, saved=saved, tokenizer=tokenizer)
    return Prepared(bound, initial_weights(settings, bound, saved), tokenizer, digests)


def _say_untrained(bound: BoundTask, saved: SavedModel, data: Path) -> None:
    """Print how many training texts have positions that the model was not trained on."""
    trained, lengths = saved.trained_positions, bound.lengths
    if bound.kind.contrasts:  # they are those of two texts and more
        lengths = np.array([len(ids) for ids in bound.kind.token_ids(bound.train[1])])
    if count := int((lengths > trained).sum()):
        say(
            f"{data}: {count:,} of {len(lengths):,} training texts have more than {trained} tokens, and "
            f"{saved.source} was trained on rows of up to {trained}: it has not learned the later positions. Compare "
            f"with --max-length {trained}, or pre-train with longer rows (--lengths)"
        )


def with_chosen_first(metrics: Mapping[str, float], chosen: str | None) -> dict[str, float]:
    """Return metrics with the chosen one in front, which compares epochs and seeds; None keeps their order.

    Raises InputError where it is not among them.
    """
    if chosen is None:
        return dict(metrics)
    names = without_collapsed(metrics)
    first = next((name for name in names if name == chosen or name.endswith(f".{chosen}")), None)
    if first is None:
        raise InputError(f"--best {chosen}: expected a metric of this task: {', '.join(names)}")
    return {first: metrics[first], **metrics}


def schedule(settings: FinetuneSettings, prepared: Prepared) -> ScheduledSettings:
    """Return the settings with the schedule; say what was chosen."""
    rows, config = len(prepared.bound.lengths), prepared.saved.config
    contrasts = prepared.bound.kind.contrasts
    if contrasts and 1 in (rows, settings.batch_size):
        raise InputError(
            f"--batch-size {settings.batch_size or 'not set'}, {rows:,} training rows: expected at least two rows in a "
            "batch: the other rows of a batch are the negatives from which vectors are learned"
        )
    chosen = scheduled(settings, config, rows, contrasts=contrasts)
    if None in (settings.epochs, settings.batch_size, settings.learning_rate):
        say(f"{rows:,} training rows: {chosen.summary}")
    return chosen
