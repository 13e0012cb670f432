"""text → encoder: a pre-training run from settings to a model folder (paper §3.1 and A.2)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from bertwright.console import say
from bertwright.corpus.checks import refuse_changed
from bertwright.model.system import NAMES
from bertwright.pretraining.init_from import as_begun, began_from
from bertwright.pretraining.measure import (
    affordable_steps,
    fitting,
    pace_here,
    refuse_near,
    resumed,
    settle_compiled,
)
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.setup import Pretraining, prepare
from bertwright.pretraining.systems import (
    task_of,
)
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, Sharding, whole_state
from bertwright.training.hardware import Numerics, apply_numerics
from bertwright.training.loop import Outcome, train
from bertwright.training.run_folder import RunFolder, start_run
from bertwright.training.run_lock import say_finished, session


def pretrain(
    settings: PretrainSettings,
    *,
    corpus: Path | Mapping[Path, float],
    out: Path,
    held_out: Path | None = None,
    init_from: str | None = None,
    resume: bool = False,
    allow_other_numerics: bool = False,
    ranks: Ranks = SINGLE_PROCESS,
    sharding: Sharding = "ddp",
) -> Mapping[str, Any]:
    """Run or continue a pre-training; returns {"steps", "stopped", "held_out", "model", …}.

    corpus: a corpus folder, or several with the weights by which they share each step's rows. ranks, sharding: the
    processes that train together, and how; a run can be resumed by another number of them.
    InputError for bad settings, a held-out corpus of another tokenizer, or a run folder of another configuration.
    """
    if init_from:
        settings = as_begun(settings, out)
    # Everything that can refuse the input comes before the run folder, so that nothing half-made stays behind.
    trained, here = prepare(settings, corpus=corpus, out=out, held_out=held_out, init_from=init_from, ranks=ranks)
    data, measured, model = trained.data, trained.measured, trained.model
    if ranks.is_main:
        for source in [*(source for source, _ in trained.corpora), *([measured] if measured else [])]:
            refuse_changed(source.folder, source.manifest)
    corpora = [{"fingerprint": source.fingerprint, "weight": weight} for source, weight in trained.corpora]
    facts = {
        "corpus": corpora if len(corpora) > 1 else data.fingerprint,
        "held_out": measured.fingerprint if measured else None,
        "init_from": began_from(out, init_from, trained.began),
    }
    settings = trained.settings
    if not (out / "run.json").exists():
        apply_numerics(here)
        fitting(trained, here, lambda: refuse_near(trained, here))
    start: Any = {"resume": resume, "allow_other_numerics": allow_other_numerics, "ranks": ranks}
    run = start_run(out, kind="pretrain", settings=settings, data=facts, **start)
    if run.finished:
        say_finished(run)
        return dict(run.record["result"])
    with session(run):
        held_out_place = str(held_out.absolute()) if held_out else None
        run.note(places={"corpus": str(data.folder.absolute()), "held_out": held_out_place, "init_from": init_from})
        numerics, steps = fitting(trained, here, lambda: resolve(trained, run, here, allow_other=allow_other_numerics))
        what = f"{NAMES[settings.system]} {settings.size}: {trained.num_parameters:,} parameters"
        say(f"{what} · {steps:,} steps of {settings.batch_size} rows")
        outcome = fitting(
            trained,
            numerics,
            lambda: train(
                task_of(model),
                trained.batches(steps),
                plan=trained.with_snapshots(trained.plan(steps), run),
                numerics=numerics,
                run=run,
                ranks=ranks,
                sharding=sharding,
            ),
        )
        weights = whole_state(model)
        if not ranks.is_main:
            return {}
        result = _finish(run, outcome, trained, weights)
    return result if outcome.stopped else {**result, "signalled": outcome.signalled}


def _finish(run: RunFolder, outcome: Outcome, trained: Pretraining, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    result: dict[str, Any] = {"out": str(run.folder), "steps": outcome.steps, "stopped": outcome.stopped}
    if outcome.stopped:
        say(f"stopped after step {outcome.steps}; continue with --resume")
        return result
    result |= {"held_out": dict(outcome.last), "model": str(run.model)}
    trained.save(run.model, weights, steps=outcome.steps, of=outcome.steps, figures=outcome.last)
    run.note(finished=True, result=result)
    return result


def resolve(trained: Pretraining, run: RunFolder, measured: Numerics, *, allow_other: bool) -> tuple[Numerics, int]:
    """Settle precision, threads and steps once; a resumed run takes what was settled, whatever its ranks are."""
    if "resolved" in run.record:
        settled = run.record["resolved"]
        trained.parts = settled.get("ranks", 1)
        numerics = Numerics.model_validate(settled["numerics"])
        numerics = numerics.shared(before=trained.parts, now=trained.ranks.world_size)
        if allow_other and numerics.device != measured.device:
            apply_numerics(measured)
            numerics = Numerics.model_validate(trained.ranks.broadcast(settle_compiled(trained, measured).model_dump()))
            begun = numerics.shared(before=trained.ranks.world_size, now=trained.parts)
            run.note(resolved={**settled, "numerics": begun.model_dump()})
            return numerics, settled["steps"]
        here = numerics.moved_to(measured) if allow_other and not numerics.is_here else numerics
        apply_numerics(here)
        here = resumed(here, allow_other=allow_other)
        if here != numerics:
            changed = here.model_dump(include={"processor", "peak_flops", "compiled"})
            run.note(resolved={**settled, "numerics": {**settled["numerics"], **changed}})
        return here, settled["steps"]
    apply_numerics(measured)
    measured = settle_compiled(trained, measured)
    steps = trained.settings.steps or affordable_steps(trained, pace_here(trained, measured, out=run.folder))
    settled = {"numerics": measured.model_dump(), "steps": steps, "ranks": trained.ranks.world_size}
    settled = trained.ranks.broadcast(settled)
    run.note(resolved=settled)
    return Numerics.model_validate(settled["numerics"]), settled["steps"]
