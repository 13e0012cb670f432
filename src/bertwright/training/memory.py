"""What memory this process has, may have and once had, or has on its GPU: from /proc and cgroups, or from torch."""

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from bertwright.training.hardware import own_device
from bertwright.training.settings import Device

# What the control groups over this process, of version 2 and of version 1, grant: folders, and processor time.

PROC = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")


def group_folders(controller: str, proc: Path = PROC, root: Path = CGROUPS) -> Iterator[tuple[Path, bool]]:
    """The folder of each group over this process that may limit `controller`, and whether it is of version 1."""
    for controllers, path in _groups(proc):
        version_1 = controller in controllers
        if not version_1 and controllers != [""]:
            continue
        base = root / controller if version_1 else root
        here = base / path.lstrip("/")
        # In a container the path may be that of the host, and the container's own group is the root that it sees.
        for group in (here, *here.parents) if here.is_dir() else (base,):
            yield group, version_1
            if group == base:
                break


def processor_quota(proc: Path = PROC, root: Path = CGROUPS) -> float | None:
    """How many cores' worth of time this process may use; None where nothing limits it."""
    quotas = []
    for group, version_1 in group_folders("cpu", proc, root):
        if version_1:
            quota, period = number_in(group / "cpu.cfs_quota_us"), number_in(group / "cpu.cfs_period_us")
        else:
            quota, period = _pair(group / "cpu.max")
        if quota is not None and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def number_in(path: Path) -> int | None:
    """The number in a file; None where it is absent or says that there is no limit."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _pair(path: Path) -> tuple[int | None, int | None]:
    try:
        quota, period = path.read_text().split()
        return int(quota), int(period)
    except (OSError, ValueError):
        return None, None


def _groups(proc: Path) -> list[tuple[list[str], str]]:
    """(controllers, path) of each line of /proc/self/cgroup; version 2 has no controllers."""
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return []
    return [(line.split(":", 2)[1].split(","), line.split(":", 2)[2]) for line in lines if line.count(":") >= 2]


def resident_bytes(device: Device = "cpu") -> int:
    """What this process holds now; its peak where the system tells no more. On a GPU what its tensors take.

    InputError without that device; so for all of these.
    """
    if device == "cuda":
        return torch.cuda.memory_allocated(own_device(device))
    return _status("VmRSS") or peak_bytes()


def peak_bytes(device: Device = "cpu") -> int:
    """The most this process has held since it began, or since `forget_peak`."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated(own_device(device))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _status("VmHWM") or most * (1 if sys.platform == "darwin" else 1024)


def forget_peak(device: Device = "cpu") -> None:
    """Let `peak_bytes` begin anew from what is held now, where the system can."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats(own_device(device))
        return
    try:
        (PROC / "clear_refs").write_text("5")
    except OSError:
        return


def usable_bytes(device: Device = "cpu") -> int | None:
    """What this process may hold in all: its own and what is free, under the limits of its control groups; no swap.

    None where the system does not tell.
    """
    if device == "cuda":
        place = own_device(device)
        return torch.cuda.mem_get_info(place)[0] + torch.cuda.memory_reserved(place)
    free = [*_group_headrooms(), *_free_of_machine()]
    return min(free) + resident_bytes() if free else None


def total_bytes() -> int | None:
    """The machine's memory; None where the system does not tell."""
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def limit_bytes(proc: Path = PROC, root: Path = CGROUPS) -> int | None:
    """The smallest limit of the control groups over this process; None where none has one."""
    return min((limit for _, limit, _ in _group_limits(proc, root)), default=None)


def _free_of_machine() -> Iterator[int]:
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        yield 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError):
        if total := total_bytes():
            yield total - resident_bytes()


def _group_headrooms(proc: Path = PROC, root: Path = CGROUPS) -> Iterator[int]:
    """What each control group over this process leaves; page cache can be dropped."""
    for group, limit, used in _group_limits(proc, root):
        yield limit - used + _droppable(group)


def _group_limits(proc: Path = PROC, root: Path = CGROUPS) -> Iterator[tuple[Path, int, int]]:
    """(folder, limit, used) of each control group over this process that has a limit."""
    for group, version_1 in group_folders("memory", proc, root):
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version_1 else ("memory.max", "memory.current")
        limit, used = (number_in(group / name) for name in names)
        if limit is not None and used is not None:
            yield group, limit, used


def _droppable(group: Path) -> int:
    try:
        pairs = dict(line.split()[:2] for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    prefix = "total_" if "total_inactive_file" in pairs else ""  # version 1 keeps the sum over subgroups apart
    return sum(int(pairs.get(f"{prefix}{name}", 0)) for name in ("inactive_file", "active_file"))


def _status(name: str) -> int | None:
    try:
        lines = (PROC / "status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)
