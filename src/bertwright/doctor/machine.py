"""machine, software → findings: cores, instructions, memory, matrix rates, GPUs, disk, extras, compiler.

Each check is a function of numbers that were read or measured. So tests can describe a machine that they do not run on.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, requires
from itertools import takewhile
from pathlib import Path
from typing import Final

import torch

from bertwright.doctor.findings import Finding
from bertwright.model.config import SIZES, size_config
from bertwright.pretraining.resources import estimate_memory, size_text
from bertwright.pretraining.settings import PretrainSettings
from bertwright.training.hardware import (
    DTYPES,
    Precision,
    has_bf16,
    measure_peak_flops,
    prepare_processor,
    usable_cores,
)
from bertwright.training.memory import limit_bytes, processor_quota, total_bytes, usable_bytes
from bertwright.version import package_version

SHAPES: Final = {
    "square": (1024, 1024, 1024),
    "feed-forward, base": (1024, 768, 3072),
    "feed-forward, tiny": (8192, 128, 512),
    "vocabulary, tiny": (640, 128, 30522),
}
"""Products [n, k] x [k, m] that are timed: the one by which --precision auto chooses, and the largest of an encoder."""
_SLOW_CORE: Final = 5e9
"""FLOP/s in fp32. Every core with AVX2 is several times faster."""
_LITTLE_DISK: Final = 2 << 30
_VOCABULARY: Final = 30522
_INSTRUCTIONS: Final = {
    "AVX2": {"avx2"},
    "AVX-512": {"avx512f", "avx512_f"},
    "VNNI": {"avx512_vnni", "avx_vnni"},
    "AVX-512 bf16": {"avx512_bf16"},
    "AMX bf16": {"amx_bf16"},
    "NEON": {"asimd"},
    "SVE": {"sve"},
    "ARM bf16": {"bf16"},
}
"""Name of an instruction set → the flags by which operating systems list it."""
_FOR_DEVELOPERS: Final = ("dev", "docs", "bench")
_COMPILE_SECONDS: Final = 120
_COMPILED: Final = """
import time, torch
rows = torch.linspace(-1, 1, 128).view(8, 16)
plain = lambda rows: torch.nn.functional.gelu(rows @ rows.T).sum(1)
start = time.perf_counter()
compiled = torch.compile(plain)(rows)
seconds = time.perf_counter() - start
torch.testing.assert_close(compiled, plain(rows))
print(seconds)
"""
"""Program that tests the compiler in a process of its own: it compiles one small function and compares the results."""
_finding = partial(Finding, "machine")
_software_finding = partial(Finding, "software")


def machine_findings(*, quick: bool) -> Iterator[Finding]:
    """Yield the findings about this machine; `quick` leaves out the measurements."""
    yield cores(usable_cores(), processor_quota())
    name, flags = read_processor()
    yield processor(name, flags)
    yield memory(total_bytes(), usable_bytes(), limit=limit_bytes())
    if not quick:
        prepare_processor()
        torch.set_num_threads(usable_cores())
        kinds: tuple[Precision, ...] = ("fp32", "bf16") if has_bf16() else ("fp32",)
        yield speed({kind: _rates(kind) for kind in kinds}, usable_cores())
    if torch.cuda.device_count():
        yield gpu([_device(index) for index in range(torch.cuda.device_count())])
    for label, folder in (("disk, here", Path.cwd()), ("disk, temporary", Path(tempfile.gettempdir()))):
        yield disk(label, folder, free=shutil.disk_usage(folder).free)


def cores(affinity: int, quota: float | None) -> Finding:
    """Return the number of usable cores; a warning where a control group's quota is below it."""
    value = {"cores": affinity, "quota": quota}
    text = f"{_many(affinity, 'core')} can be used"
    if quota is None or quota >= affinity:
        return _finding("cores", "ok", value, f"{text}, and no quota is below that")
    text += f", but a control group grants the time of {quota:g}: the system stops further threads again and again"
    threads = max(1, int(quota))
    advice = f"give --threads {threads} (and OMP_NUM_THREADS={threads}), or raise the quota"
    return _finding("cores", "warning", value, text, advice)


def processor(name: str, flags: frozenset[str]) -> Finding:
    """Return the processor and its vector instructions; a warning where it has neither AVX2 nor NEON.

    name, flags: as the operating system lists them.
    """
    present = [instruction for instruction, spellings in _INSTRUCTIONS.items() if spellings & flags]
    text = f"{name}: {', '.join(present) or 'no known vector instructions'}; torch uses its {_torch_kernels()} kernels"
    value = {"name": name, "instructions": present}
    if {"AVX2", "NEON"} & set(present):
        return _finding("processor", "ok", value, text)
    text += "; without AVX2 products run many times slower than on processors of the last ten years"
    advice = "use another machine, or another processor type for the virtual one"
    return _finding("processor", "warning", value, text, advice)


def memory(total: int | None, usable: int | None, *, limit: int | None) -> Finding:
    """Return the usable memory, and the largest size that can be pre-trained in it with the paper's settings.

    total, usable, limit: bytes; None where the system does not report them, or sets no limit.
    """
    value: dict[str, int | str | None] = {"total": total, "usable": usable, "limit": limit}
    if usable is None:
        advice = "watch the memory of the first steps; pretrain --plan prints the memory that a run needs"
        return _finding("memory", "note", value, "available memory unknown", advice)
    fits = list(takewhile(lambda name: _needed(name) < usable, SIZES))
    value["largest_size"] = fits[-1] if fits else None
    limited = f", a control group's limit is {size_text(limit)}" if limit and total and limit < total else ""
    of_total = f" of {size_text(total)}" if total else ""
    text = f"{size_text(usable)}{of_total} can be used{limited}"
    if fits:
        return _finding("memory", "ok", value, f"{text}: enough to pre-train {fits[-1]} with the paper's settings")
    text += f": too little to pre-train even tiny with the paper's settings ({size_text(_needed('tiny'))})"
    advice = "end other processes, raise the limit, or give a smaller --micro-tokens and a smaller vocabulary"
    return _finding("memory", "warning", value, text, advice)


def speed(rates: Mapping[Precision, Mapping[str, float]], threads: int) -> Finding:
    """Return the FLOP/s of matrix products, by precision and shape; a warning where they are very slow."""
    by_precision = (
        f"{kind} " + ", ".join(f"{rate / 1e9:,.0f} ({shape})" for shape, rate in by_shape.items())
        for kind, by_shape in rates.items()
    )
    text = f"GFLOP/s: {'; '.join(by_precision)}"
    if max(rates["fp32"].values()) >= threads * _SLOW_CORE:
        return _finding("matrix rates", "ok", rates, text)
    text += f": under {_SLOW_CORE / 1e9:.0f} for each of {_many(threads, 'core')}"
    advice = (
        "look for other processes on these cores (top), a quota, or a virtual machine that hides vector instructions"
    )
    return _finding("matrix rates", "warning", rates, text, advice)


def gpu(devices: Sequence[tuple[str, int]]) -> Finding:
    """Return the GPUs that torch sees: (name, bytes of memory) each."""
    text = ", ".join(f"{name} with {size_text(size)}" for name, size in devices)
    advice = "commands that have the option --device compute there with --device cuda"
    return _finding("gpu", "note", [list(device) for device in devices], text, advice)


def disk(name: str, folder: Path, *, free: int) -> Finding:
    """Return the free bytes of a folder; a warning under 2 GiB."""
    text = f"{size_text(free)} free in {folder}"
    if free >= _LITTLE_DISK:
        return _finding(name, "ok", free, text)
    advice = "make room, or work elsewhere (TMPDIR names the temporary folder); a run that fills the disk stops"
    return _finding(name, "warning", free, f"{text}: less than {size_text(_LITTLE_DISK)}", advice)


def read_processor() -> tuple[str, frozenset[str]]:
    """Return the processor's model and flags, from /proc/cpuinfo; on other systems the flags that torch reveals."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        kernels = {"AVX2": {"avx2"}, "AVX512": {"avx2", "avx512f"}}.get(_torch_kernels(), set[str]())
        is_arm = platform.machine() in ("arm64", "aarch64")
        return platform.processor() or platform.machine(), frozenset({"asimd"} if is_arm else kernels)
    pairs = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = pairs.get("model name") or platform.processor() or platform.machine()
    return name, frozenset((pairs.get("flags") or pairs.get("Features") or "").split())


def _torch_kernels() -> str:
    return str(torch.backends.cpu.get_cpu_capability())


def _rates(kind: Precision) -> dict[str, float]:
    return {name: measure_peak_flops([DTYPES[kind]], shape, repeats=3)[0] for name, shape in SHAPES.items()}


def _device(index: int) -> tuple[str, int]:
    properties = torch.cuda.get_device_properties(index)
    return str(properties.name), int(properties.total_memory)


def _needed(size: str) -> int:
    """Return the peak bytes of pre-training a size with the paper's settings, this process included."""
    settings = PretrainSettings(size=size, steps=1)
    return estimate_memory(settings, size_config(size, _VOCABULARY), precision="fp32").peak


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def software_findings(*, quick: bool) -> Iterator[Finding]:
    """Yield the findings about installed software; `quick` looks for a C++ compiler and does not run it."""
    yield extras(_requirements())
    yield compiler(compiler_name()) if quick else compiling()


def extras(requirements: Sequence[str] | None) -> Finding:
    """Return the extras that are installed and those that are missing.

    requirements: lines "NAME…; extra == 'EXTRA'" of the package's metadata; None where bertwright is not installed.
    """
    if requirements is None:
        advice = "pip install -e FOLDER, or 'make setup', where a command says that an extra is missing"
        return _software_finding("extras", "note", None, "bertwright is not installed: its extras are unknown", advice)
    parts: dict[str, list[str]] = {}
    for line in requirements:
        name, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name and extra and extra[1] not in _FOR_DEVELOPERS:
            parts.setdefault(extra[1], []).append(name[0])
    absent = {extra: [name for name in names if not package_version(name)] for extra, names in parts.items()}
    installed = [extra for extra, names in absent.items() if not names]
    missing = [extra for extra, names in absent.items() if names]
    value = {"installed": installed, "missing": missing}
    text = f"installed: {', '.join(installed) or 'none'}"
    if not missing:
        return _software_finding("extras", "ok", value, text)
    advice = f"install those that you need: pip install 'bertwright[{','.join(missing)}]'"
    return _software_finding("extras", "note", value, f"{text}; missing: {', '.join(missing)}", advice)


def compiler_name() -> str:
    """Return the compiler that torch.compile calls: $CXX, or the system's usual one."""
    return os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")


def compiler(name: str) -> Finding:
    """Return the path of the C++ compiler; a warning where there is none."""
    path = shutil.which(name)
    if path:
        return _software_finding("compiler", "ok", path, path)
    text = f"there is no {name}: models run uncompiled, with the same results, only slower"
    advice = "install one (Debian: apt-get install g++), or name it in CXX"
    return _software_finding("compiler", "warning", None, text, advice)


def compiling() -> Finding:
    """Return the seconds of a first torch.compile; a warning where it fails or gives wrong numbers."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        command = [sys.executable, "-c", _COMPILED]
        try:
            done = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_COMPILE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return _not_compiled(f"not finished after {_COMPILE_SECONDS} s")
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Invalid\w*)\b", line)]
        return _not_compiled((errors or lines or [f"exit code {done.returncode}"])[-1][:200])
    seconds = float(done.stdout.split()[-1])
    text = f"torch.compile works: {seconds:.1f} s for the first small function"
    return _software_finding("compiling", "ok", seconds, text)


def _not_compiled(reason: str) -> Finding:
    advice = (
        "nothing: runs go on uncompiled, with the same results but slower; or install a C++ compiler with its headers"
    )
    return _software_finding("compiling", "warning", None, f"torch.compile fails: {reason}", advice)


def _requirements() -> list[str] | None:
    try:
        return requires("bertwright") or []
    except PackageNotFoundError:
        return None
