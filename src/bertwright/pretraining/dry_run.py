"""settings → what a run will take, before it is begun: steps, epochs, hours, disk, memory, and what will hurt."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bertwright.corpus.checks import TOKENS_PER_PIECE
from bertwright.model.system import NAMES
from bertwright.pretraining.measure import Pace, affordable_steps, fitting, foresee, pace_here, refuse_peak
from bertwright.pretraining.resources import Disk, disk_needs, free_bytes, refuse_disk, size_text
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.setup import Pretraining, prepare, snapshot_steps
from bertwright.training.hardware import Numerics, apply_numerics
from bertwright.training.memory import peak_bytes, usable_bytes

_FEWEST_EPOCHS, _MOST_EPOCHS = 1, 40
"""Passes over the text; the paper speaks of 40 over its own (§A.2)."""
_SHORTEST_WARMUP = 10
_PAPER_RATE, _PAPER_WIDTH, _STEEP_RATE = 1e-4, 768, 2e-3
_LINE_BYTES = 230
"""Of a line of metrics.jsonl, about."""


@dataclass(frozen=True)
class PhasePlan:
    """One phase: `tokens` count padding, `epochs` is how often a row is seen, `passes` how often each corpus is."""

    length: int
    steps: int
    rows: int
    tokens: int
    corpus_rows: int
    epochs: float
    passes: tuple[float, ...]
    step_seconds: float


def plan_pretraining(
    settings: PretrainSettings,
    *,
    corpus: Path | Mapping[Path, float],
    out: Path,
    held_out: Path | None = None,
    init_from: str | None = None,
) -> dict[str, Any]:
    """What `pretrain` with the same arguments would take; nothing is written. InputError for what cannot fit."""
    trained, numerics = prepare(
        settings, corpus=corpus, out=out, held_out=held_out, init_from=init_from, write_plans=False
    )
    apply_numerics(numerics)
    memory, pace = fitting(trained, numerics, lambda: _measured(trained, numerics, out))
    steps = settings.steps or affordable_steps(trained, pace)
    phases = plan_phases(trained, pace, steps)
    evaluations = len(trained.plan(steps).evaluate_at)
    training = sum(phase.steps * phase.step_seconds for phase in phases)
    saves = 1 + int(training // (60 * settings.save_minutes))
    disk = planned_disk(trained, phases, saves=saves, evaluations=evaluations)
    refuse_disk(disk, out, trained.data.folder)
    seconds = {
        "training": training,
        "evaluations": evaluations * pace.evaluation,
        "checkpoints": saves * pace.checkpoint,
    }
    found = {
        "system": settings.system,
        "size": settings.size,
        "parameters": trained.num_parameters,
        "precision": numerics.precision,
        "threads": numerics.threads,
        "steps": steps,
        "rows": sum(phase.rows for phase in phases),
        "tokens": sum(phase.tokens for phase in phases),
        "epochs": sum(phase.epochs for phase in phases),
        "phases": [asdict(phase) for phase in phases],
        "hours": sum(seconds.values()) / 3600,
        "seconds": seconds,
        "evaluations": evaluations,
        "saves": saves,
        "disk": {**asdict(disk), "peak": disk.peak, "free": free_bytes(out)},
        "memory": {**memory, "usable": usable_bytes(numerics.device)},
        "warnings": list(warnings(settings, trained, steps, phases)),
        "settings": settings.model_dump(mode="json"),
    }
    return {**found, "text": _text(found)}


def _measured(trained: Pretraining, numerics: Numerics, out: Path) -> tuple[dict[str, int], Pace]:
    """Bytes by name, the peak that was measured among them, and seconds."""
    memory = {name: value for name, value in asdict(foresee(trained, numerics)).items() if name != "accumulates"}
    before = peak_bytes(numerics.device)
    pace = pace_here(trained, numerics, out=out)
    spare = 0 if trained.settings.minutes else memory["weights"]
    memory["measured_peak"] = max(before, peak_bytes(numerics.device)) - spare
    refuse_peak(trained, numerics, memory["measured_peak"])
    return memory, pace


def plan_phases(trained: Pretraining, pace: Pace, steps: int) -> list[PhasePlan]:
    """Steps, rows, tokens and epochs of each phase."""
    planned = []
    for (begin, end), examples, seconds in zip(trained.phase_bounds(steps), trained.phases, pace.steps, strict=True):
        rows = (end - begin) * trained.settings.batch_size
        there = examples.num_rows(0)
        planned.append(
            PhasePlan(
                length=examples.length,
                steps=end - begin,
                rows=rows,
                tokens=rows * examples.length,
                corpus_rows=there,
                epochs=rows / there,
                passes=tuple(examples.passes(rows)),
                step_seconds=seconds,
            )
        )
    return planned


def planned_disk(trained: Pretraining, phases: list[PhasePlan], *, saves: int, evaluations: int) -> Disk:
    """Disk of the whole run, the plans of its epochs included."""
    disk = disk_needs(
        trained.num_parameters,
        trained.num_moments,
        tokenizer=trained.data.folder / "tokenizer",
        saves=saves,
        keep=trained.settings.keep,
        snapshots=len(snapshot_steps(trained.settings.snapshots, sum(phase.steps for phase in phases))),
    )
    lines = sum(phase.steps for phase in phases) // trained.settings.log_every + 1 + evaluations
    rows = Counter[int]()  # a phase goes on in the rows of earlier ones of its length
    for examples, phase in zip(trained.phases, phases, strict=True):
        rows[examples.length] += phase.rows
    of_length = {examples.length: examples for examples in trained.phases}
    plans = sum(of_length[length].missing_plan_bytes(count) for length, count in rows.items())
    return replace(disk, metrics=lines * _LINE_BYTES, plans=plans)


def warnings(settings: PretrainSettings, trained: Pretraining, steps: int, phases: list[PhasePlan]) -> Iterator[str]:
    """Where the settings will hurt; only what the manual, the log or the paper has a figure for."""
    passes = [sum(times) for times in zip(*(phase.passes for phase in phases), strict=True)]
    pieces = trained.data.tokenizer.vocab_size
    tokens = sum(corpus.num_tokens for corpus, _ in trained.corpora)
    optimizer, width = settings.optimizer, trained.config.hidden
    for (corpus, _), times in zip(trained.corpora, passes, strict=True):
        text = "the text" if len(passes) == 1 else f"the text of {corpus.folder}"
        if times < _FEWEST_EPOCHS:
            yield f"{text} is passed {times:.2f} times: part of it is never seen (more --steps, or less text will do)"
        if times > _MOST_EPOCHS:
            yield f"{text} is passed {times:,.0f} times, the paper's 40 times: more text, or fewer --steps"
    fewest = min(phase.corpus_rows for phase in phases)
    if settings.batch_size > fewest:
        yield f"a step has {settings.batch_size} rows and the corpus {fewest}: every step sees rows more than once"
    if tokens < TOKENS_PER_PIECE * pieces:
        yield (
            f"{tokens / pieces:.1f} tokens of text for each of the {pieces:,} pieces of the vocabulary: aim at "
            f"{TOKENS_PER_PIECE} or more, with more text or a smaller vocabulary"
        )
    rising = int(steps * optimizer.warmup)
    if rising < _SHORTEST_WARMUP and not optimizer.bias_correction:
        yield (
            f"the rate rises over {rising} steps: Adam without bias correction begins with updates 3.2 times as large, "
            "which warm-up hides; a larger --warmup, more steps, or --bias-correction"
        )
    begins_anew = trained.began is None
    if begins_anew and width < _PAPER_WIDTH and optimizer.learning_rate <= _PAPER_RATE:
        yield (
            f"a rate of {optimizer.learning_rate:g} is the paper's for 768 hidden, 256 rows, a million steps; here are "
            f"{width} hidden, {settings.batch_size} rows and {steps:,} steps, and tiny learned with 1e-3 to 2e-3 "
            "(--recipe two-cores)"
        )
    if optimizer.learning_rate >= _STEEP_RATE and not optimizer.bias_correction:
        yield f"a rate of {optimizer.learning_rate:g} without --bias-correction collapsed a tiny encoder to one vector"
    if (
        begins_anew
        and settings.system == "bert"
        and width == 128
        and settings.start == "random"
        and steps > _SHORTEST_WARMUP
    ):
        yield "128 hidden sit for thousands of steps at the loss of a bag of words: --start local ends that"
    if settings.start == "matching" and optimizer.method != "muon":
        yield "under AdamW the head that --start matching begins with was lost again: --optimizer muon kept it"
    if settings.examples.pairs and phases[0].length <= 32 < phases[-1].length:
        yield "what rows of 32 teach next-sentence prediction did not carry over to longer ones: no short rows first"


def _text(found: Mapping[str, Any]) -> str:
    """The plan for people."""
    disk, memory, seconds = found["disk"], found["memory"], found["seconds"]
    held = sum(memory[name] for name in ("weights", "gradients", "moments"))
    lines = [
        f"{NAMES[found['system']]} {found['size']}: {found['parameters']:,} parameters, {found['precision']}, "
        f"threads: {found['threads']}",
        "",
        "  rows of       steps          rows            tokens   corpus' rows    each seen       a step           time",
    ]
    for phase in found["phases"]:
        lines.append(
            f"  {phase['length']:7}{phase['steps']:12,}{phase['rows']:14,}{phase['tokens']:18,}"
            f"{phase['corpus_rows']:15,}{phase['epochs']:8,.2f} times{phase['step_seconds']:11,.2f} s"
            f"{_time(phase['steps'] * phase['step_seconds']):>15}"
        )
    lines += [
        f"  in all {found['steps']:12,}{found['rows']:14,}{found['tokens']:18,}{'':15}{found['epochs']:8,.2f} times"
        f"{'':13}{_time(seconds['training']):>15}",
        "",
        f"  time     {_time(3600 * found['hours'])}, of it {_time(seconds['evaluations'])} for {found['evaluations']} "
        f"evaluations and {_time(seconds['checkpoints'])} for {found['saves']:,} checkpoints",
        f"  memory   {size_text(memory['measured_peak'])} at the peak, measured "
        f"(weights, gradients and moments {size_text(held)}); {_limit(memory['usable'])} can be used",
        f"  disk     {size_text(disk['peak'])} ({disk['checkpoints']} checkpoints of {size_text(disk['checkpoint'])}, "
        f"a model of {size_text(disk['model'])}, snapshots {size_text(disk['snapshots'])}, "
        f"metrics {size_text(disk['metrics'])}); "
        f"{size_text(disk['free'])} are free",
        f"           {size_text(disk['plans'])} more for plans beside the corpus",
        "",
        *(f"  warning: {warning}" for warning in found["warnings"]),
    ]
    return "\n".join(lines).rstrip()


def _limit(usable: int | None) -> str:
    return "nobody knows how much" if usable is None else size_text(usable)


def _time(seconds: float) -> str:
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds / 86400:,.1f} days"
