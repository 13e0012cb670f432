"""encoder → encoder for inference on processors: packed weights in fp32 or 8 bits, fused steps between the products.

With 8 bits, each output of a weight matrix has a fixed scale, and each row of activations has a scale that is computed
from the row. The result of a row therefore does not depend on the other rows of the batch. Sums and all other numbers
are fp32.

A layer over few rows is a single call of `kernels.cpp`, because at this size the call of a library costs as much as the
product. Most of the time goes into reading the weights. At the first small batch they are therefore packed in the order
in which they are read.

Shapes: B batch, T tokens, Q query rows, N rows of the batch, D hidden, H heads, K inner and W outer width of a product.
"""

import copy
import ctypes
from typing import Final, Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.model.cpu import kernels
from bertwright.model.encoder import Encoder, EncoderLayer, gather_rows

Model = TypeVar("Model", bound=nn.Module)
Narrow = tuple[Tensor, Tensor | None]
"""Rows in the precision of a product, and the scale of each row (None in fp32)."""


class PackedProduct(nn.Module):
    """fp32 weights in the layout of oneDNN, which the linear layer of torch computes again at every call."""

    kind: Literal["fp32", "int8"] = "fp32"

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.bias, self.shape = bias.detach(), (weight.shape[0], weight.shape[1])
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)

    def narrow(self, wide: Tensor) -> Narrow:
        """Return the rows unchanged."""
        return wide, None

    def activated(self, sums: Tensor, scales: Tensor | None, approximate: str) -> Narrow:
        """Return GELU of the finished sums."""
        return kernels.activate(sums, scales, self.bias, approximate=approximate), None

    def forward(self, values: Tensor) -> Tensor:
        """Return the product [N, W] of rows [N, D], without the bias."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(values, self.packed, None, "none", [], "")
        return product

    def unpacked(self) -> tuple[Tensor, None]:
        """Return the weight [W, D]."""
        return self.packed.to_dense(), None


class Int8Product(nn.Module):
    """8-bit weights in the layout of oneDNN."""

    kind: Literal["fp32", "int8"] = "int8"

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.bias, self.shape = bias.detach(), (weight.shape[0], weight.shape[1])
        most = weight.detach().abs().amax(1)
        self.scales = torch.where(most > 0, most / 127, 1.0)
        self.weight = (weight.detach() / self.scales[:, None]).round().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(self.weight, None)
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)

    def narrow(self, wide: Tensor) -> Narrow:
        """Quantise each row to 8 bits."""
        return kernels.quantise(wide)

    def activated(self, sums: Tensor, scales: Tensor | None, approximate: str) -> Narrow:
        """Return GELU of the finished sums in 8 bits."""
        return kernels.activate_quantise(sums, scales, self.bias, approximate=approximate)

    def forward(self, values: Tensor) -> Tensor:
        """Return the product [N, W] of 8-bit rows [N, D], without the scales of the rows and without the bias."""
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            *(values, 1.0, kernels.MIDDLE),  # rows, their scale, and the value of 0
            *(self.packed, self.scales, self.zeros),
            *(None, 1.0, 0, torch.float32, "none", [], ""),  # sums in fp32, without a bias, and nothing fused
        )
        return product

    def unpacked(self) -> tuple[Tensor, Tensor]:
        """Return the weight [W, D] and the scale of each output [W]."""
        return self.weight, self.scales


class PackedLayer(nn.Module):
    """An EncoderLayer for inference."""

    def __init__(self, layer: EncoderLayer, product: type[PackedProduct] | type[Int8Product]) -> None:
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

    def forward(self, hidden: Tensor, keep: Tensor, at: Tensor | None = None) -> Tensor:
        """Compute `EncoderLayer.forward`: [B, T, D] → [B, T, D], or only the positions `at` [B, Q] → [B, Q, D]."""
        rows = hidden if at is None else gather_rows(hidden, at)  # [B, Q, D]
        if 0 < hidden.shape[0] * hidden.shape[1] <= self.most_fused and keep.shape[1:3] == (1, 1):
            self._fused = self._fused or FusedLayer(self)
            return self._fused(hidden, keep, rows)
        every = with_zero_rows(hidden.flatten(0, 1))
        before = every if at is None else with_zero_rows(rows.flatten(0, 1))
        narrow, scales = self.query.narrow(every)
        key_value = _unpadded(kernels.finish(self.key_value(narrow), scales, self.key_value.bias), hidden)  # [B, T, 2D]
        if at is not None:
            narrow, scales = self.query.narrow(before)
        query = _unpadded(kernels.finish(self.query(narrow), scales, self.query.bias), rows)  # [B, Q, D]
        context = kernels.attend(query, key_value, keep, heads=self.heads)
        narrow, scales = self.output.narrow(with_zero_rows(context.flatten(0, 1)))
        middle = kernels.add_norm(self.output(narrow), scales, self.output.bias, before, self.attention_norm)
        narrow, scales = self.expand.narrow(middle)
        narrow, scales = self.expand.activated(self.expand(narrow), scales, self.approximate)
        out = kernels.add_norm(self.contract(narrow), scales, self.contract.bias, middle, self.output_norm)
        return _unpadded(out, rows)


def with_zero_rows(rows: Tensor) -> Tensor:
    """Return rows [N, D] with zero rows appended, so that few different N occur; 2 % more rows on average.

    oneDNN compiles a product for each N and keeps it: half a megabyte each, a part of which is never freed.
    """
    count = len(rows)
    step = max(8, 1 << max(0, count.bit_length() - 5))  # a sixteenth of the power of 2 below
    more = -count % step
    return F.pad(rows, (0, 0, 0, more)) if more else rows


def _unpadded(rows: Tensor, like: Tensor) -> Tensor:
    """Return the rows [N, W] that belong to `like` [B, T, D], as [B, T, W]."""
    return rows[: like.shape[0] * like.shape[1]].view(*like.shape[:2], rows.shape[1])


def packed_copy(model: Model, precision: Literal["fp32", "int8"]) -> Model:
    """Return a copy of `model` for inference, whose `encoder` has packed layers; it shares all other weights.

    The encoder must attend to both sides: all query rows share the mask of the batch.
    """
    encoder = model.get_submodule("encoder")
    assert isinstance(encoder, Encoder)
    assert encoder.config.attends == "both"
    shared = {id(weight): weight for weight in model.parameters()}
    packed = copy.deepcopy(model, shared)
    product = Int8Product if precision == "int8" else PackedProduct
    with torch.inference_mode():
        layers = nn.ModuleList(PackedLayer(layer, product) for layer in encoder.layers)  # type: ignore[arg-type]
    packed.get_submodule("encoder").register_module("layers", layers)
    return packed.eval()


MOST_FUSED: Final = {"fp32": 64, "int8": 256}
"""Largest number of rows for which the fused layer is faster than separate products, with AVX-512 (docs/log.md)."""
MOST_FUSED_AVX: Final = 256
"""The same in fp32 with AVX or AVX2 (measured with AVX2)."""
_PRODUCTS: Final = ("query", "key_value", "output", "expand", "contract")


class _ProductStruct(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("inner", "width")),
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

    def __call__(self, hidden: Tensor, keep: Tensor, rows: Tensor) -> Tensor:
        """Return the layer's output [B, Q, D] at the rows [B, Q, D] of `hidden` [B, T, D]; `hidden` itself for all."""
        (batch, tokens, width), some = hidden.shape, rows.shape[0] * rows.shape[1]
        hidden, wide = hidden.contiguous(), self.layer.expand.width
        rows = hidden if rows.data_ptr() == hidden.data_ptr() and rows.shape == hidden.shape else rows.contiguous()
        kept = keep.expand(batch, 1, 1, tokens).contiguous()
        between = 2 * batch * tokens * width + some * (3 * width + wide) + max(batch * tokens, some)
        floats, out = (torch.empty(shape, dtype=torch.float32) for shape in ((between,), rows.shape))
        narrow = torch.empty(max(batch * tokens * width, some * max(width, wide)), dtype=torch.uint8)
        kernels.library().layer(
            ctypes.byref(self.layer),
            *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (hidden, rows, kept, out, floats, narrow)),
            *(ctypes.c_int64(number) for number in (batch, rows.shape[1], tokens)),
            ctypes.c_int(torch.get_num_threads()),
        )
        return out

    def _product(self, product: PackedProduct | Int8Product) -> _ProductStruct:
        weight, scales = product.unpacked()
        (width, inner), columns = weight.shape, kernels.library().columns()
        if scales is None:
            packed, offsets = weight.view(-1, columns, inner).permute(0, 2, 1), None
        else:
            packed = weight.view(-1, columns, inner // 4, 4).permute(0, 2, 1, 3)
            offsets = kernels.MIDDLE * weight.sum(1, dtype=torch.int32)
        pointers = {"weights": packed, "offsets": offsets, "column_scales": scales, "bias": product.bias}
        return _ProductStruct(inner, width, **{name: self._at(tensor) for name, tensor in pointers.items()})

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
    if library is None or inner != kernels.HEAD * layer.heads or inner % library.columns() or wide % library.columns():
        return 0
    if layer.expand.kind == "int8" and not library.multiplies_bytes():
        return 0
    return MOST_FUSED_AVX if library.columns() == kernels.AVX_COLUMNS else MOST_FUSED[layer.expand.kind]
