"""Commands run inside the test's process."""

import json
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
