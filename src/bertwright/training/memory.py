"""What memory this process has, may have and once had: read from /proc and cgroups; other systems tell less."""

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from bertwright.training.groups import CGROUPS, PROC, group_folders, number_in


def resident_bytes() -> int:
    """What this process holds now; its peak where the system tells no more."""
    return _status("VmRSS") or peak_bytes()


def peak_bytes() -> int:
    """The most this process has held since it began, or since `forget_peak`."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _status("VmHWM") or most * (1 if sys.platform == "darwin" else 1024)


def forget_peak() -> None:
    """Let `peak_bytes` begin anew from what is held now, where the system can."""
    try:
        (PROC / "clear_refs").write_text("5")
    except OSError:
        return


def usable_bytes() -> int | None:
    """What this process may hold in all: its own and what is free, under the limits of its control groups; no swap.

    None where the system does not tell.
    """
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
