"""encoder → task model: fine-tune on labelled data with several seeds; keep each seed's best epoch (paper §4.1)."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bertwright.console import say, say_once
from bertwright.errors import InputError, Stopped
from bertwright.finetuning.batches import steps_of
from bertwright.finetuning.best_epoch import BestEpoch, Epochs
from bertwright.finetuning.memory import advise_batch_size
from bertwright.finetuning.mining import with_mined
from bertwright.finetuning.piece_weights import with_piece_weights
from bertwright.finetuning.prepare import STATES, Prepared, prepare, schedule, with_chosen_first
from bertwright.finetuning.result import finish_run, finished_result
from bertwright.finetuning.run_baselines import note_baselines
from bertwright.finetuning.schedule import ScheduledSettings, chosen_values
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.setup import (
    initial_model,
    train_plan,
    with_files,
)
from bertwright.stores.cache import url_of_copy
from bertwright.tasks.spec import TaskSpec
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, Sharding
from bertwright.training.hardware import Numerics, apply_numerics, resolve_device, resolve_numerics
from bertwright.training.loop import Plan, train
from bertwright.training.missing_lines import say_missing_lines
from bertwright.training.run_folder import RunFolder, refuse_used, start_run
from bertwright.training.run_lock import say_finished, session
from bertwright.training.tracked_run import tracked
from bertwright.training.trial import CPU_ADVICE, advise_on_full_gpu

_TOKENIZER = ".tokenizer"
"""Folder of a run with the tokenizer of its model while it trains."""
AfterEpoch = Callable[[int, float, float], None]
"""Called after each epoch with the seed, the fraction of its training that is done, and the metric that chooses the
best epoch. An exception that it raises ends the run."""


@dataclass(frozen=True, kw_only=True)
class TuneRequest:
    """Paths of a fine-tuning, and whether it continues the run in `out`.

    model      model folder, run folder, name or URL
    data       folder or file with labelled rows
    out        run folder
    tokenizer  vocabulary folder of a model without one
    allow_other_numerics  a resumed run may be on another kind of processor or torch
    """

    model: str
    data: Path
    out: Path
    tokenizer: Path | None = None
    resume: bool = False
    allow_other_numerics: bool = False


@dataclass(frozen=True)
class Processes:
    """The processes that train, how they shard the model, and the smallest number of micro-batches per step.

    parts   number of processes with which the run began; a resumed run keeps it, so that its sums stay the same
    """

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
    """Fine-tune and validate; return {"task", "metric", "scores", "mean", "sd", "seeds", "model", …}.

    ranks, sharding: the processes that train together, and how they share the model.
    """
    how: Any = {"resume": resume, "allow_other_numerics": allow_other_numerics}
    request = TuneRequest(model=model, data=data, out=out, tokenizer=tokenizer, **how)
    return tune(settings, task, request, printed=set(), ranks=ranks, sharding=sharding)[0]


def tune(
    settings: FinetuneSettings,
    task: TaskSpec,
    request: TuneRequest,
    *,
    printed: set[str],
    ranks: Ranks = SINGLE_PROCESS,
    sharding: Sharding = "ddp",
    after_epoch: AfterEpoch | None = None,
) -> tuple[dict[str, Any], bool]:
    """Fine-tune as one of several runs; return the result, and True where a signal came too late to stop the run.

    printed: messages about the data that earlier runs have printed; they are not repeated.
    """
    if settings.features and ranks.world_size > 1:
        raise InputError("--features needs one process; start it without torchrun")
    refuse_used(request.out, resume=request.resume, ranks=ranks)
    resolve_device(settings.device)  # refuse before a run folder is created
    with say_once(printed):
        prepared = prepare(settings, task, request.model, request.data, request.tokenizer, cache=request.out / STATES)
        scheduled = schedule(settings, prepared)
    chosen = chosen_values(settings, scheduled, max_length=prepared.bound.task.max_length)
    more: Any = {"ranks": ranks, "sharding": sharding, "after_epoch": after_epoch}
    return train_seeds(scheduled, prepared, request, chosen=chosen, **more)


def train_seeds(
    settings: ScheduledSettings,
    prepared: Prepared,
    request: TuneRequest,
    *,
    chosen: Mapping[str, Any],
    ranks: Ranks = SINGLE_PROCESS,
    sharding: Sharding = "ddp",
    after_epoch: AfterEpoch | None = None,
) -> tuple[dict[str, Any], bool]:
    """Train all seeds of a prepared task; return what `tune` does.

    chosen: settings that the program chose.
    """
    model, data, out = request.model, request.data, request.out
    source = (
        model if model.startswith("random:") else url_of_copy(model) or str(Path(model))
    )  # without a slash at the end
    run = start_run(
        out,
        kind="finetune",
        settings=settings,
        data={"task": prepared.bound.task.model_dump(mode="json"), "model": source, **prepared.digests},
        resume=request.resume,
        allow_other_numerics=request.allow_other_numerics,
        ranks=ranks,
    )
    if run.finished:
        if run.writes:
            _remove_work(out)
        say_finished(run)
        return (finished_result(run) if ranks.is_main else {}), False
    with session(run):
        run.note(places={"model": model, "data": str(data.absolute())})
        if "chosen" not in run.record:  # the first start decides, so that a resumed run writes the same card
            run.note(chosen=dict(chosen))
        if run.writes:
            prepared = replace(prepared, saved=with_files(prepared.saved, prepared.tokenizer, out / _TOKENIZER))
        processes, steps = Processes(ranks, sharding), prepared.saved.config.has_compiled_steps
        allow_other = request.allow_other_numerics
        numerics, processes = _resolved(settings, run, processes, steps, allow_other=allow_other)
        # Outside the training loop, in which Ctrl-C waits for the end of a step.
        prepared = advise_on_full_gpu(lambda: with_mined(run, settings, prepared, data, ranks), lambda: CPU_ADVICE)
        weigh = partial(with_piece_weights, run, settings, prepared, data, ranks)
        prepared = advise_on_full_gpu(weigh, lambda: CPU_ADVICE)
        advise_on_full_gpu(prepared.bound.prepare, lambda: CPU_ADVICE)
        advise_on_full_gpu(lambda: note_baselines(run, settings, prepared), lambda: CPU_ADVICE)
        _check_best(settings, run, prepared, ranks)
        seeds: list[dict[str, Any]] = []
        signalled = False
        for seed in range(settings.first_seed, settings.first_seed + settings.seeds):
            seed_result, signalled = _train_seed(settings, prepared, seed, run, numerics, processes, after_epoch)
            seeds += [seed_result] if seed_result else []
            if signalled and len(seeds) < settings.seeds:
                raise Stopped(
                    f"stopped with {len(seeds)} of {settings.seeds} seeds done; continue with the same command and "
                    f"--resume, or use the best epoch so far: --model {out / f'seed-{seed}'}"
                )
        if not ranks.is_main:
            return {}, signalled
        result = finish_run(run, settings, prepared, seeds)
        _remove_work(out)
    return result, signalled


def _remove_work(out: Path) -> None:
    """Remove what a run needs only while it trains; a kill after its end may have left it."""
    for name in (STATES, _TOKENIZER):
        shutil.rmtree(out / name, ignore_errors=True)


def _check_best(settings: FinetuneSettings, run: RunFolder, prepared: Prepared, ranks: Ranks) -> None:
    """Raise InputError before step 0 where the metrics of the baselines lack the one that chooses the best epoch."""
    ranks.wait_for_main()  # it has computed the baselines alone
    measured = ranks.broadcast(run.record["baselines"]["metrics"] if ranks.is_main else None)
    metrics = {name: value for of_baseline in measured.values() for name, value in of_baseline.items()}
    if len(files := prepared.bound.validation) > 1:
        metrics = {f"{file}.{name}": value for file in files for name, value in metrics.items()}
    if settings.best is not None and metrics:
        try:
            with_chosen_first(metrics, settings.best)
        except InputError as error:
            raise InputError(f"{error}. Then remove {run.folder}, or name another --out") from None


def _resolved(
    settings: FinetuneSettings, run: RunFolder, processes: Processes, compiled_steps: bool, *, allow_other: bool
) -> tuple[Numerics, Processes]:
    """Return the numerics and the processes with the run's number of micro-batches.

    Both are decided when the run begins, and stored in run.json. With `allow_other` a resumed run may change the device
    and the processor. compiled_steps: see `Numerics`.
    """
    if "resolved" not in run.record:
        numerics = resolve_numerics(settings.precision, threads=settings.threads, device=settings.device)
        numerics = numerics.for_model(compiled_steps=compiled_steps)
        run.note(resolved=processes.ranks.broadcast({**numerics.model_dump(), "ranks": processes.ranks.world_size}))
    stored = dict(run.record["resolved"])
    parts = stored.pop("ranks", 1)
    numerics, world = Numerics.model_validate({**stored, "compiled_steps": compiled_steps}), processes.ranks.world_size
    numerics = numerics.share_threads(before=parts, now=world)
    if allow_other and numerics.device != settings.device:
        measured = resolve_numerics(settings.precision, threads=settings.threads, device=settings.device)
        measured = measured.for_model(compiled_steps=compiled_steps)
        numerics = Numerics.model_validate(processes.ranks.broadcast(measured.model_dump()))
        run.note(resolved={**numerics.share_threads(before=world, now=parts).model_dump(), "ranks": parts})
    elif allow_other and not numerics.matches_machine:
        measured = resolve_numerics(numerics.precision, threads=numerics.threads, device=numerics.device)
        numerics = numerics.on_machine(measured.for_model(compiled_steps=compiled_steps))
        changed = numerics.model_dump(include={"processor", "peak_flops"})
        run.note(resolved={**stored, **changed, "ranks": parts})
    apply_numerics(numerics)
    return numerics, replace(processes, parts=parts)


def _finished_seed(seed_run: RunFolder, plan: Plan, per_epoch: int) -> dict[str, Any]:
    """Return the result of a seed that has finished; report lines that its log lacks, and remove its checkpoints."""
    if seed_run.writes:
        done = per_epoch * len(seed_run.record["result"].get("epochs", ())) or plan.steps
        lines = plan.expected_lines(done)
        say_missing_lines(seed_run.folder, seed_run.metrics(), lines, state="this seed has finished")
        shutil.rmtree(seed_run.checkpoints, ignore_errors=True)
    return {**seed_run.record["result"], "model": str(seed_run.model)}


def _train_seed(
    settings: ScheduledSettings,
    prepared: Prepared,
    seed: int,
    run: RunFolder,
    numerics: Numerics,
    processes: Processes,
    after_epoch: AfterEpoch | None,
) -> tuple[dict[str, Any] | None, bool]:
    """Train one seed in its own run folder; return its result (None where stopped), and True after a signal."""
    name = f"seed-{seed}"
    seed_run = start_run(
        run.folder / name, kind="finetune-seed", settings={"seed": seed}, data={}, resume=True, ranks=processes.ranks
    )
    bound = prepared.bound
    plan = train_plan(settings, bound, prepared.saved.config, seed)
    per_epoch = plan.steps // settings.epochs
    plan = replace(plan, evaluate_at=frozenset(per_epoch * (epoch + 1) for epoch in range(settings.epochs)))
    if seed_run.finished:
        return _finished_seed(seed_run, plan, per_epoch), False
    model = initial_model(settings, bound, prepared.saved, seed)
    printed = seed == settings.first_seed and seed_run.writes
    after = partial(after_epoch, seed) if after_epoch else None
    epochs = Epochs(per_epoch, settings.epochs, settings.patience, printed=printed, after=after)
    best = BestEpoch(seed_run, model, prepared, numerics, processes.ranks, epochs, settings.best)
    seed_run.note(resolved={"steps": plan.steps})
    with tracked(seed_run):
        outcome = advise_on_full_gpu(
            lambda: train(
                bound.trainable(model),
                steps_of(bound, settings.batch_size, seed=seed, parts=processes.parts),
                plan=replace(plan, evaluate=best.evaluate, is_enough=best.is_enough),
                numerics=numerics,
                run=seed_run,
                ranks=processes.ranks,
                sharding=processes.sharding,
            ),
            lambda: advise_batch_size(settings, bound, model, plan, numerics, processes.parts),
        )
        if not outcome.finished:
            return None, True
        result = best.result(seed)
        seed_run.note(finished=True, result=result)
        if seed_run.writes:
            shutil.rmtree(seed_run.checkpoints, ignore_errors=True)
    if result["collapsed"]:
        say(
            f"seed {seed} collapsed: all predictions of its best epoch are equal, or nearly so for numbers (under 1 % "
            "of the deviation of the targets); try more data, more epochs or another learning rate"
        )
    trained = len(result["epochs"])
    early = f" of {trained}, no better one in the last {settings.patience}" if trained < settings.epochs else ""
    say(
        f"seed {seed}: best epoch {result['epoch']}{early}, "
        + ", ".join(f"{key} {value:.4f}" for key, value in result["scores"].items())
    )
    return result, outcome.signalled
