"""encoder → the same encoder for answering alone: packed weights, fp32 or 8 bits, fused steps in between.

With 8 bits each weight matrix has a scale for each output, fixed; each row of activations has its own, found as it
comes. So what a row is answered with does not depend on the rows beside it. Sums and all else are fp32.

Shapes: B batch, T tokens, Q query rows, N rows of all, D hidden, H heads, K head width, W outputs.
"""

import copy
import ctypes
from typing import Final, Literal, Protocol, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.model.cpu import kernels as rows
from bertwright.model.encoder import Encoder, EncoderLayer, gather_rows

Model = TypeVar("Model", bound=nn.Module)
Narrow = tuple[Tensor, Tensor | None]
"""Rows as a product takes them, and the scale of each."""


class _Product(Protocol):
    """A weight matrix, packed once."""

    kind: Literal["fp32", "int8"]
    bias: Tensor
    shape: tuple[int, int]

    def narrow(self, wide: Tensor) -> Narrow: ...
    def activated(self, sums: Tensor, scales: Tensor | None, approximate: str) -> Narrow: ...
    def unpacked(self) -> tuple[Tensor, Tensor | None]: ...
    def __call__(self, values: Tensor) -> Tensor: ...


class PackedProduct(nn.Module):
    """fp32: oneDNN's own layout of the weight, which torch's linear layer makes anew at every call."""

    kind: Literal["fp32", "int8"] = "fp32"

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.bias, self.shape = bias.detach(), (weight.shape[0], weight.shape[1])
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)

    def narrow(self, wide: Tensor) -> Narrow:
        """As they are."""
        return wide, None

    def activated(self, sums: Tensor, scales: Tensor | None, approximate: str) -> Narrow:
        """GELU."""
        return rows.activate(sums, scales, self.bias, approximate=approximate), None

    def forward(self, values: Tensor) -> Tensor:
        """[N, D] → [N, W] without the bias."""
        found: Tensor = torch.ops.mkldnn._linear_pointwise(values, self.packed, None, "none", [], "")
        return found

    def unpacked(self) -> tuple[Tensor, None]:
        """[W, D] as it was given."""
        return self.packed.to_dense(), None


class Int8Product(nn.Module):
    """Weights of 8 bits, by oneDNN."""

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
        """8 bits, row by row."""
        return rows.quantise(wide)

    def activated(self, sums: Tensor, scales: Tensor | None, approximate: str) -> Narrow:
        """GELU, then 8 bits."""
        return rows.activate_quantise(sums, scales, self.bias, approximate=approximate)

    def forward(self, values: Tensor) -> Tensor:
        """[N, D] of 8 bits → [N, W] without the rows' scales and without the bias."""
        found: Tensor = torch.ops.onednn.qlinear_pointwise(
            values, 1.0, rows.MIDDLE, self.packed, self.scales, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return found

    def unpacked(self) -> tuple[Tensor, Tensor]:
        """[W, D], and what one step of each output is worth [W]."""
        return self.weight, self.scales


class QuickLayer(nn.Module):
    """An EncoderLayer that can only answer."""

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
        self.few, self._whole = most_rows(self), cast(FewRows | None, None)

    def forward(self, hidden: Tensor, keep: Tensor, at: Tensor | None = None) -> Tensor:
        """As EncoderLayer's: [B, T, D] → [B, T, D], or only the rows `at` [B, Q] → [B, Q, D]."""
        asked = hidden if at is None else gather_rows(hidden, at)  # [B, Q, D]
        if 0 < hidden.shape[0] * hidden.shape[1] <= self.few and keep.shape[1:3] == (1, 1):
            self._whole = self._whole or FewRows(self)
            return self._whole(hidden, keep, asked)
        every = filled_up(hidden.flatten(0, 1))
        before = every if at is None else filled_up(asked.flatten(0, 1))
        narrow, scales = self.query.narrow(every)
        key_value = _unfilled(rows.finish(self.key_value(narrow), scales, self.key_value.bias), hidden)  # [B, T, 2D]
        if at is not None:
            narrow, scales = self.query.narrow(before)
        query = _unfilled(rows.finish(self.query(narrow), scales, self.query.bias), asked)  # [B, Q, D]
        context = rows.attend(query, key_value, keep, heads=self.heads)
        narrow, scales = self.output.narrow(filled_up(context.flatten(0, 1)))
        middle = rows.add_norm(self.output(narrow), scales, self.output.bias, before, self.attention_norm)
        narrow, scales = self.expand.narrow(middle)
        narrow, scales = self.expand.activated(self.expand(narrow), scales, self.approximate)
        out = rows.add_norm(self.contract(narrow), scales, self.contract.bias, middle, self.output_norm)
        return _unfilled(out, asked)


def filled_up(given: Tensor) -> Tensor:
    """[N, D] → the same rows and then zeros, so that there are few different N; 2 % more rows on average.

    oneDNN compiles a product for each N and keeps what it compiled: half a megabyte each, part of it for ever.
    """
    count = len(given)
    step = max(8, 1 << max(0, count.bit_length() - 5))  # a sixteenth of the power of 2 below
    more = -count % step
    return F.pad(given, (0, 0, 0, more)) if more else given


def _unfilled(given: Tensor, like: Tensor) -> Tensor:
    """[N, W] → the rows of `like` [B, T, D] alone: [B, T, W]."""
    return given[: like.shape[0] * like.shape[1]].view(*like.shape[:2], given.shape[1])


def quick(model: Model, precision: Literal["fp32", "int8"]) -> Model:
    """A copy of `model`, whose `encoder` has quick layers; it shares all other weights and cannot be trained.

    The encoder looks to both sides: the rows that are asked for have the mask of all.
    """
    encoder = model.get_submodule("encoder")
    assert isinstance(encoder, Encoder)
    assert encoder.config.attends == "both"
    shared = {id(weight): weight for weight in model.parameters()}
    found = copy.deepcopy(model, shared)
    product = Int8Product if precision == "int8" else PackedProduct
    with torch.inference_mode():
        layers = nn.ModuleList(QuickLayer(layer, product) for layer in encoder.layers)  # type: ignore[arg-type]
    found.get_submodule("encoder").register_module("layers", layers)
    return found.eval()


# A layer over few rows → the same in one call of `kernels.cpp`: there, calling a library costs as much as the products.
#
# Reading the weights decides how long few rows take, so they are packed in the order in which they are read, when the
# first few rows come.
#
# Shapes: B batch, T tokens, Q query rows, D hidden, K inner and W outer width of a product.

FEW: Final = {"fp32": 64, "int8": 256}
"""Rows up to which this is faster than a product after the other (docs/performance.md)."""
_COLUMNS: Final = 32
"""Outputs that are computed together."""
_PRODUCTS: Final = ("query", "key_value", "output", "expand", "contract")


class _ProductStruct(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("inner", "width")),
        *((name, ctypes.c_void_p) for name in ("weights", "lost", "steps", "bias")),
    )


class _Norm(ctypes.Structure):
    _fields_ = (("gain", ctypes.c_void_p), ("shift", ctypes.c_void_p), ("epsilon", ctypes.c_float))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("heads", "with_tanh")),
        *((name, _ProductStruct) for name in _PRODUCTS),
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

    def _product(self, product: "PackedProduct | Int8Product") -> _ProductStruct:
        weight, steps = product.unpacked()
        width, inner = weight.shape
        if steps is None:
            packed, lost = weight.view(-1, _COLUMNS, inner).permute(0, 2, 1), None
        else:
            packed = weight.view(-1, _COLUMNS, inner // 4, 4).permute(0, 2, 1, 3)
            lost = rows.MIDDLE * weight.sum(1, dtype=torch.int32)
        pointers = {"weights": packed, "lost": lost, "steps": steps, "bias": product.bias}
        return _ProductStruct(inner, width, **{name: self._at(tensor) for name, tensor in pointers.items()})

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
