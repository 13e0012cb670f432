"""Settings → everything that a pre-training run needs: rows, model, plan and evaluation (paper §3.1 and A.2)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertwright.console import say
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.model.card import origin, pretraining_card
from bertwright.model.config import SingleBackboneConfig, finds_replaced, with_dropout
from bertwright.model.encoder import init_weights
from bertwright.model.families import family_of
from bertwright.model.folder import TRAINED_POSITIONS, SavedModel, open_model, save_model, weights_digest
from bertwright.model.system import system_config
from bertwright.objectives.batches import split_batch
from bertwright.objectives.replaced_tokens import (
    ReplacedTokenModel,
    save_generator,
    weights_of_discriminator,
    with_generator,
)
from bertwright.objectives.system_model import SystemModel
from bertwright.pretraining.evaluate import ValidationRows
from bertwright.pretraining.exposure import Exposure
from bertwright.pretraining.init_from import (
    SEGMENTS,
    adapted_config,
    adopt_shape,
    has_one_segment,
    load_adapted,
    trained_positions,
    with_pair_head,
)
from bertwright.pretraining.resources import count_moments, count_parameters, largest_micro_batch, refuse_unfit
from bertwright.pretraining.schedules import rows_before, share_bounds
from bertwright.pretraining.settings import HELD_OUT_LENGTH, TUNED_DROPOUT, PretrainSettings
from bertwright.pretraining.snapshots import kept_models
from bertwright.pretraining.start import start_attention
from bertwright.pretraining.systems import (
    example_rows,
    new_model,
    refuse_corpora,
)
from bertwright.training.activation_checkpointing import checkpoint_activations
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, Trainable, full_state
from bertwright.training.hardware import Numerics, resolve_numerics
from bertwright.training.loop import Plan
from bertwright.training.run_folder import RunFolder
from bertwright.training.settings import stable_steps


@dataclass(frozen=True)
class Teaching:
    """A teacher of the model that is pre-trained.

    trainable   makes what the loop trains: the model, with a loss that compares it with the teacher
    digest      sha256 of the teacher's weights
    data        line of the model card about the teacher
    numbers     makes the lines of the model card about the teacher's metrics on the validation rows
    """

    trainable: Callable[[SystemModel], Trainable[Any]]
    digest: str
    data: str
    numbers: Callable[[ValidationRows], Sequence[str]]


def prepare_pretraining(
    settings: PretrainSettings,
    *,
    corpus: Path | Mapping[Path, float],
    out: Path,
    held_out: Path | None,
    init_from: str | SavedModel | None,
    write_plans: bool = True,
    numerics: Numerics | None = None,
    ranks: Ranks = SINGLE_PROCESS,
    teaching: Teaching | None = None,
) -> tuple["Pretraining", Numerics]:
    """Return the rows and the initialised model of a run, and the numerics of this machine.

    init_from: the initial model; one without weights gives its shape alone.
    numerics: those of this machine, where they were measured for the same settings; None measures them.
    write_plans: False where no file may be written; the plans of the epochs are then not kept beside the corpus.
    Raises InputError for bad input and for a model that does not fit, before the model is made.
    """
    weights = corpus if isinstance(corpus, Mapping) else {corpus: 1.0}
    corpora = [(Corpus.open(folder), weight) for folder, weight in weights.items()]
    data = corpora[0][0]
    validation_corpus = Corpus.open(held_out) if held_out else None
    refuse_corpora(settings.system, corpora, validation_corpus)
    if isinstance(init_from, str) and init_from.startswith("random:"):
        raise InputError(
            f"--init-from {init_from}: expected a pre-trained model; a run without --init-from starts from random "
            "weights, give its --size"
        )
    saved = open_model(init_from) if isinstance(init_from, str) else init_from
    if saved and finds_replaced(saved.config):
        saved = with_generator(saved)
    settings = adopt_shape(settings, saved)
    has_weights = saved is not None and saved.weights is not None
    if saved and has_weights and settings.start != "random":
        say(f"--start {settings.start}: has no effect with --init-from; attention keeps the weights of {saved.source}")
    pieces = data.tokenizer
    config = encoder_config(settings, pieces.vocab_size, saved, pad_id=pieces.pad_id, end_id=pieces.end_of_text_id)
    if numerics is None:
        numerics = resolve_numerics(settings.precision, threads=settings.threads, device=settings.device)
    tokenizer = data.folder / "tokenizer"
    machine: Any = {"numerics": numerics, "out": out, "tokenizer": tokenizer, "processes": ranks.world_size}
    refuse_unfit(settings, config, **machine)
    model = build_model(settings, config, saved if has_weights else None, data)
    if settings.activation_checkpointing:
        checkpoint_activations(model.trainable().blocks)
    pretraining = Pretraining(
        settings,
        model,
        corpora,
        validation_corpus,
        initial_model=(saved.source, weights_digest(saved)) if saved and has_weights else None,
        trained_positions=trained_positions(saved) if saved and has_weights else 0,
        write_plans=write_plans,
        ranks=ranks,
        teaching=teaching,
    )
    if pretraining.steps and (settings.checkpoints_by_words or not settings.steps):
        kept = pretraining.kept_models(out, pretraining.steps)
        refuse_unfit(settings, config, **machine, steps=pretraining.steps, snapshots=sum(map(len, kept.values())))
    return pretraining, numerics


def encoder_config(
    settings: PretrainSettings,
    vocab_size: int,
    saved: SavedModel | None = None,
    *,
    pad_id: int = 0,
    end_id: int | None = None,
) -> SingleBackboneConfig:
    """Return the configuration of the backbone: from the settings, or from the initial model.

    pad_id, end_id: ids of the padding and of the end of a text in the vocabulary.
    """
    longest = max(phase.length for phase in settings.phases)
    changes: dict[str, Any] = {
        "activation": settings.activation,
        "hidden_dropout": settings.dropout,
        "attention_dropout": settings.dropout,
        "initializer_range": settings.initializer_range,
    }
    if saved:
        config = adapted_config(saved, settings, longest=longest)
        changes = {name: value for name, value in changes.items() if name in type(config).model_fields}
        return with_dropout(config.model_copy(update={**changes, "vocab_size": vocab_size}), settings.dropout)
    changes["pad_id"] = pad_id
    changes |= {"embedding_size": settings.embedding_size, "max_positions": max(512, longest)}
    config = system_config(settings.system, settings.size, vocab_size, **changes)
    return config.model_copy(update={"end_id": end_id} if "end_id" in type(config).model_fields else {})


def build_model(
    settings: PretrainSettings, config: SingleBackboneConfig, saved: SavedModel | None, data: Corpus
) -> SystemModel:
    """Return the model with random weights and the attention initialisation of the settings, or with saved weights."""
    more: Any = {"generator_width": settings.generator_width, "causal_share": settings.examples.causal_share}
    model = new_model(config, second_sentence=settings.examples.second_sentence, **more)
    init_weights(model, settings.initializer_range, torch.Generator().manual_seed(settings.seed))
    if settings.start != "random" and not saved:
        start_attention(model.encoder, settings.start, seed=settings.seed, tokenizer=data.tokenizer)
    if saved:
        load_adapted(model, with_pair_head(saved, settings.examples.second_sentence), data)
    return model


class Pretraining:
    """Settings, model, training rows of each phase, validation rows and plan of one run."""

    def __init__(
        self,
        settings: PretrainSettings,
        model: SystemModel,
        corpora: Sequence[tuple[Corpus, float]],
        validation_corpus: Corpus | None,
        *,
        write_plans: bool = True,
        ranks: Ranks = SINGLE_PROCESS,
        initial_model: tuple[str, str | None] | None = None,
        trained_positions: int = 0,
        teaching: Teaching | None = None,
    ) -> None:
        self.settings, self.model, self.ranks, self.stages = settings, model, ranks, settings.stages
        self.corpora = tuple(corpora)
        """The training corpora, and their weights."""
        self.corpus = corpora[0][0]
        """The first corpus. All corpora have its tokenizer."""
        self.validation_corpus = validation_corpus
        """The corpus of --held-out. Without it validation documents come from the training corpora."""
        self.initial_model = initial_model
        """Path of the model of --init-from, and the sha256 of its weights."""
        self.trained_positions = trained_positions
        """Number of first positions that this model was trained on; 0 without it."""
        self.teaching = teaching
        """The teacher, where the model learns from one."""
        self.processes = ranks.world_size
        """Number of processes that started the run. A step has at least as many micro-batches."""
        self.config = model.encoder.config
        self.num_parameters, self.num_moments = count_parameters(model), count_moments(model, settings.optimizer)
        self.one_segment = not settings.examples.pairs and (not initial_model or has_one_segment(model))
        """True where nothing was ever trained on the second segment."""
        fraction = 0.0 if validation_corpus else settings.held_out_share
        split: Any = {"part": "train" if fraction else "all", "held_out_share": fraction, "write_plans": write_plans}
        self.phase_rows = [
            example_rows(
                settings.system, corpora, settings.examples_of(stage), length=stage.length, seed=settings.seed, **split
            )
            for stage in self.stages
        ]
        """The training rows of each stage."""
        self.exposure = Exposure(
            [corpus for corpus, _ in corpora],
            self.phase_rows,
            bounds=self.phase_bounds,
            batch_sizes=[stage.batch_size for stage in self.stages],
        )
        """Words and epochs that the run sees."""
        self.steps = self.exposure.budget_steps(settings)
        """Number of steps; None where --minutes decide it."""
        self.validation = self._validation_rows(fraction, write_plans=write_plans)

    def _validation_rows(self, fraction: float, *, write_plans: bool) -> ValidationRows | None:
        """Return rows of the validation corpus, or of a fraction of the training documents; None without either."""
        settings = self.settings
        if not self.validation_corpus and not fraction:
            return None
        return ValidationRows.of(
            [(self.validation_corpus, 1.0)] if self.validation_corpus else self.corpora,
            settings.examples.second_sentence,
            rows=settings.held_out_rows,
            length=min(HELD_OUT_LENGTH, max(phase.length for phase in settings.phases)),
            system=settings.system,
            one_segment=self.one_segment,
            write_plans=write_plans,
            part="held_out" if fraction else "all",
            held_out_share=fraction,
        )

    def trainable(self) -> Trainable[Any]:
        """Return the model with the functions by which the loop trains it."""
        if self.teaching:
            return self.teaching.trainable(self.model)
        return self.model.trainable(z_weight=self.settings.z_loss)

    def batches(self, steps: int) -> Callable[[int], list[Any]]:
        """Return a function from a step to its micro-batches, in the phase of the step.

        A phase continues with the rows after those of earlier phases of its length.
        """
        bounds = self.phase_bounds(steps)
        firsts = rows_before(bounds, [(stage.length, stage.batch_size) for stage in self.stages])

        def micro_batches_of(step: int) -> list[Any]:
            phase = next(phase for phase, (_, end) in enumerate(bounds) if step < end)
            steps_before = step - bounds[phase][0]
            return self.micro_batches(phase, firsts[phase] + steps_before * self.stages[phase].batch_size)

        return micro_batches_of

    def phase_bounds(self, steps: int) -> list[tuple[int, int]]:
        """Return (first step, end) of each phase."""
        return share_bounds([stage.share for stage in self.stages], steps)

    def work_left(self, done: int, steps: int) -> float:
        """Return the number of steps after `done`, each weighted by its tokens over the rows of the largest batch."""
        tokens = [stage.length * stage.batch_size for stage in self.stages]
        bounds = zip(self.phase_bounds(steps), tokens, strict=True)
        return sum(max(0, end - max(begin, done)) * size for (begin, end), size in bounds) / self.settings.batch_size

    def micro_batches(self, phase: int, first: int, *, rows: int | None = None) -> list[Any]:
        """Return the rows of a step of a phase, from row `first` on, cut into micro-batches of `rows` rows.

        rows: by default, those of `micro_batch_rows`.
        """
        batch = self.phase_rows[phase].rows_between(first, first + self.stages[phase].batch_size)
        return [self.model.inputs(part) for part in split_batch(batch, rows or self.micro_batch_rows(phase))]

    def micro_batch_rows(self, phase: int) -> int:
        """Return the rows of the largest micro-batch of a phase."""
        stage, most = self.stages[phase], self.settings.micro_tokens
        return largest_micro_batch(stage.batch_size, stage.length, micro_tokens=most, processes=self.processes)

    def plan(self, steps: int, *, run: RunFolder | None = None) -> Plan:
        """Return the loop's plan: when to log, save and evaluate, and to write snapshots into the folder of `run`."""
        count = self.settings.evaluations if self.validation else 0

        kept = self.kept_models(run.folder, steps) if run else {}

        def save_snapshot(step: int) -> None:
            weights = full_state(self.model)
            for folder in kept[step] if self.ranks.is_main else ():
                self.save(folder, weights, steps=step, of=steps, metrics={})

        return Plan(
            steps=steps,
            seed=self.settings.seed,
            optimizer=self.settings.optimizer,
            log_every=self.settings.log_every,
            save_seconds=60 * self.settings.save_minutes,
            keep=self.settings.keep,
            skip_loss_spikes=self.settings.skip_loss_spikes,
            watch_spikes=True,
            evaluate=self.evaluate if count else None,
            work_left=lambda done: self.work_left(done, steps),
            evaluate_at=frozenset(round(steps * (index + 1) / count) for index in range(count)) - {0},
            snapshot=save_snapshot if run else None,
            snapshot_at=frozenset(kept),
            stable=self._stable_steps(steps),
            words=(lambda done: self.exposure.words(done, steps)) if self.exposure.is_counted else None,
        )

    def _stable_steps(self, steps: int) -> int | None:
        """Return the number of steps with the peak learning rate of the schedule wsd; None for another schedule."""
        optimizer = self.settings.optimizer
        return stable_steps(steps, optimizer.decay_share) if optimizer.schedule == "wsd" else None

    def kept_models(self, run: Path, steps: int) -> dict[int, list[Path]]:
        """Return the steps after which models are kept in a run folder, with the model folders of each."""
        return kept_models(self.settings, self.exposure, run, steps)

    def evaluate(self, _: int) -> dict[str, float]:
        """Return validation metrics of the model as it is."""
        assert self.validation
        return self.validation.metrics(self.model, ranks=self.ranks)

    def save(
        self,
        folder: Path,
        weights: Mapping[str, Tensor],
        *,
        steps: int,
        of: int,
        metrics: Mapping[str, float],
        generator: Path | None = None,
    ) -> None:
        """Write the model folder of the weights after `steps` of `of` steps; that of a generator to `generator`.

        A run without pairs does not train the embedding of the second segment. A copy of the first one is written in
        its place, since tasks with two texts would otherwise start with random numbers. Where the initial model was
        trained with a second segment, its embedding stays.
        """
        if SEGMENTS in weights and self.one_segment:
            first = weights[SEGMENTS][:1]
            weights = {**weights, SEGMENTS: first.expand_as(weights[SEGMENTS]).clone()}
        config, tokenizer = with_dropout(self.config, TUNED_DROPOUT), self.corpus.folder / "tokenizer"
        if isinstance(self.model, ReplacedTokenModel):
            if generator and finds_replaced(config):
                save_generator(generator, weights, config=config, tokenizer=tokenizer)
            weights = weights_of_discriminator(weights)
        phases = zip(self.phase_bounds(of), self.stages, strict=True)
        longest = max((phase.length for (begin, _), phase in phases if begin < steps), default=0)
        trained = max(longest, self.trained_positions)
        notes = {TRAINED_POSITIONS: trained} if family_of(config).learns_positions else {}
        architecture = self.model.architecture
        initial_model = [origin(*self.initial_model)] if self.initial_model else []
        teacher = [self.teaching.data] if self.teaching else []
        of_teacher = self.teaching.numbers(self.validation) if self.teaching and self.validation and metrics else []
        save_model(
            folder,
            weights,
            config=config,
            tokenizer=tokenizer,
            architecture=architecture,
            extra={"second_sentence": self.model.second_sentence, **notes},
            card=pretraining_card(
                self.settings.model_copy(update={"start": "random"}) if self.initial_model else self.settings,
                self.config,
                data=[*map(_corpus_line, self.corpora), *initial_model, *teacher],
                tokens=sum(corpus.manifest.tokens for corpus, _ in self.corpora),
                architecture=architecture,
                steps=steps,
                exposure=self.exposure.text(steps, of) if self.exposure.is_counted else None,
                metrics=metrics,
                more_numbers=of_teacher,
                trained_positions=trained,
            ),
        )


def _corpus_line(weighted: tuple[Corpus, float]) -> str:
    """Return the model card's line about a corpus and its share of each step."""
    corpus, weight = weighted
    manifest = corpus.manifest
    return (
        f"{manifest.documents:,} documents, {manifest.sentences:,} sentences, {manifest.tokens:,} tokens; "
        f"share of each step {weight:g}; fingerprint `{corpus.fingerprint[:16]}`"
    )
