"""name of a system ↔ configuration of its backbone: the systems that the families in `model/families` define.

This module does not import torch, because `--help` reads it.
"""

from typing import TYPE_CHECKING, Literal

from bertwright.model.config import BackboneConfig, SingleBackboneConfig, size_config
from bertwright.model.families import families, family_of

SYSTEMS: tuple[str, ...] = tuple(system for family in families().values() for system in family.systems)
"""Systems that can be pre-trained: BERT, BERT's blocks with one direction of attention, GPT-1, ELMo's two LSTMs, …"""
NAMES: dict[str, str] = {system: title for family in families().values() for system, title in family.systems.items()}
"""Title of each system."""

if TYPE_CHECKING:
    System = str
else:
    System = Literal[SYSTEMS]


def system_of(config: BackboneConfig) -> System | None:
    """Return the system of a backbone; None for a composition, which is not pre-trained."""
    return family_of(config).system_of(config)


def system_config(system: System, size: str, vocab_size: int, **changes: object) -> SingleBackboneConfig:
    """Return the configuration of a system's backbone in a named size; `changes` are fields of EncoderConfig.

    Each family takes the fields that it has. The number of cells of an LSTM is the feed-forward width of a Transformer
    of that size. Raises InputError for an unknown size, and for a number of heads of an LSTM.
    """
    shape = size_config(size, vocab_size, **changes)
    family = next(family for family in families().values() if system in family.systems)
    return family.from_encoder(system, shape, size)
