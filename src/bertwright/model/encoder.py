"""batches → hidden states: embeddings and blocks of a Transformer encoder (paper §3, A.2).

These are the common blocks of which the families are composed.

Shapes: B batch, T tokens, Q positions that are computed, D hidden, E width of the embeddings, H heads, K head width.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.model.attention import KeyValues, SelfAttention, dropout
from bertwright.model.backbones import Backbone, EncoderOutput
from bertwright.model.config import Attends, BackboneConfig, EncoderConfig, HeadActivation, SingleBackboneConfig

ACTIVATIONS: Mapping[HeadActivation, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "relu": F.relu, "tanh": torch.tanh}
)
"""Function of each activation."""


class WordEmbeddings(nn.Module):
    """Embeddings with a table of words."""

    word: nn.Embedding


class TokensAndPositions(WordEmbeddings):
    """Sum of word and learned absolute position embeddings, then dropout: the embeddings of GPT-1."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.first_position = config.first_position
        self.word = nn.Embedding(config.vocab_size, config.embedding_width)
        self.position = nn.Embedding(config.first_position + config.max_positions, config.embedding_width)
        self.dropout = config.hidden_dropout

    def summed(self, ids: Tensor, *, begin: int = 0) -> Tensor:
        """Return the sum of word and position embeddings [B, T, E] for ids [B, T], whose first position is `begin`."""
        summed: Tensor = self.word(ids) + table_rows(self.position, ids.shape[1], first=self.first_position + begin)
        return summed

    def forward(self, ids: Tensor, segments: Tensor, *, begin: int = 0) -> Tensor:
        """Return embeddings [B, T, D] for ids [B, T], whose first position is `begin`; segments have no effect."""
        return dropout(self.summed(ids, begin=begin), self.dropout, self.training)


class Embeddings(TokensAndPositions):
    """Sum of word, position and segment embeddings, LayerNorm, then dropout: the embeddings of BERT.

    Without segments there is no table of them, and a single segment is that of all tokens. A linear layer follows
    embeddings of another width than that of the states.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.segment = nn.Embedding(config.num_segments, config.embedding_width) if config.num_segments else None
        self.norm = nn.LayerNorm(config.embedding_width, eps=config.layer_norm_eps)
        self.project = nn.Linear(config.embedding_width, config.hidden) if config.projects_embeddings else None

    def forward(self, ids: Tensor, segments: Tensor, *, begin: int = 0) -> Tensor:
        """Return embeddings [B, T, D] for ids and segments [B, T], whose first position is `begin`."""
        summed = self.summed(ids, begin=begin)
        if self.segment is not None:
            summed = summed + (self.segment(segments) if self.segment.num_embeddings > 1 else self.segment.weight[0])
        embedded = dropout(self.norm(summed), self.dropout, self.training)
        return embedded if self.project is None else self.project(embedded)


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each followed by dropout, residual and LayerNorm (post-LN)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config.hidden, config.heads, config.attention_dropout)
        self.attention_norm = nn.LayerNorm(config.hidden, eps=config.layer_norm_eps)
        self.expand = nn.Linear(config.hidden, config.intermediate)
        self.contract = nn.Linear(config.intermediate, config.hidden)
        self.output_norm = nn.LayerNorm(config.hidden, eps=config.layer_norm_eps)
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"
        self.dropout = config.hidden_dropout

    def forward(self, hidden: Tensor, keep: Tensor, at: Tensor | None = None, past: KeyValues | None = None) -> Tensor:
        """Return states [B, T, D] for `hidden` [B, T, D], or [B, Q, D] at the positions `at` [B, Q].

        keep: [B, 1, 1, T] or [B, 1, T, T]. past: see SelfAttention.
        """
        rows = None if at is None else gather_rows(hidden, at)
        attended = self._attended(hidden, keep, at, past)
        middle = self.attention_norm((hidden if rows is None else rows) + attended)
        out: Tensor = self.output_norm(middle + self._fed_forward(middle))
        return out

    def attention_input(self, hidden: Tensor) -> Tensor:
        """Return what the attention of the layer reads, for `hidden` [B, T, D]."""
        return hidden

    def _attended(self, hidden: Tensor, keep: Tensor, at: Tensor | None, past: KeyValues | None) -> Tensor:
        """Return what the tokens at `at`, or all, gather from `hidden` [B, Q, D], after dropout."""
        rows = None if at is None else gather_rows(hidden, at)
        if at is not None and keep.shape[2] > 1:
            keep = keep.gather(2, at[:, None, :, None].expand(-1, -1, -1, keep.shape[3]))  # [B, 1, Q, T]
        return dropout(self.attention(hidden, keep, rows, past), self.dropout, self.training)

    def _fed_forward(self, rows: Tensor) -> Tensor:
        """Return the output of the feed-forward layer for `rows` [B, Q, D], after dropout."""
        inner = self.contract(F.gelu(self.expand(rows), approximate=self.approximate))
        return dropout(inner, self.dropout, self.training)


class PreNormLayer(EncoderLayer):
    """Attention and feed-forward, each on normed states, followed by dropout and residual (pre-LN, as GPT-2)."""

    def forward(self, hidden: Tensor, keep: Tensor, at: Tensor | None = None, past: KeyValues | None = None) -> Tensor:
        """Return states; see EncoderLayer."""
        rows = hidden if at is None else gather_rows(hidden, at)
        middle = rows + self._attended(self.attention_input(hidden), keep, at, past)
        out: Tensor = middle + self._fed_forward(self.output_norm(middle))
        return out

    def attention_input(self, hidden: Tensor) -> Tensor:
        """Return the normed states [B, T, D]."""
        normed: Tensor = self.attention_norm(hidden)
        return normed


class SingleBackbone(Backbone):
    """A backbone that is not composed of other backbones."""

    config: SingleBackboneConfig
    embeddings: nn.Module
    layers: nn.ModuleList

    def summary(self, ids: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        """Return the first token's state [B, D], or the last token's where attention goes to the left."""
        at = (mask.sum(1, keepdim=True) - 1) if self.config.attends == "left" else mask.new_zeros(len(mask), 1).long()
        last: Tensor = self(ids, segments, mask, at=at).last
        return last[:, 0]

    def word_embeddings(self) -> list[nn.Embedding]:
        """Return the table of word embeddings."""
        return [cast(nn.Embedding, self.embeddings.word)]

    def blocks(self) -> tuple[nn.Module, ...]:
        """Return the layers."""
        return tuple(self.layers)


class TransformerBackbone(SingleBackbone):
    """A Transformer: embeddings of words, and layers with attention."""

    config: EncoderConfig
    embeddings: WordEmbeddings

    def layer_at(self, index: int) -> nn.Module:
        """Return the module that computes layer `index`; layers that share weights are one module."""
        return self.layers[index * len(self.layers) // self.config.layers]

    def summary(self, ids: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        """Return the state that classifiers read [B, D]; see `pooled`."""
        if not self.config.pools_all:
            return super().summary(ids, segments, mask)
        return self.pooled(self(ids, segments, mask).last, mask)

    def pooled(self, last: Tensor, mask: Tensor) -> Tensor:
        """Return the states that classifiers read [B, D] of last states [B, T, D]: the first token's, or the mean."""
        if not self.config.pools_all:
            return last[:, 0]
        real = mask[:, :, None]  # [B, T, 1]
        return last.masked_fill(~real, 0.0).sum(1) / real.sum(1)

    @abstractmethod
    def attention(self, ids: Tensor, segments: Tensor, mask: Tensor, *, layer: int) -> Tensor:
        """Return the attention probabilities of layer `layer`, from 0, for a batch: [B, H, T, T]."""

    @abstractmethod
    def last_projections(self, states: Tensor) -> Tensor:
        """Return the queries, keys and values of the last layer [B, T, 3·D] for the states before it [B, T, D]."""


class Encoder(TransformerBackbone):
    """A Transformer encoder with BERT's layers."""

    embeddings: TokensAndPositions

    def __init__(
        self,
        config: EncoderConfig,
        *,
        embeddings: type[TokensAndPositions] = Embeddings,
        layer: type[EncoderLayer] = EncoderLayer,
        final_norm: bool = False,
    ) -> None:
        """Build the encoder; with `final_norm` a LayerNorm follows the last layer."""
        super().__init__()
        self.config = config
        self.embeddings = embeddings(config)
        self.layers = nn.ModuleList(layer(config) for _ in range(config.distinct_layers))
        self.final_norm = nn.LayerNorm(config.hidden, eps=config.layer_norm_eps) if final_norm else None

    def forward(
        self,
        ids: Tensor,
        segments: Tensor,
        mask: Tensor,
        *,
        all_hidden: bool = False,
        at: Tensor | None = None,
        causal: Tensor | None = None,
    ) -> EncoderOutput:
        """Encode a batch, see `Backbone.forward`; with `at` the last layer is computed at those positions alone.

        Masked LM needs only the masked positions, so `at` saves work.
        causal: True for rows whose tokens attend to the left, [B], where the others attend to both sides.
        """
        keep = visible_keys(mask, self.config.attends, causal)
        hidden = self.embeddings(ids, segments)
        states = [hidden]
        for index in range(self.config.layers):
            is_last = index == self.config.layers - 1
            hidden = self.layer_at(index)(hidden, keep, at if is_last else None)
            if is_last and self.final_norm is not None:
                hidden = self.final_norm(hidden)
            states.append(hidden)
        return EncoderOutput(hidden, tuple(states) if all_hidden else ())

    def attention(self, ids: Tensor, segments: Tensor, mask: Tensor, *, layer: int) -> Tensor:
        """Return attention probabilities, see `TransformerBackbone.attention`."""
        keep = visible_keys(mask, self.config.attends)
        hidden = self.embeddings(ids, segments)
        for below in map(self.layer_at, range(layer)):
            hidden = below(hidden, keep)
        top = cast(EncoderLayer, self.layer_at(layer))
        return top.attention.probabilities(top.attention_input(hidden), keep)

    def last_projections(self, states: Tensor) -> Tensor:
        """Return the last layer's queries, keys and values, see `TransformerBackbone.last_projections`."""
        top = cast(EncoderLayer, self.layers[-1])
        projected: Tensor = top.attention.qkv(top.attention_input(states))
        return projected

    def flops(self, length: int, num_last: int) -> float:
        """Return the FLOPs of a row's forward pass, see `Backbone.flops`."""
        width, inner = self.config.hidden, self.config.intermediate
        full = 2 * length * (4 * width**2 + 2 * width * inner) + 4 * length**2 * width
        narrow = self.config.embedding_width
        project = 2 * length * narrow * width if self.config.projects_embeddings else 0
        if num_last == length:
            return float(self.config.layers * full + project)
        last = 4 * length * width**2 + 2 * num_last * (2 * width**2 + 2 * width * inner) + 4 * num_last * length * width
        return float((self.config.layers - 1) * full + last + project)


def share_parts(encoder: Encoder, parts: Sequence[str], *, groups: int) -> None:
    """Let the layers of each of `groups` groups share the modules named `parts` (in place).

    The first layer of a group owns the modules; the others refer to them, so that each weight has a single name.
    """
    size = len(encoder.layers) // groups
    for index, layer in enumerate(encoder.layers):
        owner = encoder.layers[index // size * size]
        for part in parts:
            if layer is not owner:
                delattr(layer, part)
                layer.__dict__[part] = owner.get_submodule(part)


def layer_norm(config: EncoderConfig) -> nn.LayerNorm:
    """Return a new LayerNorm of the states."""
    return nn.LayerNorm(config.hidden, eps=config.layer_norm_eps, bias=config.norms_have_bias)


class Pooler(nn.Module):
    """Dense layer and tanh on the state of [CLS], as in the original code; the paper's C is the state itself.

    Other families have another activation, no bias, or a LayerNorm at the end.
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        shape = config if isinstance(config, EncoderConfig) else None
        self.dense = nn.Linear(config.hidden, config.hidden, bias=shape is None or shape.heads_have_bias)
        self.activation: HeadActivation = "tanh" if shape is None else shape.pooler_activation
        self.norm = nn.Identity() if shape is None or not shape.pooler_has_norm else layer_norm(shape)

    def forward(self, state: Tensor) -> Tensor:
        """Return pooled vectors [B, D] for states [B, D], or [B, T, D] for [B, T, D]."""
        pooled: Tensor = self.norm(ACTIVATIONS[self.activation](self.dense(state)))
        return pooled


def visible_keys(mask: Tensor, attends: Attends, causal: Tensor | None = None) -> Tensor:
    """Return the keys that a query may attend to, for `mask` [B, T]: [B, 1, 1, T], or [B, 1, T, T] for one direction.

    causal: rows [B] that attend to the left, where `attends` is "both"; the keys are then [B, 1, T, T].
    With one direction a token always attends to itself, so that padding has a key.
    """
    keys = mask[:, None, None, :]
    if attends == "both" and causal is None:
        return keys
    length = mask.shape[1]
    all_pairs = torch.ones(length, length, dtype=torch.bool, device=mask.device)
    reach = all_pairs.triu() if attends == "right" else all_pairs.tril()
    if causal is not None:
        reach = reach | ~causal[:, None, None, None]
    return (reach & keys) | torch.eye(length, dtype=torch.bool, device=mask.device)


def table_rows(table: nn.Embedding, length: int, *, first: int = 0) -> Tensor:
    """Return `length` rows of a table of positions from row `first` on [T, D]; ValueError where it has fewer."""
    positions = table.num_embeddings - first
    if length > positions:
        raise ValueError(f"{length} tokens are more than the {positions} positions of this model")
    return table.weight[first : first + length]


def gather_rows(hidden: Tensor, at: Tensor) -> Tensor:
    """Return the states at the positions `at` [B, Q] of `hidden` [B, T, D]: [B, Q, D]."""
    if hidden.device.type != "cpu":  # a GPU's deterministic backward sorts indices: here one for each row
        begins = hidden.shape[1] * torch.arange(len(at), device=at.device)
        return hidden.flatten(0, 1)[begins[:, None] + at]
    return hidden.gather(1, at[:, :, None].expand(-1, -1, hidden.shape[-1]))


def init_weights(module: nn.Module, deviation: float, generator: torch.Generator) -> None:
    """Initialise as the original (in place): normal, cut at two deviations; biases 0; LayerNorm weights 1, biases 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
        if isinstance(part, nn.LayerNorm) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LSTM):  # the distribution that torch uses
            bound = 1 / math.sqrt(part.hidden_size)
            for weight in part.parameters():
                nn.init.uniform_(weight, -bound, bound, generator=generator)
