"""encoder → encoder for inference on processors: packed weights in fp32, bf16 or 8 bits, without padding.

The rows of all real tokens of a batch follow each other, so that the layers compute nothing for padding. A layer is a
single call of `kernels.cpp` where its own products are the faster way: with few rows, because a call of a
library then costs as much as the product, and without AMX in bf16 and 8 bits for any number of rows. Elsewhere the
layer is one product of oneDNN after the other, with fused steps between them.

The states between two steps, and all sums, are fp32. In bf16 the rows and weights of a product are rounded to bf16.
With 8 bits, each output of a weight matrix has a fixed scale, and each row of activations has a scale that is computed
from the row. What a layer computes for a row therefore does not depend on the other rows of the batch.

Shapes: B batch, T tokens, Q queries of a text, N rows of all texts, M rows that are queries, D hidden, H heads, K inner
and W outer width of a product.
"""

import copy
import ctypes
import sys
import time
from typing import Any, Final, Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.model.backbones import EncoderOutput
from bertwright.model.config import EncoderConfig
from bertwright.model.cpu import kernels
from bertwright.model.cpu.products import HalfProduct, Int8Product, Kind, NarrowProduct, PackedProduct, Product
from bertwright.model.encoder import Encoder, EncoderLayer, TransformerBackbone

Model = TypeVar("Model", bound=nn.Module)


class PackedLayer(nn.Module):
    """An EncoderLayer for inference."""

    def __init__(self, layer: EncoderLayer, product: type[Product]) -> None:
        super().__init__()
        qkv, width = layer.attention.qkv, layer.attention.qkv.in_features
        self.heads = layer.attention.heads
        self.query = product(qkv.weight[:width], qkv.bias[:width])
        self.key_value = product(qkv.weight[width:], qkv.bias[width:])
        self.output = product(layer.attention.output.weight, layer.attention.output.bias)
        self.expand = product(layer.expand.weight, layer.expand.bias)
        self.contract = product(layer.contract.weight, layer.contract.bias)
        self.attention_norm, self.output_norm = layer.attention_norm, layer.output_norm
        self.approximate = layer.approximate
        self.most_fused, self._fused = most_fused_rows(self), cast(FusedLayer | None, None)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which has pointers of its own at its first call."""
        return {**self.__dict__, "_fused": None}

    def forward(
        self, hidden: Tensor, begins: Tensor, at: Tensor | None = None, query_begins: Tensor | None = None
    ) -> Tensor:
        """Return states [N, D] for the rows `hidden` [N, D] of texts, or [M, D] of the rows `at` [M] alone.

        begins, query_begins: first row of each text in `hidden` and in `at`, and their number at the end [B + 1].
        """
        rows, query_begins = (hidden, begins) if at is None else (hidden[at], query_begins)
        assert query_begins is not None
        if 0 < len(hidden) <= self.most_fused:
            self._fused = self._fused or FusedLayer(self)
            return self._fused(hidden, rows, begins, query_begins)
        every = with_zero_rows(hidden)
        before = every if at is None else with_zero_rows(rows)
        narrow, scales = self.query.narrow(every)
        key_value = kernels.finish(self.key_value(narrow), scales, self.key_value.bias)[: len(hidden)]  # [N, 2D]
        if at is not None:
            narrow, scales = self.query.narrow(before)
        query = kernels.finish(self.query(narrow), scales, self.query.bias)[: len(rows)]  # [M, D]
        half = self.query.kind != "fp32"
        context = kernels.attend(query, key_value, begins, query_begins, heads=self.heads, half=half)
        narrow, scales = self.output.narrow(with_zero_rows(context))
        middle = kernels.add_norm(self.output(narrow), scales, self.output.bias, before, self.attention_norm)
        narrow, scales = self.expand.narrow(middle)
        narrow, scales = self.expand.activated(self.expand(narrow), scales, self.approximate)
        out = kernels.add_norm(self.contract(narrow), scales, self.contract.bias, middle, self.output_norm)
        return out[: len(rows)]


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
        chosen = () if at is None else (real.rows_at(at), torch.arange(len(at) + 1) * at.shape[1])
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


def with_zero_rows(rows: Tensor) -> Tensor:
    """Return rows [N, D] with zero rows appended, so that few different N occur; 2 % more rows on average.

    oneDNN compiles a product for each N and keeps it: half a megabyte each, a part of which is never freed.
    """
    count = len(rows)
    step = max(8, 1 << max(0, count.bit_length() - 5))  # a sixteenth of the power of 2 below
    more = -count % step
    return F.pad(rows, (0, 0, 0, more)) if more else rows


def packed_copy(model: Model, precision: Kind) -> Model:
    """Return a copy of `model` for inference, whose `encoder` is a PackedEncoder; it shares all other weights.

    The encoder must attend to both sides. In bf16 it must fit, see `multiplies_halves`.
    """
    encoder = model.get_submodule("encoder")
    assert isinstance(encoder, Encoder)
    assert encoder.config.attends == "both"
    shared = {id(weight): weight for weight in model.parameters()}
    packed = copy.deepcopy(model, shared)
    products: dict[Kind, type[Product]] = {"fp32": PackedProduct, "bf16": HalfProduct, "int8": Int8Product}
    with torch.inference_mode():
        copied = cast(Encoder, packed.get_submodule("encoder"))
        packed.register_module("encoder", PackedEncoder(copied, products[precision]))
    return packed.eval()


MOST_FUSED: Final = 64
"""Largest number of rows for which the fused layer is faster than oneDNN, in fp32 with AVX-512 (docs/log.md)."""
MOST_FUSED_AVX: Final = 256
"""The same in fp32 with AVX or AVX2 (measured with AVX2)."""
MOST_FUSED_AMX: Final = 256
"""The same in bf16 and 8 bits where oneDNN has AMX."""
_MEASURED: Final = 256
"""Number of tokens with which `layer_rates` measures."""
_PRODUCTS: Final = ("query", "key_value", "output", "expand", "contract")
_KINDS: Final[tuple[Kind, ...]] = ("fp32", "bf16", "int8")
"""The order of `Kind` in kernels.cpp."""


class _ProductStruct(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "inner", "width")),
        *((name, ctypes.c_void_p) for name in ("weights", "offsets", "column_scales", "bias")),
    )


class _Norm(ctypes.Structure):
    _fields_ = (("gain", ctypes.c_void_p), ("shift", ctypes.c_void_p), ("epsilon", ctypes.c_float))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("heads", "with_tanh")),
        *((name, _ProductStruct) for name in _PRODUCTS),
        *((name, _Norm) for name in ("attention", "out")),
    )


class FusedLayer:
    """A packed layer that is computed in a single call."""

    def __init__(self, layer: PackedLayer) -> None:
        self._kept: list[Tensor] = []
        """Tensors that the pointers of `layer` point to; kept so that they are not freed."""
        self.layer = _Layer(
            heads=layer.heads,
            with_tanh=layer.approximate == "tanh",
            **{name: self._product(getattr(layer, name)) for name in _PRODUCTS},
            attention=self._norm(layer.attention_norm),
            out=self._norm(layer.output_norm),
        )

    def __call__(self, hidden: Tensor, rows: Tensor, begins: Tensor, query_begins: Tensor) -> Tensor:
        """Return the layer's output [M, D] at the rows [M, D] of `hidden` [N, D]; `hidden` itself for all."""
        (tokens, width), (queries, _), wide = hidden.shape, rows.shape, self.layer.expand.width
        most = min(max(tokens, queries), kernels.library().rows_at_once())
        hidden = hidden.contiguous()
        rows = hidden if rows.data_ptr() == hidden.data_ptr() and rows.shape == hidden.shape else rows.contiguous()
        between = 2 * tokens * width + queries * width + most * (width + wide + 1)
        floats, out = (torch.empty(shape, dtype=torch.float32) for shape in ((between,), rows.shape))
        narrow = torch.empty(2 * most * max(width, wide), dtype=torch.uint8)
        kernels.library().layer(
            ctypes.byref(self.layer),
            *(kernels.at(tensor) for tensor in (hidden, rows, out, floats, narrow, begins, query_begins)),
            ctypes.c_int64(len(begins) - 1),
            ctypes.c_int(torch.get_num_threads()),
        )
        return out

    def _product(self, product: Product) -> _ProductStruct:
        weight, scales = product.unpacked()
        (width, inner), columns = weight.shape, kernels.library().columns()
        together = {"fp32": 1, "bf16": 2, "int8": 4}[product.kind]
        packed = weight.view(-1, columns, inner // together, together).permute(0, 2, 1, 3).contiguous()
        if isinstance(product, NarrowProduct):
            product.keep_columns(packed)
        offsets = None if scales is None else kernels.MIDDLE * weight.sum(1, dtype=torch.int32)
        pointers = {"weights": packed, "offsets": offsets, "column_scales": scales, "bias": product.bias}
        addresses = {name: self._at(tensor) for name, tensor in pointers.items()}
        return _ProductStruct(_KINDS.index(product.kind), inner, width, **addresses)

    def _norm(self, norm: nn.LayerNorm) -> _Norm:
        return _Norm(self._at(norm.weight), self._at(norm.bias), norm.eps)

    def _at(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._kept.append(tensor.detach().contiguous())
        return self._kept[-1].data_ptr()


def most_fused_rows(layer: PackedLayer) -> int:
    """Return the largest number of rows for which `FusedLayer` is faster; 0 where this machine cannot run it."""
    (wide, inner), library = layer.expand.shape, kernels.library()
    if library is None or not _fits(inner, wide, layer.heads):
        return 0
    if layer.expand.kind == "fp32":
        return MOST_FUSED_AVX if library.columns() == kernels.AVX_COLUMNS else MOST_FUSED
    if not (library.multiplies_bytes() if layer.expand.kind == "int8" else library.multiplies_halves()):
        return 0
    return MOST_FUSED_AMX if torch.cpu._is_amx_tile_supported() else sys.maxsize


def multiplies_halves(config: EncoderConfig) -> bool:
    """Return whether packed layers in bf16 are the faster way: with AMX, the plain ones of torch are."""
    library = kernels.library()
    has_halves = library is not None and library.multiplies_halves() and not torch.cpu._is_amx_tile_supported()
    return has_halves and _fits(config.hidden, config.intermediate, config.heads)


def layer_rates(config: EncoderConfig) -> dict[Literal["fp32", "bf16"], float]:
    """Return the number of packed layers of these widths that are computed in a second, in fp32 and in bf16.

    A layer has one text of `_MEASURED` tokens; the fastest of four calls counts. See `multiplies_halves`.
    """
    with torch.device("meta"):  # no random numbers are drawn, so that those of the process stay the same
        empty = EncoderLayer(config).eval()
    layer = empty.to_empty(device="cpu").float().requires_grad_(False)
    for weight in layer.parameters():
        weight.zero_()
    states, begins = (
        torch.ones(_MEASURED, config.hidden, dtype=torch.float32, device="cpu"),
        torch.tensor([0, _MEASURED]),
    )
    seconds: dict[Literal["fp32", "bf16"], list[float]] = {"fp32": [], "bf16": []}
    with torch.inference_mode():
        packed = {"fp32": PackedLayer(layer, PackedProduct), "bf16": PackedLayer(layer, HalfProduct)}
        for _ in range(5):
            for kind, times in seconds.items():
                start = time.perf_counter()
                packed[kind](states, begins)
                times.append(time.perf_counter() - start)
    return {kind: 1 / min(times[1:]) for kind, times in seconds.items()}  # the first call prepares the weights


def _fits(inner: int, wide: int, heads: int) -> bool:
    """Return whether `kernels.cpp` computes layers of these widths."""
    columns = kernels.library().columns()
    return inner // heads in kernels.HEADS and inner % columns == 0 and wide % columns == 0
