"""The configuration of a backbone as data, and the named sizes of paper §3 and of the 24 small models of March 2020.

This module does not import torch, because `--help` reads it.
"""

import math
import re
from abc import ABC, abstractmethod
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeGuard, TypeVar, get_args

from pydantic import Field, model_validator

from bertwright.config import Count, Number, PositiveNumber, Settings
from bertwright.errors import InputError

Size = Annotated[int, Field(gt=0, lt=2**24)]
"""Number of rows or columns of a matrix; below the limit, which no real model reaches, products do not overflow."""
Dropout = Annotated[float, Field(ge=0, lt=1)]
"""Probability that a value is dropped; values that are kept are divided by 1 minus it."""
Attends = Literal["both", "left", "right"]
"""Tokens that a token attends to beside itself: all tokens, those before it, or those after it."""
HeadActivation = Literal["gelu", "gelu_tanh", "relu", "tanh"]
"""Activations of heads; those of layers are the two forms of GELU."""
Start = Literal["random", "local", "matching"]
"""Attention initialisation: random weights, attention to neighbouring positions, or to equal pieces as well."""


class BackboneConfig(Settings):
    """Configuration of a backbone: a module that turns token ids into states."""

    if TYPE_CHECKING:  # fields or properties of every subclass; fields defined here would come first in config.json

        @property
        def vocab_size(self) -> int:
            """Return the number of pieces."""

        @property
        def hidden(self) -> int:
            """Return the width of the states."""

        @property
        def layers(self) -> int:
            """Return the number of layers."""

        @property
        def max_positions(self) -> int:
            """Return the maximum number of tokens of a row."""

        @property
        def num_segments(self) -> int:
            """Return the number of segments; 0 where there are no segment embeddings."""

        @property
        def pad_id(self) -> int:
            """Return the id of the padding."""

        @property
        def hidden_dropout(self) -> float:
            """Return the dropout probability of states."""

        @property
        def initializer_range(self) -> float:
            """Return the standard deviation of new matrices."""

    @property
    def distinct_layers(self) -> int:
        """Return the number of layers that have weights of their own; with fewer than `layers`, layers share them."""
        return self.layers

    @property
    def shares_layers(self) -> bool:
        """Return True where several layers have weights in common, so that none of them can be chosen alone."""
        return False

    @property
    def head_dropout(self) -> float:
        """Return the dropout probability before the last layer of a task's head."""
        return self.hidden_dropout

    @property
    def transforms_tokens(self) -> bool:
        """Return True where the heads on tokens, too, have the layer that precedes a classifier."""
        return False

    @property
    def pair_head_shares_layer(self) -> bool:
        """Return True where the head for pairs of sentences reads through the layer of the masked-LM head."""
        return False

    @property
    def has_compiled_steps(self) -> bool:
        """Return True where layers in fp32 have steps that a C++ compiler builds and that round differently."""
        return False

    @property
    def needs_segments(self) -> bool:
        """Return True where a model with a single segment cannot read two texts; in RoBERTa two tokens part them."""
        return True

    @property
    def classifier_has_pooler(self) -> bool:
        """Return True where a classifier has a layer between the state of a row and its outputs."""
        return True

    @property
    def classifier_has_bias(self) -> bool:
        """Return True where the outputs of a classifier of rows have a bias; those of GPT-2 have none."""
        return True

    @property
    def is_tuned_as_gpt(self) -> bool:
        """Return True where fine-tuning follows the paper of GPT-1 (§3.3 and 4.1)."""
        return False

    @property
    def rows_may_be_bare(self) -> bool:
        """Return True where models of this kind are fine-tuned on texts without tokens around them, as GPT-2 is."""
        return False


class SingleBackboneConfig(BackboneConfig):
    """Configuration of a backbone that is not composed of other backbones."""

    if TYPE_CHECKING:

        @property
        def attends(self) -> Attends:
            """Return the direction of attention."""

    @model_validator(mode="after")
    def _pad_is_a_piece(self) -> Self:
        if self.pad_id >= self.vocab_size:
            raise ValueError(f"pad_id {self.pad_id} is not below the vocab_size {self.vocab_size}")
        return self


class CompositeConfig(BackboneConfig, ABC):
    """Configuration of a composition of backbones; most numbers are those of one of them."""

    @property
    @abstractmethod
    def _part(self) -> BackboneConfig:
        """Return the configuration of the backbone whose numbers the composition has."""

    if not TYPE_CHECKING:  # the types are those of BackboneConfig
        vocab_size = property(attrgetter("_part.vocab_size"))
        max_positions = property(attrgetter("_part.max_positions"))
        num_segments = property(attrgetter("_part.num_segments"))
        pad_id = property(attrgetter("_part.pad_id"))
        hidden_dropout = property(attrgetter("_part.hidden_dropout"))
        initializer_range = property(attrgetter("_part.initializer_range"))
        needs_segments = property(attrgetter("_part.needs_segments"))
        has_compiled_steps = property(attrgetter("_part.has_compiled_steps"))


class EncoderConfig(SingleBackboneConfig):
    """Configuration of a Transformer encoder (paper §3 and A.2): of BERT, and of its blocks in other families."""

    vocab_size: Size
    hidden: Size
    layers: Annotated[int, Field(gt=0, lt=10_000)]
    heads: Size
    intermediate: Size
    max_positions: Size = 512
    num_segments: Size = 2
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    hidden_dropout: Dropout = 0.1
    attention_dropout: Dropout = 0.1
    initializer_range: Number = 0.02
    layer_norm_eps: PositiveNumber = 1e-12
    pad_id: Count = 0
    attends: Attends = "both"

    @property
    def embedding_width(self) -> int:
        """Return the width of the embeddings."""
        return self.hidden

    @property
    def projects_embeddings(self) -> bool:
        """Return True where a linear layer to `hidden` follows the embeddings."""
        return self.embedding_width != self.hidden

    @property
    def first_position(self) -> int:
        """Return the row of the table of positions that the first token of a text has."""
        return 0

    @property
    def has_pooler(self) -> bool:
        """Return True where a pooler belongs to the encoder; elsewhere only classifiers have such a layer."""
        return True

    @property
    def finds_replaced(self) -> bool:
        """Return True where pre-training learns to find tokens that a generator replaced, in place of masked LM."""
        return False

    @property
    def predicts_ahead(self) -> bool:
        """Return True where a masked piece is predicted from the state before it, as a language model predicts it."""
        return False

    @property
    def output_has_transform(self) -> bool:
        """Return True where a layer stands between the states and the word embeddings that predict pieces."""
        return True

    @property
    def masked_lm_activation(self) -> HeadActivation:
        """Return the activation in the masked-LM head."""
        return self.activation

    @property
    def pooler_activation(self) -> HeadActivation:
        """Return the activation between the linear layer on the first token's state and a classifier."""
        return "tanh"

    @property
    def pooler_has_norm(self) -> bool:
        """Return True where a LayerNorm follows that activation."""
        return False

    @property
    def pools_all(self) -> bool:
        """Return True where classifiers read the mean of all states, and not the first token's state."""
        return False

    @property
    def norms_have_bias(self) -> bool:
        """Return True where the LayerNorms add a bias."""
        return True

    @property
    def heads_have_bias(self) -> bool:
        """Return True where the first linear layer of a head, masked LM's included, adds a bias."""
        return True

    @property
    def output_has_bias(self) -> bool:
        """Return True where the masked-LM head has a bias for each vocabulary entry."""
        return True

    @property
    def has_bert_blocks(self) -> bool:
        """Return True where embeddings and layers are BERT's."""
        return True

    @property
    def first_normed_layer(self) -> int:
        """Return the index of the first layer that reads states after a LayerNorm."""
        return 0

    @property
    def has_packed_layers(self) -> bool:
        """Return True where inference on processors has layers with packed weights."""
        return self.has_bert_blocks and self.attends == "both"

    @property
    def is_gated(self) -> bool:
        """Return True where the feed-forward layer multiplies its inner numbers with a gate of the same width."""
        return False

    @property
    def usual_intermediate(self) -> int:
        """Return the width of the feed-forward layer in the named sizes."""
        return 4 * self.hidden

    def mean_keys(self, length: int) -> float:
        """Return the number of tokens that a token of a row is compared with in attention, as the layers' mean."""
        return float(length)

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> Self:
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is not a multiple of heads {self.heads}")
        return self


AnyConfig = TypeVar("AnyConfig", bound=BackboneConfig)


def need_segments(config: BackboneConfig, source: str) -> None:
    """Raise InputError where the model has a single segment, and `source`, a task or a model, reads two texts.

    Models without segment embeddings accept two texts. Families whose texts a token keeps apart accept them too.
    """
    if config.num_segments == 1 and config.needs_segments:
        raise InputError(f"{source}: reads two texts, and the model has one segment (type_vocab_size is 1)")


def encoder_shape(config: BackboneConfig, source: str) -> EncoderConfig:
    """Return the configuration of a bidirectional encoder; InputError, with `source`, for another backbone."""
    if not attends_both_ways(config):
        raise InputError(f"{source}: expected an encoder whose tokens attend to both sides, got another kind of model")
    return config


def initializer_range_for(hidden: int) -> float:
    """Return the standard deviation of new weights for a width: 0.02 for 768, and more for narrower models."""
    return float(f"{0.02 * math.sqrt(768 / hidden):.1g}")


def with_dropout(config: AnyConfig, probability: float) -> AnyConfig:
    """Return the configuration with this dropout probability for states and attention, in all its parts."""
    changes: dict[str, Any] = {}
    for name in type(config).model_fields:
        value = getattr(config, name)
        if name.endswith("_dropout"):
            changes[name] = probability
        elif isinstance(value, BackboneConfig):
            changes[name] = with_dropout(value, probability)
    return config.model_copy(update=changes)


def predicts_next(config: BackboneConfig) -> bool:
    """Return whether a backbone can predict the next token: its states must not depend on later tokens."""
    return isinstance(config, SingleBackboneConfig) and config.attends == "left"


def attends_both_ways(config: BackboneConfig) -> TypeGuard[EncoderConfig]:
    """Return True for a bidirectional encoder, as the paper builds it."""
    return isinstance(config, EncoderConfig) and config.attends == "both"


def finds_replaced(config: BackboneConfig) -> TypeGuard[EncoderConfig]:
    """Return True for an encoder that is pre-trained to find replaced tokens."""
    return attends_both_ways(config) and config.finds_replaced


def predicts_ahead(config: BackboneConfig) -> TypeGuard[EncoderConfig]:
    """Return True for an encoder that is a masked LM and a left-to-right language model in one."""
    return attends_both_ways(config) and config.predicts_ahead


def has_bert_blocks(config: BackboneConfig) -> TypeGuard[EncoderConfig]:
    """Return True for a Transformer with BERT's embeddings and layers, whatever its direction of attention."""
    return isinstance(config, EncoderConfig) and config.has_bert_blocks


def has_packed_layers(config: BackboneConfig) -> TypeGuard[EncoderConfig]:
    """Return True for a Transformer whose layers have packed weights in inference on processors."""
    return isinstance(config, EncoderConfig) and config.has_packed_layers


Way = Literal["embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all", "elmo"]
"""Ways to use the states of a frozen encoder: the six rows of table 7, and ELMo's sum, which includes the embeddings.

A sum has a learned weight for each layer.
"""
WAYS: tuple[Way, ...] = get_args(Way)

SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
"""Name → (layers, hidden). Heads have width 64, the feed-forward layer has width 4·hidden."""
HEAD_WIDTH = 64
"""Width of a head; a single model of the paper, in table 6, has another width."""
_SIZE_PATTERN = re.compile(r"([1-9]\d{0,3})x([1-9]\d{0,5})(?:x([1-9]\d{0,5}))?", re.ASCII)


def size_config(name: str, vocab_size: int, **changes: object) -> EncoderConfig:
    """Return the configuration of a size: one of SIZES, LAYERSxHIDDEN or LAYERSxHIDDENxHEADS; InputError for others."""
    layers, hidden, heads = _parse_size(name)
    shape = {"layers": layers, "hidden": hidden, "heads": heads, "intermediate": 4 * hidden}
    return EncoderConfig.model_validate({"vocab_size": vocab_size, **shape, **changes})


def written_size(layers: int, hidden: int, heads: int) -> str:
    """Return the size in the form that `size_config` reads; the feed-forward width is 4·hidden."""
    return f"{layers}x{hidden}" if heads * HEAD_WIDTH == hidden else f"{layers}x{hidden}x{heads}"


def _parse_size(name: str) -> tuple[int, int, int]:
    """Return layers, hidden and heads of a size."""
    if name in SIZES:
        layers, hidden = SIZES[name]
        return layers, hidden, hidden // HEAD_WIDTH
    match = _SIZE_PATTERN.fullmatch(name)
    if match is None:
        raise InputError(
            f"size {name!r} is not known; sizes are {', '.join(SIZES)}, LAYERSxHIDDEN such as 4x256, "
            "and LAYERSxHIDDENxHEADS such as 12x384x12"
        )
    layers, hidden = int(match[1]), int(match[2])
    if match[3] is None and hidden % HEAD_WIDTH:
        raise InputError(
            f"size {name}: heads have width {HEAD_WIDTH}, and {hidden} is not a multiple of it; "
            f"name the number of heads as well: {name}xHEADS"
        )
    heads = int(match[3] or hidden // HEAD_WIDTH)
    if hidden % heads:
        raise InputError(f"size {name}: hidden {hidden} is not a multiple of {heads} heads")
    return layers, hidden, heads
