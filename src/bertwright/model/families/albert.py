"""ALBERT (arXiv 1909.11942): narrow embeddings, layers that share their weights, sentence order; its transformers form.

Layers share all weights, those of attention alone, or those of the feed-forward layers alone. The last two are stored
in bertwright's own form, because no class of transformers computes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from bertwright.model.config import EncoderConfig, Size
from bertwright.model.families import ModelDescription
from bertwright.model.families.tables import CONFIG_NAMES, EncoderFamily, usual_classes

if TYPE_CHECKING:
    from bertwright.model.encoder import Encoder

Shares = Literal["all", "attention", "feed-forward"]
"""Weights that layers share."""
_EMBEDDING_SIZE = 128
"""Width of the embeddings of all published models."""
_LAYER = "albert.encoder.albert_layer_groups.#.albert_layers.0"


class AlbertConfig(EncoderConfig):
    """Configuration of an ALBERT; layers of the same of `groups` groups share the weights that `shares` names."""

    embedding_size: Size
    groups: Annotated[int, Field(gt=0)] = 1
    shares: Shares = "all"
    attends: Literal["both"] = "both"

    @property
    def embedding_width(self) -> int:
        """Return the width of the embeddings."""
        return self.embedding_size

    @property
    def projects_embeddings(self) -> bool:
        """Return True: a linear layer follows the embeddings at any width."""
        return True

    @property
    def distinct_layers(self) -> int:
        """Return the number of groups, or that of the layers where only a part of a layer is shared."""
        return self.groups if self.shares == "all" else self.layers

    @property
    def shares_layers(self) -> bool:
        """Return True where a group has several layers."""
        return self.groups < self.layers

    @model_validator(mode="after")
    def _groups_divide_layers(self) -> Self:
        if self.layers % self.groups:
            raise ValueError(f"layers {self.layers} is not a multiple of groups {self.groups}")
        return self


@dataclass(frozen=True, kw_only=True)
class _Albert(EncoderFamily[AlbertConfig]):
    def build(self, config: AlbertConfig) -> "Encoder":
        from bertwright.model.encoder import Encoder, share_parts  # torch

        encoder = Encoder(config)
        parts: dict[Shares, tuple[str, ...]] = {
            "all": (),
            "attention": ("attention", "attention_norm"),
            "feed-forward": ("expand", "contract", "output_norm"),
        }
        share_parts(encoder, parts[config.shares], groups=config.groups)
        return encoder

    def from_encoder(self, system: str, shape: EncoderConfig, size: str) -> AlbertConfig:
        """Return the ALBERT of the same size; its embeddings are 128 wide, and at most half as wide as the states."""
        shares = system.partition("-")[2] or "all"
        width = min(_EMBEDDING_SIZE, max(1, shape.hidden // 2))
        changes = shape.model_dump(exclude_defaults=True) | {"embedding_size": width, "shares": shares}
        return AlbertConfig.model_validate(changes)

    def system_of(self, config: AlbertConfig) -> str:
        return "albert" if config.shares == "all" else f"albert-{config.shares}"

    def is_standard(self, config: AlbertConfig, architecture: str) -> bool:
        """Return True where layers share all weights, and a class of transformers has these heads."""
        return config.shares == "all" and super().is_standard(config, architecture)

    def config_from_json(self, raw: Mapping[str, Any], path: Path) -> ModelDescription:
        """Read a config.json of transformers' ALBERT; its second head learned the order of sentences."""
        described = super().config_from_json(raw, path)
        if described.architecture != "BertForPreTraining":
            return described
        return replace(described, extra={"second_sentence": "order", **described.extra})


ALBERT_FAMILY = _Albert(
    name="albert",
    config_class=AlbertConfig,
    systems={
        "albert": "ALBERT",
        "albert-attention": "ALBERT that shares attention alone",
        "albert-feed-forward": "ALBERT that shares feed-forward layers alone",
    },
    model_types=("albert",),
    published_tokenizers=True,
    second_sentence="order",
    title_in_messages="ALBERT",
    prefix="albert",
    classes={**usual_classes("Albert"), "BertForPreTraining": "AlbertForPreTraining"},
    modules={
        "encoder.embeddings.word": "albert.embeddings.word_embeddings",
        "encoder.embeddings.position": "albert.embeddings.position_embeddings",
        "encoder.embeddings.segment": "albert.embeddings.token_type_embeddings",
        "encoder.embeddings.norm": "albert.embeddings.LayerNorm",
        "encoder.embeddings.project": "albert.encoder.embedding_hidden_mapping_in",
        "encoder.layers.#.attention.query": f"{_LAYER}.attention.query",
        "encoder.layers.#.attention.key": f"{_LAYER}.attention.key",
        "encoder.layers.#.attention.value": f"{_LAYER}.attention.value",
        "encoder.layers.#.attention.output": f"{_LAYER}.attention.dense",
        "encoder.layers.#.attention_norm": f"{_LAYER}.attention.LayerNorm",
        "encoder.layers.#.expand": f"{_LAYER}.ffn",
        "encoder.layers.#.contract": f"{_LAYER}.ffn_output",
        "encoder.layers.#.output_norm": f"{_LAYER}.full_layer_layer_norm",
        "pooler.dense": "albert.pooler",
        "masked_lm.transform": "predictions.dense",
        "masked_lm.norm": "predictions.LayerNorm",
        "masked_lm": "predictions",
        "next_sentence.linear": "sop_classifier.classifier",
        "classifier.linear": "classifier",
        "span.linear": "qa_outputs",
    },
    tied={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    config_names={**CONFIG_NAMES, "embedding_size": "embedding_size", "groups": "num_hidden_groups"},
    fixed={"position_embedding_type": "absolute", "inner_group_num": 1},
    written=("inner_group_num",),
)
