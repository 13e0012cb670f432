"""BERT, with attention to both sides, to the left or to the right (paper §3 and §5.1), and its form in transformers.

A right-to-left BERT, and a left-to-right BERT with a task's head, are stored in bertwright's own form, because no class
of transformers computes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertwright.model.config import EncoderConfig, SingleBackboneConfig
from bertwright.model.families import ModelDescription
from bertwright.model.families.tables import EncoderFamily, encoder_modules, named_class
from bertwright.model.hf_config import check_values

LANGUAGE_MODEL = "BertLMHeadModel"
"""Class of transformers for a BERT that predicts the next token."""
FEATURES, FEATURES_TYPE = "BertwrightFeatures", "bertwright-features"
"""Class name and model type of a frozen encoder with a BiLSTM on its states, which transformers does not have."""


@dataclass(frozen=True, kw_only=True)
class _Bert(EncoderFamily[EncoderConfig]):
    def from_encoder(self, system: str, shape: EncoderConfig, size: str) -> SingleBackboneConfig:
        return shape.model_copy(update={"attends": system.partition("-")[2] or "both"})

    def system_of(self, config: EncoderConfig) -> str:
        return "bert" if config.attends == "both" else f"bert-{config.attends}"

    def language_architecture(self, config: EncoderConfig) -> str:
        return LANGUAGE_MODEL if config.attends == "left" else super().language_architecture(config)

    def is_standard(self, config: EncoderConfig, architecture: str) -> bool:
        """Return True for attention to both sides, and for a left-to-right language model."""
        return config.attends == "both" or _is_decoder(config, architecture)

    def config_to_json(self, config: EncoderConfig, architecture: str, labels: tuple[str, ...]) -> dict[str, Any]:
        described = super().config_to_json(config, architecture, labels)
        if architecture == FEATURES:
            described["model_type"] = FEATURES_TYPE
        if _is_decoder(config, architecture):
            described["is_decoder"] = True
        return described

    def config_from_json(self, raw: Mapping[str, Any], path: Path) -> ModelDescription:
        """Read a config.json of transformers' BERT; InputError for an encoder that bertwright cannot build."""
        decodes = _names_decoder(raw) and named_class(raw, path) == LANGUAGE_MODEL
        check_values(path, {"is_decoder": (raw.get("is_decoder", False), decodes)})
        return super().config_from_json(raw, path)

    def values_from_json(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().values_from_json(raw) | {"attends": "left" if _names_decoder(raw) else "both"}


def _names_decoder(raw: Mapping[str, Any]) -> bool:
    """Return True where config.json is that of a decoder."""
    return raw.get("is_decoder") is True


def _is_decoder(config: EncoderConfig, architecture: str) -> bool:
    """Return True for a left-to-right language model, which transformers' BERT computes as a decoder."""
    return config.attends == "left" and architecture == LANGUAGE_MODEL


BERT_FAMILY = _Bert(
    name="bert",
    config_class=EncoderConfig,
    systems={"bert": "BERT", "bert-left": "left-to-right BERT", "bert-right": "right-to-left BERT"},
    model_types=("bert", FEATURES_TYPE),
    title_in_messages="BERT",
    prefix="bert",
    classes={},
    modules={
        **encoder_modules("bert"),
        "pooler.dense": "bert.pooler.dense",
        "masked_lm.transform": "cls.predictions.transform.dense",
        "masked_lm.norm": "cls.predictions.transform.LayerNorm",
        "masked_lm": "cls.predictions",
        "next_sentence.linear": "cls.seq_relationship",
        "classifier.linear": "classifier",
        "span.linear": "qa_outputs",
        "head.recurrent": "bertwright.recurrent",
        "head.recurrent.lstm": "bertwright.recurrent.lstm",
        "head.classifier.linear": "bertwright.classifier",
    },
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    fixed={"position_embedding_type": "absolute", "add_cross_attention": False},
    written=("position_embedding_type",),
)
"""Family of BERT. Its sets of heads have the names of its classes in transformers, as in `model.bert.ARCHITECTURES`."""
