"""Settings of a fine-tuning run (paper §4.1). This module is read for --help, so it imports no torch."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from bertwright.config import Number, Option, Positive, PositiveNumber, Settings, Share, Threads
from bertwright.model.config import BackboneConfig, Way
from bertwright.training.settings import Device

Width = Annotated[int, Field(ge=2, lt=2**24, multiple_of=2)]
"""Width of a BiLSTM layer: an even number, half for each direction."""


class FinetuneSettings(Settings):
    """All settings that decide a fine-tuning run. `schedule.py` chooses those of the schedule that are None."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    numeric: ClassVar[frozenset[str]] = frozenset({"device", "activation_checkpointing"})
    epochs: Annotated[Positive | None, Option("schedule")] = None
    """Number of passes over the training data. Default: 3, more for few rows; for vectors 1 to 10."""
    batch_size: Annotated[Positive | None, Option("schedule")] = None
    """Number of examples per step. Default: 8, 16 or 32, by the number of rows; for vectors up to 128."""
    learning_rate: Annotated[PositiveNumber | None, Option("optimiser")] = None
    """Peak learning rate. Default: by the width of the model, 5e-4 for 128, 1e-4 for 384, 3e-5 for 768; 6.25e-5 for a
    GPT-1, 1e-3 with --features."""
    head_learning_rate: Annotated[PositiveNumber | None, Option("optimiser")] = None
    """Peak learning rate of the new output layer. Default: --learning-rate."""
    layer_decay: Annotated[float, Field(gt=0, le=1), Option("optimiser")] = 1.0
    """Factor of a layer's learning rate relative to the layer above it."""
    warmup: Annotated[Share | None, Option("optimiser")] = None
    """Fraction of the steps over which the learning rate rises. Default: 0.1; 0.002 for a GPT-1."""
    weight_decay: Annotated[Number, Option("optimiser")] = 0.01
    """Decoupled weight decay. LayerNorm and biases have none."""
    bias_correction: Annotated[bool, Option("optimiser")] = True
    """Correction of Adam's averages in the first steps; the original code trains without it."""
    lm_weight: Annotated[Number | None, Option("fine-tuning")] = None
    """Weight of the next-token loss on the texts of the task, for models whose tokens attend to the left. Default: 0.5
    for a GPT-1 (its paper's §3.2), else 0."""
    bilstm: Annotated[Width | None, Option("fine-tuning")] = None
    """Width of a new BiLSTM layer between the model and the head (paper §5.1); each direction has one half."""
    new_layers: Annotated[int, Field(ge=0), Option("fine-tuning")] = 0
    """Number of top layers that are initialised anew, together with the pooler; useful for small data."""
    frozen_layers: Annotated[int, Field(ge=0), Option("fine-tuning")] = 0
    """Number of lowest layers that stay fixed, together with the embeddings."""
    features: Annotated[Way | None, Option("fine-tuning")] = None
    """Feature-based approach: the encoder stays fixed, and a BiLSTM of two layers learns from these hidden states."""
    lstm_width: Annotated[int, Field(ge=2, multiple_of=2), Option("fine-tuning")] = 768
    """Width of the BiLSTM of --features; each direction has one half."""
    max_length: Annotated[int, Field(ge=8), Option("schedule")] = 128
    """Tokens per example. Each task has its own default; for sentences it is 128."""
    patience: Annotated[Positive | None, Option("schedule")] = None
    """Number of epochs without a better validation metric after which a seed ends. Default: it trains all epochs."""
    best: Annotated[str | None, Option("schedule")] = None
    """Metric that chooses the best epoch and seed, such as f1. Default: the first one of the task. With several
    validation files FILE.METRIC names one; METRIC alone is that of the first file."""
    seeds: Annotated[Positive, Option("schedule")] = 1
    """Number of runs, each with its own head and order of examples. Mean and deviation are reported."""
    first_seed: Annotated[int, Field(ge=0, lt=2**62), Option("schedule")] = 0
    """Seed of the first run; the next runs count up from it."""
    precision: Annotated[Literal["auto", "fp32", "bf16"], Option("machine")] = "auto"
    """Precision of the matrix products; auto measures the machine."""
    activation_checkpointing: Annotated[bool, Option("machine")] = False
    """Compute activations again in the backward pass: less memory, more time, the same results."""
    threads: Annotated[Threads | None, Option("machine")] = None
    """Number of threads. Default: one per core."""
    device: Annotated[Device, Option("machine")] = "cpu"
    """Device that computes: the processors (cpu), a GPU for each process (cuda), or an Apple GPU (mps)."""

    def language_weight(self, config: BackboneConfig) -> float:
        """Return the weight of the next-token loss for a model of that shape; 0: there is no such loss."""
        if self.lm_weight is not None or self.features:
            return self.lm_weight or 0.0
        return 0.5 if config.is_tuned_as_gpt else 0.0


FINETUNE_RECIPES: Mapping[str, FinetuneSettings] = MappingProxyType(
    {"paper": FinetuneSettings(epochs=3, batch_size=32, learning_rate=3e-5, warmup=0.1)}
)
"""Settings of the paper (§A.3): one point of its grid, for BERT base and large."""
