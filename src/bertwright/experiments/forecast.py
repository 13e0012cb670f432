"""plan → models to train, hours and disk of an experiment, before anything is computed or written."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bertwright.experiments.jobs import BaselineJob, Finetuning, PairsJob, PretrainedModel
from bertwright.experiments.plan import ExperimentPlan
from bertwright.experiments.scores import job_seconds, training_seconds
from bertwright.finetuning.schedule import scheduled
from bertwright.model.system import MASKED_LM_SYSTEMS
from bertwright.objectives.settings import predictions_by_length
from bertwright.objectives.system_model import SystemModel
from bertwright.pretraining.resources import (
    checkpoint_bytes,
    count_moments,
    count_parameters,
    free_bytes,
    meta_model,
    size_text,
)
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.setup import encoder_config
from bertwright.pretraining.snapshots import snapshot_steps
from bertwright.reports.runs import duration
from bertwright.scoring.pairs import TOKENS_PER_WORD, read_paradigms, row_tokens
from bertwright.training.hardware import choose_precision, square_rates
from bertwright.training.settings import Device

_MFU: Final = 0.3
"""Model FLOP/s utilisation that is assumed where no similar run was measured."""
_WEIGHT_BYTES: Final = 4
_PAIR_LENGTH: Final = 14
"""Number of tokens of a sentence of BLiMP with both special ones, approximately."""


class _Costs:
    """Parameters and FLOPs of the models of a plan, by arithmetic on models without weights."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._models: dict[str, SystemModel] = {}

    def model(self, settings: PretrainSettings) -> SystemModel:
        """Return the model of a pre-training, on torch's meta device."""
        config = encoder_config(settings, self._vocabulary)
        second_sentence, generator_width = settings.examples.second_sentence, settings.generator_width
        key = f"{config.model_dump_json()} {second_sentence} {generator_width}"
        if key not in self._models:
            self._models[key] = meta_model(config, second_sentence=second_sentence, generator_width=generator_width)
        return self._models[key]

    def pretraining_flops(self, pretraining: PretrainedModel) -> float:
        """Return the FLOPs of the matrix products of all steps that the run computes."""
        settings = pretraining.settings
        encoder = self.model(settings).encoder
        width = encoder.config.hidden
        flops = 0.0
        for stage in settings.stages:
            masked = int(predictions_by_length(settings.examples_of(stage).masking, stage.length)[-1])
            predictions = masked if settings.system in MASKED_LM_SYSTEMS else stage.length
            head = 2.0 * predictions * width * (width + self._vocabulary)
            rows = stage.share * (settings.steps or 0) * stage.batch_size
            flops += 3.0 * rows * (encoder.flops(stage.length, predictions) + head)
        return flops * pretraining.computed_fraction

    def finetuning_flops(self, job: Finetuning) -> float:
        """Return the FLOPs of a fine-tuning whose rows all have the largest length; validation follows each epoch."""
        length, parts = job.settings.max_length, {name: taken for name, (taken, _) in job.subset.rows.items()}
        rows = sum((3 if name == "train" else 1) * taken for name, taken in parts.items())
        config = self.model(job.models[0].settings).encoder.config
        epochs = scheduled(job.settings, config, parts.get("train", 1)).epochs
        return sum(epochs * rows * self.model(model.settings).encoder.flops(length, length) for model in job.models)

    def pairs_flops(self, jobs: Sequence[PairsJob], data: Path | None) -> list[float]:
        """Return the FLOPs of scoring minimal pairs, which all jobs have in common: a row for each masked piece."""
        if not jobs or data is None:
            return []
        tokens = row_tokens(read_paradigms(data), TOKENS_PER_WORD)
        flops = []
        for job in jobs:
            encoder = self.model(job.model.settings).encoder
            head = 2.0 * encoder.config.hidden * (encoder.config.hidden + self._vocabulary)
            flops.append(tokens * (encoder.flops(_PAIR_LENGTH, 1) + head) / _PAIR_LENGTH)
        return flops

    def final_bytes(self, model: PretrainedModel) -> int:
        """Return the bytes of a model folder, its snapshots, and the checkpoint from which a longer run continues."""
        settings = model.settings
        stable = self.checkpoint_bytes(settings) if settings.optimizer.schedule == "wsd" and model.is_trained else 0
        snapshots = len(snapshot_steps(settings.snapshots, settings.steps or 0)) if model.is_trained else 0
        return _WEIGHT_BYTES * count_parameters(self.model(settings)) * (1 + snapshots) + stable

    def training_bytes(self, settings: PretrainSettings) -> int:
        """Return the bytes of the checkpoints that exist at the same time during a pre-training."""
        return (settings.keep + 1) * self.checkpoint_bytes(settings)

    def checkpoint_bytes(self, settings: PretrainSettings) -> int:
        """Return the bytes of a checkpoint of a pre-training."""
        model = self.model(settings)
        return checkpoint_bytes(count_parameters(model), count_moments(model, settings.optimizer))


def forecast_experiment(plan: ExperimentPlan, *, device: Device) -> dict[str, Any]:
    """Return the models to train, hours and disk of the unfinished parts of a plan. No file is written.

    Hours are those of similar parts in the same folder. Where there is none, they are computed from FLOPs: of all
    matrix products, at a fixed fraction of the FLOP/s that are measured here. Tasks without data have no hours.
    """
    models = [model for model in plan.all_models if not model.is_finished]
    jobs = [job for job in plan.all_jobs if not job.is_finished]
    costs = _Costs(plan.scale.vocabulary)
    rates = square_rates(device)
    flops_per_second = _MFU * rates[choose_precision(rates, device=device)]
    pretraining = [
        known if known is not None else costs.pretraining_flops(model) / flops_per_second
        for model, known in zip(models, training_seconds(plan, models), strict=True)
    ]
    finetunings = [job for job in jobs if isinstance(job, Finetuning)]
    finetuning = [
        known if known is not None else costs.finetuning_flops(job) / flops_per_second
        for job, known in zip(finetunings, job_seconds(finetunings, plan), strict=True)
    ]
    paired = [job for job in jobs if isinstance(job, PairsJob)]
    pairs = [flops / flops_per_second for flops in costs.pairs_flops(paired, plan.blimp)]
    waiting = sum(plan.waiting.values())
    trials = _trial_folders(plan)
    forecast = {
        "experiment": plan.experiment.name,
        "scale": plan.scale.name,
        "models": [_model_row(rows, trials) for rows in _alike(models, pretraining)],
        "pretrainings": {"to_compute": len(models), "all": len(plan.all_models)},
        "measurements": {"to_compute": len(jobs) + waiting, "all": len(plan.all_jobs) + waiting},
        "waiting_for_data": dict(plan.waiting),
        "baselines": sum(isinstance(job, BaselineJob) for job in jobs),
        "hours": {"pretraining": sum(pretraining) / 3600, "tasks": sum((*finetuning, *pairs)) / 3600},
        "disk": {"bytes": _disk_bytes(costs, plan, models), "free": free_bytes(plan.out)},
        "corpora_to_build": ["-".join(kind) for kind in sorted(plan.corpora.to_build)],
        "left_out": list(plan.left_out),
        "minutes": plan.rates.search.minutes if plan.rates else None,
        "measures_speed": any(each.steps is None for each in (plan.rates.arms.values() if plan.rates else ())),
    }
    return {**forecast, "text": _text(forecast)}


def _alike(
    models: Sequence[PretrainedModel], seconds: Sequence[float]
) -> Iterable[list[tuple[PretrainedModel, float]]]:
    """Return the models with their seconds, in groups of the same system, size, and number of tokens or minutes."""
    groups: dict[tuple[Any, ...], list[tuple[PretrainedModel, float]]] = {}
    for model, time in zip(models, seconds, strict=True):
        settings = model.settings
        key = (settings.system, settings.size, model.tokens, settings.minutes, model.is_trained)
        groups.setdefault(key, []).append((model, time))
    return groups.values()


def _trial_folders(plan: ExperimentPlan) -> set[Path]:
    """Return the folders of the trials of learning rates."""
    return {trial.model.folder for trial in plan.rates.trials} if plan.rates else set()


def _model_row(group: Sequence[tuple[PretrainedModel, float]], trials: set[Path]) -> dict[str, Any]:
    model = group[0][0]
    return {
        "system": model.settings.system,
        "size": model.settings.size,
        "count": len(group),
        "tokens": model.tokens if model.is_trained else 0,
        "is_trained": model.is_trained,
        "is_trial": model.folder in trials,
        "hours": sum(seconds for _, seconds in group) / 3600,
    }


def _disk_bytes(costs: _Costs, plan: ExperimentPlan, models: Sequence[PretrainedModel]) -> int:
    """Return the bytes of all unfinished models, with those of the largest training; corpora and rows not counted."""
    trials = _trial_folders(plan)  # they keep no weights
    final = sum(costs.final_bytes(model) for model in models if model.folder not in trials)
    joined = {
        (job.fraction, job.head, *(model.folder for model in job.models)): job.models[: 1 if job.head else None]
        for job in plan.all_jobs
        if isinstance(job, Finetuning) and (len(job.models) > 1 or job.head)
    }
    for pair in joined.values():
        final += sum(_WEIGHT_BYTES * count_parameters(costs.model(model.settings)) for model in pair)
    trained = [model for pairs in plan.models.values() for pair in pairs for model in pair]
    return final + max((costs.training_bytes(model.settings) for model in trained), default=0)


def _minutes_lines(forecast: Mapping[str, Any]) -> Iterable[str]:
    """Yield the time of each pre-training, and where their steps come from."""
    steps = "follow from the measured speeds"
    if forecast["measures_speed"]:
        steps = "follow from speeds, which the first run measures"
    yield f"             {forecast['minutes']:g} minutes each; the steps {steps}"


def _text(forecast: Mapping[str, Any]) -> str:
    """Return the forecast as text for a terminal."""
    pretrainings, measurements = forecast["pretrainings"], forecast["measurements"]
    hours, disk = forecast["hours"], forecast["disk"]
    corpora = ", ".join(forecast["corpora_to_build"])
    lines = [
        f"{forecast['experiment']} at scale {forecast['scale']}",
        *([f"  corpora    to build: {corpora}; not in the time and the disk below"] if corpora else []),
        f"  models     {pretrainings['to_compute']} of {pretrainings['all']} pre-trainings to compute",
        *(_minutes_lines(forecast) if forecast["minutes"] else ()),
    ]
    for row in forecast["models"]:
        tokens = f"{row['tokens']:,} tokens each, about " if row["tokens"] else "not trained, "
        if row["is_trained"] and not row["tokens"]:
            tokens = "as many tokens as fit into "
        time = duration(3600 * row["hours"] / row["count"])
        kind = ", trials of learning rates" if row["is_trial"] else ""
        lines.append(f"             {row['count']:3} x {row['system']} {row['size']}{kind}: {tokens}{time} each")
    lines += [
        f"  tasks      {measurements['to_compute']} of {measurements['all']} measurements to compute",
        *(
            f"             {count} of them wait for data, and are not in the time below: {message}"
            for message, count in forecast["waiting_for_data"].items()
        ),
        f"  time       about {duration(3600 * hours['pretraining'])} for pre-training, at most about "
        f"{duration(3600 * hours['tasks'])} for the tasks",
        f"  disk       about {size_text(disk['bytes'])}; {size_text(disk['free'])} are free",
    ]
    return "\n".join(lines)
