"""Differences between operating systems. tests/support/windows.py says how far Linux can play Windows."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bertwright import portable
from bertwright.errors import RunFailed
from bertwright.experiments.spec import Arm, Experiment
from bertwright.experiments.tables import arms
from bertwright.leftovers import is_leftover_name, temporary
from bertwright.pretraining.settings import RECIPES
from bertwright.registry import find
from bertwright.tasks.spec import TaskSpec
from tests.support import windows

SUPPORT = Path(windows.__file__).parent


def test_here_signals_and_processors_are_those_of_this_system() -> None:
    assert portable.IS_POSIX
    assert portable.END_SIGNALS == (signal.SIGTERM, signal.SIGHUP)
    assert portable.num_cores() == len(os.sched_getaffinity(0))


def test_files_are_written_replaced_locked_and_removed_by_the_rules_of_windows(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    command = [sys.executable, str(SUPPORT / "windows_files.py"), str(tmp_path / "work")]
    done = subprocess.run(
        command, env=windows.environment(tmp_path / "play"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_rename_waits_for_a_scanner_and_gives_up_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [PermissionError(13, "in use")] * 2
    rename = os.replace

    def replace(source: Path, target: Path) -> None:
        if faults:
            raise faults.pop()
        rename(source, target)

    monkeypatch.setattr(portable, "IS_POSIX", False)
    monkeypatch.setattr(portable, "_PAUSES", (0.0, 0.0))
    monkeypatch.setattr(os, "replace", replace)
    (tmp_path / "new").write_text("new")
    portable.replace_path(tmp_path / "new", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "new"
    faults = [PermissionError(13, "in use")] * 3
    with pytest.raises(RunFailed, match=r"out: cannot be written \(in use\): a program has this file or folder open"):
        portable.replace_path(tmp_path / "out", tmp_path / "out")


@pytest.mark.parametrize("name", ["a:b", "a?", "con", "NUL.txt", "a.", 'a"b', "a|b", "a\\b", "tab\t"])
def test_names_that_windows_refuses_are_noticed(name: str) -> None:
    assert windows.windows_fault(f"run/{name}/x") == name
    assert windows.windows_fault("run/.lock/model.safetensors") is None


def test_windows_accepts_the_names_that_are_made_of_other_names(tmp_path: Path) -> None:
    named = [arm.name for arm in vars(arms).values() if isinstance(arm, Arm)]
    names = {*named, *find("bertwright.experiments.tables", Experiment), *find("bertwright.tasks", TaskSpec), *RECIPES}
    assert len(named) > 3
    assert not [name for name in names if windows.windows_fault(name)]
    with temporary(tmp_path / "out") as path:
        assert is_leftover_name(f"{path.name}.lock")
        assert windows.windows_fault(path.name) is None
