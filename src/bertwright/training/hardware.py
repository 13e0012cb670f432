"""What the machine at hand is good at, measured once before step 0 and written into run.json."""

import ctypes
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from bertwright.config import Positive, Settings
from bertwright.errors import InputError
from bertwright.training.settings import Device

# batch, module → where they are computed: the processors, or one GPU of the machine for each process.

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


Precision = Literal["fp32", "bf16"]
KINDS: Final[dict[Precision, torch.dtype]] = {"fp32": torch.float32, "bf16": torch.bfloat16}
BF16_GAIN = 1.2
"""bf16 is chosen where its matrix products are at least this much faster than fp32's."""
_ENOUGH = 0.5
"""Seconds after which a product is not timed again: without instructions for bf16 a single one may take 2 s."""


class Numerics(Settings):
    """Resolved choices that decide the bits of a run, and the rate its speed is compared with."""

    precision: Precision
    compiled: bool = False
    threads: Positive
    peak_flops: float
    """Best fp32 or bf16 matrix product measured here, in FLOP/s; of one GPU where one is used."""
    processor: str = ""
    """What torch's kernels are chosen by (AVX512, say, or the GPU) and torch's version: other ones give other bits."""
    device: Device = "cpu"

    def shared(self, *, before: int, now: int) -> "Numerics":
        """For a run that had `before` processes and has `now`: the same threads in all, one each at least."""
        return self.model_copy(update={"threads": max(1, self.threads * before // now)})

    @property
    def is_here(self) -> bool:
        """Whether this processor and this torch give the same bits."""
        return self.processor == _processor(self.device)

    def moved_to(self, measured: "Numerics") -> "Numerics":
        """What a run goes on with on another processor, or another torch, of which `measured` tells."""
        return self.model_copy(update={"processor": measured.processor, "peak_flops": measured.peak_flops})


def keep_memory() -> None:
    """Let the C allocator keep freed memory: faulting pages in again and again tripled some kernels' time."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            mmap_threshold, trim_threshold = -3, -1
            libc.mallopt(mmap_threshold, 1 << 30)
            libc.mallopt(trim_threshold, (1 << 31) - 1)


def resolve_numerics(
    precision: Literal["auto", "fp32", "bf16"] = "auto", *, threads: int | None = None, device: Device = "cpu"
) -> Numerics:
    """Measure the machine, settle what was left open and set torch up accordingly. InputError without that device."""
    torch.set_num_threads(threads or usable_cores())
    rates = square_rates(device, precision)
    if precision == "auto":
        precision = choose_precision(rates, device=device)
    return Numerics(
        precision=precision,
        threads=torch.get_num_threads(),
        peak_flops=rates[precision],
        processor=_processor(device),
        device=device,
    )


def square_rates(device: Device = "cpu", asked: Literal["auto", "fp32", "bf16"] = "auto") -> dict[Precision, float]:
    """FLOP/s of square matrix products, large enough for the device. InputError without it.

    Of what is asked alone; for auto of fp32, and of bf16 where that may be the faster.
    """
    place, size = own_device(device), 1024 if device == "cpu" else 4096
    wanted: tuple[Precision, ...] = ("fp32", "bf16") if has_bf16(device) else ("fp32",)
    if asked != "auto":
        wanted = (asked,)
    rates = measure_peak_flops([KINDS[name] for name in wanted], (size, size, size), place=place)
    return dict(zip(wanted, rates, strict=True))


def usable_cores() -> int:
    """Cores that this process may run on: how many threads it uses where nobody says otherwise.

    They are at most what OMP_NUM_THREADS says. Processes that torchrun started on one machine share the cores; there
    the variable does not count, as torchrun sets it to 1 where nobody did.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if "LOCAL_WORLD_SIZE" in os.environ:
        return max(1, cores // int(os.environ["LOCAL_WORLD_SIZE"]))
    wished = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(cores, max(1, int(wished))) if wished.isdecimal() else cores


def choose_precision(rates: Mapping[Precision, float], *, device: Device = "cpu") -> Precision:
    """What `auto` means where these are the rates of square matrix products."""
    return "bf16" if has_bf16(device) and rates.get("bf16", 0.0) > BF16_GAIN * rates["fp32"] else "fp32"


def has_bf16(device: Device = "cpu") -> bool:
    """Whether bf16 may be the faster at all: on a busy machine a measurement alone can be wrong."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def apply_numerics(numerics: Numerics) -> None:
    """Set this process up as `numerics` says: at the start of a run, and again when it is resumed.

    InputError where the run was begun on another kind of processor or with another torch, and without the device that
    it is computed on.
    """
    place = own_device(numerics.device)
    if not numerics.is_here:
        raise InputError(
            f"this run was begun with {numerics.processor}, here is {_processor(numerics.device)}: its bits would "
            "differ from an undisturbed run's; --allow-other-numerics goes on all the same"
        )
    keep_memory()
    if numerics.device == "cuda":
        torch.cuda.set_device(place)
    torch.set_num_threads(numerics.threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # filling each new tensor is for debugging, and slow


def _processor(device: Device) -> str:
    if device == "cuda":
        return f"{torch.cuda.get_device_name(own_device(device))}, torch {torch.__version__}"
    return f"{torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def measure_peak_flops(
    kinds: Sequence[torch.dtype], shape: tuple[int, int, int], *, repeats: int = 7, place: torch.device = CPU
) -> list[float]:
    """Best rate of a matrix product [n, k] x [k, m] in each of the kinds, in FLOP/s, `shape` being n, k, m.

    They take turns, so that what else the machine does for a moment slows all of them; a slow one is repeated less.
    """
    rows, inner, columns = shape
    pairs = [
        (torch.ones(rows, inner, dtype=kind, device=place), torch.ones(inner, columns, dtype=kind, device=place))
        for kind in kinds
    ]
    times: list[list[float]] = [[] for _ in kinds]
    for _ in range(repeats):
        for pair, own in zip(pairs, times, strict=True):
            if sum(own) < _ENOUGH:
                own.append(_seconds(*pair, place))
    return [2.0 * rows * inner * columns / min(own) for own in times]


def _seconds(left: torch.Tensor, right: torch.Tensor, place: torch.device) -> float:
    """Of one product."""
    finish(place)
    start = time.perf_counter()
    torch.mm(left, right)
    finish(place)
    return time.perf_counter() - start
