"""model → the same model ready for inference, in fp32, bf16 or 8 bits; and batches of rows to compute.

8 bits are used only on request.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertwright.console import PATIENCE, Status, say
from bertwright.errors import InputError
from bertwright.model.config import BackboneConfig, EncoderConfig, has_packed_layers
from bertwright.model.cpu.encoder import PackedEncoder
from bertwright.model.cpu.modern_encoder import PackedModernEncoder
from bertwright.model.cpu.packing import Model, layer_rates, multiplies_halves, packed_copy
from bertwright.model.folder import SavedModel, open_model
from bertwright.model.heads import ClassificationHead, MaskedLMHead
from bertwright.training.hardware import choose_precision, resolve_device, square_rates
from bertwright.training.settings import Device

PRECISIONS = ("auto", "fp32", "bf16", "int8")
Answering = Literal["plain", "fp32", "bf16", "int8"]
"""plain: the model as it is trained. fp32: packed products for inference; equal to plain up to 1e-5."""


@dataclass(frozen=True)
class Answerable(SavedModel):
    """A model folder with the precision and the device that inference uses."""

    answering: Answering = "plain"
    device: Device = "cpu"

    @property
    def computed(self) -> Answering:
        """Return the precision with which the model is computed: fp32 and int8 need packed layers."""
        needs_packed = self.answering in ("fp32", "int8")
        return "plain" if needs_packed and not has_packed_layers(self.config) else self.answering


def choose(precision: str, config: BackboneConfig, *, device: Device = "cpu") -> Answering:
    """Return the precision for inference, and print it. Raises InputError where `precision` is not in PRECISIONS.

    auto is bf16 where this processor or GPU multiplies bf16 faster than fp32, else fp32. Packed layers are measured
    where the model has them, else torch's products. The result is "plain" for fp32 on a GPU, and where this processor
    or torch lacks the instructions of the requested precision.
    """
    if precision not in PRECISIONS:
        raise InputError(f"--precision {precision}: allowed are {', '.join(PRECISIONS)}")
    if device != "cpu":
        return _choose_on_gpu(precision, device)
    if precision == "int8" and not multiplies_bytes():
        say("int8: this processor or torch lacks exact 8-bit products (VNNI, oneDNN); using plain fp32")
        return "plain"
    packs_fp32 = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if precision == "auto":
        rates = layer_rates(config) if packs_fp32 and _packs_halves(config) else square_rates()
        precision = choose_precision(rates)
    if precision == "fp32" and not packs_fp32:
        say("this torch lacks packed products (oneDNN); using plain fp32")
        return "plain"
    say(f"answering in {precision}")
    chosen: Answering = precision  # type: ignore[assignment]
    return chosen


def open_answering(model: str, precision: str | None, device: Device) -> SavedModel:
    """Open a model with the precision and the device of inference; precision None computes as in training."""
    saved = open_model(model)
    if precision is None and device == "cpu":
        return saved
    return answerable(saved, precision, device=device) if precision else Answerable(**vars(saved), device=device)


def answerable(saved: SavedModel, precision: str, *, device: Device = "cpu") -> Answerable:
    """Return the model with the precision of inference that `choose` returns for it."""
    return Answerable(**vars(saved), answering=choose(precision, saved.config, device=device), device=device)


def _choose_on_gpu(precision: str, device: Device) -> Answering:
    gpu = resolve_device(device)
    if precision == "int8":
        raise InputError("--precision int8 needs --device cpu; with --device cuda use fp32 or bf16")
    if precision == "bf16" and device == "mps":
        raise InputError("--precision bf16 needs --device cpu or cuda; with --device mps use fp32")
    if precision == "auto":
        precision = choose_precision(square_rates(device), device=device)
    say(f"answering in {precision} on {torch.cuda.get_device_name(gpu) if device == 'cuda' else 'the Apple GPU'}")
    return "bf16" if precision == "bf16" else "plain"


def ready(model: Model, saved: SavedModel) -> Model:
    """Return `model` in evaluation mode, in the precision and on the device of `saved`."""
    if not isinstance(saved, Answerable):
        return model.eval()
    model = model.to(resolve_device(saved.device))
    if saved.computed == "plain":
        if saved.answering == "int8":
            say(f"{saved.source}: int8 needs layers of BERT or ModernBERT that attend to both sides; using fp32")
        return model.eval()
    return (
        in_bf16(model, saved.config, device=saved.device)
        if saved.computed == "bf16"
        else packed_copy(model, saved.computed)
    )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Compute with dropout off and without gradients; at the end the model is in its earlier mode."""
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        yield
    model.train(was_training)


def padded_inputs(
    rows: Sequence[NDArray[np.int32]], first: NDArray[Any] | None = None, *, pad_id: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, segments and mask [B, T] of rows of ids, padded to the longest.

    first   [B] number of tokens in segment 0; None: all
    """
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), lengths.max()), pad_id, dtype=np.int32)
    for index, row in enumerate(rows):
        ids[index, : lengths[index]] = row
    columns = np.arange(lengths.max())
    mask = columns < lengths[:, None]
    segments = ((columns >= (lengths if first is None else first)[:, None]) & mask).astype(np.int32)
    return torch.from_numpy(ids), torch.from_numpy(segments), torch.from_numpy(mask)


def in_bf16(model: Model, config: BackboneConfig, *, device: Device = "cpu") -> Model:
    """Return the model in bf16, with the last layer of a task's head in fp32; `model` itself may be changed.

    Where `multiplies_halves`, layers are packed, and of the rest only a masked-LM model is converted: the heads
    of tasks are small.
    """
    encoder = None
    if device == "cpu" and _packs_halves(config):
        model = packed_copy(model, "bf16")
        if not any(isinstance(part, MaskedLMHead) for part in model.modules()):
            return model
        encoder = cast(PackedEncoder | PackedModernEncoder, model.get_submodule("encoder"))
        encoder.dtype = torch.bfloat16
        model.register_module("encoder", None)  # its states between the products stay fp32
        for table in encoder.word_embeddings():
            table.bfloat16()
    heads = [part for part in model.modules() if isinstance(part, ClassificationHead)]
    exact = [{name: tensor.clone() for name, tensor in head.state_dict().items()} for head in heads]
    converted: nn.Module = model.bfloat16()
    for head, weights in zip(heads, exact, strict=True):
        head.float().load_state_dict(weights)
    if encoder is not None:
        converted.register_module("encoder", encoder)
    return converted.eval()  # type: ignore[return-value]


def _packs_halves(config: BackboneConfig) -> TypeGuard[EncoderConfig]:
    """Return whether a model in bf16 is computed with packed layers on this processor."""
    return has_packed_layers(config) and multiplies_halves(config)


def multiplies_bytes() -> bool:
    """Return whether products of 8 bits are exact: without VNNI, x86 sums pairs in 16 bits, which overflow."""
    return torch.cpu._is_vnni_supported() and hasattr(torch.ops.onednn, "qlinear_pointwise")


ANSWERED_TOKENS = 8192
"""Number of tokens per batch of inference, padding included."""


def batches_by_length(lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the row numbers of each batch, longest rows first, with about ANSWERED_TOKENS tokens per batch.

    `lengths` [N] are all above 0; a batch is as wide as its first row.
    """
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    while begin < len(order):
        count = max(1, ANSWERED_TOKENS // int(lengths[order[begin]]))
        yield order[begin : begin + count]
        begin += count


def answered_batches(lengths: NDArray[np.int64], what: str = "rows answered") -> Iterator[NDArray[np.int64]]:
    """Yield `batches_by_length`, and show progress after two seconds.

    what   end of the progress line, such as "rows answered"
    """
    done, total = 0, int(lengths.sum())
    with Status(ends=False, patience=PATIENCE) as status:
        for rows in batches_by_length(lengths):
            yield rows
            done += int(lengths[rows].sum())
            status.update(f"{done / total:.0%} of {len(lengths):,} {what} · {status.remaining(done / total)} left")
