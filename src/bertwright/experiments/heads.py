"""pre-trained model → the same model without one of its attention heads, or with that of another model.

A removed head has no values and no output. The gradients of both are then zero, so fine-tuning keeps it removed. A
transplanted head is that of a second model: its queries, keys, values and output.
"""

from pathlib import Path

import torch
from torch import Tensor

from bertwright.errors import InputError
from bertwright.experiments.spec import HeadChange
from bertwright.model.attention_init import matching_head
from bertwright.model.config import EncoderConfig, has_bert_blocks
from bertwright.model.folder import SavedModel, open_model, save_model


def change_head(change: HeadChange, models: list[str], out: Path) -> None:
    """Write the first model, with a changed head, into the model folder `out`.

    models: one model, and for `transplanted` the model that the head is taken from. Raises InputError where these two
    differ in shape, or where a model has no head that the start `matching` could have made.
    """
    first, *others = [open_model(model) for model in models]
    config = _config(first)
    layer, head = matching_head(config)
    weights = dict(first.weights or {})
    if change == "transplanted":
        (donor,) = others
        if _config(donor) != config:
            raise InputError(f"{donor.source}: expected a model of the same shape as {first.source}")
        for name, index in _parts(config, layer, head, of="qkv"):
            weights[name] = weights[name].index_copy(*index, (donor.weights or {})[name].index_select(*index))
    else:
        removed = head if change == "matching-removed" else (head + 1) % config.heads
        for name, index in _parts(config, layer, removed, of="v"):
            weights[name] = weights[name].index_fill(*index, 0.0)
    save_model(out, weights, config=config, tokenizer=first.tokenizer, architecture=first.architecture)


def _config(saved: SavedModel) -> EncoderConfig:
    """Return the configuration of a Transformer encoder with a layer for the head and with another head beside it."""
    config = saved.config
    if not has_bert_blocks(config) or config.layers <= matching_head(config)[0] or config.heads < 2:
        raise InputError(f"{saved.source}: expected a Transformer encoder with two layers and two heads or more")
    return config


def _parts(config: EncoderConfig, layer: int, head: int, *, of: str) -> list[tuple[str, tuple[int, Tensor]]]:
    """Return (name of a weight, dimension and indices of its part) of a head: maps of its input, and its output.

    of: maps of the input, of `q`, `k` and `v`. Queries, keys and values are one matrix [3D, D], in which each head has
    D / heads rows of each; the output is a matrix [D, D], in which it has as many columns.
    """
    width = config.hidden // config.heads
    within = torch.arange(head * width, (head + 1) * width)
    rows = torch.cat([position * config.hidden + within for position, name in enumerate("qkv") if name in of])
    prefix = f"encoder.layers.{layer}.attention."
    return [
        (f"{prefix}qkv.weight", (0, rows)),
        (f"{prefix}qkv.bias", (0, rows)),
        (f"{prefix}output.weight", (1, within)),
    ]
