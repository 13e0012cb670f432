"""The memory that may be used, from control groups of both versions."""

import mmap
from pathlib import Path

from bertwright.training.memory import _group_headrooms, forget_peak, peak_bytes, resident_bytes, usable_bytes


def group(folder: Path, limit: str, used: int, *, cache: int, version_1: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version_1 else ("memory.max", "memory.current")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    field = "total_inactive_file" if version_1 else "inactive_file"
    (folder / "memory.stat").write_text(f"anon 5\n{field} {cache}\n")


def test_every_group_over_the_process_limits_it(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cgroup").write_text("0::/jobs/mine\n")
    group(tmp_path / "fs" / "jobs", "1000", 600, cache=100)
    group(tmp_path / "fs" / "jobs" / "mine", "max", 500, cache=0)
    assert list(_group_headrooms(tmp_path / "proc", tmp_path / "fs")) == [500]


def test_version_1_and_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cgroup").write_text("4:memory:/docker/abc\n3:cpuset:/\n")
    group(tmp_path / "fs" / "memory", "4096", 1024, cache=24, version_1=True)
    assert list(_group_headrooms(tmp_path / "proc", tmp_path / "fs")) == [4096 - 1024 + 24]


def test_no_control_groups_limit_nothing(tmp_path: Path) -> None:
    assert list(_group_headrooms(tmp_path / "absent", tmp_path)) == []


def test_the_peak_begins_anew() -> None:
    with mmap.mmap(-1, 50_000_000) as big:  # given back at once, unlike memory of the C allocator
        big.write(bytes(50_000_000))
    high = peak_bytes()
    forget_peak()
    assert resident_bytes() <= peak_bytes() <= high - 20_000_000
    usable = usable_bytes()
    assert usable is None or usable > resident_bytes()
