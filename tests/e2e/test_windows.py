"""The main job without what Windows lacks; tests/support/windows.py says how far Linux can play Windows."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import windows, windows_chain


@pytest.mark.slow
def test_every_module_is_imported_and_the_main_job_is_done(tmp_path: Path) -> None:
    variables = windows.environment(tmp_path / "play")
    command = [sys.executable, windows_chain.__file__, str(tmp_path / "work")]
    (tmp_path / "work").mkdir()
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, encoding="cp1252", errors="replace", check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
