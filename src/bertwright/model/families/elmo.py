"""ELMo (Peters et al. 2018): LSTM language models in one direction, and the states of two models side by side.

Transformers has no class for them, so they are stored in bertwright's own form.
"""

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, SerializeAsAny, model_validator

from bertwright.config import Count, Number
from bertwright.errors import InputError
from bertwright.model.config import (
    HEAD_WIDTH,
    CompositeConfig,
    Dropout,
    EncoderConfig,
    SingleBackboneConfig,
    Size,
)
from bertwright.model.families import Family, SystemFamily, family_of

if TYPE_CHECKING:
    from bertwright.model.heads import TiedOutput
    from bertwright.model.recurrent import RecurrentBackbone, SideBySide


class LSTMConfig(SingleBackboneConfig):
    """Configuration of an LSTM language model in one direction."""

    vocab_size: Size
    hidden: Size
    layers: Annotated[int, Field(gt=0, lt=10_000)]
    cells: Size
    """Number of cells of a layer, which are projected to `hidden`."""
    attends: Literal["left", "right"] = "left"
    """Side of the tokens that a state has seen beside its own token."""
    max_positions: Size = 512
    """Maximum number of tokens of a row: that of a Transformer, so that comparisons use the same rows."""
    num_segments: Literal[0] = 0
    hidden_dropout: Dropout = 0.1
    initializer_range: Number = 0.02
    pad_id: Count = 0

    @model_validator(mode="after")
    def _projects(self) -> Self:
        if self.hidden >= self.cells:
            raise ValueError(f"hidden {self.hidden} is not below cells {self.cells}, which are projected to it")
        return self


class PairConfig(CompositeConfig):
    """Configuration of a pair: a left-to-right and a right-to-left model, trained independently, side by side."""

    left: SerializeAsAny[SingleBackboneConfig]
    right: SerializeAsAny[SingleBackboneConfig]

    @model_validator(mode="after")
    def _halves_match(self) -> Self:
        for name in ("vocab_size", "layers", "num_segments", "pad_id"):
            left, right = getattr(self.left, name), getattr(self.right, name)
            if left != right:
                raise ValueError(f"{name} is {left} in one of the two models and {right} in the other")
        sides = self.left.attends, self.right.attends
        if sides != ("left", "right"):
            raise ValueError(f"expected models that attend to the left and to the right, got {sides[0]} and {sides[1]}")
        return self

    @property
    def _part(self) -> SingleBackboneConfig:
        return self.left if self.left.max_positions <= self.right.max_positions else self.right

    @property
    def hidden(self) -> int:
        """Return the sum of both widths."""
        return self.left.hidden + self.right.hidden

    @property
    def layers(self) -> int:
        """Return the number of layers of each model."""
        return self.left.layers


class _LSTM(SystemFamily[LSTMConfig]):
    def build(self, config: LSTMConfig) -> "RecurrentBackbone":
        from bertwright.model.recurrent import RecurrentBackbone  # torch

        return RecurrentBackbone(config, cells=config.cells)

    def output(self, config: LSTMConfig) -> "TiedOutput":
        from bertwright.model.heads import TiedOutput  # torch

        return TiedOutput(config, bias=True)

    def from_encoder(self, system: str, shape: EncoderConfig, size: str) -> SingleBackboneConfig:
        """Return the LSTM of the same size, with as many cells as a Transformer has feed-forward units."""
        if shape.heads * HEAD_WIDTH != shape.hidden:
            raise InputError(
                f"size {size}: an LSTM has no heads; expected LAYERSxHIDDEN, where HIDDEN is a multiple of {HEAD_WIDTH}"
            )
        changes = shape.model_dump(exclude_defaults=True)
        values = {name: value for name, value in changes.items() if name in LSTMConfig.model_fields}
        side = system.partition("-")[2]
        return LSTMConfig.model_validate({**values, "cells": shape.intermediate, "attends": side})

    def system_of(self, config: LSTMConfig) -> str:
        return f"lstm-{config.attends}"


class _Pair(Family[PairConfig]):
    def build(self, config: PairConfig) -> "SideBySide":
        from bertwright.model.backbones import build_backbone  # torch
        from bertwright.model.recurrent import SideBySide  # torch

        return SideBySide(config, build_backbone(config.left), build_backbone(config.right))

    def prefixes(self, config: PairConfig) -> tuple[str, ...]:
        return ("left.", "right.")

    def title(self, config: PairConfig) -> str:
        left, right = (family_of(half).title(half) for half in (config.left, config.right))
        return f"pair of a {left} and a {right}"


LSTM_FAMILY = _LSTM(
    name="lstm",
    config_class=LSTMConfig,
    systems={"lstm-left": "left-to-right LSTM", "lstm-right": "right-to-left LSTM"},
    learns_positions=False,
)
PAIR_FAMILY = _Pair(name="pair", config_class=PairConfig)
