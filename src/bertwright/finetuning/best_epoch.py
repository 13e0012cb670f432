"""Validate each epoch of a seed and keep the model of the best one."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from bertwright.console import say
from bertwright.files import atomic_file, write_json
from bertwright.finetuning.kept_rows import training_note
from bertwright.finetuning.prepare import Prepared, with_chosen_first
from bertwright.model.folder import save_model
from bertwright.tasks.errors import PREDICTIONS, VALIDATION
from bertwright.tasks.metrics import without_collapsed
from bertwright.training.distributed import Ranks, full_state
from bertwright.training.hardware import Numerics
from bertwright.training.loop import autocast
from bertwright.training.run_folder import RunFolder


@dataclass(frozen=True)
class Epochs:
    """Steps of an epoch, number of epochs, and True where the metrics of each are printed: for the first seed.

    patience   number of epochs without a better metric after which training ends; None for never
    after      called after each epoch with the fraction that is done and the metric
    """

    steps: int
    count: int
    patience: int | None
    printed: bool
    after: Callable[[float, float], None] | None


class BestEpoch:
    """Validates each epoch and keeps the model folder of the best one.

    The metrics are stored beside the model, so that they always belong to its weights, even where a resumed run
    computes an epoch again with other results.
    """

    def __init__(
        self,
        seed_run: RunFolder,
        model: nn.Module,
        prepared: Prepared,
        numerics: Numerics,
        ranks: Ranks,
        epochs: Epochs,
        chosen: str | None,
    ) -> None:
        self.run, self.model, self.prepared, self.numerics, self.ranks = seed_run, model, prepared, numerics, ranks
        self.epochs, self.chosen = epochs, chosen

    def evaluate(self, step: int) -> dict[str, float]:
        """Return validation metrics after an epoch; save the model where its first metric is the best so far."""
        with autocast(self.numerics):
            logits = self.prepared.bound.validation_logits(self.model)
        measured = with_chosen_first(self.prepared.bound.metrics(logits), self.chosen)
        metrics: dict[str, float] = self.ranks.broadcast(measured)  # the last digits may differ between machines
        key = next(iter(metrics))
        best = self.run.record.get("best")
        if best is None or metrics[key] > best["held_out"][key]:
            self._save(metrics)
            if self.run.writes:
                write_json(self.run.folder / VALIDATION, self.prepared.bound.review(logits))
            self.run.note(best={"step": step, "held_out": metrics})
        is_last = step == self.epochs.steps * self.epochs.count or self.is_enough(step)
        if is_last and self.run.writes and (predictions := self.prepared.bound.predictions(logits)):
            with atomic_file(self.run.folder / PREDICTIONS) as stream:
                stream.write(json.dumps(predictions).encode())
        self.run.note(epochs={**self.run.record.get("epochs", {}), str(step // self.epochs.steps): metrics})
        if self.epochs.printed:
            shown = [f"{name} {value:.4f}" for name, value in without_collapsed(metrics).items()]
            say(" · ".join([f"epoch {step // self.epochs.steps}/{self.epochs.count}", *shown]))
        if self.epochs.after:
            self.epochs.after(step / (self.epochs.steps * self.epochs.count), metrics[key])
        return metrics

    def is_enough(self, step: int) -> bool:
        """Return whether the last better epoch lies as many epochs back as the patience allows."""
        if self.epochs.patience is None or "best" not in self.run.record:
            return False
        return bool(step - self.run.record["best"]["step"] >= self.epochs.patience * self.epochs.steps)

    def result(self, seed: int) -> dict[str, Any]:
        """Return the result of the seed: the best epoch, its metrics and its model, and the metrics of each epoch."""
        best = self.run.record["best"]
        metrics: dict[str, float] = best["held_out"]
        scores = without_collapsed(metrics)
        collapsed = any(metrics[name] for name in metrics.keys() - scores.keys())
        epoch = best["step"] // self.epochs.steps
        by_epoch = self.run.record.get("epochs", {})
        return {
            "seed": seed,
            "epoch": epoch,
            "scores": scores,
            "epochs": [without_collapsed(by_epoch[number]) for number in sorted(by_epoch, key=int)],
            "collapsed": collapsed,
            "model": str(self.run.model),
        }

    def _save(self, metrics: Mapping[str, float]) -> None:
        saved = self.prepared.saved
        trained = self.prepared.bound.to_save(self.model, metrics)
        weights = full_state(trained.module)
        if not self.run.writes:
            return
        save_model(
            self.run.model,
            weights,
            config=saved.config,
            tokenizer=saved.tokenizer,
            architecture=trained.architecture,
            labels=trained.labels,
            extra={**trained.extra, **training_note(self.prepared.bound)},
            vectors=trained.vectors,
        )
