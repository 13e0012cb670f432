"""Usable memory and processor time, from control groups of both versions."""

import mmap
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertwright.training import memory
from bertwright.training.memory import (
    _group_headrooms,
    limit_bytes,
    peak_bytes,
    processor_quota,
    reset_peak,
    resident_bytes,
    total_bytes,
    usable_bytes,
)


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
    assert limit_bytes(tmp_path / "proc", tmp_path / "fs") == 1000


def test_version_1_and_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cgroup").write_text("4:memory:/docker/abc\n3:cpuset:/\n")
    group(tmp_path / "fs" / "memory", "4096", 1024, cache=24, version_1=True)
    assert list(_group_headrooms(tmp_path / "proc", tmp_path / "fs")) == [4096 - 1024 + 24]


def test_no_control_groups_limit_nothing(tmp_path: Path) -> None:
    assert list(_group_headrooms(tmp_path / "absent", tmp_path)) == []
    assert limit_bytes(tmp_path / "absent", tmp_path) is None
    assert processor_quota(tmp_path / "absent", tmp_path) is None


@pytest.mark.parametrize(
    ("outer", "inner", "quota"),
    [("max 100000", "max 100000", None), ("400000 100000", "max 100000", 4.0), ("400000 100000", "150000 100000", 1.5)],
)
def test_the_tightest_quota_of_version_2_counts(tmp_path: Path, outer: str, inner: str, quota: float | None) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cgroup").write_text("0::/jobs/mine\n")
    mine = tmp_path / "fs" / "jobs" / "mine"
    mine.mkdir(parents=True)
    (mine / "cpu.max").write_text(f"{inner}\n")
    (mine.parent / "cpu.max").write_text(f"{outer}\n")
    assert processor_quota(tmp_path / "proc", tmp_path / "fs") == quota


@pytest.mark.parametrize(("written", "quota"), [("-1", None), ("250000", 2.5)])
def test_the_quota_of_version_1(tmp_path: Path, written: str, quota: float | None) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cgroup").write_text("4:cpu,cpuacct:/docker/abc\n3:memory:/\n")
    (tmp_path / "fs" / "cpu").mkdir(parents=True)
    (tmp_path / "fs" / "cpu" / "cpu.cfs_quota_us").write_text(f"{written}\n")
    (tmp_path / "fs" / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert processor_quota(tmp_path / "proc", tmp_path / "fs") == quota


def test_the_peak_is_reset() -> None:
    with mmap.mmap(-1, 50_000_000) as big:  # given back at once, unlike memory of the C allocator
        big.write(bytes(50_000_000))
    high = peak_bytes()
    reset_peak()
    assert resident_bytes() <= peak_bytes() <= high - 20_000_000
    usable = usable_bytes()
    assert usable is None or usable > resident_bytes()


def test_without_proc_the_numbers_are_psutils(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=20, peak_wset=30))
    psutil = SimpleNamespace(Process=lambda: ours, virtual_memory=lambda: SimpleNamespace(total=1000, available=400))
    monkeypatch.setitem(sys.modules, "psutil", psutil)
    for name, value in (("PROC", tmp_path), ("_MEMINFO", tmp_path / "absent"), ("IS_POSIX", False)):
        monkeypatch.setattr(memory, name, value)
    monkeypatch.setattr(memory, "_HAS_PSUTIL", True)
    monkeypatch.setattr(memory, "_group_headrooms", lambda: [])
    monkeypatch.delattr(memory.os, "sysconf_names")
    assert (resident_bytes(), peak_bytes(), total_bytes(), usable_bytes()) == (20, 30, 1000, 420)
