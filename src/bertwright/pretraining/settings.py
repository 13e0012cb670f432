"""Settings of a pre-training run, and named ones: the papers' (BERT §A.2, GPT-1 §4.1) and small-wiki's.

A recipe names the settings in which it differs from the class's defaults. Options of the command line override them.
Without a recipe `PLAIN` takes its place, and `choose.py` adapts it to the corpus, the machine and the time. This module
is read for --help, so it imports no torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from bertwright.config import Option, Positive, PositiveNumber, Seed, Settings, Share, Threads
from bertwright.errors import InputError
from bertwright.model.config import Size, Start
from bertwright.model.system import (
    CAUSAL_SHARE_SYSTEMS,
    EMBEDDING_SIZE_SYSTEMS,
    MASKED_LM_SYSTEMS,
    PAIR_SYSTEMS,
    REPLACED_TOKEN_SYSTEMS,
    SHORT_SHARES,
    SPAN_SYSTEMS,
    USUAL_SECOND_SENTENCE,
    System,
)
from bertwright.objectives.settings import CAUSAL_SHARE, GENERATOR_WIDTH, ExampleSettings, MaskingSettings
from bertwright.pretraining.phases import BatchPhase, MaskPhase, Phase, RowsPerStep, Stage, stages_of
from bertwright.pretraining.schedules import parse_batch_schedule, parse_lengths, parse_mask_schedule, parse_snapshots
from bertwright.text.word_counts import parse_words
from bertwright.training.settings import Device, OptimizerSettings

_GPT_POSITIONS = 512
TUNED_DROPOUT = 0.1
"""Dropout of fine-tuning, whatever the dropout of pre-training was (paper §A.3: always 0.1)."""
HELD_OUT_ROWS, HELD_OUT_LENGTH = 2048, 128
"""Number and length of the validation rows: the first rows that next-sentence prediction makes with seed 0, masked
80/10/10."""
_Minutes = Annotated[float, Field(gt=0, le=1e9)]


class PretrainSettings(Settings):
    """All settings that decide a pre-training run; the defaults are the paper's."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    changeable: ClassVar[frozenset[str]] = frozenset({"keep", "skip_loss_spikes"})
    numeric: ClassVar[frozenset[str]] = frozenset({"device", "micro_tokens", "activation_checkpointing"})
    system: Annotated[System, Option("model")] = "bert"
    """Kind of model: bert; bert-left and bert-right, whose tokens attend to one side only; gpt, gpt2; lstm-left,
    lstm-right; … Those whose tokens attend to one side are language models; electra finds replaced tokens; gpt-bert is
    a masked LM and a language model in one."""
    size: Annotated[str, Option("model")] = "tiny"
    """Size of the model: tiny to large, LAYERSxHIDDEN such as 4x256 with heads 64 wide, or LAYERSxHIDDENxHEADS. With
    --init-from it is that of the model."""
    phases: Annotated[tuple[Phase, ...], Option("schedule", name="lengths", read=parse_lengths)] = (
        Phase(length=128, share=0.9),
        Phase(length=512, share=0.1),
    )
    """Tokens per row, and the fraction of the steps for each length, in order."""
    mask_schedule: Annotated[tuple[MaskPhase, ...], Option("schedule", read=parse_mask_schedule)] = ()
    """Fraction of the tokens that is predicted, and the fraction of the steps for each, in order, such as
    0.3:0.5,0.15:0.3,0.05:0.2; it replaces --mask-share."""
    batch_size: Annotated[RowsPerStep, Option("schedule")] = 256
    """Number of rows per optimiser step."""
    batch_schedule: Annotated[tuple[BatchPhase, ...], Option("schedule", read=parse_batch_schedule)] = ()
    """Number of rows per optimiser step, and the fraction of the steps for each, in order, such as
    16:0.2,32:0.3,64:0.5; it replaces --batch-size, and the numbers grow."""
    micro_tokens: Annotated[Positive, Option("machine")] = 8192
    """Number of tokens computed at once, padding included. It changes speed and memory."""
    steps: Annotated[Positive | None, Option("schedule")] = None
    """Number of optimiser steps. Give this, --minutes, --words or --epochs."""
    minutes: Annotated[_Minutes | None, Option("schedule")] = None
    """Training time in minutes. The number of steps that fit is measured before the first step, so the run takes longer
    where the machine is busier later."""
    words: Annotated[Positive | None, Option("schedule", read=parse_words)] = None
    """Number of words of text that the run sees, repeats counted, such as 100M, 1.5M or 100k."""
    epochs: Annotated[Annotated[float, Field(gt=0, le=1e6)] | None, Option("schedule")] = None
    """Number of times that the text is read; with --words the largest number."""
    seed: Annotated[Seed, Option("schedule")] = 0
    """Seed of all random numbers."""
    examples: ExampleSettings = ExampleSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    activation: Annotated[Literal["gelu", "gelu_tanh"], Option("model")] = "gelu"
    """Activation function: exact GELU, or its tanh approximation. With --init-from it is that of the model."""
    dropout: Annotated[float, Field(ge=0, lt=1), Option("model")] = 0.1
    """Dropout of hidden states and attention during pre-training. Fine-tuning uses 0.1 in any case."""
    initializer_range: Annotated[PositiveNumber, Option("model")] = 0.02
    """Standard deviation of the initial weights; 0.02 suits models 768 wide, 0.05 models 128 wide. With --init-from it
    is that of the model."""
    embedding_size: Annotated[Size | None, Option("model")] = None
    """Width of the embeddings of --system electra and of ALBERT. Default: that of the states for electra; 128, and at
    most half of the states', for ALBERT."""
    generator_width: Annotated[float, Field(gt=0, le=1), Option("model")] = GENERATOR_WIDTH
    """Width of the generator of --system electra, as a fraction of the model's width."""
    start: Annotated[Start, Option("model")] = "random"
    """Attention initialisation: random as in the paper; local, with heads that attend to neighbouring tokens; or
    matching, with a head that attends to equal pieces too."""
    held_out_share: Share = 0.0
    """Fraction of the documents that is kept for validation, where no validation corpus is given."""
    held_out_rows: Positive = HELD_OUT_ROWS
    """Number of validation rows."""
    evaluations: Annotated[int, Field(ge=0, le=100_000), Option("evaluation")] = 20
    """Number of evaluations on the validation data over the run, the last one at its end."""
    snapshots: Annotated[
        tuple[Annotated[float, Field(gt=0, lt=1)], ...], Option("checkpoints", read=parse_snapshots)
    ] = ()
    """Fractions of the steps after which a copy of the model is kept in `snapshots/` of the run, such as 0.1,0.5."""
    checkpoints_by_words: Annotated[bool, Option("checkpoints")] = False
    """Keep a copy of the model in `words/` of the run after 1, 2, … 10, 20, … 100, 200, … million words seen."""
    save_minutes: Annotated[float, Field(ge=1e-6, le=1e9, allow_inf_nan=False), Option("checkpoints")] = 5.0
    """Minutes between two checkpoints."""
    keep: Annotated[Positive, Option("checkpoints")] = 2
    """Number of checkpoints that are kept, the newest ones."""
    log_every: Annotated[Positive, Option("checkpoints")] = 50
    """Number of steps between two lines of metrics.jsonl."""
    precision: Annotated[Literal["auto", "fp32", "bf16"], Option("machine")] = "auto"
    """Precision of the matrix products; auto measures the machine."""
    compile: Annotated[Literal["auto", "on", "off"], Option("machine")] = "auto"
    """Compile the step with torch.compile; auto tries it in runs of an hour or more, and uses it where it is faster."""
    activation_checkpointing: Annotated[bool, Option("machine")] = False
    """Compute activations again in the backward pass: less memory, more time, the same results."""
    threads: Annotated[Threads | None, Option("machine")] = None
    """Number of threads. Default: one per core."""
    device: Annotated[Device, Option("machine")] = "cpu"
    """Device that computes: the processors (cpu), a GPU for each process (cuda), or an Apple GPU (mps)."""
    z_loss: Annotated[float, Field(ge=0, le=1), Option("optimiser")] = 0.0
    """Weight of the mean of (log Z)² in the loss, where Z is the sum over the vocabulary; 1e-4 is usual, 0 is none."""
    skip_loss_spikes: Annotated[bool, Option("optimiser")] = False
    """Skip up to ten updates whose loss is not finite or jumps up, instead of stopping at the first one."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_system(cls, values: Any) -> Any:
        """Add the defaults of the system: those of its rows and masks; GPT-1 has the tanh form of GELU."""
        if not isinstance(values, Mapping) or values.get("system", "bert") not in USUAL_SECOND_SENTENCE:
            return values
        examples, system = values.get("examples", {}), values.get("system", "bert")
        second = USUAL_SECOND_SENTENCE[system] if system in MASKED_LM_SYSTEMS else "none"
        rows: dict[str, Any] = {"second_sentence": second, "short_share": SHORT_SHARES[system]}
        if all(value == ExampleSettings.model_fields[name].default for name, value in rows.items()):
            return values
        if isinstance(examples, ExampleSettings):
            examples = examples.model_dump(exclude_unset=True)
        if isinstance(examples, Mapping):
            masks = _masks_of_generator(examples.get("masking", {})) if system in REPLACED_TOKEN_SYSTEMS else {}
            causal = {"causal_share": CAUSAL_SHARE} if system in CAUSAL_SHARE_SYSTEMS else {}
            values = {**values, "examples": {**rows, **causal, **examples, **masks}}
        return {"activation": "gelu_tanh", **values} if values["system"] in SPAN_SYSTEMS else values

    @model_validator(mode="before")
    @classmethod
    def _largest_batch(cls, values: Any) -> Any:
        """Set the rows per step to the largest number of the schedule of rows, where nothing else is given."""
        if not isinstance(values, Mapping) or not values.get("batch_schedule") or "batch_size" in values:
            return values
        try:
            sizes = [BatchPhase.model_validate(phase).rows for phase in values["batch_schedule"]]
        except (TypeError, ValidationError):  # the schedule itself is refused later, with its place
            return values
        return {**values, "batch_size": max(sizes)}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        schedules: dict[str, Sequence[Phase | MaskPhase | BatchPhase]] = {
            "phases": self.phases,
            "mask_schedule": self.mask_schedule,
            "batch_schedule": self.batch_schedule,
        }
        for name, phases in schedules.items():
            total = sum(phase.share for phase in phases)
            if phases and abs(total - 1.0) > 1e-6:
                raise ValueError(f"{name}: expected fractions of the steps that sum to 1, got {total:g}")
        sizes = [phase.rows for phase in self.batch_schedule]
        if any(after <= before for before, after in pairwise(sizes)):
            raise ValueError(f"batch_schedule: expected numbers of rows that grow, got {', '.join(map(str, sizes))}")
        if sizes and self.batch_size != sizes[-1]:
            raise ValueError(
                f"batch_schedule: ends with {sizes[-1]} rows per step, and batch_size is {self.batch_size}: expected "
                "one of the two; leave --batch-size out"
            )
        budgets = (self.steps, self.minutes, self.words or self.epochs)
        if sum(budget is not None for budget in budgets) != 1:
            raise ValueError("give either --steps or --minutes, or --words, --epochs or both")
        if self.checkpoints_by_words and self.minutes is not None:
            raise ValueError(
                "--checkpoints-by-words needs --words, --epochs or --steps: the words of --minutes are open"
            )
        for is_set, reason in self._conflicts():
            if is_set:
                raise ValueError(f"system {self.system}: {reason}")
        return self

    @property
    def kept_checkpoints(self) -> int:
        """Return the number of checkpoints that stay; with the schedule wsd that before the decay is one more."""
        return self.keep + (self.optimizer.schedule == "wsd")

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Return the parts of the steps in order: a new one begins with each phase of lengths, of masks or of rows."""
        return stages_of(self.phases, self.mask_schedule, self.batch_schedule, batch_size=self.batch_size)

    @property
    def tokens_per_step(self) -> float:
        """Return the mean number of tokens of a step, padding included."""
        return sum(stage.share * stage.batch_size * stage.length for stage in self.stages)

    @property
    def batch_text(self) -> str:
        """Return the number of rows per step as text: "64", or "16 to 64"."""
        smallest = min(stage.batch_size for stage in self.stages)
        return f"{self.batch_size}" if smallest == self.batch_size else f"{smallest} to {self.batch_size}"

    def examples_of(self, stage: Stage) -> ExampleSettings:
        """Return the settings of the rows of a stage, with its fraction of predicted tokens."""
        if stage.masked is None:
            return self.examples
        masking = self.examples.masking.model_copy(update={"share": stage.masked})
        return self.examples.model_copy(update={"masking": masking})

    def _conflicts(self) -> Iterator[tuple[bool, str]]:
        """Yield the settings that the system cannot have: true where one is set, and the reason."""
        examples, system = self.examples, self.system
        if system not in EMBEDDING_SIZE_SYSTEMS:
            reason = f"its embeddings are as wide as its states (embedding_size {self.embedding_size}); leave it out"
            yield self.embedding_size is not None, reason
        if system not in REPLACED_TOKEN_SYSTEMS:
            yield self.generator_width != GENERATOR_WIDTH, f"has no generator (generator_width {self.generator_width})"
        share = f"(causal_share {examples.causal_share:g})"
        if system in CAUSAL_SHARE_SYSTEMS:
            is_mixed = 0 < examples.causal_share < 1
            yield not is_mixed, f"expected a fraction of causal rows above 0 and below 1 {share}"
        else:
            yield (
                examples.causal_share > 0,
                f"its rows are all of one kind; gpt-bert mixes causal and masked rows {share}",
            )
        second = f"(second_sentence {examples.second_sentence})"
        if system in MASKED_LM_SYSTEMS:
            has_pairs = examples.pairs and system not in PAIR_SYSTEMS
            yield has_pairs, f"its rows have no second sentence; expected none {second}"
            return
        yield examples.pairs, f"a language model has no second sentence {second}"
        yield examples.masking != MaskingSettings(), "nothing is masked in a language model (masking)"
        yield bool(self.mask_schedule), "nothing is masked in a language model (mask_schedule)"
        yield examples.static_masks > 0, f"there are no masks to repeat (static_masks {examples.static_masks})"
        longest = max(phase.length for phase in self.phases)
        if system in SPAN_SYSTEMS:
            yield examples.short_share != ExampleSettings().short_share, "its spans are all of one length (short_share)"
        if system == "gpt":
            yield longest > _GPT_POSITIONS, f"GPT-1 has {_GPT_POSITIONS} positions, and rows are {longest} tokens long"
            yield self.activation != "gelu_tanh", "GPT-1 has the tanh form of GELU (activation gelu_tanh)"
        if system.startswith("lstm"):
            yield self.start != "random", "an LSTM has no attention to initialise (start)"
            yield self.activation != "gelu", "an LSTM has no GELU (activation)"
            yield self.optimizer.method == "muon", "Muon trains the matrices of Transformer layers (optimizer)"


def _masks_of_generator(masking: Any) -> dict[str, Any]:
    """Return the masking of ELECTRA: [MASK] for every chosen piece, where `masking` says nothing else (its §2)."""
    if isinstance(masking, MaskingSettings):
        masking = masking.model_dump(exclude_unset=True)
    return {"masking": {"mask": 1.0, "same": 0.0, "random": 0.0, **masking}} if isinstance(masking, Mapping) else {}


RECIPES: Mapping[str, PretrainSettings] = MappingProxyType(
    {
        "paper-base": PretrainSettings(size="base", steps=1_000_000),
        "paper-large": PretrainSettings(size="large", steps=1_000_000),
        "paper-gpt": PretrainSettings(
            system="gpt",
            size="base",
            steps=1_000_000,  # as BERT's paper says (§A.4); its own says 100 passes over its books
            batch_size=64,
            phases=(Phase(length=512, share=1.0),),
            optimizer=OptimizerSettings(
                learning_rate=2.5e-4,
                warmup=0.002,  # 2,000 of 1,000,000 steps
                schedule="cosine",
                epsilon=1e-8,  # this and bias correction: its code for fine-tuning
                bias_correction=True,
            ),
        ),
        "two-hours": PretrainSettings(  # of small-wiki (docs/encoders.md)
            system="modernbert",
            size="6x192",
            minutes=120.0,
            examples=ExampleSettings(second_sentence="next", masking=MaskingSettings(share=0.3)),
            mask_schedule=(MaskPhase(masked=0.3, share=0.7), MaskPhase(masked=0.15, share=0.3)),
            batch_size=64,
            phases=(Phase(length=64, share=0.8), Phase(length=128, share=0.2)),
            optimizer=OptimizerSettings(
                method="muon", learning_rate=2.7e-3, muon_rate=0.012, warmup=0.1, bias_correction=True
            ),
            dropout=0.0,
            initializer_range=0.04,
            start="matching",
        ),
    }
)


PLAIN = PretrainSettings(
    minutes=60.0,
    examples=ExampleSettings(masking=MaskingSettings(share=0.3)),
    batch_size=64,
    phases=(Phase(length=64, share=0.8), Phase(length=128, share=0.2)),
    optimizer=OptimizerSettings(method="muon", learning_rate=2e-3, warmup=0.1, bias_correction=True),
    dropout=0.0,
    initializer_range=0.05,
    start="matching",
)
"""Settings of a model 128 wide, from which those of a run without a recipe are chosen (docs/log.md, "The settings of
pretrain")."""
ADAPTED: frozenset[str] = frozenset(
    {
        "size",
        "phases",
        "batch_size",
        "minutes",
        "learning_rate",
        "muon_rate",
        "dropout",
        "initializer_range",
        "start",
        "evaluations",
    }
)
"""Settings that `choose.py` adapts."""


BUDGETS: frozenset[str] = frozenset({"steps", "minutes", "words", "epochs"})
"""Settings that say how long a run trains."""


def resolve_settings(recipe: str | None, changes: Mapping[str, Any], *, from_model: bool = False) -> PretrainSettings:
    """Return the settings of a recipe, or of `PLAIN`, overridden by `changes`; see `requested_values`."""
    return PretrainSettings.model_validate(requested_values(recipe, changes, from_model=from_model))


def requested_values(recipe: str | None, changes: Mapping[str, Any], *, from_model: bool = False) -> dict[str, Any]:
    """Return the values that a recipe, or `PLAIN`, sets, overridden by `changes` group by group.

    from_model: True for a run with --init-from. The recipe's shape is left out, since the model has its own.
    Raises InputError for an unknown recipe.
    """
    if recipe is not None and recipe not in RECIPES:
        raise InputError(f"--recipe {recipe!r}: expected one of {', '.join(RECIPES)}")
    settings = RECIPES[recipe] if recipe else PLAIN
    left_out: dict[str, Any] = {}
    if from_model:
        left_out |= {"size": True, "activation": True, "initializer_range": True, "start": True}
        if settings.optimizer.method == "muon":  # its rate is for new weights
            left_out["optimizer"] = {"method", "muon_rate"}
    if BUDGETS & set(changes):
        left_out |= dict.fromkeys(BUDGETS, True)
    if changes.get("batch_schedule"):
        left_out["batch_size"] = True
    if "share" in changes.get("examples", {}).get("masking", {}):
        left_out["mask_schedule"] = True
    system = changes.get("system", settings.system)
    if system != settings.system:  # it has its own defaults for these
        is_masked = system in MASKED_LM_SYSTEMS and system not in REPLACED_TOKEN_SYSTEMS
        rows = {"second_sentence", "short_share", *(() if is_masked else ("masking",))}
        left_out |= {"activation": True, "examples": rows, **({} if is_masked else {"mask_schedule": True})}
        if system.startswith("lstm"):
            left_out |= {"start": True, "optimizer": {"method", "muon_rate"}}
    if changes.get("optimizer", {}).get("method") == "adamw":
        left_out["optimizer"] = {"muon_rate", *left_out.get("optimizer", ())}
    values = settings.model_dump(exclude_unset=True, exclude=left_out)
    return merged(values, changes)


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with `changes` in their place, group by group."""
    result = dict(values)
    for name, value in changes.items():
        result[name] = merged(values.get(name, {}), value) if isinstance(value, Mapping) else value
    return result
