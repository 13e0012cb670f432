"""batch, module → where they are computed: the processors, or one GPU of the machine for each process."""

import os
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from bertwright.errors import InputError

Device = Literal["cpu", "cuda"]
CPU: Final = torch.device("cpu")
Found = TypeVar("Found")


def own_device(device: Device) -> torch.device:
    """The processors, or the GPU of this process: by its number among those that torchrun started on this machine.

    A GPU is set up, before anything is computed there, for the same bits each time and for fp32 where it is asked for.
    InputError where there is no GPU, or none for it.
    """
    if device == "cpu":
        return CPU
    if not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "no driver, or no GPU"
        raise InputError(f"--device cuda: torch sees no GPU here ({why}); --device cpu computes on the processors")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.allow_tf32 = False
    number, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if there == 1 and "CUDA_VISIBLE_DEVICES" in os.environ:  # the launcher shows each process its own alone
        number = 0
    if number >= there:
        processes = os.environ.get("LOCAL_WORLD_SIZE", "several")
        raise InputError(
            f"--device cuda: {processes} processes on a machine with {there} GPU(s); each has one of its own "
            f"(--nproc-per-node {there})"
        )
    return torch.device("cuda", number)


def finish(place: torch.device) -> None:
    """Wait until a GPU has done what it was given; clocks are read after that."""
    if place.type == "cuda":
        torch.cuda.synchronize(place)


def place_of(module: nn.Module) -> torch.device:
    """Where a module's parameters are; one without any computes on the processors."""
    return next((parameter.device for parameter in module.parameters()), CPU)


def moved(value: Found, device: torch.device) -> Found:
    """A tensor, or a dataclass with such among its fields, on that device; what is there already is not copied."""
    if isinstance(value, Tensor):
        return cast(Found, value.to(device))
    if is_dataclass(value) and not isinstance(value, type):
        parts: dict[str, Any] = {field.name: moved(getattr(value, field.name), device) for field in fields(value)}
        return replace(value, **parts)
    return value
