"""Weights of a product, packed for inference on processors: in fp32, bf16 or 8 bits.

Shapes: N rows of all texts, D hidden, W outer width of a product.
"""

import functools
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from bertwright.model.cpu import kernels

Kind = Literal["fp32", "bf16", "int8"]
Narrow = tuple[Tensor, Tensor | None]
"""Rows in the precision of a product, and the scale of each row (None in fp32)."""


class PackedProduct(nn.Module):
    """fp32 weights in the layout of oneDNN, which the linear layer of torch computes again at every call."""

    kind: Kind = "fp32"

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.bias, self.shape = bias.detach(), (weight.shape[0], weight.shape[1])
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, with the weight [W, D]: oneDNN's layout cannot be copied."""
        return {**self.__dict__, "packed": self.packed.to_dense()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of `__getstate__`."""
        packed = torch.ops.mkldnn._reorder_linear_weight(state["packed"], None)
        self.__dict__.update({**state, "packed": packed})

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


class NarrowProduct(nn.Module):
    """Weights [W, D] in 8 bits or bf16, in memory once: as rows, or in the layout of `products.h` once it has them."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self._rows, self._columns = cast(Tensor | None, weight), cast(Tensor | None, None)

    @property
    def weight(self) -> Tensor:
        """The weight [W, D]; made from the other layout where that took its place."""
        rows = self._rows
        if rows is None:
            assert self._columns is not None
            rows = self._columns.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)
        return rows

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, without oneDNN's layout: it is made again, and cannot be copied."""
        return {name: value for name, value in self.__dict__.items() if name != "packed"}

    def keep_columns(self, columns: Tensor) -> None:
        """Keep the layout of `products.h` alone; another thread may read `weight` meanwhile."""
        self._columns = columns
        self._rows = None


class Int8Product(NarrowProduct):
    """8-bit weights; oneDNN's layout of them is made where it is needed."""

    kind: Kind = "int8"

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        most = weight.detach().abs().amax(1)
        scales = torch.where(most > 0, most / 127, 1.0)
        super().__init__((weight.detach() / scales[:, None]).round().to(torch.int8))
        self.bias, self.shape, self.scales = bias.detach(), (weight.shape[0], weight.shape[1]), scales
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)

    @functools.cached_property
    def packed(self) -> Tensor:
        """The weight in oneDNN's layout, made where it is needed."""
        packed: Tensor = torch.ops.onednn.qlinear_prepack(self.weight, None)
        return packed

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


class HalfProduct(NarrowProduct):
    """bf16 weights; the sums of oneDNN are rounded to bf16, those of `FusedLayer` are fp32."""

    kind: Kind = "bf16"

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__(weight.detach().bfloat16())
        self.bias, self.shape = bias.detach(), (weight.shape[0], weight.shape[1])

    @functools.cached_property
    def packed(self) -> Tensor:
        """The weight in oneDNN's layout, made where it is needed."""
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(self.weight, None)
        return packed

    def narrow(self, wide: Tensor) -> Narrow:
        """Round the rows to bf16."""
        return wide.bfloat16(), None

    def activated(self, sums: Tensor, scales: Tensor | None, approximate: str) -> Narrow:
        """Return GELU of the finished sums in bf16."""
        return kernels.activate(sums, scales, self.bias, approximate=approximate).bfloat16(), None

    def forward(self, values: Tensor) -> Tensor:
        """Return the product [N, W] of rows [N, D], without the bias."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(values, self.packed, None, "none", [], "")
        return product.float()

    def unpacked(self) -> tuple[Tensor, None]:
        """Return the weight [W, D]."""
        return self.weight, None


Product = PackedProduct | HalfProduct | Int8Product
