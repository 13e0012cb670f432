"""model → a copy for inference with packed layers, and how fast these are here."""

import copy
import functools
import time
from collections.abc import Callable
from typing import Final, Literal, TypeVar

import torch
from torch import Tensor, nn

from bertwright.model.config import EncoderConfig
from bertwright.model.cpu import kernels
from bertwright.model.cpu.encoder import PackedEncoder, PackedLayer
from bertwright.model.cpu.layers import fits
from bertwright.model.cpu.modern_encoder import PackedModernEncoder, PackedModernLayer, RowsOfTexts, RowView
from bertwright.model.cpu.products import HalfProduct, Int8Product, Kind, PackedProduct, Product
from bertwright.model.encoder import Encoder, EncoderLayer
from bertwright.model.modern_config import ModernBertConfig
from bertwright.model.modern_encoder import ModernEncoder, ModernLayer, turns

Model = TypeVar("Model", bound=nn.Module)
_MEASURED: Final = 256
"""Number of tokens with which `layer_rates` measures."""


def packed_copy(model: Model, precision: Kind) -> Model:
    """Return a copy of `model` for inference, whose `encoder` is a packed one; it shares all other weights.

    The encoder must have packed layers, see `EncoderConfig.has_packed_layers`. In bf16 it must fit, see
    `multiplies_halves`.
    """
    shared = {id(weight): weight for weight in model.parameters()}
    copied = copy.deepcopy(model, shared)
    products: dict[Kind, type[Product]] = {"fp32": PackedProduct, "bf16": HalfProduct, "int8": Int8Product}
    with torch.inference_mode():
        copied.register_module("encoder", _packed_encoder(copied.get_submodule("encoder"), products[precision]))
    return copied.eval()


def _packed_encoder(encoder: nn.Module, product: type[Product]) -> PackedEncoder | PackedModernEncoder:
    if isinstance(encoder, ModernEncoder):
        return PackedModernEncoder(encoder, product)
    assert isinstance(encoder, Encoder)
    assert encoder.config.has_packed_layers
    return PackedEncoder(encoder, product)


def multiplies_halves(config: EncoderConfig) -> bool:
    """Return True where packed layers in bf16 are the faster way: with AMX, the plain ones of torch are."""
    return kernels.has_half_products() and fits(config.hidden, config.intermediate, config.heads)


@functools.lru_cache(maxsize=64)
def layer_rates(config: EncoderConfig) -> dict[Literal["fp32", "bf16"], float]:
    """Return the number of packed layers of these widths that are computed in a second, in fp32 and in bf16.

    A layer has one text of `_MEASURED` tokens; the fastest of four calls counts. See `multiplies_halves`. A process
    measures a configuration once, so that a model that is opened again has the same precision.
    """
    seconds: dict[Literal["fp32", "bf16"], list[float]] = {"fp32": [], "bf16": []}
    with torch.inference_mode():
        calls = {"fp32": _call_of_layer(config, PackedProduct), "bf16": _call_of_layer(config, HalfProduct)}
        for _ in range(5):
            for kind, times in seconds.items():
                start = time.perf_counter()
                calls[kind]()
                times.append(time.perf_counter() - start)
    return {kind: 1 / min(times[1:]) for kind, times in seconds.items()}  # the first call prepares the weights


def _call_of_layer(config: EncoderConfig, product: type[Product]) -> Callable[[], Tensor]:
    """Return a function that computes a packed layer of zeros for one text of `_MEASURED` tokens."""
    with torch.device("meta"):  # no random numbers are drawn, so that those of the process stay the same
        empty = ModernLayer(config, 1) if isinstance(config, ModernBertConfig) else EncoderLayer(config)
    layer = empty.eval().to_empty(device="cpu").float().requires_grad_(False)
    for weight in layer.parameters():
        weight.zero_()
    states = torch.ones(_MEASURED, config.hidden, dtype=torch.float32, device="cpu")
    begins = torch.tensor([0, _MEASURED])
    if not isinstance(layer, ModernLayer):
        return functools.partial(PackedLayer(layer, product), states, begins)
    turn = turns(_MEASURED, config.hidden // config.heads, 10_000.0, device=states.device)
    texts = RowsOfTexts(begins, torch.arange(_MEASURED))
    return functools.partial(PackedModernLayer(layer, product), states, RowView(turn, None), texts)
