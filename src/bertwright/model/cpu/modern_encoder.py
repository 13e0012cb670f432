"""ModernEncoder → the same for inference on processors, with packed layers and without padding; see cpu/encoder.py.

Shapes: B batch, T tokens, Q queries of a text, N rows of all texts, M rows that are queries, D hidden, H heads, K head
width, I inner width.
"""

import ctypes
import functools
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from bertwright.model.backbones import EncoderOutput
from bertwright.model.cpu import kernels
from bertwright.model.cpu.encoder import RealTokens, query_begins_of
from bertwright.model.cpu.layers import FusedLayer, LayerProducts
from bertwright.model.cpu.products import Product
from bertwright.model.encoder import TransformerBackbone
from bertwright.model.modern_encoder import ModernEncoder, ModernLayer, turned, turns


@dataclass(frozen=True)
class RowsOfTexts:
    """Rows of all texts one after the other.

    begins: first row of each text, and the number of rows at the end [B + 1].
    positions: position of each row in its text [N].
    """

    begins: Tensor
    positions: Tensor


@dataclass(frozen=True)
class RowView:
    """Angles of the positions in a layer, and the radius of its window.

    turn: cosine and sine [2, T, K] of at least as many positions as the longest text has. radius: None for no window.
    """

    turn: Tensor
    radius: int | None


class PackedModernLayer(LayerProducts):
    """A ModernLayer for inference."""

    def __init__(self, layer: ModernLayer, product: type[Product]) -> None:
        super().__init__(layer, product)
        self.attention_norm, self.feed_forward_norm = layer.attention_norm, layer.feed_forward_norm
        self.approximate = "tanh" if layer.activation == "gelu_tanh" else "none"

    def forward(
        self,
        hidden: Tensor,
        view: RowView,
        texts: RowsOfTexts,
        at: Tensor | None = None,
        queries: RowsOfTexts | None = None,
    ) -> Tensor:
        """Return states [N, D] for the rows `hidden` [N, D] of texts, or [M, D] of the rows `at` [M] alone.

        queries: the rows `at` of the texts.
        """
        rows, queries = (hidden, texts) if queries is None else (hidden[at], queries)
        if 0 < len(hidden) <= self.most_fused:
            self._fused = self._fused or FusedModernLayer(self)
            return cast(FusedModernLayer, self._fused)(hidden, rows, view, texts, queries)
        inputs = self.narrowed(self.attention_norm(hidden))
        key_value = self.projected("key_value", inputs)[: len(hidden)]  # [N, 2D]
        inputs = inputs if queries is texts else self.narrowed(self.attention_norm(rows))
        query = self.projected("query", inputs)[: len(rows)]  # [M, D]
        turn_rows(key_value[:, : hidden.shape[1]], texts.positions, view.turn, heads=self.heads)
        turn_rows(query, queries.positions, view.turn, heads=self.heads)
        window = None if view.radius is None else kernels.Window(view.radius, texts.positions, queries.positions)
        half = self.query.kind != "fp32"
        context = kernels.attend(
            query, key_value, texts.begins, queries.begins, heads=self.heads, half=half, window=window
        )
        middle = rows + self.projected("output", self.narrowed(context))[: len(rows)]
        narrow, scales = self.narrowed(self.feed_forward_norm(middle))
        inner = kernels.gate_sums(self.expand(narrow), scales, self.expand.bias, approximate=self.approximate)
        return middle + self.projected("contract", self.narrowed(inner))[: len(rows)]


class _ViewStruct(ctypes.Structure):
    _fields_ = (("turn", ctypes.c_void_p), ("length", ctypes.c_int64), ("radius", ctypes.c_int64))


class FusedModernLayer(FusedLayer):
    """A PackedModernLayer that is computed in a single call."""

    def __init__(self, layer: PackedModernLayer) -> None:
        super().__init__(layer, (layer.attention_norm, layer.feed_forward_norm))

    def __call__(self, hidden: Tensor, rows: Tensor, view: RowView, texts: RowsOfTexts, queries: RowsOfTexts) -> Tensor:
        """Return the layer's output [M, D] at the rows [M, D] of `hidden` [N, D]; `hidden` itself for all."""
        hidden, rows = self.in_memory(hidden, rows)
        out = torch.empty(rows.shape, dtype=torch.float32)
        memory = self.memory(len(hidden), len(rows), floats_of_row=2 * self.width + 3 * self.inner + 1)
        numbers = (texts.begins, queries.begins, texts.positions, queries.positions)
        radius = -1 if view.radius is None else view.radius
        described = _ViewStruct(view.turn.data_ptr(), view.turn.shape[1], radius)
        kernels.library().modern_layer(
            *(ctypes.byref(self.layer), ctypes.byref(described)),
            *map(kernels.at, (hidden, rows, out, *memory, *numbers)),
            *(ctypes.c_int64(len(texts.begins) - 1), ctypes.c_int(torch.get_num_threads())),
        )
        return out


class PackedModernEncoder(ModernEncoder):
    """A ModernEncoder with packed layers, which compute nothing for padding; states of padding are 0."""

    def __init__(self, encoder: ModernEncoder, product: type[Product]) -> None:
        TransformerBackbone.__init__(self)
        self.config, self.embeddings, self.norm = encoder.config, encoder.embeddings, encoder.norm
        self.layers = nn.ModuleList(PackedModernLayer(cast(ModernLayer, layer), product) for layer in encoder.layers)
        self.dtype = torch.float32
        """Type of the states that it returns; that of a head in bf16 is bf16."""

    def forward(
        self, ids: Tensor, segments: Tensor, mask: Tensor, *, all_hidden: bool = False, at: Tensor | None = None
    ) -> EncoderOutput:
        """Encode a batch, see `Backbone.forward`; segments have no effect."""
        real = RealTokens(mask)
        rows = self.embeddings.norm(self.embeddings.word(real.packed(ids[..., None])[:, 0]).float())
        positions = torch.arange(ids.shape[1]).expand_as(ids)[..., None]
        texts = RowsOfTexts(real.begins, real.packed(positions)[:, 0].contiguous())
        states = [real.padded(rows).to(self.dtype)] if all_hidden else []
        for index in range(self.config.layers - 1):
            rows = self.layers[index](rows, self._view(index, ids.shape[1]), texts)
            states += [real.padded(rows).to(self.dtype)] if all_hidden else []
        top = (rows, self._view(self.config.layers - 1, ids.shape[1]), texts)
        if at is None:
            last = real.padded(self.norm(self.layers[-1](*top)))
        else:
            chosen = real.rows_at(at)
            queries = RowsOfTexts(query_begins_of(at), texts.positions[chosen])
            last = self.norm(self.layers[-1](*top, chosen, queries)).view(*at.shape, -1)
        last = last.to(self.dtype)
        return EncoderOutput(last, (*states, last) if all_hidden else ())

    def _view(self, layer: int, length: int) -> RowView:
        config, is_global = self.config, self.config.is_global(layer)
        base = config.global_rope_theta if is_global else config.local_rope_theta
        turn = _turns_from(1 << (length - 1).bit_length(), config.hidden // config.heads, base)
        return RowView(turn, None if is_global else config.radius)


def turn_rows(rows: Tensor, positions: Tensor, turn: Tensor, *, heads: int) -> None:
    """Turn the heads of rows [N, D] by the angles of their positions [N] (in place); see `turned`.

    rows: adjacent in memory, or columns of a wider matrix. turn: cosine and sine of the angles [2, T, K], fp32.
    """
    head = rows.shape[1] // heads
    if (built := kernels.library()) is None:
        parts = rows.unflatten(1, (heads, head)).transpose(0, 1)  # [H, N, K]
        rows.copy_(turned(parts, turn[:, positions]).transpose(0, 1).flatten(1))
        return
    count, _, threads = kernels.sizes(rows)
    step, *numbers = map(ctypes.c_int64, (rows.stride(0), turn.shape[1], heads, head))
    built.turn_in_place(kernels.at(rows), step, kernels.at(positions), kernels.at(turn), *numbers, count, threads)


@functools.lru_cache(maxsize=32)
def _turns_from(length: int, width: int, base: float) -> Tensor:
    """Return what `turns` returns, and keep it; lengths are powers of 2, so that there are few."""
    return turns(length, width, base, device=torch.device("cpu"))
