"""What the control groups over this process, of version 2 and of version 1, grant: folders, and processor time."""

from collections.abc import Iterator
from pathlib import Path

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
