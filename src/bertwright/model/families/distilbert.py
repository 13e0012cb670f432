"""DistilBERT (arXiv 1910.01108): a BERT without segments and without a pooler, and its form in transformers.

Its classifiers have a layer of their own with ReLU on the first token's state.
"""

from typing import Literal

from bertwright.model.config import EncoderConfig
from bertwright.model.families.tables import EncoderFamily, usual_classes

_LAYER = "distilbert.transformer.layer.#"


class DistilBertConfig(EncoderConfig):
    """Configuration of a DistilBERT."""

    num_segments: Literal[0] = 0
    attends: Literal["both"] = "both"

    @property
    def has_pooler(self) -> bool:
        """Return False: only classifiers have a layer on the first token's state."""
        return False

    @property
    def pooler_activation(self) -> Literal["relu"]:
        """Return the activation of the classifiers' first layer."""
        return "relu"


DISTILBERT_FAMILY = EncoderFamily(
    name="distilbert",
    config_class=DistilBertConfig,
    systems={"distilbert": "DistilBERT"},
    model_types=("distilbert",),
    second_sentence="none",
    title_in_messages="DistilBERT",
    prefix="distilbert",
    classes=usual_classes("DistilBert"),
    modules={
        "encoder.embeddings.word": "distilbert.embeddings.word_embeddings",
        "encoder.embeddings.position": "distilbert.embeddings.position_embeddings",
        "encoder.embeddings.norm": "distilbert.embeddings.LayerNorm",
        "encoder.layers.#.attention.query": f"{_LAYER}.attention.q_lin",
        "encoder.layers.#.attention.key": f"{_LAYER}.attention.k_lin",
        "encoder.layers.#.attention.value": f"{_LAYER}.attention.v_lin",
        "encoder.layers.#.attention.output": f"{_LAYER}.attention.out_lin",
        "encoder.layers.#.attention_norm": f"{_LAYER}.sa_layer_norm",
        "encoder.layers.#.expand": f"{_LAYER}.ffn.lin1",
        "encoder.layers.#.contract": f"{_LAYER}.ffn.lin2",
        "encoder.layers.#.output_norm": f"{_LAYER}.output_layer_norm",
        "masked_lm.transform": "vocab_transform",
        "masked_lm.norm": "vocab_layer_norm",
        "masked_lm": "vocab_projector",
        "pooler.dense": "pre_classifier",
        "classifier.linear": "classifier",
        "span.linear": "qa_outputs",
    },
    tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    config_names={
        "vocab_size": "vocab_size",
        "hidden": "dim",
        "layers": "n_layers",
        "heads": "n_heads",
        "intermediate": "hidden_dim",
        "max_positions": "max_position_embeddings",
        "hidden_dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "initializer_range": "initializer_range",
        "pad_id": "pad_token_id",
    },
    activation_name="activation",
)
