"""A layer over few rows → the same in one call of `rows.cpp`: there, calling a library costs as much as the products.

Reading the weights decides how long few rows take, so they are packed in the order in which they are read, when the
first few rows come.

Shapes: B batch, T tokens, Q query rows, D hidden, K inner and W outer width of a product.
"""

import ctypes
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from bertwright.model import rows

if TYPE_CHECKING:
    from bertwright.model.quick import Int8Product, PackedProduct, QuickLayer

FEW: Final = {"fp32": 64, "int8": 256}
"""Rows up to which this is faster than a product after the other (docs/performance.md)."""
_COLUMNS: Final = 32
"""Outputs that are computed together."""
_PRODUCTS: Final = ("query", "key_value", "output", "expand", "contract")


class _Product(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("inner", "width")),
        *((name, ctypes.c_void_p) for name in ("weights", "lost", "steps", "bias")),
    )


class _Norm(ctypes.Structure):
    _fields_ = (("gain", ctypes.c_void_p), ("shift", ctypes.c_void_p), ("epsilon", ctypes.c_float))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("heads", "with_tanh")),
        *((name, _Product) for name in _PRODUCTS),
        *((name, _Norm) for name in ("attention", "out")),
    )


class FewRows:
    """One layer, packed."""

    def __init__(self, layer: "QuickLayer") -> None:
        self._kept: list[Tensor] = []
        """What the pointers point at."""
        self.layer = _Layer(
            heads=layer.heads,
            with_tanh=layer.approximate == "tanh",
            **{name: self._product(getattr(layer, name)) for name in _PRODUCTS},
            attention=self._norm(layer.attention_norm),
            out=self._norm(layer.output_norm),
        )

    def __call__(self, hidden: Tensor, keep: Tensor, asked: Tensor) -> Tensor:
        """[B, T, D], and the rows that are asked for [B, Q, D] (`hidden` itself for all) → [B, Q, D]."""
        (batch, tokens, width), some = hidden.shape, asked.shape[0] * asked.shape[1]
        hidden, wide = hidden.contiguous(), self.layer.expand.width
        asked = hidden if asked.data_ptr() == hidden.data_ptr() and asked.shape == hidden.shape else asked.contiguous()
        kept = keep.expand(batch, 1, 1, tokens).contiguous()
        between = 2 * batch * tokens * width + some * (3 * width + wide) + max(batch * tokens, some)
        floats, out = (torch.empty(shape, dtype=torch.float32) for shape in ((between,), asked.shape))
        narrow = torch.empty(max(batch * tokens * width, some * max(width, wide)), dtype=torch.uint8)
        rows.library().layer(
            ctypes.byref(self.layer),
            *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (hidden, asked, kept, out, floats, narrow)),
            *(ctypes.c_int64(number) for number in (batch, asked.shape[1], tokens)),
            ctypes.c_int(torch.get_num_threads()),
        )
        return out

    def _product(self, product: "PackedProduct | Int8Product") -> _Product:
        weight, steps = product.unpacked()
        width, inner = weight.shape
        if steps is None:
            packed, lost = weight.view(-1, _COLUMNS, inner).permute(0, 2, 1), None
        else:
            packed = weight.view(-1, _COLUMNS, inner // 4, 4).permute(0, 2, 1, 3)
            lost = rows.MIDDLE * weight.sum(1, dtype=torch.int32)
        pointers = {"weights": packed, "lost": lost, "steps": steps, "bias": product.bias}
        return _Product(inner, width, **{name: self._at(tensor) for name, tensor in pointers.items()})

    def _norm(self, norm: nn.LayerNorm) -> _Norm:
        return _Norm(self._at(norm.weight), self._at(norm.bias), norm.eps)

    def _at(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._kept.append(tensor.detach().contiguous())
        return self._kept[-1].data_ptr()


def most_rows(layer: "QuickLayer") -> int:
    """Up to how many rows `FewRows` is the faster way for such a layer; 0 where this machine has it not."""
    wide, inner = layer.expand.shape
    if rows.library() is None or inner != rows.HEAD * layer.heads or inner % _COLUMNS or wide % _COLUMNS:
        return 0
    if layer.expand.kind == "int8" and not rows.library().multiplies_bytes():
        return 0
    return FEW[layer.expand.kind]
