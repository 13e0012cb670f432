"""text → encoder: a pre-training run from settings to a model folder (paper §3.1 and A.2)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertwright.console import say
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.model.attention_init import init_attention
from bertwright.model.card import origin, pretraining_card
from bertwright.model.config import SingleBackboneConfig, with_dropout
from bertwright.model.encoder import Encoder, init_weights
from bertwright.model.folder import SavedModel, open_model, save_weights, weights_digest
from bertwright.model.system import system_config
from bertwright.objectives.batches import cut
from bertwright.objectives.masked_lm import second_objective
from bertwright.pretraining.evaluate import HeldOut
from bertwright.pretraining.init_from import adapted_config, load_adapted, with_shape_of
from bertwright.pretraining.resources import count_moments, count_parameters, refuse_unfit
from bertwright.pretraining.settings import HELD_OUT_LENGTH, TUNED_DROPOUT, PretrainSettings
from bertwright.pretraining.systems import (
    Model,
    Rows,
    architecture_of,
    inputs_of,
    new_model,
    refuse_vocabulary,
    rows_of,
    second_of,
)
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, whole_state
from bertwright.training.hardware import Numerics, resolve_numerics
from bertwright.training.loop import Plan, checkpoint_activations
from bertwright.training.run_folder import RunFolder

_SEGMENTS = "encoder.embeddings.segment.weight"


def prepare(
    settings: PretrainSettings,
    *,
    corpus: Path | Mapping[Path, float],
    out: Path,
    held_out: Path | None,
    init_from: str | None,
    write_plans: bool = True,
    ranks: Ranks = SINGLE_PROCESS,
) -> tuple["Pretraining", Numerics]:
    """Rows and a fresh model, once it is known that they fit; and what this machine is good at."""
    weights = corpus if isinstance(corpus, Mapping) else {corpus: 1.0}
    corpora = [(Corpus.open(folder), weight) for folder, weight in weights.items()]
    data = corpora[0][0]
    measured = Corpus.open(held_out) if held_out else None
    for other in [*(source for source, _ in corpora), *([measured] if measured else [])]:
        if other.tokenizer_hash != data.tokenizer_hash:
            raise InputError(f"{other.folder}: was built with another tokenizer than {data.folder}")
    refuse_vocabulary(settings.system, data)
    if measured and measured.fingerprint in [source.fingerprint for source, _ in corpora]:
        say(f"{measured.folder}: is trained on as well, so that its figures are of text that the model has seen")
    if init_from and init_from.startswith("random:"):
        raise InputError(f"--init-from {init_from}: that is what a run without --init-from begins with; give --size")
    saved = open_model(init_from) if init_from else None
    settings = with_shape_of(settings, saved)
    if saved and settings.start != "random":
        say(
            f"{saved.place}: its attention stays as it is; --start {settings.start} is for runs that begin with nothing"
        )
    config = encoder_config(settings, data.tokenizer.vocab_size, saved, pad_id=data.tokenizer.pad_id)
    numerics = resolve_numerics(settings.precision, threads=settings.threads, device=settings.device)
    refuse_unfit(
        settings, config, numerics=numerics, out=out, tokenizer=data.folder / "tokenizer", parts=ranks.world_size
    )
    model = build_model(settings, config, saved, data)
    if settings.activation_checkpointing:
        checkpoint_activations(model.encoder.blocks())
    began = (saved.place, weights_digest(saved)) if saved else None
    return Pretraining(settings, model, corpora, measured, write_plans=write_plans, ranks=ranks, began=began), numerics


def encoder_config(
    settings: PretrainSettings, vocab_size: int, saved: SavedModel | None = None, *, pad_id: int = 0
) -> SingleBackboneConfig:
    """The shape of the body that `settings` ask for, or that of the model that it starts from."""
    longest = max(phase.length for phase in settings.phases)
    changes = {
        "activation": settings.activation,
        "hidden_dropout": settings.dropout,
        "attention_dropout": settings.dropout,
        "initializer_range": settings.initializer_range,
    }
    if saved:
        shape = adapted_config(saved, settings, longest=longest)
        own = {name: value for name, value in changes.items() if name in type(shape).model_fields}
        return shape.model_copy(update={**own, "vocab_size": vocab_size})
    changes["pad_id"] = pad_id
    return system_config(settings.system, settings.size, vocab_size, max_positions=max(512, longest), **changes)


def build_model(
    settings: PretrainSettings, config: SingleBackboneConfig, saved: SavedModel | None, data: Corpus
) -> Model:
    """A freshly initialised model, or one with the weights of `saved`."""
    model = new_model(config, second_sentence=settings.examples.second_sentence)
    init_weights(model, settings.initializer_range, torch.Generator().manual_seed(settings.seed))
    if settings.start != "random" and not saved:
        assert isinstance(model.encoder, Encoder)
        own, special = torch.Generator().manual_seed(settings.seed), data.tokenizer.special_ids
        init_attention(model.encoder, settings.start, generator=own, special=special)
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
        model: Model,
        corpora: Sequence[tuple[Corpus, float]],
        measured: Corpus | None,
        *,
        write_plans: bool = True,
        ranks: Ranks = SINGLE_PROCESS,
        began: tuple[str, str | None] | None = None,
    ) -> None:
        self.began = began
        """Where the model that the run begins from lies, and the sha256 of its weights."""
        self.settings, self.model, self.corpora, self.measured = settings, model, tuple(corpora), measured
        self.ranks = ranks
        self.parts = ranks.world_size
        """Micro-batches of a step at least, so that each of the ranks that began the run has something to do."""
        self.data = corpora[0][0]
        self.config = model.encoder.config
        self.one_segment = not settings.examples.pairs and (not began or _knows_one(model))
        """Whether nothing is or was learned of the second segment."""
        self.num_parameters, self.num_moments = count_parameters(model), count_moments(model, settings.optimizer)
        share = 0.0 if measured else settings.held_out_share
        split: Any = {"part": "train" if share else "all", "held_out_share": share, "write_plans": write_plans}
        self.phases = [
            rows_of(settings.system, corpora, settings.examples, length=phase.length, seed=settings.seed, **split)
            for phase in settings.phases
        ]
        self.held_out: HeldOut | None = None
        length = min(HELD_OUT_LENGTH, max(phase.length for phase in settings.phases))
        kept: Any = {"rows": settings.held_out_rows, "system": settings.system, "write_plans": write_plans}
        kept |= {} if measured else {"part": "held_out", "held_out_share": share}
        if measured or share:
            source = [(measured, 1.0)] if measured else corpora
            kept["one_segment"] = self.one_segment
            self.held_out = HeldOut.of(source, settings.examples.second_sentence, length=length, **kept)

    def batches(self, steps: int) -> Any:
        """step → its micro-batches, in the phase that the step belongs to; one goes on in the rows of earlier phases of
        its length."""
        bounds = self.phase_bounds(steps)
        lengths = [examples.length for examples in self.phases]
        before = [
            sum(bounds[earlier][1] - bounds[earlier][0] for earlier in range(index) if lengths[earlier] == length)
            for index, length in enumerate(lengths)
        ]

        def of_step(step: int) -> list[Any]:
            index = next(index for index, (_, end) in enumerate(bounds) if step < end)
            return self.micro_batches(self.phases[index], before[index] + step - bounds[index][0])

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

    def micro_batches(self, examples: Rows, step: int, *, rows: int | None = None) -> list[Any]:
        """The rows of a step cut into micro-batches of at most `micro_tokens` tokens, or of `rows`."""
        rows = rows or min(
            max(1, self.settings.micro_tokens // examples.length), math.ceil(self.settings.batch_size / self.parts)
        )
        batch = examples.step_batch(step, self.settings.batch_size)
        return [inputs_of(self.model, part) for part in cut(batch, rows)]

    def plan(self, steps: int) -> Plan:
        """When to log, save and evaluate."""
        count = self.settings.evaluations if self.held_out else 0
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
            steps_left=lambda done: self.steps_left(done, steps),
            evaluate_at=frozenset(round(steps * (index + 1) / count) for index in range(count)) - {0},
        )

    def with_snapshots(self, plan: Plan, run: RunFolder) -> Plan:
        """The plan of a run that also keeps the model folders that the settings ask for."""
        at = snapshot_steps(self.settings.snapshots, plan.steps)

        def keep(step: int) -> None:
            weights = whole_state(self.model)
            if self.ranks.is_main:
                self.save(snapshot_folder(run.folder, step), weights, steps=step, of=plan.steps, figures={})

        return replace(plan, snapshot=keep, snapshot_at=frozenset(at)) if at else plan

    def evaluate(self, _: int) -> dict[str, float]:
        """Held-out figures of the model as it is."""
        assert self.held_out
        return self.held_out.figures(self.model, ranks=self.ranks)

    def save(
        self, folder: Path, weights: Mapping[str, Tensor], *, steps: int, of: int, figures: Mapping[str, float]
    ) -> None:
        """Write the model folder of the weights after so many steps `of` all.

        Of rows without pairs nothing is learned of the second segment: it is written as the first, so that tasks with
        two texts do not begin with what was drawn at random for one of them. What another model learned of it stays.
        """
        if _SEGMENTS in weights and self.one_segment:
            first = weights[_SEGMENTS][:1]
            weights = {**weights, _SEGMENTS: first.expand_as(weights[_SEGMENTS]).clone()}
        phases = zip(self.phase_bounds(of), self.settings.phases, strict=True)
        architecture = architecture_of(self.model)
        save_weights(
            folder,
            weights,
            config=with_dropout(self.config, TUNED_DROPOUT),
            tokenizer=self.data.folder / "tokenizer",
            architecture=architecture,
            extra={"second_sentence": second_of(self.model)},
            card=pretraining_card(
                self.settings.model_copy(update={"start": "random"}) if self.began else self.settings,
                self.config,
                data=[*map(_corpus_line, self.corpora), *([origin(*self.began)] if self.began else [])],
                tokens=sum(source.manifest.tokens for source, _ in self.corpora),
                architecture=architecture,
                steps=steps,
                figures=figures,
                longest=max((phase.length for (begin, _), phase in phases if begin < steps), default=0),
            ),
        )


def _corpus_line(weighted: tuple[Corpus, float]) -> str:
    """Return the line of a card about a corpus and its share of each step."""
    corpus, weight = weighted
    manifest = corpus.manifest
    return (
        f"{manifest.documents:,} documents, {manifest.sentences:,} sentences, {manifest.tokens:,} tokens; "
        f"share of each step {weight:g}; fingerprint `{corpus.fingerprint[:16]}`"
    )


def _knows_one(model: Model) -> bool:
    """Whether the segments of a model are all the same, as a run without pairs writes them."""
    table = model.state_dict().get(_SEGMENTS)
    return table is not None and bool((table == table[0]).all())


def snapshot_steps(shares: Sequence[float], steps: int) -> list[int]:
    """The steps after which the model is kept, ascending; the end, which has a model of its own, is none of them."""
    return sorted({step for share in shares if (step := max(1, round(share * steps))) < steps})


def snapshot_folder(run: Path, step: int) -> Path:
    """The model folder of a run as it was after a step."""
    return run / "snapshots" / f"step-{step:09d}"
