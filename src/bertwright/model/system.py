"""name of a system ↔ configuration of its backbone: the systems that the families in `model/families` define.

This module does not import torch, because `--help` reads it.
"""

from typing import TYPE_CHECKING, Literal

from bertwright.model.config import (
    BackboneConfig,
    SingleBackboneConfig,
    attends_both_ways,
    finds_replaced,
    predicts_ahead,
    size_config,
)
from bertwright.model.families import SystemFamily, families, family_of

_FAMILIES = {
    system: family for family in families().values() if isinstance(family, SystemFamily) for system in family.systems
}
SYSTEMS: tuple[str, ...] = tuple(_FAMILIES)
"""Systems that can be pre-trained: BERT, BERT's blocks with one direction of attention, GPT-1, ELMo's two LSTMs, …"""
NAMES: dict[str, str] = {system: family.systems[system] for system, family in _FAMILIES.items()}
"""Title of each system."""

USUAL_SECOND_SENTENCE: dict[str, str] = {system: family.second_sentence for system, family in _FAMILIES.items()}
"""Usual objective for pairs of sentences of each system that learns masked LM."""
SHORT_SHARES: dict[str, float] = {system: family.short_share for system, family in _FAMILIES.items()}
"""Usual fraction of the documents that are cut into shorter rows, of each system."""
RATE_FACTORS: dict[str, float] = {system: family.rate_factor for system, family in _FAMILIES.items()}
"""Learning rates of new weights of each system with Muon, as a multiple of BERT's."""

if TYPE_CHECKING:
    System = str
else:
    System = Literal[SYSTEMS]


def system_of(config: BackboneConfig) -> System | None:
    """Return the system of a backbone; None for a composition, which is not pre-trained."""
    return family_of(config).system_of(config)


def system_config(
    system: System, size: str, vocab_size: int, *, embedding_size: int | None = None, **changes: object
) -> SingleBackboneConfig:
    """Return the configuration of a system's backbone in a named size; `changes` are fields of EncoderConfig.

    embedding_size: width of the embeddings of one of `EMBEDDING_SIZE_SYSTEMS`; None: the usual one of the family.
    Each family takes the fields that it has. The number of cells of an LSTM is the feed-forward width of a Transformer
    of that size. Raises InputError for an unknown size, and for a number of heads of an LSTM.
    """
    config = _FAMILIES[system].from_encoder(system, size_config(size, vocab_size, **changes), size)
    return config.model_copy(update={} if embedding_size is None else {"embedding_size": embedding_size})


MASKED_LM_SYSTEMS: tuple[str, ...] = tuple(
    system for system in SYSTEMS if attends_both_ways(system_config(system, "tiny", vocab_size=1000))
)
"""Systems that learn masked LM, because their tokens attend to both sides; the others are language models."""
REPLACED_TOKEN_SYSTEMS: tuple[str, ...] = tuple(
    system for system in MASKED_LM_SYSTEMS if finds_replaced(system_config(system, "tiny", vocab_size=1000))
)
"""Systems in which a generator learns masked LM, and the model finds the tokens that the generator replaced."""
CAUSAL_SHARE_SYSTEMS: tuple[str, ...] = tuple(
    system for system in MASKED_LM_SYSTEMS if predicts_ahead(system_config(system, "tiny", vocab_size=1000))
)
"""Systems whose rows are partly those of masked LM, and partly those of a left-to-right language model."""
PAIR_SYSTEMS: tuple[str, ...] = tuple(system for system in MASKED_LM_SYSTEMS if _FAMILIES[system].learns_pairs)
"""Systems whose masked LM may have a second objective about two sentences."""
EMBEDDING_SIZE_SYSTEMS: tuple[str, ...] = tuple(
    system for system, family in _FAMILIES.items() if "embedding_size" in family.config_class.model_fields
)
"""Systems whose embeddings may have another width than the states: ALBERT and ELECTRA."""
SPAN_SYSTEMS: tuple[str, ...] = tuple(system for system, family in _FAMILIES.items() if family.trains_on_spans)
"""Language models that are trained on spans of the text, without tokens around sentences: GPT-1 and GPT-2."""
