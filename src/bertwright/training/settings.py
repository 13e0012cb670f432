"""Settings of the optimiser and the device (paper §A.2). This module is read for --help, so it imports no torch."""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from bertwright.config import Number, Option, PositiveNumber, Settings, Share

Device = Literal["cpu", "cuda", "mps"]
"""The processors, NVIDIA's GPUs, or the GPU of an Apple computer."""
Beta = Annotated[float, Field(ge=0, lt=1)]
Schedule = Literal["linear", "cosine", "wsd"]
"""Decay of the learning rate to 0: linear as in BERT (paper §A.2), cosine as in GPT-1 (GPT paper §4.1), or
warm-up, stable, decay: the peak rate up to the last steps (arXiv 2404.06395)."""
MUON_RATE = 0.006


class OptimizerSettings(Settings):
    """Settings of the optimiser; the defaults are the paper's."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    method: Annotated[Literal["adamw", "muon"], Option("optimiser", name="optimizer")] = "adamw"
    """Optimiser of the weight matrices of the layers: adamw, as in the paper, or muon. All other weights use AdamW."""
    learning_rate: Annotated[PositiveNumber, Option("optimiser")] = 1e-4
    """Peak learning rate."""
    muon_rate: Annotated[PositiveNumber, Option("optimiser")] = MUON_RATE
    """Peak learning rate of the matrices that Muon trains."""
    warmup: Annotated[Share, Option("optimiser")] = 0.01
    """Fraction of the steps over which the learning rate rises from 0 to its peak."""
    schedule: Annotated[Schedule, Option("optimiser")] = "linear"
    """Decay of the learning rate after warm-up: linear as in BERT, cosine as in GPT-1, or wsd, which keeps the peak
    up to the last steps and can be extended."""
    decay_share: Annotated[Share, Option("optimiser")] = 0.2
    """Fraction of the steps over which the learning rate falls to 0 at the end of the schedule wsd."""
    beta1: Beta = 0.9
    beta2: Annotated[Beta, Option("optimiser")] = 0.999
    """Decay rate of Adam's average of squared gradients."""
    epsilon: PositiveNumber = 1e-6
    weight_decay: Annotated[Number, Option("optimiser")] = 0.01
    """Decoupled weight decay. LayerNorm and biases have none."""
    clip: Annotated[PositiveNumber, Option("optimiser")] = 1.0
    """Global norm to which gradients are clipped; 1e9 switches clipping off."""
    bias_correction: Annotated[bool, Option("optimiser")] = False
    """Correction of Adam's averages in the first steps. The original has none; short runs are steadier with it."""

    @model_validator(mode="after")
    def _needs_muon(self) -> Self:
        if self.method == "adamw" and self.muon_rate != MUON_RATE:
            raise ValueError(f"muon_rate {self.muon_rate:g} is the rate of Muon; it needs --optimizer muon")
        return self


def stable_steps(steps: int, decay: float) -> int:
    """Return the number of steps before the learning rate of the schedule wsd falls."""
    return steps - int(steps * decay)
