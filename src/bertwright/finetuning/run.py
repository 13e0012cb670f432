"""encoder → task: fine-tune on a labelled table, several seeds, the best epoch of each kept (paper §4.1)."""

import math
import shutil
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from bertwright.console import say, say_once
from bertwright.errors import InputError, Stopped
from bertwright.files import atomic_folder
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.setup import begun, completed, opened, planned, refuse_unfit, starting, topped, with_files
from bertwright.model.card import finetuning_card, origin
from bertwright.model.folder import CARD, SavedModel, save_weights, weights_digest
from bertwright.model.hf_config import read_description
from bertwright.tasks.binding import Work, steps_of
from bertwright.tasks.feature_based import feature_work, frozen_encoder
from bertwright.tasks.kinds import kind_of
from bertwright.tasks.spec import TaskSpec
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, Sharding, full_state, is_sharded
from bertwright.training.hardware import Numerics, apply_numerics, resolve_device, resolve_numerics
from bertwright.training.loop import Plan, autocast, train
from bertwright.training.missing_lines import say_missing_lines
from bertwright.training.run_folder import RunFolder, start_run
from bertwright.training.run_lock import say_finished, session
from bertwright.training.trial import (
    CPU_ADVICE,
    FITS_ADVICE,
    RESUME_ADVICE,
    advise_on_full_gpu,
    measure_step_seconds,
    most_fitting_rows,
)


@dataclass(frozen=True)
class Prepared:
    """The task with its data, the model to start from and its vocabulary: the same for every seed."""

    work: Work[Any]
    saved: SavedModel
    words: BaseTokenizer
    digests: Mapping[str, Any]


@dataclass(frozen=True)
class Together:
    """The processes that train, how they share the model, and how many micro-batches a step has at least."""

    ranks: Ranks = SINGLE_PROCESS
    sharding: Sharding = "ddp"
    parts: int = 1


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
    ranks: Ranks = SINGLE_PROCESS,
    sharding: Sharding = "ddp",
) -> dict[str, Any]:
    """Fine-tune and evaluate on dev; returns {"task", "metric", "scores", "mean", "sd", "seeds", "model", …}.

    ranks, sharding: the processes that train together, and how; all of them measure dev alike.
    """
    where: Any = {"model": model, "data": data, "out": out, "tokenizer": tokenizer}
    where |= {"resume": resume, "allow_other_numerics": allow_other_numerics, "ranks": ranks, "sharding": sharding}
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
    ranks: Ranks = SINGLE_PROCESS,
    sharding: Sharding = "ddp",
) -> tuple[dict[str, Any], bool]:
    """As `finetune`, for one of several; also whether a signal came that was too late to stop this one.

    said: what was said of the data already, and need not be again.
    """
    if settings.features and ranks.world_size > 1:
        raise InputError("--features: a BiLSTM on states is trained by one process; start it without torchrun")
    resolve_device(settings.device)  # refused before there is a run folder
    with say_once(said):
        prepared = _prepare(settings, task, model, data, tokenizer, cache=out / "features")
    named = model if model.startswith("random:") else str(Path(model))  # with and without a slash at its end
    facts = {"task": prepared.work.task.model_dump(mode="json"), "model": named, **prepared.digests}
    start: Any = {"resume": resume, "allow_other_numerics": allow_other_numerics, "ranks": ranks}
    run = start_run(out, kind="finetune", settings=settings, data=facts, **start)
    if run.finished:
        say_finished(run)
        if not ranks.is_main:
            return {}, False
        return _where_it_lies(run), False
    with session(run):
        run.note(places={"model": model, "data": str(data.absolute())})
        if run.writes:
            prepared = replace(prepared, saved=with_files(prepared.saved, prepared.words, out / "tokenizer"))
        numerics, together = _resolved(settings, run, Together(ranks, sharding), allow_other=allow_other_numerics)
        # Here, where Ctrl-C ends it at once: in the loop one waits for the end of a step.
        advise_on_full_gpu(prepared.work.ready, lambda: CPU_ADVICE)
        seeds: list[dict[str, Any]] = []
        signalled = False
        for seed in range(settings.first_seed, settings.first_seed + settings.seeds):
            found, signalled = _train_seed(settings, prepared, seed, run, numerics, together)
            seeds += [found] if found else []
            if signalled and len(seeds) < settings.seeds:
                raise Stopped(
                    f"stopped with {len(seeds)} of {settings.seeds} seeds done; the same command with --resume goes on"
                )
        if not ranks.is_main:
            return {}, signalled
        result = _finish(run, settings, prepared, seeds)
        for name in ("features", "tokenizer"):
            shutil.rmtree(out / name, ignore_errors=True)
    return result, signalled


def _prepare(
    settings: FinetuneSettings, task: TaskSpec, source: str, data: Path, folder: Path | None, *, cache: Path
) -> Prepared:
    saved, words = opened(source, folder)
    refuse_unfit(settings, saved.config, source)
    if settings.features:
        return _prepare_features(settings, task, saved, words, data, cache)
    saved = topped(settings, saved)
    work = completed(settings, kind_of(task).prepare(task, data, words, saved.config, settings.max_length), saved)
    saved = starting(settings, work, saved)
    return Prepared(work, saved, words, {**work.digests, "weights": weights_digest(saved), "tokenizer": words.hash})


def _prepare_features(
    settings: FinetuneSettings, task: TaskSpec, saved: SavedModel, words: BaseTokenizer, data: Path, cache: Path
) -> Prepared:
    """The same for the feature-based way: the encoder is done with before the first step."""
    kind = kind_of(task)
    if kind.features is None or settings.features is None:
        raise InputError(f"--features: {task.name} cannot be learned from features")
    bound = kind.features(task, data, words, saved.config, settings.max_length)
    digest = weights_digest(saved)
    work = feature_work(
        bound,
        settings.features,
        width=settings.lstm_width,
        saved=saved,
        cache=cache,
        weights=digest or f"{saved.place} {saved.config.vocab_size}",
        device=settings.device,
    )
    encoder = {f"encoder.{name}": tensor for name, tensor in frozen_encoder(saved).state_dict().items()}
    digests = {**work.digests, "weights": digest, "tokenizer": words.hash}
    return Prepared(work, replace(saved, weights=encoder), words, digests)


def _resolved(
    settings: FinetuneSettings, run: RunFolder, together: "Together", *, allow_other: bool
) -> tuple[Numerics, "Together"]:
    """Settled once; a resumed run takes what was settled, its micro-batches included, whatever its ranks are."""
    if "resolved" not in run.record:
        numerics = resolve_numerics(settings.precision, threads=settings.threads, device=settings.device)
        run.note(resolved=together.ranks.broadcast({**numerics.model_dump(), "ranks": together.ranks.world_size}))
    settled = dict(run.record["resolved"])
    parts = settled.pop("ranks", 1)
    numerics, world = Numerics.model_validate(settled), together.ranks.world_size
    numerics = numerics.share_threads(before=parts, now=world)
    if allow_other and numerics.device != settings.device:
        measured = resolve_numerics(settings.precision, threads=settings.threads, device=settings.device)
        numerics = Numerics.model_validate(together.ranks.broadcast(measured.model_dump()))
        run.note(resolved={**numerics.share_threads(before=world, now=parts).model_dump(), "ranks": parts})
    elif allow_other and not numerics.matches_machine:
        measured = resolve_numerics(numerics.precision, threads=numerics.threads, device=numerics.device)
        numerics = numerics.on_machine(measured)
        changed = numerics.model_dump(include={"processor", "peak_flops"})
        run.note(resolved={**settled, **changed, "ranks": parts})
    apply_numerics(numerics)
    return numerics, replace(together, parts=parts)


def _train_seed(
    settings: FinetuneSettings, prepared: Prepared, seed: int, run: RunFolder, numerics: Numerics, together: "Together"
) -> tuple[dict[str, Any] | None, bool]:
    """One seed in its own run folder: its result, None where it was stopped, and whether a signal came."""
    name = f"seed-{seed}"
    own = start_run(
        run.folder / name, kind="finetune-seed", settings={"seed": seed}, data={}, resume=True, ranks=together.ranks
    )
    work = prepared.work
    plan = planned(settings, work, prepared.saved.config, seed)
    per_epoch = plan.steps // settings.epochs
    plan = replace(plan, evaluate_at=frozenset(per_epoch * (epoch + 1) for epoch in range(settings.epochs)))
    if own.finished:
        if own.writes:
            say_missing_lines(
                own.folder, own.metrics(), plan.expected_lines(plan.steps), state="this seed has finished"
            )
        return {**own.record["result"], "model": str(own.model)}, False
    model = begun(settings, work, prepared.saved, seed)
    best = _Best(own, model, prepared, numerics, together.ranks)
    own.note(resolved={"steps": plan.steps})
    outcome = advise_on_full_gpu(
        lambda: train(
            work.trainable(model),
            steps_of(work, settings.batch_size, seed=seed, parts=together.parts),
            plan=replace(plan, evaluate=best.evaluate),
            numerics=numerics,
            run=own,
            ranks=together.ranks,
            sharding=together.sharding,
        ),
        lambda: _what_fits(settings, work, model, plan, numerics, together.parts),
    )
    if not outcome.finished:
        return None, True
    result = best.result(seed, per_epoch)
    own.note(finished=True, result=result)
    if own.writes:
        shutil.rmtree(own.checkpoints)
    if result["collapsed"]:
        say(f"seed {seed} collapsed: its best epoch answers the same to everything; more data, epochs or another rate")
    say(
        f"seed {seed}: best epoch {result['epoch']}, "
        + ", ".join(f"{key} {value:.4f}" for key, value in result["scores"].items())
    )
    return result, outcome.signalled


def _what_fits(
    settings: FinetuneSettings, work: Work[Any], model: nn.Module, plan: Plan, numerics: Numerics, parts: int
) -> str:
    """After a GPU ran out of memory: how many of the longest rows fit, found by computing ever fewer of them."""
    saves = (
        ""
        if settings.activation_checkpointing or settings.features
        else f"--activation-checkpointing takes less{RESUME_ADVICE}; or "
    )
    if any(map(is_sharded, model.parameters())):  # one rank alone cannot compute anything then
        return f"{saves}begin anew with a smaller --batch-size"
    longest = np.argsort(-work.lengths, kind="stable")

    def compute(rows: int) -> float:
        batch = work.batch(longest[:rows])
        return measure_step_seconds(work.trainable(model), lambda _: [batch], plan=plan, numerics=numerics, seconds=0.0)

    own = min(math.ceil(settings.batch_size / parts), len(longest))
    rows = most_fitting_rows(own, compute)
    if rows == own:
        return FITS_ADVICE
    smaller = f"--batch-size {rows * parts}, whose longest rows fit" if rows else "a smaller --max-length: no row fits"
    return f"{saves}begin anew with {smaller}"


class _Best:
    """Measures each epoch on dev and keeps the best epoch's model folder; its figures are noted beside it, so that what
    is told is of the weights that are kept, even where a resumed run measures an epoch anew and otherwise.
    """

    def __init__(self, own: RunFolder, model: nn.Module, prepared: Prepared, numerics: Numerics, ranks: Ranks) -> None:
        self.own, self.model, self.prepared, self.numerics, self.ranks = own, model, prepared, numerics, ranks

    def evaluate(self, step: int) -> dict[str, float]:
        """Dev figures after an epoch; saves the model where its primary metric is the best so far."""
        with autocast(self.numerics):
            found = self.prepared.work.evaluate(self.model)
        figures: dict[str, float] = self.ranks.broadcast(found)  # on unlike machines the last digits differ
        key = next(iter(figures))
        best = self.own.record.get("best")
        if best is None or figures[key] > best["held_out"][key]:
            self._save()
            self.own.note(best={"step": step, "held_out": figures})
        return figures

    def result(self, seed: int, steps_per_epoch: int) -> dict[str, Any]:
        """The best epoch's figures."""
        best = self.own.record["best"]
        scores = {name: value for name, value in best["held_out"].items() if not name.endswith("collapsed")}
        fell = any(value for name, value in best["held_out"].items() if name.endswith("collapsed"))
        epoch = best["step"] // steps_per_epoch
        return {"seed": seed, "epoch": epoch, "scores": scores, "collapsed": fell, "model": str(self.own.model)}

    def _save(self) -> None:
        saved = self.prepared.saved
        learned = self.prepared.work.answered(self.model)
        weights = full_state(learned.module)
        if not self.own.writes:
            return
        save_weights(
            self.own.model,
            weights,
            config=saved.config,
            tokenizer=saved.tokenizer,
            architecture=learned.architecture,
            labels=learned.labels,
            extra=learned.extra,
        )


def _finish(
    run: RunFolder, settings: FinetuneSettings, prepared: Prepared, seeds: list[dict[str, Any]]
) -> dict[str, Any]:
    metric = next(iter(seeds[0]["scores"]))
    values = [found["scores"][metric] for found in seeds]
    best = max(seeds, key=lambda found: found["scores"][metric])
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
    with atomic_folder(run.model) as folder:
        shutil.copytree(run.folder / f"seed-{best['seed']}" / "model", folder, dirs_exist_ok=True)
        described = read_description(folder / "config.json")
        card = finetuning_card(
            settings,
            described.config,
            task=prepared.work.task.name,
            architecture=described.architecture or "",
            labels=described.labels,
            digests=prepared.work.digests,
            rows=len(prepared.work.lengths),
            max_length=settings.max_length,
            result=result,
            began=origin(prepared.saved.place, prepared.digests["weights"]),
        )
        (folder / CARD).write_text(card, "utf-8")
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
