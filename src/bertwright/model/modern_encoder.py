"""batches → hidden states: the blocks of ModernBERT (arXiv 2412.13663, §2.1), which normalise before they compute.

There are no segments and no table of positions. Queries and keys are turned by angles that grow with their position
(rotary positions), with one base for layers that attend to the whole row and another one for those that attend to a
window. The feed-forward layer is gated (GeGLU).

Shapes: B batch, T tokens, Q positions that are computed, D hidden, H heads, K head width, I inner width.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bertwright.model.attention import Stacked, attention_context, attention_probabilities, dropout
from bertwright.model.backbones import EncoderOutput
from bertwright.model.cpu import training_kernels
from bertwright.model.encoder import ACTIVATIONS, TransformerBackbone, WordEmbeddings, gather_rows, layer_norm
from bertwright.model.local_attention import attend_in_blocks, block_mask, is_long, window_mask
from bertwright.model.modern_config import ModernBertConfig


@dataclass(frozen=True)
class View:
    """Keys that the tokens of a batch may attend to in a layer, and the angles of their positions.

    keep: True for keys that may be attended to: [B, 1, 1, T], [B, 1, T, T], or as `block_mask`.
    turn: cosine and sine of the angles [2, T, K].
    radius: number of positions that the window of blocks reaches to each side; None without blocks.
    """

    keep: Tensor
    turn: Tensor
    radius: int | None = None


class Gated(nn.Linear):
    """The maps to inner numbers and to their gates as one matrix; Muon treats it as two."""

    stacked = 2


class RotaryAttention(nn.Module):
    """Multi-head self-attention whose queries and keys are turned by their positions."""

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.attention_dropout
        self.qkv = Stacked(config.hidden, 3 * config.hidden, bias=config.attention_bias)
        self.output = nn.Linear(config.hidden, config.hidden, bias=config.attention_bias)

    def forward(self, hidden: Tensor, view: View, at: Tensor | None = None) -> Tensor:
        """Return [B, T, D] for `hidden` [B, T, D], or [B, Q, D] at the positions `at` [B, Q]."""
        query, key, value = self._parts(hidden, view.turn)
        dropout_p = self.dropout if self.training else 0.0
        if view.radius is not None:
            context = attend_in_blocks(query, key, value, view.keep, radius=view.radius, dropout_p=dropout_p)
            merged = _merged(context, at)
        else:
            keep = view.keep
            if at is not None:
                query = query.gather(2, at[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[3]))
                wide = keep.shape[2] > 1
                keep = keep.gather(2, at[:, None, :, None].expand(-1, -1, -1, keep.shape[3])) if wide else keep
            merged = _merged(attention_context(query, key, value, keep, dropout_p=dropout_p), None)
        return dropout(self.output(merged), self.dropout, self.training)

    def probabilities(self, hidden: Tensor, view: View) -> Tensor:
        """Return the attention probabilities of `hidden` [B, T, D] in a view without blocks: [B, H, T, T]."""
        query, key, _ = self._parts(hidden, view.turn)
        return attention_probabilities(query, key, view.keep)

    def _parts(self, hidden: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [B, H, T, K], the first two turned."""
        projected = self.qkv(hidden).unflatten(-1, (3, self.heads, -1))  # [B, T, 3, H, K]
        if training_kernels.are_usable(projected):
            # torch's `apply` has no types, and three names give its result some.
            query, key, value = _Turned.apply(projected, turn)  # type: ignore[no-untyped-call]
            return query, key, value
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        return turned(query, turn), turned(key, turn), value


class _Turned(torch.autograd.Function):
    """The parts of [B, T, 3, H, K], each [B, H, T, K], queries and keys turned, in one pass on processors."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, turn: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(turn)
        return training_kernels.turn_pairs(projected.unbind(2), turn).permute(2, 0, 3, 1, 4).unbind(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (turn,) = ctx.saved_tensors
        parts = [gradient.transpose(1, 2) for gradient in gradients]  # [B, T, H, K]
        return training_kernels.turn_pairs(parts, turn, back=True), None


def _merged(context: Tensor, at: Tensor | None) -> Tensor:
    """Return the heads of a context [B, H, T, K] side by side [B, T, D], or [B, Q, D] at the positions `at` [B, Q]."""
    merged = context.transpose(1, 2).flatten(2)
    return merged if at is None else gather_rows(merged, at)


def turned(rows: Tensor, turn: Tensor) -> Tensor:
    """Return rows [B, H, T, K] whose pairs of dimensions k and k + K/2 are turned by the angles of `turn` [2, T, K].

    It is computed in fp32 at least: in bf16 the positions of a long row would have few digits.
    """
    wide = rows.to(torch.promote_types(rows.dtype, turn.dtype))
    first, second = wide.chunk(2, dim=-1)
    return (wide * turn[0] + torch.cat((-second, first), dim=-1) * turn[1]).to(rows.dtype)


def turns(length: int, width: int, base: float, *, device: torch.device) -> Tensor:
    """Return cosine and sine of the angles of `length` positions for heads of `width` K: [2, T, K].

    Dimension k of K/2 turns by base^(-2k/K) for each position.
    """
    speeds = 1.0 / (base ** (torch.arange(0, width, 2, device=device).float() / width))  # [K/2]
    angles = torch.arange(length, device=device).float()[:, None] * speeds  # [T, K/2]
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin()))


class NormedWords(WordEmbeddings):
    """Word embeddings, LayerNorm, then dropout."""

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden)
        self.norm = layer_norm(config)
        self.dropout = config.embedding_dropout

    def forward(self, ids: Tensor) -> Tensor:
        """Return embeddings [B, T, D] for ids [B, T]."""
        return dropout(self.norm(self.word(ids)), self.dropout, self.training)


class ModernLayer(nn.Module):
    """LayerNorm and attention, then LayerNorm and a gated feed-forward layer, each added to its input (pre-LN).

    The first layer has no LayerNorm before its attention, since one follows the embeddings.
    """

    def __init__(self, config: ModernBertConfig, index: int) -> None:
        super().__init__()
        self.attention_norm = layer_norm(config) if index else nn.Identity()
        self.attention = RotaryAttention(config)
        self.feed_forward_norm = layer_norm(config)
        self.expand = Gated(config.hidden, 2 * config.intermediate, bias=config.mlp_bias)
        self.contract = nn.Linear(config.intermediate, config.hidden, bias=config.mlp_bias)
        self.activation, self.dropout = config.activation, config.hidden_dropout

    def forward(self, hidden: Tensor, view: View, at: Tensor | None = None) -> Tensor:
        """Return states [B, T, D] for `hidden` [B, T, D], or [B, Q, D] at the positions `at` [B, Q]."""
        attended = self.attention(self.attention_norm(hidden), view, at)
        middle = (hidden if at is None else gather_rows(hidden, at)) + attended
        kept = dropout(self._gated(self.expand(self.feed_forward_norm(middle))), self.dropout, self.training)
        out: Tensor = middle + self.contract(kept)
        return out

    def _gated(self, rows: Tensor) -> Tensor:
        """Return the activation of the first half of rows [B, Q, 2I] times the second half: [B, Q, I]."""
        if self.activation == "gelu" and training_kernels.are_usable(rows):
            out: Tensor = _Gated.apply(rows)  # type: ignore[no-untyped-call]
            return out
        inner, gate = rows.chunk(2, dim=-1)
        return ACTIVATIONS[self.activation](inner) * gate


class _Gated(torch.autograd.Function):
    """GELU of one half of rows [… 2I] times the other half in one pass, on processors."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return training_kernels.gate(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        return training_kernels.gate_gradient(rows, gradient)


class ModernEncoder(TransformerBackbone):
    """ModernBERT's encoder: embeddings, layers and a LayerNorm at the end."""

    config: ModernBertConfig
    embeddings: NormedWords

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = NormedWords(config)
        self.layers = nn.ModuleList(ModernLayer(config, index) for index in range(config.layers))
        self.norm = layer_norm(config)

    def forward(
        self, ids: Tensor, segments: Tensor, mask: Tensor, *, all_hidden: bool = False, at: Tensor | None = None
    ) -> EncoderOutput:
        """Encode a batch, see `Backbone.forward`; segments have no effect.

        With `at` the last layer is computed at those positions alone; only a window in blocks is computed at all. A
        graph that is exported has a mask [T, T] at every length.
        """
        in_blocks = not torch.compiler.is_exporting() and is_long(mask.shape[1], self.config.radius)
        views = self._views(mask, in_blocks=in_blocks)
        hidden = self.embeddings(ids)
        states = [hidden]
        for index, layer in enumerate(self.layers):
            is_last = index == self.config.layers - 1
            hidden = layer(hidden, views[self.config.is_global(index)], at if is_last else None)
            states.append(hidden)
        last = self.norm(hidden)
        return EncoderOutput(last, (*states[:-1], last) if all_hidden else ())

    def _views(self, mask: Tensor, *, in_blocks: bool) -> dict[bool, View]:
        """Return the views that the layers need for `mask` [B, T], by `is_global`; layers of a kind share one."""
        config, length = self.config, mask.shape[1]
        views: dict[bool, View] = {}
        for is_global in {*map(config.is_global, range(config.layers))}:
            base = config.global_rope_theta if is_global else config.local_rope_theta
            turn = turns(length, config.hidden // config.heads, base, device=mask.device)
            if is_global:
                views[is_global] = View(mask[:, None, None, :], turn)
            elif in_blocks:
                views[is_global] = View(block_mask(mask, config.radius), turn, config.radius)
            else:
                views[is_global] = View(window_mask(mask, config.radius), turn)
        return views

    def attention(self, ids: Tensor, segments: Tensor, mask: Tensor, *, layer: int) -> Tensor:
        """Return attention probabilities, see `TransformerBackbone.attention`."""
        views, hidden = self._views(mask, in_blocks=False), self.embeddings(ids)
        for index in range(layer):
            hidden = self.layers[index](hidden, views[self.config.is_global(index)])
        chosen = cast(ModernLayer, self.layers[layer])
        return chosen.attention.probabilities(chosen.attention_norm(hidden), views[self.config.is_global(layer)])

    def last_projections(self, states: Tensor) -> Tensor:
        """Return the last layer's queries, keys and values before they are turned; see `TransformerBackbone`."""
        layer = cast(ModernLayer, self.layers[-1])
        projected: Tensor = layer.attention.qkv(layer.attention_norm(states))
        return projected

    def flops(self, length: int, num_last: int) -> float:
        """Return the FLOPs of a row's forward pass, see `Backbone.flops`."""
        width, inner, keys = self.config.hidden, self.config.intermediate, self.config.mean_keys(length)
        full = 2 * length * (4 * width**2 + 3 * width * inner) + 4 * length * keys * width
        saved = 2 * (length - num_last) * (width**2 + 3 * width * inner) if num_last < length else 0
        return float(self.config.layers * full - saved)
