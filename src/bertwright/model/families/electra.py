"""ELECTRA (arXiv 2003.10555): BERT's blocks on embeddings that may be narrower, and its form in transformers.

Pre-training makes two models. The generator is a masked LM. The discriminator finds the tokens that the generator
replaced, and is the model that is fine-tuned. Classifiers have a layer of their own with GELU on the first token's
state.
"""

from dataclasses import dataclass
from typing import Literal

from bertwright.model.config import EncoderConfig, Size
from bertwright.model.families.tables import CONFIG_NAMES, IN_CLASSIFIER, EncoderFamily, encoder_modules, usual_classes

GENERATOR, DISCRIMINATOR = "BertForMaskedLM", "ElectraForPreTraining"
"""Our names of the heads of the two models of a pre-training."""


class ElectraConfig(EncoderConfig):
    """Configuration of an ELECTRA: of a discriminator, or of a generator."""

    embedding_size: Size
    attends: Literal["both"] = "both"

    @property
    def embedding_width(self) -> int:
        """Return the width of the embeddings, which may differ from that of the states."""
        return self.embedding_size

    @property
    def has_pooler(self) -> bool:
        """Return False: only classifiers have a layer on the first token's state."""
        return False

    @property
    def finds_replaced(self) -> bool:
        """Return True: pre-training learns to find replaced tokens."""
        return True

    @property
    def masked_lm_activation(self) -> Literal["gelu"]:
        """Return the exact GELU, whatever the activation of the layers is."""
        return "gelu"

    @property
    def pooler_activation(self) -> Literal["gelu"]:
        """Return the activation of the classifiers' first layer."""
        return "gelu"


@dataclass(frozen=True, kw_only=True)
class _Electra(EncoderFamily[ElectraConfig]):
    def from_encoder(self, system: str, shape: EncoderConfig, size: str) -> ElectraConfig:
        """Return the encoder of the same size, with embeddings as wide as the states."""
        changes = {name: value for name, value in shape.model_dump(exclude_defaults=True).items() if name != "attends"}
        return ElectraConfig.model_validate({"embedding_size": shape.hidden, **changes})


ELECTRA_FAMILY = _Electra(
    name="electra",
    config_class=ElectraConfig,
    systems={"electra": "ELECTRA"},
    model_types=("electra",),
    second_sentence="none",
    learns_pairs=False,
    title_in_messages="ELECTRA",
    prefix="electra",
    classes={**usual_classes("Electra"), DISCRIMINATOR: "ElectraForPreTraining"},
    modules={
        **encoder_modules("electra"),
        "encoder.embeddings.project": "electra.embeddings_project",
        "masked_lm.transform": "generator_predictions.dense",
        "masked_lm.norm": "generator_predictions.LayerNorm",
        "masked_lm": "generator_lm_head",
        "replaced_token.dense": "discriminator_predictions.dense",
        "replaced_token.linear": "discriminator_predictions.dense_prediction",
        "pooler.dense": "sequence_summary.summary",
        "classifier.linear": "classifier",
        "span.linear": "qa_outputs",
    },
    class_modules=IN_CLASSIFIER,
    tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    config_names={**CONFIG_NAMES, "embedding_size": "embedding_size"},
    fixed={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
    },
    written=("position_embedding_type", "summary_type", "summary_use_proj", "summary_activation"),
)
