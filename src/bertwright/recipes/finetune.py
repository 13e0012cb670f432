"""encoder → task: fine-tune on a labelled table, several seeds, the best epoch of each kept (paper §4.1)."""

import shutil
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertwright.console import say, without_repeats
from bertwright.errors import InputError, Stopped
from bertwright.files import atomic_folder, file_digest
from bertwright.model.encoder import init_weights
from bertwright.model.folder import SavedModel, load_weights, open_model, save_model
from bertwright.model.sizes import EncoderConfig
from bertwright.prediction.feature_based import feature_work, frozen_encoder
from bertwright.prediction.kinds import kind_of
from bertwright.prediction.work import Work, open_tokenizer, steps_of
from bertwright.recipes.report import try_report
from bertwright.recipes.settings import FinetuneSettings
from bertwright.tasks.spec import TaskSpec
from bertwright.text.tokenizer import Tokenizer
from bertwright.training.loop import Plan, precision, recompute_inside, train
from bertwright.training.machine import Numerics, apply_numerics, resolve_numerics
from bertwright.training.optimizer import OptimizerSettings
from bertwright.training.sessions import session
from bertwright.training.tracking import RunFolder, start_run


@dataclass(frozen=True)
class Prepared:
    """The task with its data and the model to start from: the same for every seed."""

    work: Work[Any]
    saved: SavedModel
    digests: Mapping[str, Any]


def finetune(
    settings: FinetuneSettings,
    task: TaskSpec,
    *,
    model: str,
    data: Path,
    out: Path,
    tokenizer: Path | None = None,
    resume: bool = False,
    allow_other_numerics: bool = False,
) -> dict[str, Any]:
    """Fine-tune and evaluate on dev; returns {"task", "metric", "scores", "mean", "sd", "seeds", "model", …}."""
    where: Any = {"model": model, "data": data, "out": out, "tokenizer": tokenizer}
    where |= {"resume": resume, "allow_other_numerics": allow_other_numerics}
    return tune(settings, task, said=set(), **where)[0]


def tune(
    settings: FinetuneSettings,
    task: TaskSpec,
    *,
    model: str,
    data: Path,
    out: Path,
    tokenizer: Path | None,
    resume: bool,
    allow_other_numerics: bool,
    said: set[str],
) -> tuple[dict[str, Any], bool]:
    """As `finetune`, for one of several; also whether a signal came that was too late to stop this one.

    said: what was said of the data already, and need not be again.
    """
    with without_repeats(said):
        prepared = _prepare(settings, task, model, data, tokenizer, cache=out / "features")
    named = model if model.startswith("random:") else str(Path(model))  # with and without a slash at its end
    facts = {"task": prepared.work.task.model_dump(mode="json"), "model": named, **prepared.digests}
    run = start_run(out, kind="finetune", settings=settings, data=facts, resume=resume)
    if run.finished:
        say(f"{out}: this run has finished; its model is in {run.model}")
        return {**_where_it_lies(run), "report": try_report(run.folder)}, False
    with session(run):
        run.note(places={"model": model, "data": str(data.absolute())})
        numerics = _numerics(settings, run, allow_other=allow_other_numerics)
        prepared.work.ready()  # here, where Ctrl-C ends it at once: in the loop one waits for the end of a step
        seeds: list[dict[str, Any]] = []
        signalled = False
        for seed in range(settings.first_seed, settings.first_seed + settings.seeds):
            found, signalled = _train_seed(settings, prepared, seed, run, numerics)
            seeds += [found] if found else []
            if signalled and len(seeds) < settings.seeds:
                raise Stopped(
                    f"stopped with {len(seeds)} of {settings.seeds} seeds done; the same command with --resume goes on"
                )
        result = _finish(run, prepared, seeds)
        shutil.rmtree(out / "features", ignore_errors=True)
    return {**result, "report": try_report(run.folder)}, signalled


def opened(source: str, tokenizer: Path | None) -> tuple[SavedModel, Tokenizer]:
    """The model to start from and its tokenizer, which for random weights is the one that is named."""
    vocabulary = Tokenizer.load(tokenizer) if tokenizer else None
    saved = open_model(source, tokenizer=tokenizer, vocab_size=vocabulary.vocab_size if vocabulary else None)
    words = open_tokenizer(saved)
    if vocabulary and vocabulary.hash != words.hash:
        raise InputError(f"{tokenizer}: is another tokenizer than the one of {source}, which brings its own")
    return saved, words


def refuse_unfit(settings: FinetuneSettings, config: EncoderConfig, source: str) -> None:
    """InputError where a model of that shape cannot be trained with the settings."""
    if settings.max_length > config.max_positions:
        raise InputError(f"--max-length {settings.max_length}: {source} takes at most {config.max_positions} tokens")
    if settings.features and (settings.new_layers or settings.frozen_layers):
        raise InputError("--features leaves every layer as it is: --new-layers and --frozen-layers do not go with it")
    if settings.new_layers + settings.frozen_layers > config.layers:
        raise InputError(
            f"--new-layers {settings.new_layers} and --frozen-layers {settings.frozen_layers}: "
            f"{source} has {config.layers} layers in all"
        )


def _prepare(
    settings: FinetuneSettings, task: TaskSpec, source: str, data: Path, folder: Path | None, *, cache: Path
) -> Prepared:
    saved, words = opened(source, folder)
    refuse_unfit(settings, saved.config, source)
    if settings.features:
        return _prepare_features(settings, task, saved, words, data, cache)
    work = kind_of(task).prepare(task, data, words, saved.config, settings.max_length)
    anew = _anew(settings, work.head, saved)
    if saved.weights is not None:  # an earlier task's head has other labels, or the same in another order
        kept = {name: tensor for name, tensor in saved.weights.items() if not name.startswith(anew)}
        saved = replace(saved, weights=kept)
        model = work.build(saved.config)
        load_weights(model, saved, fresh=anew)
        if "pooler.dense.weight" in model.state_dict() and not settings.new_layers and "pooler." in anew:
            say(f"{source}: has no pooler, which this task uses; it begins anew")
    return Prepared(work, saved, {**work.digests, "weights": _digest_of(saved), "tokenizer": words.hash})


def _prepare_features(
    settings: FinetuneSettings, task: TaskSpec, saved: SavedModel, words: Tokenizer, data: Path, cache: Path
) -> Prepared:
    """The same for the feature-based way: the encoder is done with before the first step."""
    kind = kind_of(task)
    if kind.features is None or settings.features is None:
        raise InputError(f"--features: {task.name} cannot be learned from features")
    bound = kind.features(task, data, words, saved.config, settings.max_length)
    digest = _digest_of(saved)
    work = feature_work(
        bound,
        settings.features,
        width=settings.lstm_width,
        saved=saved,
        cache=cache,
        weights=digest or f"{saved.place} {saved.config.vocab_size}",
    )
    encoder = {f"encoder.{name}": tensor for name, tensor in frozen_encoder(saved).state_dict().items()}
    return Prepared(work, replace(saved, weights=encoder), {**work.digests, "weights": digest, "tokenizer": words.hash})


def _digest_of(saved: SavedModel) -> str | None:
    return None if saved.weights is None else file_digest(Path(saved.place) / "model.safetensors")


def _anew(settings: FinetuneSettings, head: str, saved: SavedModel) -> tuple[str, ...]:
    """The prefixes of what begins anew: the task's head, the top layers asked for, a pooler that the model lacks."""
    layers = saved.config.layers
    top = [f"encoder.layers.{layer}." for layer in range(layers - settings.new_layers, layers)]
    has_pooler = saved.weights is None or "pooler.dense.weight" in saved.weights
    return (f"{head}.", *top, *([] if has_pooler and not top else ["pooler."]))


def _freeze(model: nn.Module, layers: int) -> None:
    """Keep the embeddings and so many layers as they are."""
    still = ("encoder.embeddings.", *(f"encoder.layers.{layer}." for layer in range(layers)))
    for name, parameter in model.named_parameters():
        if layers and name.startswith(still):
            parameter.requires_grad_(False)


def _numerics(settings: FinetuneSettings, run: RunFolder, *, allow_other: bool) -> Numerics:
    if "resolved" in run.record:
        numerics = Numerics.model_validate(run.record["resolved"])
    else:
        numerics = resolve_numerics(settings.precision, threads=settings.threads)
        run.note(resolved=numerics.model_dump())
    apply_numerics(numerics, allow_other=allow_other)
    return numerics


def _train_seed(
    settings: FinetuneSettings, prepared: Prepared, seed: int, run: RunFolder, numerics: Numerics
) -> tuple[dict[str, Any] | None, bool]:
    """One seed in its own run folder: its result, None where it was stopped, and whether a signal came."""
    name = f"seed-{seed}"
    own = start_run(run.folder / name, kind="finetune-seed", settings={"seed": seed}, data={}, resume=True)
    if own.finished:
        return {**own.record["result"], "model": str(own.model)}, False
    work, config = prepared.work, prepared.saved.config
    model = work.build(config)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(seed))
    load_weights(model, prepared.saved, fresh=_anew(settings, work.head, prepared.saved))
    _freeze(model, settings.frozen_layers)
    if not settings.features:
        words = model.get_submodule("encoder.embeddings.word")
        assert isinstance(words, nn.Embedding)
        words.sparse = True  # a batch reads few of its rows
        if settings.recompute:
            recompute_inside(work.trainable(model).blocks)
    best = _Best(own, model, prepared, numerics)
    per_epoch = -(-len(work.lengths) // settings.batch_size)
    steps = settings.epochs * per_epoch
    own.note(resolved={"steps": steps})
    rate = settings.rate(config.hidden)
    optimizer = OptimizerSettings(
        learning_rate=rate,
        warmup=settings.warmup,
        weight_decay=settings.weight_decay,
        bias_correction=settings.bias_correction,
    )
    plan = Plan(
        steps=steps,
        seed=seed,
        optimizer=optimizer,
        scale=lambda parameter: _scale(parameter, work.head, settings, config.layers, rate),
        evaluate=best.evaluate,
        evaluate_at=frozenset(per_epoch * (epoch + 1) for epoch in range(settings.epochs)),
    )
    batches = steps_of(work, settings.batch_size, seed=seed)
    outcome = train(work.trainable(model), batches, plan=plan, numerics=numerics, run=own)
    if not outcome.finished:
        return None, True
    result = best.result(seed)
    own.note(finished=True, result=result)
    shutil.rmtree(own.checkpoints)
    if result["collapsed"]:
        say(f"seed {seed} collapsed: its best epoch answers the same to everything; more data, epochs or another rate")
    say(
        f"seed {seed}: best epoch {result['epoch']}, "
        + ", ".join(f"{key} {value:.4f}" for key, value in result["scores"].items())
    )
    return result, outcome.signalled


class _Best:
    """Measures each epoch on dev and keeps the best epoch's model folder; on resume, what was measured is read back."""

    def __init__(self, own: RunFolder, model: nn.Module, prepared: Prepared, numerics: Numerics) -> None:
        self.own, self.model, self.prepared, self.numerics = own, model, prepared, numerics
        self.lines = [line for line in own.metrics() if "held_out" in line]

    def evaluate(self, step: int) -> dict[str, float]:
        """Dev figures after an epoch; saves the model where its primary metric is the best so far."""
        with precision(self.numerics):
            figures = self.prepared.work.evaluate(self.model)
        self.lines = [line for line in self.lines if line["step"] < step]
        key = next(iter(figures))
        if all(figures[key] > line["held_out"][key] for line in self.lines):
            self._save()
        self.lines.append({"step": step, "held_out": figures})
        return figures

    def result(self, seed: int) -> dict[str, Any]:
        """The best epoch's figures."""
        key = next(iter(self.lines[0]["held_out"]))
        index = max(range(len(self.lines)), key=lambda place: (self.lines[place]["held_out"][key], -place))
        figures = self.lines[index]["held_out"]
        scores = {name: value for name, value in figures.items() if not name.endswith("collapsed")}
        fell = any(value for name, value in figures.items() if name.endswith("collapsed"))
        return {"seed": seed, "epoch": index + 1, "scores": scores, "collapsed": fell, "model": str(self.own.model)}

    def _save(self) -> None:
        saved = self.prepared.saved
        learned = self.prepared.work.answered(self.model)
        save_model(
            self.own.model,
            learned.module,
            config=saved.config,
            tokenizer=saved.tokenizer,
            architecture=learned.architecture,
            labels=learned.labels,
            extra=learned.extra,
        )


def _scale(name: str, head: str, settings: FinetuneSettings, layers: int, rate: float) -> float:
    """What a parameter's rate is multiplied by: the head's own rate, or the decay of its depth."""
    if name.startswith(f"{head}."):
        return (settings.head_learning_rate or rate) / rate
    if name.startswith("pooler."):
        return 1.0
    depth = int(name.split(".")[2]) if name.startswith("encoder.layers.") else -1
    return settings.layer_decay ** (layers - depth)


def _finish(run: RunFolder, prepared: Prepared, seeds: list[dict[str, Any]]) -> dict[str, Any]:
    metric = next(iter(seeds[0]["scores"]))
    values = [found["scores"][metric] for found in seeds]
    best = max(seeds, key=lambda found: found["scores"][metric])
    with atomic_folder(run.model) as folder:
        shutil.copytree(run.folder / f"seed-{best['seed']}" / "model", folder, dirs_exist_ok=True)
    result = {
        "task": prepared.work.task.name,
        "metric": metric,
        "mean": statistics.fmean(values),
        "sd": statistics.stdev(values) if len(values) > 1 else 0.0,
        "scores": values,
        "collapsed": [found["seed"] for found in seeds if found["collapsed"]],
        "seeds": seeds,
        "model": str(run.model),
        "out": str(run.folder),
    }
    run.note(finished=True, result=result)
    return {**result, "text": _text(result)}


def _where_it_lies(run: RunFolder) -> dict[str, Any]:
    """What a finished run found, with the places of today: the folder may have been moved since."""
    noted = run.record["result"]
    seeds = [{**found, "model": str(run.folder / f"seed-{found['seed']}" / "model")} for found in noted["seeds"]]
    result = {**noted, "seeds": seeds, "model": str(run.model), "out": str(run.folder)}
    return {**result, "text": _text(result)}


def _text(result: Mapping[str, Any]) -> str:
    scores = ", ".join(f"{value:.4f}" for value in result["scores"])
    return (
        f"{result['task']} dev {result['metric']}: {result['mean']:.4f} ± {result['sd']:.4f} ({scores})\n"
        f"best seed's model: {result['model']}"
    )
