"""Settings → the plan of a run before it starts: steps, epochs, hours, disk, memory, and warnings."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bertwright.console import table_lines
from bertwright.corpus.checks import TOKENS_PER_PIECE
from bertwright.corpus.overlap import PartOfCorpus, num_shared
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.model.system import MASKED_LM_SYSTEMS, NAMES
from bertwright.objectives.dataset import used_documents
from bertwright.objectives.settings import Part
from bertwright.pretraining.extend import stable_checkpoint
from bertwright.pretraining.measure import (
    Timings,
    advise_micro_tokens,
    affordable_steps,
    measure_timings,
    memory_preflight,
    refuse_measured,
)
from bertwright.pretraining.resources import Disk, estimate_disk, free_bytes, refuse_disk, size_text
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.setup import Pretraining, prepare_pretraining
from bertwright.training.hardware import Numerics, apply_numerics
from bertwright.training.memory import peak_bytes, usable_bytes
from bertwright.training.run_files import step_of

_FEWEST_EPOCHS, _MOST_EPOCHS = 1, 40
"""Passes over the text outside of which there is a warning; the paper made 40 over its own (§A.2)."""
_SHORTEST_WARMUP = 10
"""Steps of warm-up below which there is a warning."""
_PAPER_RATE, _PAPER_WIDTH, _STEEP_RATE = 1e-4, 768, 2e-3
_LINE_BYTES = 230
"""Bytes of a line of metrics.jsonl, approximately."""


@dataclass(frozen=True)
class PhasePlan:
    """Size and time of one phase."""

    length: int
    """Tokens of a row."""
    batch_size: int
    """Rows of a step."""
    steps: int
    rows: int
    tokens: int
    """Number of tokens, padding included."""
    corpus_rows: int
    """Rows of one epoch."""
    epochs: float
    """Number of times that each row is seen."""
    passes: tuple[float, ...]
    """Number of passes over each corpus."""
    step_seconds: float
    left: int
    """Steps that a run with --extend still has to train; otherwise all."""


def plan_pretraining(
    settings: PretrainSettings,
    *,
    corpus: Path | Mapping[Path, float],
    out: Path,
    held_out: Path | None = None,
    init_from: str | None = None,
    extend: Path | None = None,
    numerics: Numerics | None = None,
) -> dict[str, Any]:
    """Return the plan of `pretrain` with the same arguments, without a file. InputError where the run cannot fit."""
    paths: Any = {"corpus": corpus, "out": out, "held_out": held_out, "init_from": init_from}
    pretraining, measured = prepare_pretraining(settings, **paths, write_plans=False, numerics=numerics)
    apply_numerics(measured)
    refuse_without_predictions(pretraining)
    done = step_of(begin_of_extension(extend, pretraining).name) if extend else 0
    memory, timings = advise_micro_tokens(pretraining, measured, lambda: _measure(pretraining, measured, out))
    steps = pretraining.steps or affordable_steps(pretraining.settings, timings)
    phases = plan_phases(pretraining, timings, steps, done=done)
    evaluations = sum(step > done for step in pretraining.plan(steps).evaluate_at)
    training_seconds = sum(phase.left * phase.step_seconds for phase in phases)
    saves = 1 + int(training_seconds // (60 * settings.save_minutes))
    disk = run_disk(pretraining, phases, saves=saves, evaluations=evaluations)
    refuse_disk(disk, out, pretraining.corpus.folder)
    seconds = {
        "training": training_seconds,
        "evaluations": evaluations * timings.evaluation,
        "checkpoints": saves * timings.checkpoint,
    }
    plan = {
        "system": settings.system,
        "size": pretraining.settings.size,
        "parameters": pretraining.num_parameters,
        "precision": measured.precision,
        "threads": measured.threads,
        "steps": steps,
        "steps_done": done,
        "rows": sum(phase.rows for phase in phases),
        "tokens": sum(phase.tokens for phase in phases),
        "epochs": sum(phase.epochs for phase in phases),
        "words": pretraining.exposure.record(steps, steps).get("words"),
        "exposure": pretraining.exposure.text(steps, steps),
        "phases": [asdict(phase) for phase in phases],
        "hours": sum(seconds.values()) / 3600,
        "seconds": seconds,
        "evaluations": evaluations,
        "saves": saves,
        "disk": {**asdict(disk), "peak": disk.peak, "free": free_bytes(out)},
        "memory": {**memory, "usable": usable_bytes(measured.device)},
        "warnings": list(plan_warnings(pretraining.settings, pretraining, steps, phases)),
        "settings": pretraining.settings.model_dump(mode="json"),
    }
    return {**plan, "text": _plan_text(plan)}


def _measure(pretraining: Pretraining, numerics: Numerics, out: Path) -> tuple[dict[str, int], Timings]:
    """Return bytes of memory by name, with the measured peak, and timings."""
    estimate = asdict(memory_preflight(pretraining, numerics))
    memory = {name: value for name, value in estimate.items() if name != "accumulates"}
    peak_before = peak_bytes(numerics.device)
    timings = measure_timings(pretraining, numerics, out=out)
    weights_copy = 0 if pretraining.settings.minutes else memory["weights"]  # a run of steps has no trial steps
    memory["measured_peak"] = max(peak_before, peak_bytes(numerics.device)) - weights_copy
    refuse_measured(pretraining, numerics, memory["measured_peak"])
    return memory, timings


def data_facts(pretraining: Pretraining) -> dict[str, Any]:
    """Return the fingerprints of the corpora and of the initial model, which a resumed run must have."""
    corpora = [{"fingerprint": corpus.fingerprint, "weight": weight} for corpus, weight in pretraining.corpora]
    validation_corpus, initial_model = pretraining.validation_corpus, pretraining.initial_model
    return {
        "corpus": corpora if len(corpora) > 1 else pretraining.corpus.fingerprint,
        "held_out": validation_corpus.fingerprint if validation_corpus else None,
        "init_from": f"sha256:{initial_model[1]}" if initial_model else None,
        **({"teacher": pretraining.teaching.digest} if pretraining.teaching else {}),
    }


def begin_of_extension(extend: Path, pretraining: Pretraining) -> Path:
    """Return the checkpoint of the run `extend` from which the longer run begins; see `stable_checkpoint`."""
    warmup = pretraining.settings.optimizer.warmup
    return stable_checkpoint(extend, data_facts(pretraining), pretraining.steps, warmup=warmup)


def plan_phases(pretraining: Pretraining, timings: Timings, steps: int, *, done: int = 0) -> list[PhasePlan]:
    """Return the plan of each phase of a run of `steps` steps, of which `done` are trained already."""
    phases = []
    bounds = pretraining.phase_bounds(steps)
    stages = zip(bounds, pretraining.stages, pretraining.phase_rows, timings.steps, strict=True)
    for (begin, end), stage, examples, seconds in stages:
        rows = (end - begin) * stage.batch_size
        corpus_rows = examples.num_rows(0)
        phases.append(
            PhasePlan(
                length=examples.length,
                batch_size=stage.batch_size,
                steps=end - begin,
                rows=rows,
                tokens=rows * examples.length,
                corpus_rows=corpus_rows,
                epochs=rows / corpus_rows,
                passes=tuple(examples.passes(rows)),
                step_seconds=seconds,
                left=end - min(max(begin, done), end),
            )
        )
    return phases


def run_disk(pretraining: Pretraining, phases: list[PhasePlan], *, saves: int, evaluations: int) -> Disk:
    """Return the disk of the whole run, with metrics.jsonl and the pair indexes of its epochs."""
    kept = pretraining.kept_models(Path(), sum(phase.steps for phase in phases))
    disk = estimate_disk(
        pretraining.num_parameters,
        pretraining.num_moments,
        tokenizer=pretraining.corpus.folder / "tokenizer",
        saves=saves,
        keep=pretraining.settings.kept_checkpoints,
        snapshots=sum(map(len, kept.values())),
    )
    lines = sum(phase.steps for phase in phases) // pretraining.settings.log_every + 1 + evaluations
    rows_by_length = Counter[int]()  # a phase continues after the rows of earlier phases of its length
    for phase in phases:
        rows_by_length[phase.length] += phase.rows
    examples_by_length = {examples.length: examples for examples in pretraining.phase_rows}
    plans = sum(examples_by_length[length].missing_plan_bytes(rows) for length, rows in rows_by_length.items())
    return replace(disk, metrics=lines * _LINE_BYTES, plans=plans)


def refuse_without_predictions(pretraining: Pretraining) -> None:
    """Raise InputError where masks of whole words hide no piece of the first step, so that nothing would be learned."""
    units = pretraining.settings.examples.masking.units
    if units == "piece" or pretraining.settings.system not in MASKED_LM_SYSTEMS:
        return
    counts = pretraining.model.trainable().counts
    if any(counts(batch)["predictions"] or _is_causal(batch) for batch in pretraining.micro_batches(0, 0)):
        return
    raise InputError(
        f"{pretraining.corpus.folder}: no piece is masked in the rows of the first step: with --mask-units {units} a "
        "word with more pieces than a row has predictions is not masked, and this text may have no blanks between its "
        "words; give --mask-units piece"
    )


def _is_causal(batch: Any) -> bool:
    """Return True for rows of a GPT-BERT that have no masks, because they are those of a language model."""
    return hasattr(batch, "causal") and bool(batch.causal.all())


def run_warnings(pretraining: Pretraining, steps: int) -> list[str]:
    """Return the warnings about a run of `steps` steps, without a measurement."""
    untimed = Timings(steps=(0.0,) * len(pretraining.phase_rows), evaluation=0.0, checkpoint=0.0)
    return list(plan_warnings(pretraining.settings, pretraining, steps, plan_phases(pretraining, untimed, steps)))


def plan_warnings(
    settings: PretrainSettings, pretraining: Pretraining, steps: int, phases: list[PhasePlan]
) -> Iterator[str]:
    """Yield warnings about settings for which the manual, the log or the paper has a measurement."""
    yield from _text_warnings(settings, pretraining, phases)
    yield from _shared_documents(pretraining)
    optimizer, width = settings.optimizer, pretraining.config.hidden
    warmup_steps = int(steps * optimizer.warmup)
    if warmup_steps < _SHORTEST_WARMUP and not optimizer.bias_correction:
        yield (
            f"warm-up has {warmup_steps} steps: the first updates of Adam without bias correction are 3.2 times too "
            "large, which warm-up hides; use a larger --warmup, more steps, or --bias-correction"
        )
    is_new = pretraining.initial_model is None
    if is_new and width < _PAPER_WIDTH and optimizer.learning_rate <= _PAPER_RATE:
        yield (
            f"--learning-rate {optimizer.learning_rate:g} is the paper's for 768 hidden, 256 rows and a million steps; "
            f"this run has {width} hidden, {settings.batch_size} rows and {steps:,} steps, and tiny learned with 1e-3 "
            "to 2e-3, which is chosen where it is not given"
        )
    if optimizer.learning_rate >= _STEEP_RATE and not optimizer.bias_correction:
        yield (
            f"with --learning-rate {optimizer.learning_rate:g} and without --bias-correction a tiny encoder collapsed "
            "to one vector"
        )
    is_small_bert = is_new and settings.system == "bert" and width == 128
    if is_small_bert and settings.start == "random" and steps > _SHORTEST_WARMUP:
        yield (
            "with 128 hidden the loss stays at that of a bag of words for thousands of steps; --start local prevents it"
        )
    if settings.start == "matching" and optimizer.method != "muon":
        yield "--start matching: AdamW unlearned the head that this initialises, --optimizer muon kept it"
    if settings.examples.pairs and phases[0].length <= 32 < phases[-1].length:
        yield (
            "next-sentence prediction that was learned on rows of 32 tokens did not carry over to longer rows; do not "
            "start with short rows (--lengths)"
        )


def _text_warnings(settings: PretrainSettings, pretraining: Pretraining, phases: list[PhasePlan]) -> Iterator[str]:
    """Yield warnings about the amount of text."""
    passes = [sum(times) for times in zip(*(phase.passes for phase in phases), strict=True)]
    for (corpus, _), times in zip(pretraining.corpora, passes, strict=True):
        text = "the text" if len(passes) == 1 else f"the text of {corpus.folder}"
        if times < _FEWEST_EPOCHS:
            yield f"{text} is read {times:.2f} times: a part of it is never seen; use more --steps, or less text"
        if times > _MOST_EPOCHS:
            yield f"{text} is read {times:,.0f} times, in the paper 40 times; use more text, or fewer --steps"
    fewest = min(phase.corpus_rows for phase in phases)
    if settings.batch_size > fewest:
        yield f"a step has {settings.batch_size} rows and the corpus {fewest}: every step has rows more than once"
    pieces = pretraining.corpus.tokenizer.vocab_size
    tokens = sum(corpus.num_tokens for corpus, _ in pretraining.corpora)
    if tokens < TOKENS_PER_PIECE * pieces:
        yield (
            f"{tokens / pieces:.1f} tokens of text for each of the {pieces:,} pieces of the vocabulary: use "
            f"{TOKENS_PER_PIECE} or more, with more text or a smaller vocabulary"
        )


def _shared_documents(pretraining: Pretraining) -> Iterator[str]:
    """Yield a warning where documents that are kept for validation are trained on too, such as in another corpus."""
    corpora, kept = [corpus for corpus, _ in pretraining.corpora], pretraining.validation_corpus
    share = 0.0 if kept else pretraining.settings.held_out_share
    if not (kept or share) or (kept and kept.fingerprint in [corpus.fingerprint for corpus in corpora]):
        return

    def documents(corpus: Corpus, part: Part) -> PartOfCorpus:
        return corpus, used_documents(corpus, part=part, held_out_share=share)

    part = [documents(kept, "all")] if kept else [documents(corpus, "held_out") for corpus in corpora]
    try:
        count = num_shared(part, [documents(corpus, "train" if share else "all") for corpus in corpora])
    except InputError as error:  # a run needs no hashes
        yield f"the documents for validation were not compared with those of training: {error}"
        return
    if count:
        total = sum(len(numbers) for _, numbers in part)
        yield (
            f"{count:,} of the {total:,} documents for validation are in the text of training too, so that the "
            "validation metrics are better than those of other text; remove them from one of the two texts"
        )


def _plan_text(plan: Mapping[str, Any]) -> str:
    """Return the plan as text for a terminal."""
    disk, memory, seconds = plan["disk"], plan["memory"], plan["seconds"]
    states = sum(memory[name] for name in ("weights", "gradients", "moments"))
    done, steps = plan["steps_done"], plan["steps"]
    lines = [
        f"{NAMES[plan['system']]} {plan['size']}: {plan['parameters']:,} parameters, {plan['precision']}, "
        f"threads: {plan['threads']}",
        "",
        *(f"  {line}" for line in table_lines(list(_phase_rows(plan)), left=1)),
        "",
        *([f"  begin    at step {done:,}; the times are those of the other {steps - done:,} steps"] if done else []),
        f"  text     {plan['exposure']}",
        f"  time     {_time_text(3600 * plan['hours'])}, with {_time_text(seconds['evaluations'])} for "
        f"{plan['evaluations']} evaluations and {_time_text(seconds['checkpoints'])} for {plan['saves']:,} checkpoints",
        f"  memory   {size_text(memory['measured_peak'])} at the peak, measured "
        f"(weights, gradients and moments {size_text(states)}); {_available_text(memory['usable'])}",
        f"  disk     {size_text(disk['peak'])} ({disk['checkpoints']} checkpoints of {size_text(disk['checkpoint'])}, "
        f"a model of {size_text(disk['model'])}, snapshots {size_text(disk['snapshots'])}, "
        f"metrics {size_text(disk['metrics'])}); "
        f"{size_text(disk['free'])} are free",
        f"           {size_text(disk['plans'])} more for pair indexes beside the corpus",
        "",
        *(f"  warning: {warning}" for warning in plan["warnings"]),
    ]
    return "\n".join(lines).rstrip()


def _phase_rows(plan: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the table of phases: its head, a row for each phase, and the totals."""
    yield "length", "steps", "rows", "tokens", "corpus rows", "each seen", "a step", "time"
    totals = {**plan, "length": "total", "seconds": plan["seconds"]["training"]}
    phases = [{**phase, "seconds": phase["left"] * phase["step_seconds"]} for phase in plan["phases"]]
    for part in (*phases, totals):
        yield (
            str(part["length"]),
            *(f"{part[name]:,}" for name in ("steps", "rows", "tokens")),
            f"{part['corpus_rows']:,}" if "corpus_rows" in part else "",
            f"{part['epochs']:,.2f} times",
            f"{part['step_seconds']:,.2f} s" if "step_seconds" in part else "",
            _time_text(part["seconds"]),
        )


def _available_text(usable: int | None) -> str:
    return "available memory unknown" if usable is None else f"{size_text(usable)} are available"


def _time_text(seconds: float) -> str:
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds / 86400:,.1f} days"
