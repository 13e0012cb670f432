"""RoBERTa (arXiv 1907.11692), XLM-R and CamemBERT: a BERT with one segment and positions from 2 on, in transformers.

Two separator tokens part the two texts of a row. Classifiers have the layer that BERT calls the pooler in their head.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bertwright.config import Count, PositiveNumber
from bertwright.model.config import EncoderConfig, Size
from bertwright.model.families.tables import IN_CLASSIFIER, EncoderFamily, encoder_modules, usual_classes


class RobertaConfig(EncoderConfig):
    """Configuration of a RoBERTa. The table of positions begins with rows for padding, up to that of `pad_id`."""

    num_segments: Size = 1
    pad_id: Count = 1
    layer_norm_eps: PositiveNumber = 1e-5
    attends: Literal["both"] = "both"

    @property
    def first_position(self) -> int:
        """Return the row of the first token's position: the one after the row of the padding."""
        return self.pad_id + 1

    @property
    def masked_lm_activation(self) -> Literal["gelu"]:
        """Return the exact GELU, whatever the activation of the layers is."""
        return "gelu"

    @property
    def needs_segments(self) -> bool:
        """Return False: tokens part the two texts of a row."""
        return False


@dataclass(frozen=True, kw_only=True)
class _Roberta(EncoderFamily[RobertaConfig]):
    """`max_position_embeddings` in config.json counts the rows for padding as well."""

    def from_encoder(self, system: str, shape: EncoderConfig, size: str) -> RobertaConfig:
        changes = shape.model_dump(exclude_defaults=True)
        return RobertaConfig.model_validate(changes | {"pad_id": shape.pad_id, "num_segments": 1})

    def values_to_json(self, config: RobertaConfig) -> dict[str, Any]:
        values = config.model_dump()
        return values | {"max_positions": config.first_position + config.max_positions}

    def values_from_json(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        values = super().values_from_json(raw)
        pad, rows = values.get("pad_id", 1), values.get("max_positions")
        return values | ({"max_positions": rows - pad - 1} if type(rows) is int and type(pad) is int else {})


ROBERTA_FAMILY = _Roberta(
    name="roberta",
    config_class=RobertaConfig,
    systems={"roberta": "RoBERTa"},
    model_types=("roberta", "xlm-roberta", "camembert"),
    published_tokenizers=True,
    second_sentence="none",
    short_share=0.0,  # "full sentences" (its §4.2): every row is filled up to its length
    title_in_messages="RoBERTa",
    prefix="roberta",
    classes=usual_classes("Roberta"),
    modules={
        **encoder_modules("roberta"),
        "pooler.dense": "roberta.pooler.dense",
        "masked_lm.transform": "lm_head.dense",
        "masked_lm.norm": "lm_head.layer_norm",
        "masked_lm": "lm_head",
        "classifier.linear": "classifier",
        "span.linear": "qa_outputs",
    },
    class_modules=IN_CLASSIFIER,
    tied={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    fixed={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
)
