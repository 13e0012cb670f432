"""What decides a run: the settings of a pre-training and of a fine-tuning (paper §3.1, §4.1, §A.2)."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bertwright.config import Positive, Seed, Settings, Share
from bertwright.model.sizes import Way
from bertwright.objectives.examples import ExampleSettings
from bertwright.training.optimizer import OptimizerSettings

HELD_OUT_ROWS, HELD_OUT_LENGTH = 2048, 128
"""The held-out protocol: the first 2,048 rows of 128 tokens of the next-sentence walk with seed 0, 80/10/10."""


class Phase(Settings):
    """Rows of `length` tokens for a `share` of the steps."""

    length: Annotated[int, Field(ge=8)]
    share: Share


class PretrainSettings(Settings):
    """Everything that decides a pre-training run; the defaults are the paper's, batch and steps excepted."""

    size: str = "tiny"
    phases: tuple[Phase, ...] = (Phase(length=128, share=0.9), Phase(length=512, share=0.1))
    batch_size: Positive = 256
    """Rows of one optimiser step."""
    micro_tokens: Positive = 8192
    """Tokens (padding included) computed at a time: how a step's rows are cut; changes speed and memory."""
    steps: Positive | None = None
    minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    seed: Seed = 0
    examples: ExampleSettings = ExampleSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Of hidden states and of attention probabilities."""
    initializer_range: Annotated[float, Field(gt=0)] = 0.02
    start: Literal["random", "local"] = "random"
    """What the first layer's attention starts from: nothing, as the paper, or the neighbouring places."""
    held_out_share: Share = 0.0
    """Documents of the corpus kept for measuring, where no held-out corpus is given."""
    held_out_rows: Positive = HELD_OUT_ROWS
    evaluations: Annotated[int, Field(ge=0)] = 20
    """Held-out evaluations over the run, the one at the end included."""
    save_minutes: Annotated[float, Field(gt=0)] = 5.0
    log_every: Positive = 50
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool = False
    recompute: bool = False
    """Compute each layer anew in backward instead of keeping its inside: the same numbers, less memory, more time."""
    threads: Positive | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if abs(sum(phase.share for phase in self.phases) - 1.0) > 1e-6:
            raise ValueError(f"the shares of the phases sum to {sum(p.share for p in self.phases)}, not 1")
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("give either steps or minutes")
        return self


class FinetuneSettings(Settings):
    """Everything that decides a fine-tuning; defaults as the paper, the learning rate by the width of the model."""

    epochs: Positive = 3
    batch_size: Positive = 32
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    """None: 3e-5 from 768 wide on (the paper's grid), 3e-4 for smaller ones (the grid of their release), 1e-3 for the
    BiLSTM of the feature-based way."""
    head_learning_rate: Annotated[float, Field(gt=0)] | None = None
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The rate of each layer as a share of the one above it."""
    warmup: Share = 0.1
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    bias_correction: bool = True
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
    threads: Positive | None = None

    def rate(self, hidden: int) -> float:
        """The peak rate for a model of that width."""
        return self.learning_rate or (1e-3 if self.features else 3e-5 if hidden >= 768 else 3e-4)
