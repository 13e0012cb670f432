"""GPT-BERT (arXiv 2410.24159): BERT's blocks, whose states predict the token after their own, in both of its uses.

Attention goes to both sides where a masked piece is predicted, and to the left where the model is a language model. The
weights are the same. transformers has no such class, so the model is stored in bertwright's own form.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bertwright.model.config import EncoderConfig
from bertwright.model.families import SystemFamily

if TYPE_CHECKING:
    from bertwright.model.encoder import Encoder
    from bertwright.model.heads import MaskedLMHead


class GPTBertConfig(EncoderConfig):
    """Configuration of a GPT-BERT; `attends` is "left" while the model is used as a language model."""

    attends: Literal["both", "left"] = "both"

    @property
    def has_pooler(self) -> bool:
        """Return False: only classifiers have a layer on the first token's state."""
        return False

    @property
    def predicts_ahead(self) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True, kw_only=True)
class _GPTBert(SystemFamily[GPTBertConfig]):
    def build(self, config: GPTBertConfig) -> "Encoder":
        from bertwright.model.encoder import Encoder  # torch

        return Encoder(config)

    def output(self, config: GPTBertConfig) -> "MaskedLMHead":
        from bertwright.model.heads import MaskedLMHead  # torch

        return MaskedLMHead(config)

    def from_encoder(self, system: str, shape: EncoderConfig, size: str) -> GPTBertConfig:
        """Return the encoder of the same size."""
        return GPTBertConfig.model_validate(shape.model_dump(exclude_defaults=True))


GPT_BERT_FAMILY = _GPTBert(
    name="gpt-bert",
    config_class=GPTBertConfig,
    systems={"gpt-bert": "GPT-BERT"},
    second_sentence="none",
    learns_pairs=False,
)
