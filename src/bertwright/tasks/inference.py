"""model → the same model in the numbers that it is to answer in: fp32, bf16 or, where it is asked for, 8 bits."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertwright.console import Status, clock, say
from bertwright.errors import InputError
from bertwright.model.config import attends_both_ways
from bertwright.model.cpu.encoder import Model, packed_copy
from bertwright.model.folder import SavedModel
from bertwright.model.heads import ClassificationHead, NextSentenceHead, SpanHead
from bertwright.training.hardware import choose_precision, resolve_device, square_rates
from bertwright.training.settings import Device

PRECISIONS = ("auto", "fp32", "bf16", "int8")
Answering = Literal["plain", "fp32", "bf16", "int8"]
"""plain: the model as it is trained; fp32: the same numbers to 1e-5, but only for answering."""


@dataclass(frozen=True)
class Answerable(SavedModel):
    """A model folder, and what whoever opens it is to answer in and with."""

    answering: Answering = "plain"
    device: Device = "cpu"

    @property
    def computed(self) -> Answering:
        """What is really computed in: packed products are for encoders that attend both ways."""
        packs = self.answering in ("fp32", "int8")
        return "plain" if packs and not attends_both_ways(self.config) else self.answering


def choose(asked: str, *, device: Device = "cpu") -> Answering:
    """What is computed in here where `asked` is one of PRECISIONS, said aloud; InputError for another.

    auto is bf16 where this processor, or the GPU, multiplies it faster, else fp32, and never int8. What cannot be had
    here becomes the plain way; fp32 on a GPU is that.
    """
    if asked not in PRECISIONS:
        raise InputError(f"--precision {asked}: allowed are {', '.join(PRECISIONS)}")
    if device == "cuda":
        return _choose_on_gpu(asked)
    if asked == "int8" and not _multiplies_bytes():
        say("int8: no exact products of 8 bits here (VNNI and oneDNN are needed); answering in fp32, plainly")
        return "plain"
    if asked == "auto":
        asked = choose_precision(square_rates())
    if asked == "fp32" and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        say("this torch has no packed products (oneDNN); answering in fp32, plainly")
        return "plain"
    say(f"answering in {asked}")
    chosen: Answering = asked  # type: ignore[assignment]
    return chosen


def _choose_on_gpu(asked: str) -> Answering:
    place = resolve_device("cuda")
    if asked == "int8":
        raise InputError("--precision int8: is for processors; --device cuda answers in fp32 or bf16")
    if asked == "auto":
        asked = choose_precision(square_rates("cuda"), device="cuda")
    say(f"answering in {asked} on {torch.cuda.get_device_name(place)}")
    return "bf16" if asked == "bf16" else "plain"


def ready(model: Model, saved: SavedModel) -> Model:
    """`model` in evaluation mode as `saved` says; all but "plain", a folder's own way, is for answering alone."""
    if not isinstance(saved, Answerable):
        return model.eval()
    model = model.to(resolve_device(saved.device))
    if saved.computed == "plain":
        if saved.answering == "int8":
            say(f"{saved.place}: 8 bits are for encoders that attend both ways; answering in fp32")
        return model.eval()
    return _in_bf16(model) if saved.computed == "bf16" else packed_copy(model, saved.computed)


def _in_bf16(model: Model) -> Model:
    """All in bf16 but the last layer of a task's head."""
    heads = [part for part in model.modules() if isinstance(part, ClassificationHead | NextSentenceHead | SpanHead)]
    exact = [{name: tensor.clone() for name, tensor in head.state_dict().items()} for head in heads]
    found: nn.Module = model.bfloat16()
    for head, weights in zip(heads, exact, strict=True):
        head.float().load_state_dict(weights)
    return found.eval()  # type: ignore[return-value]


def _multiplies_bytes() -> bool:
    """Without VNNI, x86 adds pairs of products up in 16 bits, where large ones overflow."""
    return torch.cpu._is_vnni_supported() and hasattr(torch.ops.onednn, "qlinear_pointwise")


ANSWERED_TOKENS = 8192
"""Tokens, padding included, computed at a time where nothing is learned."""

_PATIENCE = 2.0
"""Seconds after which it is said how far an answer is."""


def batches_by_length(lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Row numbers of batches to answer, longest rows first, each of about as many tokens as are computed at a time.

    `lengths` [N] are all above 0; a batch is as wide as its first row.
    """
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    while begin < len(order):
        count = max(1, ANSWERED_TOKENS // int(lengths[order[begin]]))
        yield order[begin : begin + count]
        begin += count


def answered_batches(lengths: NDArray[np.int64], what: str = "rows answered") -> Iterator[NDArray[np.int64]]:
    """`batches_by_length`, with a word on how far it came where it takes long; `what` is done to the rows."""
    begin, done, total = time.monotonic(), 0, int(lengths.sum())
    with Status(ends=False) as status:
        for rows in batches_by_length(lengths):
            yield rows
            done += int(lengths[rows].sum())
            spent = time.monotonic() - begin
            if spent > _PATIENCE:
                left = clock(spent * (total / done - 1))
                status.update(f"{done / total:.0%} of {len(lengths):,} {what} · {left} left")
