"""name → settings of a pre-training run: the papers' own (BERT §A.2, GPT-1 §4.1), and what suits two cores.

A recipe is a nested table of settings; what a person gives beats it, and what it does not name has its general default.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from bertwright.config import Positive, PositiveNumber, Seed, Settings, Share, Threads
from bertwright.errors import InputError
from bertwright.model.attention_init import Start
from bertwright.model.config import written_size
from bertwright.model.system import System
from bertwright.objectives.settings import ExampleSettings, MaskingSettings
from bertwright.training.hardware import Device
from bertwright.training.optimizer import OptimizerSettings

_GPT_POSITIONS = 512
TUNED_DROPOUT = 0.1
"""With what a pre-trained model is fine-tuned, whatever its pre-training did without (paper §A.3: always 0.1)."""
HELD_OUT_ROWS, HELD_OUT_LENGTH = 2048, 128
"""The held-out protocol: the first 2,048 rows of 128 tokens of the next-sentence walk with seed 0, 80/10/10."""


class Phase(Settings):
    """Rows of `length` tokens for a `share` of the steps."""

    length: Annotated[int, Field(ge=8)]
    share: Share


class PretrainSettings(Settings):
    """Everything that decides a pre-training run; the defaults are the paper's."""

    free: ClassVar[frozenset[str]] = frozenset({"keep", "skip_loss_spikes"})
    bits: ClassVar[frozenset[str]] = frozenset({"device", "micro_tokens", "activation_checkpointing"})
    system: System = "bert"
    """What is trained; all but BERT are language models, which predict the next token at every place."""
    size: str = "tiny"
    phases: tuple[Phase, ...] = (Phase(length=128, share=0.9), Phase(length=512, share=0.1))
    batch_size: Annotated[int, Field(gt=0, le=1 << 24)] = 256
    """Rows of one optimiser step, which are made at once."""
    micro_tokens: Positive = 8192
    """Tokens (padding included) computed at a time: how a step's rows are cut; changes speed and memory."""
    steps: Positive | None = None
    minutes: Annotated[float, Field(gt=0, le=1e9)] | None = None
    seed: Seed = 0
    examples: ExampleSettings = ExampleSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Of hidden states and of attention probabilities, in pre-training; model folders say TUNED_DROPOUT."""
    initializer_range: PositiveNumber = 0.02
    start: Start = "random"
    """What attention starts from: nothing, as the paper, neighbouring places, or these and places of the same piece."""
    held_out_share: Share = 0.0
    """Documents of the corpus kept for measuring, where no held-out corpus is given."""
    held_out_rows: Positive = HELD_OUT_ROWS
    evaluations: Annotated[int, Field(ge=0, le=100_000)] = 20
    """Held-out evaluations over the run, the one at the end included."""
    snapshots: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = ()
    """Shares of the steps after which the model is kept as it is then, in `snapshots/step-…` of the run."""
    save_minutes: Annotated[float, Field(ge=1e-6, le=1e9, allow_inf_nan=False)] = 5.0
    keep: Positive = 2
    """Checkpoints, the newest ones."""
    log_every: Positive = 50
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile of the step; `auto` tries it where the run takes an hour or more, taking it where it is faster."""
    activation_checkpointing: bool = False
    """Compute each layer anew in backward instead of keeping its inside: the same numbers, less memory, more time."""
    threads: Threads | None = None
    device: Device = "cpu"
    """What computes: the processors, or a GPU for each process."""
    skip_loss_spikes: bool = False
    """Leave out up to ten updates whose loss is not finite or leapt up, instead of stopping at the first."""

    @model_validator(mode="before")
    @classmethod
    def _as_the_system_has_it(cls, values: Any) -> Any:
        """What a system does not leave open: language models have no second sentence, and GPT-1 the tanh form."""
        if not isinstance(values, Mapping) or values.get("system", "bert") == "bert":
            return values
        examples = values.get("examples", {})
        if isinstance(examples, ExampleSettings):
            examples = examples.model_dump(exclude_unset=True)
        if isinstance(examples, Mapping):
            values = {**values, "examples": {"second_sentence": "none", **examples}}
        return {"activation": "gelu_tanh", **values} if values["system"] == "gpt" else values

    @field_validator("size")
    @classmethod
    def _as_it_is_written(cls, size: str) -> str:
        """Records of earlier runs from a model of a size without a name spell it out."""
        spelled = re.fullmatch(r"(\d+)x(\d+) of (\d+) heads, (\d+) inside", size)
        if spelled is None or int(spelled[4]) != 4 * int(spelled[2]):
            return size
        return written_size(int(spelled[1]), int(spelled[2]), int(spelled[3]))

    @field_validator("compile", mode="before")
    @classmethod
    def _was_a_switch(cls, value: Any) -> Any:
        """Records of earlier runs say yes or no, and no was the default."""
        return {True: "on", False: "auto"}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if abs(sum(phase.share for phase in self.phases) - 1.0) > 1e-6:
            raise ValueError(f"the shares of the phases sum to {sum(p.share for p in self.phases)}, not 1")
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("give either steps or minutes")
        for wrong, why in self._impossible():
            if wrong:
                raise ValueError(f"system {self.system}: {why}")
        return self

    def _impossible(self) -> Iterator[tuple[bool, str]]:
        """What does not go with a language model: whether it was asked for, and why not."""
        examples, system = self.examples, self.system
        if system == "bert":
            return
        yield examples.pairs, f"a language model has no second sentence (second_sentence {examples.second_sentence})"
        yield examples.masking != MaskingSettings(), "nothing is masked in a language model (masking)"
        yield examples.static_masks > 0, f"there are no masks to repeat (static_masks {examples.static_masks})"
        longest = max(phase.length for phase in self.phases)
        if system == "gpt":
            yield examples.short_share != ExampleSettings().short_share, "its spans are all of one length (short_share)"
            yield longest > _GPT_POSITIONS, f"GPT-1 has {_GPT_POSITIONS} positions, and rows are {longest} tokens long"
            yield self.activation != "gelu_tanh", "GPT-1 has the tanh form of GELU (activation gelu_tanh)"
        if system.startswith("lstm"):
            yield self.activation != "gelu", "an LSTM has no GELU (activation)"
            yield self.start != "random", "an LSTM has no attention to begin at anything (start)"
            yield self.optimizer.method == "muon", "Muon is for the matrices of Transformers' blocks (optimizer)"


_PAPER = {
    "steps": 1_000_000,
    "batch_size": 256,
    "phases": ({"length": 128, "share": 0.9}, {"length": 512, "share": 0.1}),
    "examples": {
        "second_sentence": "next",
        "static_masks": 0,
        "short_share": 0.1,
        "masking": {"share": 0.15, "mask": 0.8, "same": 0.1, "random": 0.1, "units": "piece"},
    },
    "optimizer": {
        "learning_rate": 1e-4,
        "warmup": 0.01,  # 10,000 of 1,000,000 steps
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        "clip": 1.0,
        "bias_correction": False,
    },
    "activation": "gelu",
    "dropout": 0.1,
    "initializer_range": 0.02,
    "start": "random",
}

_OF_THE_MODEL = ("size", "activation", "initializer_range")
"""What a run that begins from a model has from there."""
RECIPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "paper-base": {**_PAPER, "size": "base"},
        "paper-large": {**_PAPER, "size": "large"},
        "paper-gpt": {
            "system": "gpt",
            "size": "base",
            "steps": 1_000_000,  # as BERT's paper says (§A.4); its own says 100 passes over its books
            "batch_size": 64,
            "phases": ({"length": 512, "share": 1.0},),
            "optimizer": {
                "learning_rate": 2.5e-4,
                "warmup": 0.002,  # 2,000 of 1,000,000 steps
                "schedule": "cosine",
                "beta1": 0.9,
                "beta2": 0.999,
                "epsilon": 1e-8,  # this, correction and clipping: its code for fine-tuning
                "weight_decay": 0.01,
                "clip": 1.0,
                "bias_correction": True,
            },
            "dropout": 0.1,
            "initializer_range": 0.02,
        },
        # Measured with --minutes 56 on one of the cores: the first tiny of the README's results.
        "two-cores": {
            "size": "tiny",
            "minutes": 60.0,
            "batch_size": 32,
            "phases": ({"length": 128, "share": 1.0},),
            "optimizer": {"learning_rate": 2e-3, "warmup": 0.05, "bias_correction": True},
            "initializer_range": 0.05,
            "start": "local",
        },
        "two-hours": {
            "size": "4x128",
            "minutes": 120.0,
            "batch_size": 64,
            "phases": ({"length": 64, "share": 0.5}, {"length": 128, "share": 0.5}),
            "optimizer": {"method": "muon", "learning_rate": 2e-3, "warmup": 0.05, "bias_correction": True},
            "dropout": 0.0,
            "initializer_range": 0.05,
            "start": "local",
        },
    }
)


def resolve_settings(recipe: str | None, given: Mapping[str, Any], *, begins_anew: bool = True) -> PretrainSettings:
    """The settings of `recipe` under those `given` (None: not given); InputError for a recipe that there is not.

    begins_anew: False for a run that begins from a model, which brings a shape of its own: the recipe's is left out.
    """
    if recipe is not None and recipe not in RECIPES:
        raise InputError(f"--recipe {recipe!r}: there are {', '.join(RECIPES)}")
    chosen = dict(RECIPES[recipe]) if recipe else {}
    if not begins_anew:
        chosen = {name: value for name, value in chosen.items() if name not in _OF_THE_MODEL}
    if given.get("steps") is not None or given.get("minutes") is not None:
        chosen = {name: value for name, value in chosen.items() if name not in ("steps", "minutes")}
    return PretrainSettings.model_validate(over(chosen, given))


def over(chosen: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`chosen` with what is not None in `given` in its place, group by group."""
    merged = dict(chosen)
    for name, value in given.items():
        if isinstance(value, Mapping):
            merged[name] = over(chosen.get(name, {}), value)
        elif value is not None:
            merged[name] = value
    return merged
