"""machine → findings: cores, vector instructions, memory, matrix rates, GPU, room on disk, limits of the process.

Each check is a function of what was read or measured, so that a machine can be judged that is not at hand.
"""

import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import takewhile
from pathlib import Path
from typing import Final

import torch

from bertwright.doctor.findings import Finding
from bertwright.model.config import SIZES, size_config
from bertwright.pretraining.resources import estimate_memory, size_text
from bertwright.pretraining.settings import PretrainSettings
from bertwright.training.hardware import (
    BF16_GAIN,
    DTYPES,
    Precision,
    choose_precision,
    has_bf16,
    keep_memory,
    measure_peak_flops,
    usable_cores,
)
from bertwright.training.memory import limit_bytes, processor_quota, total_bytes, usable_bytes

SHAPES: Final = {
    "square": (1024, 1024, 1024),
    "feed-forward, base": (1024, 768, 3072),
    "feed-forward, tiny": (8192, 128, 512),
    "vocabulary, tiny": (640, 128, 30522),
}
"""Products [n, k] x [k, m] that are timed: the one that `auto` judges by, and the largest of an encoder."""
_SLOW_CORE = 5e9
"""FLOP/s in fp32 that any core with AVX2 exceeds several times over."""
_LITTLE_DISK = 2 << 30
_LITTLE_SHARED = 256 << 20
_FEW_FILES = 1024
_VOCABULARY = 30522
_SHARED = Path("/dev/shm")
_finding = partial(Finding, "machine")


def machine_findings(*, quick: bool) -> Iterator[Finding]:
    """What this machine is; `quick` leaves out what computes."""
    yield cores(usable_cores(), processor_quota())
    name, flags = read_processor()
    yield _finding("processor", "ok", name, f"{name}; torch takes its {_torch_kernels()} kernels")
    yield instructions(flags)
    yield memory(total_bytes(), usable_bytes(), limit=limit_bytes())
    if not quick:
        keep_memory()
        torch.set_num_threads(usable_cores())
        rates = {kind: _rates(kind) for kind in DTYPES}
        yield speed(rates, usable_cores())
        yield precision(rates)
    yield gpu([_device(index) for index in range(torch.cuda.device_count())])
    for label, folder in (("disk, here", Path.cwd()), ("disk, temporary", Path(tempfile.gettempdir()))):
        yield disk(label, folder, free=shutil.disk_usage(folder).free)
    yield shared_memory(_SHARED, shutil.disk_usage(_SHARED)[::2] if _SHARED.is_dir() else None)
    yield open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))


def cores(affinity: int, quota: float | None) -> Finding:
    """How many cores compute, and whether a quota makes them wait."""
    value = {"cores": affinity, "quota": quota}
    if quota is None or quota >= affinity:
        return _finding("cores", "ok", value, f"{_many(affinity, 'core')} can be used, and no quota is below that")
    threads = max(1, int(quota))
    return _finding(
        "cores",
        "warning",
        value,
        f"{_many(affinity, 'core')} can be used, but a control group grants the time of {quota:g}: threads beyond that "
        "are stopped over and over",
        f"give --threads {threads} (and OMP_NUM_THREADS={threads}), or raise the quota",
    )


def instructions(flags: frozenset[str]) -> Finding:
    """The vector instructions that decide how fast a product is; `flags` as the system names them."""
    known = {
        "AVX2": {"avx2"},
        "AVX-512": {"avx512f", "avx512_f"},
        "VNNI": {"avx512_vnni", "avx_vnni"},
        "AVX-512 bf16": {"avx512_bf16"},
        "AMX bf16": {"amx_bf16"},
        "NEON": {"asimd"},
        "SVE": {"sve"},
        "ARM bf16": {"bf16"},
    }
    have = [name for name, spellings in known.items() if spellings & flags]
    text = f"{', '.join(have) or 'none that are known'}"
    if not {"AVX2", "NEON"} & set(have):
        return _finding(
            "instructions",
            "warning",
            have,
            f"{text}: no AVX2, so that products run many times slower than on processors of the last ten years",
            "use another machine, or another processor type for the virtual one",
        )
    lacking = []
    if not any(name.endswith("bf16") for name in have):
        lacking.append("bf16 (products stay in fp32; hardware for it is several times as fast)")
    if "NEON" not in have and "VNNI" not in have:
        lacking.append("VNNI (int8 gains little, and may overflow without reduced range)")
    if not lacking:
        return _finding("instructions", "ok", have, text)
    advice = "nothing is wrong; a processor that has them trains the same model in a fraction of the time"
    return _finding("instructions", "note", have, f"{text}; without {' and '.join(lacking)}", advice)


def memory(total: int | None, usable: int | None, *, limit: int | None) -> Finding:
    """What there is, and the largest size that can be pre-trained in it with the usual settings."""
    value: dict[str, int | str | None] = {"total": total, "usable": usable, "limit": limit}
    if usable is None:
        advice = "watch the memory of the first steps; --plan of pretrain tells what a run needs"
        return _finding("memory", "note", value, "the system does not tell how much can be used", advice)
    fits = list(takewhile(lambda name: _needed(name) < usable, SIZES))
    value["largest_size"] = fits[-1] if fits else None
    limited = f", a control group's limit is {size_text(limit)}" if limit and total and limit < total else ""
    whole = f" of {size_text(total)}" if total else ""
    text = f"{size_text(usable)}{whole} can be used{limited}"
    if not fits:
        return _finding(
            "memory",
            "warning",
            value,
            f"{text}: too little to pre-train even tiny with the usual settings ({size_text(_needed('tiny'))})",
            "end other processes, raise the limit, or give a smaller --micro-tokens and a smaller vocabulary",
        )
    return _finding("memory", "ok", value, f"{text}: enough to pre-train {fits[-1]} with the usual settings")


def speed(rates: Mapping[Precision, Mapping[str, float]], threads: int) -> Finding:
    """How fast matrix products are, in the shapes of an encoder."""
    text = "; ".join(
        f"{kind} " + ", ".join(f"{rate / 1e9:,.0f} ({shape})" for shape, rate in found.items())
        for kind, found in rates.items()
    )
    text = f"GFLOP/s: {text}"
    if max(rates["fp32"].values()) >= threads * _SLOW_CORE:
        return _finding("matrix rates", "ok", rates, text)
    return _finding(
        "matrix rates",
        "warning",
        rates,
        f"{text}: under {_SLOW_CORE / 1e9:.0f} for each of {_many(threads, 'core')}",
        "look for other processes on these cores (top), a quota, or a virtual machine that hides vector instructions",
    )


def precision(rates: Mapping[Precision, Mapping[str, float]]) -> Finding:
    """What --precision auto means here, and why."""
    square = {kind: found["square"] for kind, found in rates.items()}
    chosen, gain = choose_precision(square), square["bf16"] / square["fp32"]
    why = f"bf16 is {gain:.2g} times as fast as fp32, and {BF16_GAIN} times is what it takes"
    why += "" if has_bf16() else "; this processor has no instructions for it"
    return _finding("precision", "ok", {"auto": chosen, "gain": gain}, f"auto chooses {chosen}: {why}")


def gpu(devices: Sequence[tuple[str, int]]) -> Finding:
    """Graphics processors that torch sees: their names and bytes of memory."""
    if not devices:
        return _finding("gpu", "ok", [], "none; everything here runs on the processor")
    text = ", ".join(f"{name} with {size_text(size)}" for name, size in devices)
    advice = "pretrain, finetune, evaluate, predict and paper compute there with --device cuda"
    return _finding("gpu", "note", [list(device) for device in devices], text, advice)


def disk(name: str, folder: Path, *, free: int) -> Finding:
    """Room for what is written."""
    text = f"{size_text(free)} free in {folder}"
    if free >= _LITTLE_DISK:
        return _finding(name, "ok", free, text)
    advice = "make room, or work elsewhere (TMPDIR names the temporary folder); a run that fills the disk stops"
    return _finding(name, "warning", free, f"{text}: less than {size_text(_LITTLE_DISK)}", advice)


def shared_memory(folder: Path, usage: tuple[int, int] | None) -> Finding:
    """The room for memory that processes share: bytes in all and free; None where there is no such folder."""
    if usage is None:
        advice = "nothing, unless worker processes of other tools fail to share tensors"
        return _finding("shared memory", "note", None, f"there is no {folder}", advice)
    total, free = usage
    text = f"{size_text(free)} of {size_text(total)} free in {folder}"
    if free >= _LITTLE_SHARED:
        return _finding("shared memory", "ok", free, text)
    return _finding(
        "shared memory",
        "note",
        free,
        f"{text}: data loaders of torch with worker processes die of a bus error with so little",
        "nothing for the commands of this tool; for others start the container with --shm-size 1g",
    )


def open_files(soft: int, hard: int) -> Finding:
    """How many files a process may hold open: a corpus takes one for each shard."""
    value = {"soft": soft, "hard": hard}
    unlimited = soft == resource.RLIM_INFINITY
    text = "no limit" if unlimited else f"{soft:,} files at a time; a corpus takes one for each shard"
    if unlimited or soft >= _FEW_FILES:
        return _finding("open files", "ok", value, text)
    return _finding("open files", "warning", value, text, f"ulimit -n {_FEW_FILES} before a corpus of many shards")


def read_processor() -> tuple[str, frozenset[str]]:
    """The processor's model and its flags, from /proc/cpuinfo; less on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
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
    # Without instructions for bf16 each of these takes seconds, and the square one says enough.
    names = SHAPES if kind == "fp32" or has_bf16() else ("square",)
    return {name: measure_peak_flops([DTYPES[kind]], SHAPES[name], repeats=3)[0] for name in names}


def _device(index: int) -> tuple[str, int]:
    found = torch.cuda.get_device_properties(index)
    return str(found.name), int(found.total_memory)


def _needed(size: str) -> int:
    """Bytes at the peak of pre-training a size with the usual settings, this process included."""
    settings = PretrainSettings(size=size, steps=1)
    return estimate_memory(settings, size_config(size, _VOCABULARY), precision="fp32").peak


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


# software → findings: versions, extras, and whether compiled models can be made here.

PACKAGES: Final = ("torch", "tokenizers", "safetensors", "pyarrow", "numba", "transformers")
_FOR_DEVELOPERS: Final = ("dev", "docs")
_COMPILE_SECONDS = 120
_COMPILED: Final = """
import time, torch
rows = torch.linspace(-1, 1, 128).view(8, 16)
plain = lambda rows: torch.nn.functional.gelu(rows @ rows.T).sum(1)
start = time.perf_counter()
found = torch.compile(plain)(rows)
seconds = time.perf_counter() - start
torch.testing.assert_close(found, plain(rows))
print(seconds)
"""
"""What the check of the compiler runs, in a process of its own: one small function, compiled and compared."""
_software_finding = partial(Finding, "software")


def software_findings(*, quick: bool) -> Iterator[Finding]:
    """What is installed; `quick` leaves out the compiling."""
    yield versions({name: _version(name) for name in PACKAGES})
    yield extras(_requirements())
    yield compiler(compiler_name())
    if not quick:
        yield compiling()


def versions(found: Mapping[str, str | None]) -> Finding:
    """Python and the packages that decide results or are oracles."""
    value = {"python": platform.python_version(), **found}
    text = ", ".join(f"{name} {number}" for name, number in value.items() if number)
    absent = ", ".join(name for name, number in value.items() if not number)
    return _software_finding("versions", "ok", value, f"{text}; not installed: {absent}" if absent else text)


def extras(requirements: Sequence[str] | None) -> Finding:
    """Which optional parts can be used; `requirements` as the package's metadata list them, None where there are none.

    A line is "NAME…; extra == 'EXTRA'".
    """
    if requirements is None:
        advice = "pip install -e FOLDER, or 'make setup', where an extra's command says that something is missing"
        return _software_finding(
            "extras", "note", None, "run from a folder: nothing says which extras there are", advice
        )
    parts: dict[str, list[str]] = {}
    for line in requirements:
        name, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name and extra and extra[1] not in _FOR_DEVELOPERS:
            parts.setdefault(extra[1], []).append(name[0])
    missing = {extra: [name for name in names if not _version(name)] for extra, names in parts.items()}
    have = [extra for extra, names in missing.items() if not names]
    lack = [extra for extra, names in missing.items() if names]
    value = {"installed": have, "missing": lack}
    text = f"installed: {', '.join(have) or 'none'}"
    if not lack:
        return _software_finding("extras", "ok", value, text)
    advice = f"pip install 'bertwright[{','.join(lack)}]', or those of them that you need"
    return _software_finding("extras", "note", value, f"{text}; missing: {', '.join(lack)}", advice)


def compiler_name() -> str:
    """What torch.compile calls: $CXX, or the system's usual one."""
    return os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")


def compiler(name: str) -> Finding:
    """Whether the C++ compiler is there."""
    found = shutil.which(name)
    if found:
        return _software_finding("compiler", "ok", found, f"{found}")
    return _software_finding(
        "compiler",
        "warning",
        None,
        f"there is no {name}: nothing can be compiled; everything else can be done, only slower",
        "install one (Debian: apt-get install g++), or name it in CXX",
    )


def compiling() -> Finding:
    """Whether torch.compile makes a function that gives the right numbers, and how long that takes."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        command = [sys.executable, "-c", _COMPILED]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return _not_compiled(f"no end after {_COMPILE_SECONDS} s")
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        wrong = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Invalid\w*)\b", line)]
        return _not_compiled((wrong or lines or [f"exit code {done.returncode}"])[-1][:200])
    seconds = float(done.stdout.split()[-1])
    return _software_finding(
        "compiling", "ok", seconds, f"torch.compile works: {seconds:.1f} s for the first small function"
    )


def _not_compiled(why: str) -> Finding:
    return _software_finding(
        "compiling",
        "warning",
        None,
        f"torch.compile fails: {why}",
        "nothing: runs go on uncompiled, the same model, only slower; or install a C++ compiler with its headers",
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _requirements() -> list[str] | None:
    try:
        return requires("bertwright") or []
    except PackageNotFoundError:
        return None
