"""text → encoder: a pre-training run from settings to a model folder (paper §3.1 and A.2)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from bertwright.console import say
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.model.encoder import init_weights, start_local
from bertwright.model.folder import SavedModel, open_model, save_model
from bertwright.model.sizes import EncoderConfig, size_config
from bertwright.objectives.examples import Examples, ExampleSettings, PretrainingBatch, SecondSentence
from bertwright.objectives.mixture import Mixture, mixed
from bertwright.objectives.pretraining import (
    Inputs,
    PretrainingModel,
    cut,
    held_out_figures,
    pretraining_task,
    to_inputs,
)
from bertwright.prediction.fill import second_objective
from bertwright.recipes.adaptation import adapted_config, load_adapted, size_name
from bertwright.recipes.curve import try_curve
from bertwright.recipes.needs import refuse_unfit
from bertwright.recipes.pace import Pace, affordable_steps, measure_pace
from bertwright.recipes.report import try_report
from bertwright.recipes.settings import HELD_OUT_LENGTH, PretrainSettings
from bertwright.training.loop import Outcome, Plan, recompute_inside, train
from bertwright.training.machine import Numerics, apply_numerics, resolve_numerics
from bertwright.training.sessions import session
from bertwright.training.tracking import RunFolder, start_run


@dataclass(frozen=True)
class HeldOut:
    """Fixed rows with fixed masks for measuring: the same for masked LM whatever a run trains on; with sentence order,
    as many rows of its walk for that figure."""

    examples: Examples | Mixture
    rows: int
    ordered: Examples | Mixture | None = None

    @classmethod
    def of(
        cls,
        corpora: Sequence[tuple[Corpus, float]],
        second_sentence: SecondSentence,
        *,
        rows: int,
        length: int,
        **part: Any,
    ) -> Self:
        """The protocol's rows of a corpus, or of a part of it (as `Examples` takes it); several give their shares."""
        kinds = [ExampleSettings(), *([ExampleSettings(second_sentence="order")] if second_sentence == "order" else [])]
        examples = [mixed(corpora, kind, length=length, seed=0, **part) for kind in kinds]
        return cls(examples[0], rows, *examples[1:])

    @property
    def num_rows(self) -> int:
        """The rows there are, up to those asked for."""
        return min(self.rows, self.examples.num_rows(0))

    def __iter__(self) -> Iterator[PretrainingBatch]:
        return self.examples.first(self.rows)

    def figures(self, model: PretrainingModel) -> dict[str, float]:
        """Held-out figures of a model in evaluation mode."""
        return held_out_figures(model, self, self.ordered.first(self.rows) if self.ordered else ())


def pretrain(
    settings: PretrainSettings,
    *,
    corpus: Path | Mapping[Path, float],
    out: Path,
    held_out: Path | None = None,
    init_from: str | None = None,
    resume: bool = False,
    allow_other_numerics: bool = False,
) -> Mapping[str, Any]:
    """Run or continue a pre-training; returns {"steps", "stopped", "held_out", "model", …}.

    corpus: a corpus folder, or several with the weights by which they share each step's rows.
    InputError for bad settings, a held-out corpus of another tokenizer, or a run folder of another configuration.
    """
    # Everything that can refuse the input comes before the run folder, so that nothing half-made stays behind.
    trained, numerics = prepare(settings, corpus=corpus, out=out, held_out=held_out, init_from=init_from)
    data, measured, model, config = trained.data, trained.measured, trained.model, trained.config
    corpora = [{"fingerprint": source.fingerprint, "weight": weight} for source, weight in trained.corpora]
    facts = {
        "corpus": corpora if len(corpora) > 1 else data.fingerprint,
        "held_out": measured.fingerprint if measured else None,
        "init_from": init_from,
    }
    settings = trained.settings
    run = start_run(out, kind="pretrain", settings=settings, data=facts, resume=resume)
    if run.finished:
        say(f"{out}: this run has finished; its model is in {run.model}")
        return dict(run.record["result"])
    with session(run):
        run.note(
            places={"corpus": str(data.folder.absolute()), "held_out": str(held_out.absolute()) if held_out else None}
        )
        numerics, steps = trained.resolve(run, numerics, allow_other=allow_other_numerics)
        say(f"{settings.size}: {trained.num_parameters:,} parameters · {steps:,} steps of {settings.batch_size} rows")
        outcome = train(
            pretraining_task(model), trained.batches(steps), plan=trained.plan(steps), numerics=numerics, run=run
        )
        result = _finish(run, outcome, model, config, data)
    return result if outcome.stopped else {**result, "report": try_report(run.folder)}


def prepare(
    settings: PretrainSettings,
    *,
    corpus: Path | Mapping[Path, float],
    out: Path,
    held_out: Path | None,
    init_from: str | None,
    write_plans: bool = True,
) -> tuple["Pretraining", Numerics]:
    """Rows and a fresh model, once it is known that they fit; and what this machine is good at."""
    weights = corpus if isinstance(corpus, Mapping) else {corpus: 1.0}
    corpora = [(Corpus.open(folder), weight) for folder, weight in weights.items()]
    data = corpora[0][0]
    measured = Corpus.open(held_out) if held_out else None
    for other in [*(source for source, _ in corpora), *([measured] if measured else [])]:
        if other.tokenizer_hash != data.tokenizer_hash:
            raise InputError(f"{other.folder}: was built with another tokenizer than {data.folder}")
    saved = open_model(init_from) if init_from else None
    settings = with_shape_of(settings, saved)
    config = encoder_config(settings, data.tokenizer.vocab_size, saved)
    numerics = resolve_numerics(settings.precision, compiled=settings.compile, threads=settings.threads)
    refuse_unfit(settings, config, precision=numerics.precision, out=out, tokenizer=data.folder / "tokenizer")
    model = build_model(settings, config, saved, data)
    if settings.recompute:
        recompute_inside(model.encoder.layers)
    return Pretraining(settings, model, corpora, measured, write_plans=write_plans), numerics


def with_shape_of(settings: PretrainSettings, saved: SavedModel | None) -> PretrainSettings:
    """The settings with size and activation of the model that the run starts from, where they were not given."""
    if saved is None:
        return settings
    theirs = {"size": size_name(saved.config), "activation": saved.config.activation}
    return settings.model_copy(
        update={name: value for name, value in theirs.items() if name not in settings.model_fields_set}
    )


def encoder_config(settings: PretrainSettings, vocab_size: int, saved: SavedModel | None = None) -> EncoderConfig:
    """The shape of the encoder that `settings` ask for, or that of the model that it starts from."""
    longest = max(phase.length for phase in settings.phases)
    changes = {
        "activation": settings.activation,
        "hidden_dropout": settings.dropout,
        "attention_dropout": settings.dropout,
        "initializer_range": settings.initializer_range,
    }
    if saved:
        return adapted_config(saved, settings.size, settings.activation, longest=longest).model_copy(
            update={**changes, "vocab_size": vocab_size}
        )
    return size_config(settings.size, vocab_size, max_positions=max(512, longest), **changes)


def build_model(
    settings: PretrainSettings, config: EncoderConfig, saved: SavedModel | None, data: Corpus
) -> PretrainingModel:
    """A freshly initialised model, or one with the weights of `saved`."""
    model = PretrainingModel(config, second_sentence=settings.examples.second_sentence)
    init_weights(model, settings.initializer_range, torch.Generator().manual_seed(settings.seed))
    if settings.start == "local" and not saved:
        start_local(model.encoder, generator=torch.Generator().manual_seed(settings.seed))
    if saved:
        if second_objective(saved) != settings.examples.second_sentence:  # its head would answer another question
            weights = saved.weights or {}
            saved = replace(saved, weights={name: weights[name] for name in weights if "next_sentence" not in name})
        load_adapted(model, saved, data)
    return model


class Pretraining:
    """Rows, plan and evaluation of one run."""

    def __init__(
        self,
        settings: PretrainSettings,
        model: PretrainingModel,
        corpora: Sequence[tuple[Corpus, float]],
        measured: Corpus | None,
        *,
        write_plans: bool = True,
    ) -> None:
        self.settings, self.model, self.corpora, self.measured = settings, model, tuple(corpora), measured
        self.data = corpora[0][0]
        self.config = model.encoder.config
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        share = 0.0 if measured else settings.held_out_share
        split: Any = {"part": "train" if share else "all", "held_out_share": share, "write_plans": write_plans}
        self.phases = [
            mixed(corpora, settings.examples, length=phase.length, seed=settings.seed, **split)
            for phase in settings.phases
        ]
        self.held_out: HeldOut | None = None
        length = min(HELD_OUT_LENGTH, max(phase.length for phase in settings.phases))
        kind, rows = settings.examples.second_sentence, settings.held_out_rows
        if measured:
            self.held_out = HeldOut.of([(measured, 1.0)], kind, rows=rows, length=length, write_plans=write_plans)
        elif share:
            kept: Any = {"part": "held_out", "held_out_share": share, "write_plans": write_plans}
            self.held_out = HeldOut.of(corpora, kind, rows=rows, length=length, **kept)

    def resolve(self, run: RunFolder, measured: Numerics, *, allow_other: bool) -> tuple[Numerics, int]:
        """Settle precision, threads and steps once; a resumed run takes what was settled."""
        if "resolved" in run.record:
            numerics, steps = (
                Numerics.model_validate(run.record["resolved"]["numerics"]),
                run.record["resolved"]["steps"],
            )
            apply_numerics(numerics, allow_other=allow_other)
            return numerics, steps
        apply_numerics(measured)
        steps = self.settings.steps or affordable_steps(self, self.pace(measured, run.folder))
        run.note(resolved={"numerics": measured.model_dump(), "steps": steps})
        return measured, steps

    def pace(self, numerics: Numerics, out: Path) -> Pace:
        """Measured here and now; 20 seconds for each thing at most, and a thirtieth of the minutes."""
        seconds = min(20.0, 2.0 * self.settings.minutes) if self.settings.minutes else 5.0
        return measure_pace(self, numerics, out=out, seconds=seconds)

    def batches(self, steps: int) -> Any:
        """step → its micro-batches, in the phase that the step belongs to."""
        bounds = self.phase_bounds(steps)

        def of_step(step: int) -> list[Inputs]:
            index = next(index for index, (_, end) in enumerate(bounds) if step < end)
            return self.micro_batches(self.phases[index], step - bounds[index][0])

        return of_step

    def phase_bounds(self, steps: int) -> list[tuple[int, int]]:
        """First step and end of each phase."""
        shares = [sum(phase.share for phase in self.settings.phases[: n + 1]) for n in range(len(self.phases))]
        ends = [*(round(share * steps) for share in shares[:-1]), steps]
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def steps_left(self, done: int, steps: int) -> float:
        """Steps after `done`, each weighed by its row length against that of the last one."""
        bounds = list(zip(self.phase_bounds(steps), self.settings.phases, strict=True))
        now = next(phase.length for (_, end), phase in bounds if done <= end)
        return sum(max(0, end - max(begin, done)) * phase.length / now for (begin, end), phase in bounds)

    def micro_batches(self, examples: Examples | Mixture, step: int, *, rows: int | None = None) -> list[Inputs]:
        """The rows of a step cut into micro-batches of at most `micro_tokens` tokens, or of `rows`."""
        rows = rows or max(1, self.settings.micro_tokens // examples.length)
        batch = examples.step_batch(step, self.settings.batch_size)
        return [to_inputs(part) for part in cut(batch, rows)]

    def plan(self, steps: int) -> Plan:
        """When to log, save and evaluate."""
        count = self.settings.evaluations if self.held_out else 0
        return Plan(
            steps=steps,
            seed=self.settings.seed,
            optimizer=self.settings.optimizer,
            log_every=self.settings.log_every,
            save_seconds=60 * self.settings.save_minutes,
            evaluate=self.evaluate if count else None,
            steps_left=lambda done: self.steps_left(done, steps),
            evaluate_at=frozenset(round(steps * (index + 1) / count) for index in range(count)),
        )

    def evaluate(self, _: int) -> dict[str, float]:
        """Held-out figures of the model as it is."""
        assert self.held_out
        return self.held_out.figures(self.model)


def _finish(
    run: RunFolder, outcome: Outcome, model: PretrainingModel, config: EncoderConfig, data: Corpus
) -> dict[str, Any]:
    result: dict[str, Any] = {"out": str(run.folder), "steps": outcome.steps, "stopped": outcome.stopped}
    if outcome.stopped:
        say(f"stopped after step {outcome.steps}; continue with --resume")
        return result
    result |= {"held_out": dict(outcome.last), "model": str(run.model)}
    save_model(
        run.model,
        model,
        config=config,
        tokenizer=data.folder / "tokenizer",
        architecture="BertForPreTraining" if model.next_sentence else "BertForMaskedLM",
        extra={"second_sentence": model.second_sentence},
    )
    result["curve"] = try_curve(run, title=f"{config.layers} layers, {config.hidden} wide, {outcome.steps:,} steps")
    run.note(finished=True, result=result)
    return result
