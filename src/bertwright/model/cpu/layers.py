"""layer → its packed products, and the same in a single call of C++ for few rows.

Shapes: N rows of all texts, M rows that are queries, D hidden, W outer width of a product, I inner width of the
feed-forward layer.
"""

import ctypes
import sys
from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.model.cpu import kernels
from bertwright.model.cpu.products import Kind, Narrow, NarrowProduct, Product
from bertwright.model.encoder import EncoderLayer
from bertwright.model.modern_encoder import ModernLayer

MOST_FUSED: Final = 64
"""Largest number of rows for which the fused layer is faster than oneDNN, in fp32 with AVX-512 (docs/log.md)."""
MOST_FUSED_AVX: Final = 256
"""Largest number of such rows in fp32 with AVX or AVX2 (measured with AVX2)."""
MOST_FUSED_AMX: Final = 256
"""Largest number of such rows in bf16 and 8 bits where oneDNN has AMX."""
_PRODUCTS: Final = ("query", "key_value", "output", "expand", "contract")
_KINDS: Final[tuple[Kind, ...]] = ("fp32", "bf16", "int8")
"""The order of `Kind` in products.h."""


class LayerProducts(nn.Module):
    """The packed products of a layer; subclasses compute the layer with them."""

    approximate: str
    """Form of GELU, as in torch."""

    def __init__(self, layer: EncoderLayer | ModernLayer, product: type[Product]) -> None:
        super().__init__()
        qkv, width = layer.attention.qkv, layer.attention.qkv.in_features
        parts = {"output": layer.attention.output, "expand": layer.expand, "contract": layer.contract}
        qkv_bias = _bias_of(qkv)
        self.heads = layer.attention.heads
        self.has_bias = {
            name: part.bias is not None for name, part in {"query": qkv, "key_value": qkv, **parts}.items()
        }
        self.query = product(qkv.weight[:width], qkv_bias[:width])
        self.key_value = product(qkv.weight[width:], qkv_bias[width:])
        self.output, self.expand, self.contract = (product(part.weight, _bias_of(part)) for part in parts.values())
        self.most_fused = most_fused_rows(self)
        self._fused: Any = None
        """The layer as a single call, made where it is needed."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which has pointers of its own at its first call."""
        return {**self.__dict__, "_fused": None}

    def narrowed(self, rows: Tensor) -> Narrow:
        """Return rows with zero rows appended, in the precision of the products."""
        return self.query.narrow(with_zero_rows(rows))

    def projected(self, name: str, inputs: Narrow) -> Tensor:
        """Return the output of the product `name`, with its bias, for rows that `narrowed` returned."""
        product: Product = getattr(self, name)
        narrow, scales = inputs
        sums = product(narrow)
        is_finished = scales is None and not self.has_bias[name]
        return sums if is_finished else kernels.finish(sums, scales, product.bias)


def _bias_of(linear: nn.Linear) -> Tensor:
    bias: Tensor | None = linear.bias
    return linear.weight.new_zeros(linear.out_features) if bias is None else bias


def with_zero_rows(rows: Tensor) -> Tensor:
    """Return rows [N, D] with zero rows appended, so that few different N occur; 2 % more rows on average.

    oneDNN compiles a product for each N and keeps it: half a megabyte each, a part of which is never freed.
    """
    count = len(rows)
    step = max(8, 1 << max(0, count.bit_length() - 5))  # a sixteenth of the power of 2 below
    more = -count % step
    return F.pad(rows, (0, 0, 0, more)) if more else rows


class _ProductStruct(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "inner", "width")),
        *((name, ctypes.c_void_p) for name in ("weights", "offsets", "column_scales", "bias")),
    )


class _Norm(ctypes.Structure):
    _fields_ = (("gain", ctypes.c_void_p), ("shift", ctypes.c_void_p), ("epsilon", ctypes.c_float))


class _LayerStruct(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("heads", "with_tanh")),
        *((name, _ProductStruct) for name in _PRODUCTS),
        *((name, _Norm) for name in ("attention", "feed_forward")),
    )


class FusedLayer:
    """A packed layer that is computed in a single call."""

    def __init__(self, layer: LayerProducts, norms: Sequence[nn.Module]) -> None:
        """Take a layer, and the norms of its attention and of its feed-forward layer: a LayerNorm, or Identity."""
        self._kept: list[Tensor] = []
        """Tensors that the pointers of `layer` point to; kept so that they are not freed."""
        self.width, self.inner = layer.contract.shape
        self.layer = _LayerStruct(
            heads=layer.heads,
            with_tanh=layer.approximate == "tanh",
            **{name: self._product(getattr(layer, name)) for name in _PRODUCTS},
            attention=self._norm(norms[0]),
            feed_forward=self._norm(norms[1]),
        )

    def in_memory(self, hidden: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return both as rows that follow each other; `rows` is `hidden` itself where it has the same rows."""
        hidden = hidden.contiguous()
        return (
            hidden,
            hidden if rows.data_ptr() == hidden.data_ptr() and rows.shape == hidden.shape else rows.contiguous(),
        )

    def memory(self, tokens: int, queries: int, *, floats_of_row: int) -> tuple[Tensor, Tensor]:
        """Return memory for floats and for narrow numbers between the products of a call.

        floats_of_row: number of floats for each row that is computed at a time, besides queries, keys and values.
        """
        most = min(max(tokens, queries), kernels.library().rows_at_once())
        count = (2 * tokens + queries) * self.width + most * floats_of_row
        narrow = 2 * most * max(self.width, self.inner)
        return torch.empty(count, dtype=torch.float32), torch.empty(narrow, dtype=torch.uint8)

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

    def _norm(self, norm: nn.Module) -> _Norm:
        if not isinstance(norm, nn.LayerNorm):
            return _Norm(None, None, 0.0)
        return _Norm(self._at(norm.weight), self._at(norm.bias), norm.eps)

    def _at(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._kept.append(tensor.detach().contiguous())
        return self._kept[-1].data_ptr()


def most_fused_rows(layer: LayerProducts) -> int:
    """Return the largest number of rows for which `FusedLayer` is faster; 0 where this machine cannot run it."""
    (width, inner), library = layer.contract.shape, kernels.library()
    if library is None or not fits(width, inner, layer.heads):
        return 0
    if layer.expand.kind == "fp32":
        return MOST_FUSED_AVX if library.columns() == kernels.AVX_COLUMNS else MOST_FUSED
    if not (library.multiplies_bytes() if layer.expand.kind == "int8" else library.multiplies_halves()):
        return 0
    return MOST_FUSED_AMX if torch.cpu._is_amx_tile_supported() else sys.maxsize


def fits(width: int, inner: int, heads: int) -> bool:
    """Return whether the C++ files compute layers of these widths D and I."""
    columns = kernels.library().columns()
    return width // heads in kernels.HEADS and width % columns == 0 and inner % columns == 0
