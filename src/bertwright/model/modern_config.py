"""The configuration of the blocks of ModernBERT (arXiv 2412.13663) as data. This module does not import torch."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bertwright.config import Count, PositiveNumber
from bertwright.model.config import Dropout, EncoderConfig, HeadActivation, Size

Reach = Literal["global", "local"]
"""Tokens that a layer attends to: the whole row, or a window around each token."""
ClassifierPooling = Literal["cls", "mean"]
"""States that classifiers read: that of the first token, or the mean of all."""


class ModernBertConfig(EncoderConfig):
    """Configuration of a ModernBERT; the defaults are those of a config.json that lacks the entry.

    hidden_dropout: dropout probability inside the feed-forward layers. window: number of tokens of a window, half of
    them before a token and half behind it.
    """

    max_positions: Size = 8192
    num_segments: Literal[0] = 0
    hidden_dropout: Dropout = 0.0
    attention_dropout: Dropout = 0.0
    embedding_dropout: Dropout = 0.0
    classifier_dropout: Dropout = 0.0
    layer_norm_eps: PositiveNumber = 1e-5
    pad_id: Count = 50283
    attends: Literal["both"] = "both"
    window: Size = 128
    global_every: Size = 3
    """Number of layers from one global layer, the first of which is the lowest, to the next."""
    reaches: Annotated[tuple[Reach, ...] | None, Field(min_length=1)] = None
    """Reach of each layer where the global layers are at other places."""
    global_rope_theta: PositiveNumber = 160_000.0
    local_rope_theta: PositiveNumber = 10_000.0
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    classifier_bias: bool = False
    decoder_bias: bool = True
    classifier_activation: HeadActivation = "gelu"
    classifier_pooling: ClassifierPooling = "cls"

    @property
    def radius(self) -> int:
        """Return the number of tokens that a window reaches to each side."""
        return self.window // 2

    def is_global(self, layer: int) -> bool:
        """Return True for a layer, counted from 0, that attends to the whole row."""
        return layer % self.global_every == 0 if self.reaches is None else self.reaches[layer] == "global"

    @property
    def head_dropout(self) -> float:
        """Return the dropout probability before the last layer of a task's head."""
        return self.classifier_dropout

    @property
    def transforms_tokens(self) -> bool:
        """Return True: all heads have the layer that precedes a classifier."""
        return True

    @property
    def pair_head_shares_layer(self) -> bool:
        """Return True: the classifier and the head for pairs begin with the layer of the masked-LM head."""
        return True

    @property
    def has_compiled_steps(self) -> bool:
        """Return True: rotary positions, and gates."""
        return True

    @property
    def has_pooler(self) -> bool:
        """Return False: that layer belongs to the heads."""
        return False

    @property
    def pooler_activation(self) -> HeadActivation:
        """Return the activation in the heads."""
        return self.classifier_activation

    @property
    def masked_lm_activation(self) -> HeadActivation:
        """Return the activation in the heads."""
        return self.classifier_activation

    @property
    def pooler_has_norm(self) -> bool:
        """Return True: a LayerNorm follows the activation in the heads."""
        return True

    @property
    def pools_all(self) -> bool:
        """Return True where classifiers read the mean of all states."""
        return self.classifier_pooling == "mean"

    @property
    def norms_have_bias(self) -> bool:
        """Return True where the LayerNorms add a bias."""
        return self.norm_bias

    @property
    def heads_have_bias(self) -> bool:
        """Return True where the first linear layer of a head adds a bias."""
        return self.classifier_bias

    @property
    def output_has_bias(self) -> bool:
        """Return True where the masked-LM head has a bias for each vocabulary entry."""
        return self.decoder_bias

    @property
    def has_bert_blocks(self) -> bool:
        """Return False."""
        return False

    @property
    def has_packed_layers(self) -> bool:
        """Return True."""
        return True

    @property
    def is_gated(self) -> bool:
        """Return True."""
        return True

    @property
    def usual_intermediate(self) -> int:
        """Return the inner width of the named sizes, a multiple of 64; with the gate it has BERT's number of weights.

        The three matrices of a gated layer have as many weights as BERT's two where this width is 8/3 of `hidden`.
        """
        return gated_width(self.hidden)

    def mean_keys(self, length: int) -> float:
        """Return the mean over the layers of the number of tokens that a token is compared with."""
        num_global = sum(map(self.is_global, range(self.layers)))
        near = min(length, 2 * self.radius + 1)
        return (num_global * length + (self.layers - num_global) * near) / self.layers

    @model_validator(mode="after")
    def _heads_can_be_turned(self) -> Self:
        width = self.hidden // self.heads
        if width % 2:
            raise ValueError(f"expected heads of an even width, whose pairs are turned by the position, got {width}")
        return self

    @model_validator(mode="after")
    def _each_layer_has_a_reach(self) -> Self:
        if self.reaches is not None and len(self.reaches) != self.layers:
            raise ValueError(
                f"expected an entry of layer_types for each of {self.layers} layers, got {len(self.reaches)}"
            )
        return self


def gated_width(hidden: int) -> int:
    """Return the inner width of a gated layer with about the weights of a layer of 4·hidden: a multiple of 64."""
    return 64 * max(1, round(8 * hidden / 3 / 64))
