"""A family that the package does not have: DistilBERT (Sanh et al. 2019), in one file as CONTRIBUTING.md asks for.

A test puts a copy of this file beside the families of the package.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bertwright.model.config import EncoderConfig
from bertwright.model.families import ModelDescription, TransformersFamily
from bertwright.model.hf_config import check_values, labels_to_json, notes_in, our_values, read_labels

if TYPE_CHECKING:
    from torch import Tensor

ARCHITECTURES = {"BertForMaskedLM": "DistilBertForMaskedLM", "BertModel": "DistilBertModel"}
CONFIG_NAMES = {
    "vocab_size": "vocab_size",
    "hidden": "dim",
    "layers": "n_layers",
    "heads": "n_heads",
    "intermediate": "hidden_dim",
    "max_positions": "max_position_embeddings",
    "activation": "activation",
    "hidden_dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "initializer_range": "initializer_range",
    "pad_id": "pad_token_id",
}
WEIGHT_NAMES = {
    "encoder.embeddings.word": "distilbert.embeddings.word_embeddings",
    "encoder.embeddings.position": "distilbert.embeddings.position_embeddings",
    "encoder.embeddings.norm": "distilbert.embeddings.LayerNorm",
    "encoder.layers.#.attention.query": "distilbert.transformer.layer.#.attention.q_lin",
    "encoder.layers.#.attention.key": "distilbert.transformer.layer.#.attention.k_lin",
    "encoder.layers.#.attention.value": "distilbert.transformer.layer.#.attention.v_lin",
    "encoder.layers.#.attention.output": "distilbert.transformer.layer.#.attention.out_lin",
    "encoder.layers.#.attention_norm": "distilbert.transformer.layer.#.sa_layer_norm",
    "encoder.layers.#.expand": "distilbert.transformer.layer.#.ffn.lin1",
    "encoder.layers.#.contract": "distilbert.transformer.layer.#.ffn.lin2",
    "encoder.layers.#.output_norm": "distilbert.transformer.layer.#.output_layer_norm",
    "masked_lm.transform": "vocab_transform",
    "masked_lm.norm": "vocab_layer_norm",
    "masked_lm": "vocab_projector",
    "pooler.dense": "bertwright.pooler",
}


class DistilConfig(EncoderConfig):
    """Configuration of a DistilBERT: a BERT without segments."""

    num_segments: Literal[0] = 0
    attends: Literal["both"] = "both"


class _Distil(TransformersFamily[DistilConfig]):
    def build(self, config: DistilConfig) -> Any:
        from torch import nn

        from bertwright.model.encoder import Encoder, TokensAndPositions, dropout, first_positions

        class Embeddings(TokensAndPositions):
            def __init__(self, config: EncoderConfig) -> None:
                super().__init__(config)
                self.norm = nn.LayerNorm(config.hidden, eps=config.layer_norm_eps)

            def forward(self, ids: "Tensor", segments: "Tensor") -> "Tensor":
                summed = self.word(ids) + first_positions(self.position, ids.shape[1])
                return dropout(self.norm(summed), self.dropout, self.training)

        return Encoder(config, embeddings=Embeddings)

    def output(self, config: DistilConfig) -> Any:
        from bertwright.model.heads import MaskedLMHead

        return MaskedLMHead(config)

    def from_encoder(self, system: str, shape: EncoderConfig, size: str) -> DistilConfig:
        return DistilConfig.model_validate(shape.model_dump(exclude_defaults=True))

    def is_standard(self, config: DistilConfig, architecture: str) -> bool:
        return architecture in ARCHITECTURES

    def config_to_json(self, config: DistilConfig, architecture: str, labels: tuple[str, ...]) -> dict[str, Any]:
        values = config.model_dump()
        described = {stored: values[ours] for ours, stored in CONFIG_NAMES.items()}
        return {
            "architectures": [ARCHITECTURES[architecture]],
            "model_type": "distilbert",
            **described,
            **labels_to_json(labels),
        }

    def config_from_json(self, raw: Mapping[str, Any], path: Path) -> ModelDescription:
        check_values(path, {"sinusoidal_pos_embds": (raw.get("sinusoidal_pos_embds", False), False)})
        config = DistilConfig.model_validate(our_values(raw, CONFIG_NAMES))
        ours = {stored: name for name, stored in ARCHITECTURES.items()}
        labels = read_labels(raw.get("id2label") or {}, path)
        return ModelDescription(config, ours[raw["architectures"][0]], labels, notes_in(raw, path), raw)

    def weights_to_foreign(self, weights: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
        from bertwright.model.hf_weights import rename, split_qkv

        return {rename(name, WEIGHT_NAMES): tensor for name, tensor in split_qkv(weights).items()}

    def weights_from_foreign(
        self, tensors: "Mapping[str, Tensor]", source: str, *, tied: bool = True
    ) -> "dict[str, Tensor]":
        from bertwright.model.hf_weights import fuse_qkv, our_names, without_tied_output

        output, embeddings = "vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"
        stored = without_tied_output(tensors, output, embeddings, source=source)
        weights = fuse_qkv(our_names(stored, WEIGHT_NAMES, kind="DistilBERT", source=source), source=source)
        return {name: tensor.float() for name, tensor in weights.items()}


DISTIL_FAMILY = _Distil(
    name="distil", config_class=DistilConfig, systems={"distil": "DistilBERT"}, model_types=("distilbert",)
)
