"""batches → encoder: embeddings, post-LayerNorm blocks and pooler of paper §3 and A.2.

Shapes: B batch, T tokens, Q rows asked for, D hidden.
"""

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.model.config import Attends, BackboneConfig, EncoderConfig, GPTConfig, SingleBackboneConfig

# Dropout that costs little on a CPU: four decisions from each 64-bit random number, the rest fused by the compiler.
#
# torch's own CPU dropout draws one number per element on one thread: longer than a small model's matrix products
# took.


@torch.library.custom_op("bertwright::random_bits", mutates_args=())
def random_bits(like: Tensor) -> Tensor:
    """Uniform int16 numbers in the shape of `like`, from torch's default generator (so `torch.manual_seed` decides)."""
    size = like.numel()
    words = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(2**63), None)
    bits: Tensor = words.view(torch.int16)[:size].view(like.shape)
    return bits


@random_bits.register_fake
def _(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=torch.int16, device=like.device)


def dropout(values: Tensor, share: float, training: bool) -> Tensor:
    """Zero a `share` of `values` (to 1/65536) and scale the rest by 1/(1-share); identity when not training."""
    if not training or share == 0.0:
        return values
    if values.device.type != "cpu":
        return F.dropout(values, share)
    bits: Tensor = random_bits(values)
    keep = bits >= min(round(share * 65536), 65535) - 32768  # 65,536 would be no int16
    return values * (keep.to(values.dtype) / (1.0 - share))


# batches → encoder: multi-head self-attention over both directions (paper §3; 1/sqrt(K) scaling, keys masked).
#
# Shapes: B batch, T tokens, Q query rows, D hidden, H heads, K head width.


class Stacked(nn.Linear):
    """The maps to queries, keys and values above one another: three to whoever treats a matrix as a whole."""

    stacked = 3


class SelfAttention(nn.Module):
    """Queries, keys and values from one fused projection, then the output projection."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = Stacked(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, hidden: Tensor, keep: Tensor, rows: Tensor | None = None) -> Tensor:
        """Attend from `rows` [B, Q, D] (all of `hidden` when None) to `hidden` [B, T, D].

        `keep` [B, 1, 1, T] is True for keys that may be attended to; [B, 1, Q, T] where each query has its own keys.
        Returns [B, Q, D].
        """
        width = hidden.shape[-1]
        if rows is None:
            query, key, value = self.qkv(hidden).split(width, dim=-1)  # 3 x [B, T, D]
        else:
            query = F.linear(rows, self.qkv.weight[:width], self.qkv.bias[:width])  # [B, Q, D]
            key, value = F.linear(hidden, self.qkv.weight[width:], self.qkv.bias[width:]).split(width, dim=-1)
        context = self._attend(self._split(query), self._split(key), self._split(value), keep)
        merged: Tensor = self.output(context.transpose(1, 2).flatten(2))  # [B, Q, D]
        return merged

    def probabilities(self, hidden: Tensor, keep: Tensor) -> Tensor:
        """How much each token of `hidden` [B, T, D] attends to each other, head by head: [B, H, T, T], no dropout."""
        query, key, _ = self.qkv(hidden).split(hidden.shape[-1], dim=-1)  # 3 x [B, T, D]
        return _probabilities(self._split(query), self._split(key), keep)

    def _split(self, rows: Tensor) -> Tensor:
        parts: Tensor = rows.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, H, T, K]
        return parts

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, keep: Tensor) -> Tensor:
        share = self.dropout if self.training else 0.0
        if not share or query.device.type != "cpu":
            return F.scaled_dot_product_attention(query, key, value, attn_mask=keep, dropout_p=share)
        # No fused CPU kernel drops attention probabilities, so training spells the formula out.
        kept = dropout(_probabilities(query, key, keep), self.dropout, training=True)
        context: Tensor = kept @ value  # [B, H, Q, K]
        return context


def _probabilities(query: Tensor, key: Tensor, keep: Tensor) -> Tensor:
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)  # [B, H, Q, T]
    return torch.softmax(scores.masked_fill(~keep, torch.finfo(scores.dtype).min), dim=-1)


@dataclass(frozen=True)
class EncoderOutput:
    """`last` [B, T, D] (or [B, Q, D] where rows were asked for); `hidden`: the embeddings and every layer, or empty."""

    last: Tensor
    hidden: tuple[Tensor, ...] = ()


class TokensAndPositions(nn.Module):
    """Sum of word and learned absolute position embeddings, then dropout: all that GPT-1 has."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden)
        self.position = nn.Embedding(config.max_positions, config.hidden)
        self.dropout = config.hidden_dropout

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        """[B, T] ids → [B, T, D]; what the segments are changes nothing."""
        summed = self.word(ids) + first_positions(self.position, ids.shape[1])
        return dropout(summed, self.dropout, self.training)


class Embeddings(TokensAndPositions):
    """Segment embeddings added to them, and LayerNorm before the dropout."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.segment = nn.Embedding(config.num_segments, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=config.layer_norm_eps)

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        """[B, T] ids and segments → [B, T, D]."""
        summed = self.word(ids) + first_positions(self.position, ids.shape[1]) + self.segment(segments)
        return dropout(self.norm(summed), self.dropout, self.training)


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

    def forward(self, hidden: Tensor, keep: Tensor, at: Tensor | None = None) -> Tensor:
        """[B, T, D] → [B, T, D], or only the rows `at` [B, Q] → [B, Q, D]; `keep` [B, 1, 1, T] or [B, 1, T, T]."""
        rows = None if at is None else gather_rows(hidden, at)
        if at is not None and keep.shape[2] > 1:
            keep = keep.gather(2, at[:, None, :, None].expand(-1, -1, -1, keep.shape[3]))  # [B, 1, Q, T]
        attended = dropout(self.attention(hidden, keep, rows), self.dropout, self.training)
        middle = self.attention_norm((hidden if rows is None else rows) + attended)
        inner = self.contract(F.gelu(self.expand(middle), approximate=self.approximate))
        out: Tensor = self.output_norm(middle + dropout(inner, self.dropout, self.training))
        return out


class SingleBackbone(nn.Module):
    """What every body that is made of no others answers: the state of the row, its table of words, its blocks."""

    config: SingleBackboneConfig
    embeddings: nn.Module
    layers: nn.ModuleList

    def summary(self, ids: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        """The state that knows the whole row [B, D]: the first token's, or the last one's where attention goes left."""
        at = (mask.sum(1, keepdim=True) - 1) if self.config.attends == "left" else mask.new_zeros(len(mask), 1).long()
        last: Tensor = self(ids, segments, mask, at=at).last
        return last[:, 0]

    def words(self) -> list[nn.Embedding]:
        """The tables of word embeddings."""
        return [cast(nn.Embedding, self.embeddings.word)]

    def blocks(self) -> tuple[nn.Module, ...]:
        """What is sharded and recomputed as a unit, in the order of computing."""
        return tuple(self.layers)


class Encoder(SingleBackbone):
    """Token ids to contextual vectors."""

    config: EncoderConfig
    embeddings: TokensAndPositions
    _embeddings: type[TokensAndPositions] = Embeddings

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = self._embeddings(config)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))

    def forward(
        self, ids: Tensor, segments: Tensor, mask: Tensor, *, all_hidden: bool = False, at: Tensor | None = None
    ) -> EncoderOutput:
        """Encode `ids` [B, T] with `segments` [B, T] and `mask` [B, T] (True for real tokens).

        With `at` [B, Q] the last layer is computed at those positions alone: masked LM needs 15 % of them.
        With `all_hidden` the embeddings and each layer's output come along (feature-based use, paper §5.3).
        """
        keep = kept(mask, self.config.attends)
        hidden = self.embeddings(ids, segments)
        states = [hidden]
        for index, layer in enumerate(self.layers):
            is_last = index == len(self.layers) - 1
            hidden = layer(hidden, keep, at if is_last else None)
            states.append(hidden)
        return EncoderOutput(hidden, tuple(states) if all_hidden else ())

    def flops(self, length: int, asked: int) -> float:
        """Matrix products of a row's forward, the last layer at `asked` of its `length` places, as computed."""
        width, inner = self.config.hidden, self.config.intermediate
        full = 2 * length * (4 * width**2 + 2 * width * inner) + 4 * length**2 * width
        if asked == length:
            return float(self.config.layers * full)
        last = 4 * length * width**2 + 2 * asked * (2 * width**2 + 2 * width * inner) + 4 * asked * length * width
        return float((self.config.layers - 1) * full + last)


class Pooler(nn.Module):
    """The vector of [CLS] through a dense layer and tanh: C in the paper's Figure 1."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden, config.hidden)

    def forward(self, state: Tensor) -> Tensor:
        """[B, D] → [B, D]."""
        return torch.tanh(self.dense(state))


def kept(mask: Tensor, attends: Attends) -> Tensor:
    """Which keys each query may attend to, for `mask` [B, T]: [B, 1, 1, T], or [B, 1, T, T] for one direction.

    There a token always attends to itself, so that padding has something to attend to.
    """
    keys = mask[:, None, None, :]
    if attends == "both":
        return keys
    length = mask.shape[1]
    all_pairs = torch.ones(length, length, dtype=torch.bool, device=mask.device)
    reach = all_pairs.tril() if attends == "left" else all_pairs.triu()
    return (reach & keys) | torch.eye(length, dtype=torch.bool, device=mask.device)


def first_positions(table: nn.Embedding, length: int) -> Tensor:
    """The vectors of positions 0 … length-1 [T, D]; ValueError where the table has fewer."""
    if length > table.num_embeddings:
        raise ValueError(f"{length} tokens are more than the {table.num_embeddings} positions of this model")
    return table.weight[:length]


def gather_rows(hidden: Tensor, at: Tensor) -> Tensor:
    """Pick positions `at` [B, Q] of `hidden` [B, T, D] → [B, Q, D]."""
    if hidden.device.type != "cpu":  # a GPU's repeatable backward sorts what it adds up: places, not all numbers
        begins = hidden.shape[1] * torch.arange(len(at), device=at.device)
        return hidden.flatten(0, 1)[begins[:, None] + at]
    return hidden.gather(1, at[:, :, None].expand(-1, -1, hidden.shape[-1]))


def init_weights(module: nn.Module, deviation: float, generator: torch.Generator) -> None:
    """Initialise in place as the original: truncated normal cut at two deviations, zero biases, LayerNorm 1 and 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LSTM):  # as torch begins one
            bound = 1 / math.sqrt(part.hidden_size)
            for weight in part.parameters():
                nn.init.uniform_(weight, -bound, bound, generator=generator)


# batches → body of GPT-1: BERT's blocks, each token attending to itself and to what stands before it (GPT §3.1,
# §4.1).
#
# No segments, no LayerNorm on the embeddings, and the token embeddings once more as the output, without a bias.
#
# Shapes: D hidden, V vocabulary.


class GPT(Encoder):
    """Token ids to vectors that know the tokens up to their own, and to the logits of the next token.

    What padding holds after a real token never reaches it.
    """

    config: GPTConfig
    _embeddings = TokensAndPositions

    def logits(self, states: Tensor) -> Tensor:
        """[…, D] states of tokens → […, V] logits of the tokens that follow them."""
        return F.linear(states, self.embeddings.word.weight)
