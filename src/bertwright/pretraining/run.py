"""Shards → encoder: a pre-training run from settings to a model folder (paper §3.1 and A.2)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bertwright.console import say
from bertwright.corpus.checks import refuse_changed
from bertwright.errors import InputError
from bertwright.model.system import NAMES
from bertwright.objectives.masked_lm import GENERATOR_FOLDER
from bertwright.pretraining.dry_run import begin_of_extension, data_facts, refuse_without_predictions, run_warnings
from bertwright.pretraining.extend import BEGIN, begin_from, extension
from bertwright.pretraining.frequencies import no_better_than_frequencies
from bertwright.pretraining.measure import (
    advise_micro_tokens,
    affordable_steps,
    choose_compiled,
    measure_timings,
    preflight_if_close,
    resume_compiled,
)
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.setup import Pretraining, prepare_pretraining
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, Sharding, full_state
from bertwright.training.hardware import Numerics, apply_numerics, resolve_numerics
from bertwright.training.loop import Outcome, train
from bertwright.training.run_folder import RunFolder, start_run
from bertwright.training.run_lock import say_finished, session
from bertwright.training.tracked_run import tracked


def pretrain(
    settings: PretrainSettings,
    *,
    corpus: Path | Mapping[Path, float],
    out: Path,
    held_out: Path | None = None,
    init_from: str | None = None,
    extend: Path | None = None,
    resume: bool = False,
    allow_other_numerics: bool = False,
    numerics: Numerics | None = None,
    ranks: Ranks = SINGLE_PROCESS,
    sharding: Sharding = "ddp",
) -> Mapping[str, Any]:
    """Start or resume a pre-training run; return {"out", "steps", "stopped", "held_out", "model", …}.

    corpus: a corpus folder, or several with weights, in proportion to which the rows of a step are drawn.
    extend: a run with the schedule wsd that this run makes longer.
    numerics: those of this machine, where they were measured for the same settings; None measures them.
    ranks, sharding: the processes that train together, and how they divide the model. A run may resume with another
        number of processes.
    Raises InputError for bad settings, corpora of several tokenizers, and a run folder of another configuration.
    """
    # Everything that can refuse the input comes before the run folder, so that a refusal leaves nothing behind.
    pretraining, measured = prepare_pretraining(
        settings, corpus=corpus, out=out, held_out=held_out, init_from=init_from, numerics=numerics, ranks=ranks
    )
    options: Any = {"resume": resume, "allow_other_numerics": allow_other_numerics, "sharding": sharding}
    options["extend"] = extend
    return pretrain_prepared(pretraining, measured, out=out, held_out=held_out, init_from=init_from, **options)


def pretrain_prepared(
    pretraining: Pretraining,
    measured: Numerics,
    *,
    out: Path,
    held_out: Path | None,
    init_from: str | None,
    resume: bool,
    allow_other_numerics: bool,
    extend: Path | None = None,
    sharding: Sharding = "ddp",
) -> Mapping[str, Any]:
    """Start or resume the run of a prepared pre-training, on a machine with the numerics `measured`; see `pretrain`."""
    ranks = pretraining.ranks
    _refuse_changed_corpora(pretraining)
    data = data_facts(pretraining)
    begin = begin_of_extension(extend, pretraining) if extend else None
    if not (out / "run.json").exists():
        refuse_without_predictions(pretraining)
        apply_numerics(measured)
        advise_micro_tokens(pretraining, measured, lambda: preflight_if_close(pretraining, measured))
    run = start_run(
        out,
        kind="pretrain",
        settings=pretraining.settings,
        data=data | extension(out, begin),
        resume=resume,
        allow_other_numerics=allow_other_numerics,
        ranks=ranks,
    )
    if run.finished:
        say_finished(run)
        return {**run.record["result"], "out": str(run.folder), "model": str(run.model)}  # it may have been moved
    with session(run):
        run.note(
            places={
                "corpus": str(pretraining.corpus.folder.absolute()),
                "held_out": str(held_out.absolute()) if held_out else None,
                "init_from": init_from,
            }
        )
        is_resumed = "resolved" in run.record
        begin_from(begin, run)
        ranks.wait_for_main()
        resolved, steps = advise_micro_tokens(
            pretraining, measured, lambda: resolve_run(pretraining, run, measured, allow_other=allow_other_numerics)
        )
        noted = run.record.get("warnings")
        warnings = run_warnings(pretraining, steps) if noted is None else noted
        run.note(exposure=pretraining.exposure.record(steps, steps), warnings=warnings)
        for warning in [] if is_resumed else warnings:
            say(f"warning: {warning}")
        with tracked(run):
            outcome = _train(pretraining, run, resolved, steps, sharding)
            return _finish(pretraining, run, outcome)


def _refuse_changed_corpora(pretraining: Pretraining) -> None:
    """Raise InputError where the files of a corpus are not those of its manifest. Rank zero checks for all ranks."""
    for corpus in (*(corpus for corpus, _ in pretraining.corpora), pretraining.validation_corpus):
        if corpus and pretraining.ranks.is_main:
            refuse_changed(corpus.folder, corpus.manifest)
    pretraining.ranks.wait_for_main()


def resolve_run(
    pretraining: Pretraining, run: RunFolder, measured: Numerics, *, allow_other: bool
) -> tuple[Numerics, int]:
    """Return the numerics and the number of steps of a run, and apply the numerics to this process.

    They are resolved once and noted in run.json. A resumed run takes them from there, whatever its number of ranks.
    measured: numerics of this machine.
    """
    measured = measured.for_model(compiled_steps=pretraining.config.has_compiled_steps)
    if "resolved" in run.record:
        return _resume_resolved(pretraining, run, measured, allow_other=allow_other)
    apply_numerics(measured)
    numerics = choose_compiled(pretraining, measured)
    steps = pretraining.steps
    if steps is None:
        steps = affordable_steps(pretraining.settings, measure_timings(pretraining, numerics, out=run.folder))
    ranks = pretraining.ranks
    _refuse_other_processors(pretraining, numerics)
    resolved = ranks.broadcast({"numerics": numerics.model_dump(), "steps": steps, "ranks": ranks.world_size})
    run.note(resolved=resolved)
    numerics = Numerics.model_validate(resolved["numerics"])
    torch.set_num_threads(numerics.threads)  # updates may depend on it
    return numerics, resolved["steps"]


def _refuse_other_processors(pretraining: Pretraining, numerics: Numerics) -> None:
    """Raise InputError on all ranks for Muon where the processor of one is not that of rank zero."""
    if pretraining.settings.optimizer.method != "muon":
        return
    ranks = pretraining.ranks
    of_rank_zero = ranks.broadcast(numerics.processor)
    if others := round(ranks.sum([float(numerics.processor != of_rank_zero)])[0]):
        raise InputError(
            f"--optimizer muon: {others} of {ranks.world_size} ranks have another processor than rank 0, which has "
            f"{of_rank_zero}; expected one kind, since each rank computes the updates of the matrices by itself; "
            "--optimizer adamw takes any, in another --out"
        )


def _resume_resolved(
    pretraining: Pretraining, run: RunFolder, measured: Numerics, *, allow_other: bool
) -> tuple[Numerics, int]:
    """Return the numerics and the number of steps noted in run.json, and apply the numerics.

    With `allow_other`, those of another device, machine or compiler take their place and are noted.
    """
    resolved, ranks = run.record["resolved"], pretraining.ranks
    pretraining.processes = resolved["ranks"]
    noted = Numerics.model_validate({**resolved["numerics"], "compiled_steps": measured.compiled_steps})
    noted = noted.share_threads(before=pretraining.processes, now=ranks.world_size)
    if allow_other and noted.device != measured.device:
        apply_numerics(measured)
        numerics = Numerics.model_validate(ranks.broadcast(choose_compiled(pretraining, measured).model_dump()))
        to_note = numerics.share_threads(before=ranks.world_size, now=pretraining.processes)
        run.note(resolved={**resolved, "numerics": to_note.model_dump()})
        return numerics, resolved["steps"]
    numerics = noted
    if allow_other and not noted.matches_machine:
        if measured.precision != noted.precision:  # `auto` would choose another one here
            here = resolve_numerics(noted.precision, threads=noted.threads, device=noted.device)
            measured = here.for_model(compiled_steps=noted.compiled_steps)
        numerics = noted.on_machine(measured)
    apply_numerics(numerics)
    _refuse_other_processors(pretraining, numerics)
    numerics = resume_compiled(numerics, allow_other=allow_other)
    if numerics != noted:
        changes = numerics.model_dump(include={"processor", "peak_flops", "compiled"})
        run.note(resolved={**resolved, "numerics": {**resolved["numerics"], **changes}})
    return numerics, resolved["steps"]


def _train(pretraining: Pretraining, run: RunFolder, numerics: Numerics, steps: int, sharding: Sharding) -> Outcome:
    """Train to the end of the run or to a signal."""
    settings = pretraining.settings
    say(
        f"{NAMES[settings.system]} {settings.size}: {pretraining.num_parameters:,} parameters · {steps:,} steps of "
        f"{settings.batch_text} rows · {pretraining.exposure.text(steps, steps)}"
    )
    plan = pretraining.plan(steps, run=run)
    begin = run.record.get(BEGIN, 0)  # evaluations before it are those of the run that this one extends
    plan = replace(plan, evaluate_at=frozenset(step for step in plan.evaluate_at if step > begin))
    return advise_micro_tokens(
        pretraining,
        numerics,
        lambda: train(
            pretraining.trainable(),
            pretraining.batches(steps),
            plan=plan,
            numerics=numerics,
            run=run,
            ranks=pretraining.ranks,
            sharding=sharding,
        ),
    )


def _finish(pretraining: Pretraining, run: RunFolder, outcome: Outcome) -> dict[str, Any]:
    """Write the model folder where the run has finished. Return the result on rank zero, and nothing on the others."""
    weights = full_state(pretraining.model)  # every rank takes part
    if not pretraining.ranks.is_main:
        return {}
    result: dict[str, Any] = {"out": str(run.folder), "steps": outcome.steps, "stopped": not outcome.finished}
    if not outcome.finished:
        say(f"stopped after step {outcome.steps}; continue with --resume")
        return result
    result |= pretraining.exposure.record(outcome.steps, outcome.steps)
    result |= {"held_out": dict(outcome.last), "model": str(run.model)}
    generator = run.folder / GENERATOR_FOLDER
    steps = outcome.steps
    pretraining.save(run.model, weights, steps=steps, of=steps, metrics=outcome.last, generator=generator)
    run.note(finished=True, result=result)
    if warning := no_better_than_frequencies(pretraining, outcome.last):
        say(f"warning: {warning}")
    return {**result, "signalled": outcome.signalled}
