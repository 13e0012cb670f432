"""Memory of this process: in use, at its peak and usable, by /proc, control groups or psutil; on a GPU by torch."""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import torch

from bertwright.portable import IS_POSIX
from bertwright.training.hardware import resolve_device
from bertwright.training.settings import Device

PROC = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_HAS_PSUTIL: Final = find_spec("psutil") is not None
"""True where psutil is installed, which macOS and Windows need, since they have no /proc."""


def group_folders(controller: str, proc: Path = PROC, root: Path = CGROUPS) -> Iterator[tuple[Path, bool]]:
    """Yield (folder, whether it is version 1) of each control group over this process that may limit `controller`."""
    for controllers, path in _groups(proc):
        version_1 = controller in controllers
        if not version_1 and controllers != [""]:
            continue
        base = root / controller if version_1 else root
        start = base / path.lstrip("/")
        # In a container the path may be the host's; the container's own group is then the root of its file system.
        for group in (start, *start.parents) if start.is_dir() else (base,):
            yield group, version_1
            if group == base:
                break


def processor_quota(proc: Path = PROC, root: Path = CGROUPS) -> float | None:
    """Return the processor time that control groups grant this process, in cores; None without a limit."""
    quotas = []
    for group, version_1 in group_folders("cpu", proc, root):
        if version_1:
            quota, period = read_number(group / "cpu.cfs_quota_us"), read_number(group / "cpu.cfs_period_us")
        else:
            quota, period = _pair(group / "cpu.max")
        if quota is not None and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def read_number(path: Path) -> int | None:
    """Return the number in a file; None where the file is absent or holds no number, which means no limit."""
    try:
        return int(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _pair(path: Path) -> tuple[int | None, int | None]:
    try:
        quota, period = path.read_text("utf-8").split()
        return int(quota), int(period)
    except (OSError, ValueError):
        return None, None


def _groups(proc: Path) -> list[tuple[list[str], str]]:
    """Return (controllers, path) of each line of /proc/self/cgroup; the line of version 2 has no controllers."""
    try:
        lines = (proc / "cgroup").read_text("utf-8").splitlines()
    except OSError:
        return []
    return [(line.split(":", 2)[1].split(","), line.split(":", 2)[2]) for line in lines if line.count(":") >= 2]


def resident_bytes(device: Device = "cpu") -> int:
    """Return the bytes in use now, or the peak where the system has no other figure; on a GPU those of its tensors.

    Raises InputError without that device, as all functions below do.
    """
    if device == "cuda":
        return torch.cuda.memory_allocated(resolve_device(device))
    if device == "mps":
        return torch.mps.current_allocated_memory()
    return _status_bytes("VmRSS") or (_psutil_bytes("rss") if _HAS_PSUTIL else peak_bytes())


def peak_bytes(device: Device = "cpu") -> int:
    """Return the peak of the bytes in use since the process started, or since `reset_peak`."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated(resolve_device(device))
    if device == "mps":  # torch keeps what was freed, so that this hardly falls
        return torch.mps.driver_allocated_memory()
    return _status_bytes("VmHWM") or _peak_without_proc()


def _peak_without_proc() -> int:
    if not IS_POSIX:
        return _psutil_bytes("peak_wset")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def reset_peak(device: Device = "cpu") -> None:
    """Reset `peak_bytes` to the bytes in use now, where the system can."""
    if device == "cuda":
        torch.cuda.init()  # without it, torch refuses the device before the first tensor is there
        torch.cuda.reset_peak_memory_stats(resolve_device(device))
        return
    if device == "mps":
        torch.mps.empty_cache()
        return
    try:
        (PROC / "clear_refs").write_text("5", "ascii")
    except OSError:
        return


def usable_bytes(device: Device = "cpu") -> int | None:
    """Return the bytes that this process may use in all: those in use and those that are free, without swap.

    Limits of control groups count. None where they are unknown.
    """
    if device == "cuda":
        gpu = resolve_device(device)
        return torch.cuda.mem_get_info(gpu)[0] + torch.cuda.memory_reserved(gpu)
    if device == "mps":
        return torch.mps.recommended_max_memory()
    free = [*_group_headrooms(), *_machine_free_bytes()]
    return min(free) + resident_bytes() if free else None


def total_bytes() -> int | None:
    """Return the bytes of the machine's memory; None where they are unknown."""
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _machine_bytes("total") if _HAS_PSUTIL else None


def limit_bytes(proc: Path = PROC, root: Path = CGROUPS) -> int | None:
    """Return the smallest limit in bytes of the control groups over this process; None without a limit."""
    return min((limit for _, limit, _ in _group_limits(proc, root)), default=None)


def _machine_free_bytes() -> Iterator[int]:
    """Yield the free bytes of the machine; nothing where they are unknown."""
    try:
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text("utf-8").splitlines())
        yield 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError):
        if _HAS_PSUTIL:
            yield _machine_bytes("available")
        elif total := total_bytes():
            yield total - resident_bytes()


def _group_headrooms(proc: Path = PROC, root: Path = CGROUPS) -> Iterator[int]:
    """Yield the bytes that each control group leaves, the page cache included, which can be dropped."""
    for group, limit, used in _group_limits(proc, root):
        yield limit - used + _cache_bytes(group)


def _group_limits(proc: Path = PROC, root: Path = CGROUPS) -> Iterator[tuple[Path, int, int]]:
    """Yield (folder, limit, used bytes) of each control group over this process that has a limit."""
    for group, version_1 in group_folders("memory", proc, root):
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version_1 else ("memory.max", "memory.current")
        limit, used = (read_number(group / name) for name in names)
        if limit is not None and used is not None:
            yield group, limit, used


def _cache_bytes(group: Path) -> int:
    try:
        pairs = dict(line.split()[:2] for line in (group / "memory.stat").read_text("utf-8").splitlines())
    except (OSError, ValueError):
        return 0
    prefix = "total_" if "total_inactive_file" in pairs else ""  # version 1 keeps the sum over subgroups apart
    return sum(int(pairs.get(f"{prefix}{name}", 0)) for name in ("inactive_file", "active_file"))


def _psutil_bytes(name: str) -> int:
    """Return a number of psutil about the memory of this process."""
    import psutil

    return int(getattr(psutil.Process().memory_info(), name))


def _machine_bytes(name: str) -> int:
    """Return a number of psutil about the memory of the machine."""
    import psutil

    return int(getattr(psutil.virtual_memory(), name))


def _status_bytes(name: str) -> int | None:
    try:
        lines = (PROC / "status").read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)
