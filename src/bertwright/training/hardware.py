"""Device, threads and precision of a process: measured once before step 0, and written into run.json."""

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
from bertwright.model.cpu import kernels
from bertwright.portable import num_cores
from bertwright.training.settings import Device
from bertwright.training.waiting import watch_cores

Precision = Literal["fp32", "bf16"]
CPU: Final = torch.device("cpu")
DTYPES: Final[dict[Precision, torch.dtype]] = {"fp32": torch.float32, "bf16": torch.bfloat16}
BF16_GAIN = 1.2
"""Factor by which bf16 products must be faster than fp32 products for `auto` to choose bf16."""
_ENOUGH = 0.5
"""Seconds after which a product is not timed again: without bf16 instructions a bf16 product takes up to 2 s."""
_Value = TypeVar("_Value")


def resolve_device(device: Device) -> torch.device:
    """Return the processor, or the GPU of this process: the one with its LOCAL_RANK.

    Sets a GPU up for reproducible bits and for fp32 without TF32. Raises InputError where there is no GPU for this
    process.
    """
    if device == "cpu":
        return CPU
    if device == "mps":
        return _apple_gpu()
    if not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "no driver, or no GPU"
        raise InputError(f"--device cuda: torch finds no GPU ({why}); --device cpu computes on the processors")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.allow_tf32 = False
    index, num_gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if num_gpus == 1 and "CUDA_VISIBLE_DEVICES" in os.environ:  # the launcher made one GPU visible to each process
        index = 0
    if index >= num_gpus:
        processes = os.environ.get("LOCAL_WORLD_SIZE", "several")
        raise InputError(
            f"--device cuda: expected a GPU for each process, got {processes} processes and {num_gpus} GPU(s); "
            f"--nproc-per-node {num_gpus} starts as many processes"
        )
    return torch.device("cuda", index)


def _apple_gpu() -> torch.device:
    if not torch.backends.mps.is_available():
        raise InputError("--device mps: torch finds no Apple GPU; --device cpu computes on the processors")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("--device mps: an Apple GPU serves one process; start the command without torchrun")
    return torch.device("mps")


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work, before a clock is read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def module_device(module: nn.Module) -> torch.device:
    """Return the device of a module's parameters; the processor where it has none."""
    return next((parameter.device for parameter in module.parameters()), CPU)


def move_to_device(value: _Value, device: torch.device) -> _Value:
    """Return a tensor, or a dataclass with tensors in its fields, on `device`; nothing is copied that is there."""
    if isinstance(value, Tensor):
        return cast(_Value, value.to(device))
    if is_dataclass(value) and not isinstance(value, type):
        parts: dict[str, Any] = {
            field.name: move_to_device(getattr(value, field.name), device) for field in fields(value)
        }
        return replace(value, **parts)
    return value


class Numerics(Settings):
    """Resolved choices that decide the bits of a run, and the peak FLOP/s by which its MFU is computed."""

    precision: Precision
    compiled: bool = False
    threads: Positive
    peak_flops: float
    """FLOP/s of the fastest matrix product measured here in this precision; of one GPU with `cuda`."""
    processor: str = ""
    """Instruction set by which torch chooses kernels, or the GPU, and torch's version; these decide the bits."""
    compiled_steps: bool = False
    """True for a model that has steps in fp32 which a C++ compiler builds; see `for_model`."""
    device: Device = "cpu"

    def share_threads(self, *, before: int, now: int) -> "Numerics":
        """Return the numerics for `now` processes in place of `before`: the same threads in all, at least one each."""
        return self.model_copy(update={"threads": max(1, self.threads * before // now)})

    @property
    def matches_machine(self) -> bool:
        """Return whether this machine's processor and torch give the same bits."""
        return self.processor == _processor(self.device, self.precision, compiled_steps=self.compiled_steps)

    def for_model(self, *, compiled_steps: bool) -> "Numerics":
        """Return the numerics of this machine for a model that has such steps in fp32, or has none."""
        processor = _processor(self.device, self.precision, compiled_steps=compiled_steps)
        return self.model_copy(update={"compiled_steps": compiled_steps, "processor": processor})

    def on_machine(self, measured: "Numerics") -> "Numerics":
        """Return the numerics with the processor and the peak FLOP/s of `measured`, to resume on another machine."""
        return self.model_copy(update={"processor": measured.processor, "peak_flops": measured.peak_flops})


def prepare_processor() -> None:
    """Prepare this process for computing: keep freed memory, and let threads sleep sooner beside other programs."""
    _keep_memory()
    watch_cores()


def _keep_memory() -> None:
    """Let the C allocator keep freed memory: page faults tripled the time of some kernels."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            mmap_threshold, trim_threshold = -3, -1
            libc.mallopt(mmap_threshold, 1 << 30)
            libc.mallopt(trim_threshold, (1 << 31) - 1)


def resolve_numerics(
    precision: Literal["auto", "fp32", "bf16"] = "auto", *, threads: int | None = None, device: Device = "cpu"
) -> Numerics:
    """Measure the machine, resolve precision and threads, and set torch's threads.

    Raises InputError without that device, and for bf16 on an Apple GPU.
    """
    if device == "mps" and precision == "bf16":
        raise InputError("--precision bf16 needs --device cpu or cuda; with --device mps use fp32")
    torch.set_num_threads(threads or usable_cores())
    rates = square_rates(device, precision)
    if precision == "auto":
        precision = choose_precision(rates, device=device)
    return Numerics(
        precision=precision,
        threads=torch.get_num_threads(),
        peak_flops=rates[precision],
        processor=_processor(device, precision),
        device=device,
    )


def square_rates(device: Device = "cpu", precision: Literal["auto", "fp32", "bf16"] = "auto") -> dict[Precision, float]:
    """Return {precision: FLOP/s} of square matrix products, large enough for the device.

    With `auto`: fp32, and bf16 where the device has instructions for it. Raises InputError without that device.
    """
    torch_device, size = resolve_device(device), 1024 if device == "cpu" else 4096
    precisions: tuple[Precision, ...] = ("fp32", "bf16") if has_bf16(device) else ("fp32",)
    if precision != "auto":
        precisions = (precision,)
    rates = measure_peak_flops([DTYPES[name] for name in precisions], (size, size, size), device=torch_device)
    return dict(zip(precisions, rates, strict=True))


def usable_cores() -> int:
    """Return the number of cores for this process, which is the default number of threads.

    OMP_NUM_THREADS limits it. Processes that torchrun started on one machine divide the cores among them; the variable
    does not count there, since torchrun sets it to 1 by default.
    """
    cores = num_cores()
    if "LOCAL_WORLD_SIZE" in os.environ:
        return max(1, cores // int(os.environ["LOCAL_WORLD_SIZE"]))
    limit = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(cores, max(1, int(limit))) if limit.isdecimal() else cores


def choose_precision(rates: Mapping[Precision, float], *, device: Device = "cpu") -> Precision:
    """Return the precision that `auto` stands for, given FLOP/s of square matrix products."""
    return "bf16" if has_bf16(device) and rates.get("bf16", 0.0) > BF16_GAIN * rates["fp32"] else "fp32"


def has_bf16(device: Device = "cpu") -> bool:
    """Return whether the device has instructions for bf16; on a busy machine a measurement alone can be wrong."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device == "mps":  # bf16 was never tried there
        return False
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def apply_numerics(numerics: Numerics) -> None:
    """Set device, threads and deterministic algorithms of this process, at the start of a run and when it is resumed.

    Raises InputError without the device, and where the run was started on another kind of processor or with another
    version of torch.
    """
    device = resolve_device(numerics.device)
    if not numerics.matches_machine:
        raise InputError(
            f"--resume: the run was started with {numerics.processor}, this machine has "
            f"{_processor(numerics.device, numerics.precision, compiled_steps=numerics.compiled_steps)}: "
            "results would differ in their bits; --allow-other-numerics resumes nevertheless"
        )
    prepare_processor()
    if numerics.device == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(numerics.threads)
    # Some operations of Apple GPUs have no deterministic form: torch warns there, and the bits of a run may differ.
    torch.use_deterministic_algorithms(True, warn_only=numerics.device == "mps")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # filling each new tensor is for debugging, and slow


def _processor(device: Device, precision: Precision, *, compiled_steps: bool = False) -> str:
    if device == "cuda":
        return f"{torch.cuda.get_device_name(resolve_device(device))}, torch {torch.__version__}"
    if device == "mps":
        return f"Apple GPU, macOS {platform.mac_ver()[0]}, torch {torch.__version__}"
    # The steps of model/cpu/training_kernels.cpp round differently from torch's. In bf16 all systems have some.
    steps = ""
    if precision == "bf16" and not kernels.library():
        steps = ", no C++ compiler"
    elif precision == "bf16" and kernels.has_half_products():
        steps = ", attention and Muon in one pass"
    elif precision == "fp32" and compiled_steps and kernels.library():
        steps = ", compiled steps"
    return f"{torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}{steps}"


def measure_peak_flops(
    dtypes: Sequence[torch.dtype], shape: tuple[int, int, int], *, repeats: int = 7, device: torch.device = CPU
) -> list[float]:
    """Return the best FLOP/s of a matrix product [n, k] x [k, m] for each dtype; `shape` is (n, k, m).

    The dtypes take turns, so that other work on the machine slows all of them. A slow product is repeated less often.
    """
    rows, inner, columns = shape
    pairs = [
        (torch.ones(rows, inner, dtype=dtype, device=device), torch.ones(inner, columns, dtype=dtype, device=device))
        for dtype in dtypes
    ]
    seconds: list[list[float]] = [[] for _ in dtypes]
    for _ in range(repeats):
        for pair, times in zip(pairs, seconds, strict=True):
            if sum(times) < _ENOUGH:
                times.append(_product_seconds(*pair, device))
    return [2.0 * rows * inner * columns / min(times) for times in seconds]


def _product_seconds(left: Tensor, right: Tensor, device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    torch.mm(left, right)
    synchronize(device)
    return time.perf_counter() - start
