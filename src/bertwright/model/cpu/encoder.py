"""encoder → encoder for inference on processors: packed weights in fp32, bf16 or 8 bits, without padding.

The rows of all real tokens of a batch follow each other, so that the layers compute nothing for padding. A layer is a
single call of C++ where its own products are the faster way: with few rows, because a call of a library then costs as
much as the product, and without AMX in bf16 and 8 bits for any number of rows. Elsewhere the layer is one product of
oneDNN after the other, with fused steps between them.

The states between two steps, and all sums, are fp32. In bf16 the rows and weights of a product are rounded to bf16.
With 8 bits, each output of a weight matrix has a fixed scale, and each row of activations has a scale that is computed
from the row. What a layer computes for a row therefore does not depend on the other rows of the batch.

Shapes: B batch, T tokens, Q queries of a text, N rows of all texts, M rows that are queries, D hidden, H heads.
"""

import ctypes
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.model.backbones import EncoderOutput
from bertwright.model.cpu import kernels
from bertwright.model.cpu.layers import FusedLayer, LayerProducts, with_zero_rows
from bertwright.model.cpu.products import Product
from bertwright.model.encoder import Encoder, EncoderLayer, TransformerBackbone


class PackedLayer(LayerProducts):
    """An EncoderLayer for inference."""

    def __init__(self, layer: EncoderLayer, product: type[Product]) -> None:
        super().__init__(layer, product)
        self.attention_norm, self.output_norm = layer.attention_norm, layer.output_norm
        self.approximate = layer.approximate

    def forward(
        self, hidden: Tensor, begins: Tensor, at: Tensor | None = None, query_begins: Tensor | None = None
    ) -> Tensor:
        """Return states [N, D] for the rows `hidden` [N, D] of texts, or [M, D] of the rows `at` [M] alone.

        begins, query_begins: first row of each text in `hidden` and in `at`, and their number at the end [B + 1].
        """
        rows, query_begins = (hidden, begins) if at is None else (hidden[at], query_begins)
        assert query_begins is not None
        if 0 < len(hidden) <= self.most_fused:
            self._fused = self._fused or FusedBertLayer(self)
            return cast(FusedBertLayer, self._fused)(hidden, rows, begins, query_begins)
        every = with_zero_rows(hidden)
        before = every if at is None else with_zero_rows(rows)
        inputs = self.query.narrow(every)
        key_value = self.projected("key_value", inputs)[: len(hidden)]  # [N, 2D]
        query = self.projected("query", inputs if at is None else self.query.narrow(before))[: len(rows)]  # [M, D]
        half = self.query.kind != "fp32"
        context = kernels.attend(query, key_value, begins, query_begins, heads=self.heads, half=half)
        narrow, scales = self.narrowed(context)
        middle = kernels.add_norm(self.output(narrow), scales, self.output.bias, before, self.attention_norm)
        narrow, scales = self.expand.narrow(middle)
        narrow, scales = self.expand.activated(self.expand(narrow), scales, self.approximate)
        out = kernels.add_norm(self.contract(narrow), scales, self.contract.bias, middle, self.output_norm)
        return out[: len(rows)]


class FusedBertLayer(FusedLayer):
    """A PackedLayer that is computed in a single call."""

    def __init__(self, layer: PackedLayer) -> None:
        super().__init__(layer, (layer.attention_norm, layer.output_norm))

    def __call__(self, hidden: Tensor, rows: Tensor, begins: Tensor, query_begins: Tensor) -> Tensor:
        """Return the layer's output [M, D] at the rows [M, D] of `hidden` [N, D]; `hidden` itself for all."""
        hidden, rows = self.in_memory(hidden, rows)
        out = torch.empty(rows.shape, dtype=torch.float32)
        memory = self.memory(len(hidden), len(rows), floats_of_row=self.width + self.inner + 1)
        pointers = map(kernels.at, (hidden, rows, out, *memory, begins, query_begins))
        texts, threads = ctypes.c_int64(len(begins) - 1), ctypes.c_int(torch.get_num_threads())
        kernels.library().layer(ctypes.byref(self.layer), *pointers, texts, threads)
        return out


class PackedEncoder(Encoder):
    """An encoder with packed layers, which compute nothing for padding; states of padding are 0."""

    def __init__(self, encoder: Encoder, product: type[Product]) -> None:
        TransformerBackbone.__init__(self)
        self.config, self.embeddings, self.final_norm = encoder.config, encoder.embeddings, encoder.final_norm
        self.layers = nn.ModuleList(PackedLayer(cast(EncoderLayer, layer), product) for layer in encoder.layers)
        self.dtype = torch.float32
        """Type of the states that it returns; that of a head in bf16 is bf16."""

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
        """Encode a batch, see `Encoder.forward`; causal must be None."""
        assert causal is None
        real = RealTokens(mask)
        rows = real.packed(self.embeddings(ids, segments).float())
        states = [self._padded(rows, real)] if all_hidden else []
        for index in range(self.config.layers - 1):
            rows = self.layer_at(index)(rows, real.begins)
            states += [self._padded(rows, real)] if all_hidden else []
        chosen = () if at is None else (real.rows_at(at), query_begins_of(at))
        rows = self.layer_at(self.config.layers - 1)(rows, real.begins, *chosen)
        if self.final_norm is not None:
            rows = self.final_norm(rows)
        last = self._padded(rows, real) if at is None else rows.view(*at.shape, -1).to(self.dtype)
        return EncoderOutput(last, (*states, last) if all_hidden else ())

    def _padded(self, rows: Tensor, real: "RealTokens") -> Tensor:
        return real.padded(rows).to(self.dtype)


class RealTokens:
    """The real tokens of a batch, whose rows follow each other. A text without tokens keeps its first."""

    def __init__(self, mask: Tensor) -> None:
        """Take the mask [B, T] of the real tokens."""
        self.kept = mask.clone()
        self.kept[:, :1] |= ~mask.any(1, keepdim=True)
        self.begins = F.pad(self.kept.sum(1).cumsum(0), (1, 0))
        """First row of each text, and the number of rows [B + 1]."""
        self._has_padding = not bool(self.kept.all())

    def packed(self, states: Tensor) -> Tensor:
        """Return the rows [N, D] of the real tokens of [B, T, D]."""
        return states[self.kept] if self._has_padding else states.flatten(0, 1)

    def padded(self, rows: Tensor) -> Tensor:
        """Return rows [N, D] as [B, T, D]; those of padding are 0."""
        if not self._has_padding:
            return rows.view(*self.kept.shape, -1)
        padded = rows.new_zeros(*self.kept.shape, rows.shape[1])
        padded[self.kept] = rows
        return padded

    def rows_at(self, at: Tensor) -> Tensor:
        """Return the rows [B·Q] of the positions `at` [B, Q]; for padding, a row beside it."""
        row_of = (self.kept.flatten().cumsum(0) - 1).view(self.kept.shape)
        return row_of.gather(1, at.long()).maximum(self.begins[:-1, None]).flatten()


def query_begins_of(at: Tensor) -> Tensor:
    """Return the first of the rows of each text, and their number, for positions [B, Q]: [B + 1]."""
    return torch.arange(len(at) + 1) * at.shape[1]
