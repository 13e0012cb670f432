"""What decides a run: the settings of a pre-training and of a fine-tuning (paper §3.1, §4.1, §A.2)."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from bertwright.config import Number, Positive, PositiveNumber, Seed, Settings, Share, Threads
from bertwright.model.sizes import BodyConfig, GPTConfig, PairConfig, System, TopConfig, Way, written_size
from bertwright.model.starts import Start
from bertwright.objectives.examples import ExampleSettings
from bertwright.objectives.mlm import MaskingSettings
from bertwright.training.device import Device
from bertwright.training.optimizer import OptimizerSettings

_GPT_POSITIONS = 512
TUNED_DROPOUT = 0.1
"""With what a pre-trained model is fine-tuned, whatever its pre-training did without (paper §A.3: always 0.1)."""
HELD_OUT_ROWS, HELD_OUT_LENGTH = 2048, 128
"""The held-out protocol: the first 2,048 rows of 128 tokens of the next-sentence walk with seed 0, 80/10/10."""
_WHOLE = {"epochs", "batch_size", "weight_decay", "new_layers", "first_seed", "precision", "threads"}
"""What tells the record of a fine-tuning from some of its settings."""


class Phase(Settings):
    """Rows of `length` tokens for a `share` of the steps."""

    length: Annotated[int, Field(ge=8)]
    share: Share


class PretrainSettings(Settings):
    """Everything that decides a pre-training run; the defaults are the paper's."""

    free: ClassVar[frozenset[str]] = frozenset({"keep", "skip_bad_steps"})
    bits: ClassVar[frozenset[str]] = frozenset({"device", "micro_tokens", "recompute"})
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
    recompute: bool = False
    """Compute each layer anew in backward instead of keeping its inside: the same numbers, less memory, more time."""
    threads: Threads | None = None
    device: Device = "cpu"
    """What computes: the processors, or a GPU for each process."""
    skip_bad_steps: bool = False
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


class FinetuneSettings(Settings):
    """Everything that decides a fine-tuning; defaults as the paper, the learning rate by the width of the model."""

    bits: ClassVar[frozenset[str]] = frozenset({"device", "recompute"})
    epochs: Positive = 3
    batch_size: Positive = 32
    learning_rate: PositiveNumber | None = None
    """None: 3e-5 from 768 wide on (the paper's grid; GPT-1: 6.25e-5), 3e-4 for smaller ones (the grid of their
    release), 1e-3 for the BiLSTM of the feature-based way."""
    head_learning_rate: PositiveNumber | None = None
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The rate of each layer as a share of the one above it."""
    warmup: Share | None = None
    """None: a tenth of the steps; 0.2 % of them for GPT-1 (its paper's §4.1)."""
    weight_decay: Number = 0.01
    bias_correction: bool = True
    lm_weight: Number | None = None
    """Of the next-token loss on the task's own texts, for models whose tokens attend to those before them.

    None: 0.5 for GPT-1 (its paper's §3.2), 0 for all others.
    """
    bilstm: Annotated[int, Field(ge=2, lt=2**24, multiple_of=2)] | None = None
    """The width of a new BiLSTM of one layer between the model and the head (paper §5.1), half in each direction."""
    new_layers: Annotated[int, Field(ge=0)] = 0
    """Top layers, and the pooler, that begin anew: what they learned last is closest to the pre-training's task."""
    frozen_layers: Annotated[int, Field(ge=0)] = 0
    """Layers from below, the embeddings with them, that stay as they are."""
    features: Way | None = None
    """The feature-based way: the encoder stays as it is, and a BiLSTM learns from these of its states."""
    lstm_width: Annotated[int, Field(ge=2, multiple_of=2)] = 768
    """Of that BiLSTM, half in each direction."""
    max_length: Annotated[int, Field(ge=8)] = 128
    seeds: Positive = 1
    first_seed: Annotated[int, Field(ge=0, lt=2**62)] = 0
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    recompute: bool = False
    """As in pre-training."""
    threads: Threads | None = None
    device: Device = "cpu"
    """As in pre-training."""

    @model_validator(mode="before")
    @classmethod
    def _knew_one_warmup(cls, values: Any) -> Any:
        """Whole records from before GPT-1 could be fine-tuned say 0.1, which was the default."""
        if not isinstance(values, Mapping) or "lm_weight" in values or not set(values) >= _WHOLE:
            return values
        return {**values, "warmup": None} if values.get("warmup") == 0.1 else values

    def rate(self, config: BodyConfig) -> float:
        """The peak rate for a model of that shape."""
        if self.learning_rate or self.features:
            return self.learning_rate or 1e-3
        body = config.inner if isinstance(config, TopConfig) else config
        widest = max(body.left.hidden, body.right.hidden) if isinstance(body, PairConfig) else body.hidden
        return 3e-4 if widest < 768 else 6.25e-5 if isinstance(body, GPTConfig) else 3e-5

    def warmup_of(self, config: BodyConfig) -> float:
        """The share of the steps over which the rate of a model of that shape rises."""
        if self.warmup is not None:
            return self.warmup
        body = config.inner if isinstance(config, TopConfig) else config
        return 0.002 if isinstance(body, GPTConfig) and not self.features else 0.1

    def language_weight(self, config: BodyConfig) -> float:
        """What the next-token loss of a model of that shape is multiplied by; 0: there is none."""
        if self.lm_weight is not None or self.features:
            return self.lm_weight or 0.0
        return 0.5 if isinstance(config, GPTConfig) else 0.0
