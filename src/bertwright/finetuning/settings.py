"""What decides a run: the settings of a pre-training and of a fine-tuning (paper §3.1, §4.1, §A.2)."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from bertwright.config import Number, Positive, PositiveNumber, Settings, Share, Threads
from bertwright.model.config import BackboneConfig, Way
from bertwright.model.families.bilstm import TopConfig
from bertwright.model.families.elmo import PairConfig
from bertwright.model.families.gpt import GPTConfig
from bertwright.training.hardware import Device

_WHOLE = {"epochs", "batch_size", "weight_decay", "new_layers", "first_seed", "precision", "threads"}
"""What tells the record of a fine-tuning from some of its settings."""


class FinetuneSettings(Settings):
    """Everything that decides a fine-tuning; defaults as the paper, the learning rate by the width of the model."""

    bits: ClassVar[frozenset[str]] = frozenset({"device", "activation_checkpointing"})
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
    activation_checkpointing: bool = False
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

    def rate(self, config: BackboneConfig) -> float:
        """The peak rate for a model of that shape."""
        if self.learning_rate or self.features:
            return self.learning_rate or 1e-3
        body = config.inner if isinstance(config, TopConfig) else config
        widest = max(body.left.hidden, body.right.hidden) if isinstance(body, PairConfig) else body.hidden
        return 3e-4 if widest < 768 else 6.25e-5 if isinstance(body, GPTConfig) else 3e-5

    def warmup_of(self, config: BackboneConfig) -> float:
        """The share of the steps over which the rate of a model of that shape rises."""
        if self.warmup is not None:
            return self.warmup
        body = config.inner if isinstance(config, TopConfig) else config
        return 0.002 if isinstance(body, GPTConfig) and not self.features else 0.1

    def language_weight(self, config: BackboneConfig) -> float:
        """What the next-token loss of a model of that shape is multiplied by; 0: there is none."""
        if self.lm_weight is not None or self.features:
            return self.lm_weight or 0.0
        return 0.5 if isinstance(config, GPTConfig) else 0.0
