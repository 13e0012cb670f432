"""configuration → backbone: the interface of all backbones; the family of the configuration builds the module.

Shapes: B batch, T tokens, Q rows that are computed, D hidden.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from bertwright.model.config import BackboneConfig
from bertwright.model.families import family_of


@dataclass(frozen=True)
class EncoderOutput:
    """States of a backbone.

    last: states of the last layer [B, T, D], or [B, Q, D] for chosen positions.
    hidden: the embeddings and the output of every layer, [B, T, D] each; empty unless `all_hidden` is set.
    """

    last: Tensor
    hidden: tuple[Tensor, ...] = ()


class Backbone(nn.Module, ABC):
    """A module that turns token ids into states."""

    config: BackboneConfig

    @abstractmethod
    def forward(
        self, ids: Tensor, segments: Tensor, mask: Tensor, *, all_hidden: bool = False, at: Tensor | None = None
    ) -> EncoderOutput:
        """Encode `ids` [B, T] with `segments` [B, T] and `mask` [B, T] (True for real tokens, which precede padding).

        all_hidden: True to return the embeddings and the output of each layer too (feature-based use, paper §5.3).
        at: positions [B, Q] at which the last states are returned; None: all positions.
        """

    @abstractmethod
    def summary(self, ids: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        """Return a state that has seen the whole row [B, D]."""

    @abstractmethod
    def word_embeddings(self) -> list[nn.Embedding]:
        """Return the tables of word embeddings: one for each single backbone."""

    @abstractmethod
    def blocks(self) -> tuple[nn.Module, ...]:
        """Return the units of sharding and of activation checkpointing, in the order of computation."""

    @abstractmethod
    def flops(self, length: int, num_last: int) -> float:
        """Return the FLOPs of the matrix products of a row's forward pass.

        num_last: number of the `length` positions at which the last layer is computed.
        """


def build_backbone(config: BackboneConfig) -> Backbone:
    """Return a backbone with this configuration and the initial weights of torch."""
    backbone: Backbone = family_of(config).build(config)
    return backbone


def part_prefixes(config: BackboneConfig) -> tuple[str, ...]:
    """Return the prefixes of parameter names of the single backbones that a backbone consists of."""
    return family_of(config).prefixes(config)
