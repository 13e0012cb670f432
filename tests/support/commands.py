"""Commands run inside the test's process, or in a process of their own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main


class CaughtSettings(Exception):
    """Holds the settings that a command came to."""


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> tuple[dict[str, Any], str]:
    """Run a command with --json; return its object and its standard error."""
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == code
    captured = capsys.readouterr()
    return json.loads(captured.out.splitlines()[-1]) if captured.out else {}, captured.err


def run_bertwright(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own; `more` goes to subprocess.run."""
    command = [sys.executable, "-m", "bertwright", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)
