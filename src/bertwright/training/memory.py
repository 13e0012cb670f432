"""What memory this process has, may have and once had: read from /proc and cgroups; other systems tell less."""

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc/self")
_CGROUPS = Path("/sys/fs/cgroup")


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
        (_PROC / "clear_refs").write_text("5")
    except OSError:
        return


def usable_bytes() -> int | None:
    """What this process may hold in all: its own and what is free, under the limits of its control groups; no swap.

    None where the system does not tell.
    """
    free = [*_group_headrooms(), *_free_of_machine()]
    return min(free) + resident_bytes() if free else None


def _free_of_machine() -> Iterator[int]:
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        yield 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError):
        if "SC_PHYS_PAGES" in os.sysconf_names:
            yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") - resident_bytes()


def _group_headrooms(proc: Path = _PROC, root: Path = _CGROUPS) -> Iterator[int]:
    """What each control group over this process leaves, of version 2 and of version 1; page cache can be dropped."""
    for controllers, path in _groups(proc):
        version_1 = "memory" in controllers
        if not version_1 and controllers != [""]:
            continue
        base = root / "memory" if version_1 else root
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version_1 else ("memory.max", "memory.current")
        here = base / path.lstrip("/")
        # In a container the path may be that of the host, and the container's own group is the root that it sees.
        for group in (here, *here.parents) if here.is_dir() else (base,):
            limit, used = (_number(group / name) for name in names)
            if limit is not None and used is not None:
                yield limit - used + _droppable(group)
            if group == base:
                break


def _groups(proc: Path) -> list[tuple[list[str], str]]:
    """(controllers, path) of each line of /proc/self/cgroup; version 2 has no controllers."""
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return []
    return [(line.split(":", 2)[1].split(","), line.split(":", 2)[2]) for line in lines if line.count(":") >= 2]


def _droppable(group: Path) -> int:
    try:
        pairs = dict(line.split()[:2] for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    prefix = "total_" if "total_inactive_file" in pairs else ""  # version 1 keeps the sum over subgroups apart
    return sum(int(pairs.get(f"{prefix}{name}", 0)) for name in ("inactive_file", "active_file"))


def _number(path: Path) -> int | None:
    """The number in a file; None where it is absent or says that there is no limit."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _status(name: str) -> int | None:
    try:
        lines = (_PROC / "status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)
